"""Delta tables: the guarded commit, by which nothing is committed twice (`commits`), and all tables written by it."""
