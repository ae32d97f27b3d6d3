"""Operators written in Python, in the process of a run."""
