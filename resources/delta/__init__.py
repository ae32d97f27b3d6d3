"""Delta tables: the guarded commit (`commits`), which commits nothing twice, and all tables that use it."""
