"""Operators of one row at a time: conditions, functions, and texts that become columns."""
