"""Delta tables: the guarded commit, and every table that Drainmark writes by it; their upkeep and health below."""
