"""Merges into tables of one row a key: which rows change, and which files are marked, rewritten or folded."""
