"""Sources of rows that others push, or that a thread submits; rows are kept while a rewind may need them."""
