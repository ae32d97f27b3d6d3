"""Sources of rows that are given: pushed by others, or submitted by a thread, and kept while a rewind may need them."""
