"""Delta tables: the guarded commit, and every table that Drainmark writes by it."""
