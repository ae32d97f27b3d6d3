"""Operators that bring rows of several inputs together: joins, lookups, barriers."""
