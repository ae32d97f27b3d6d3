"""The command line: a verb a function; what all of them have in common is in `terminal/`.

A verb is its function, its line in `VERBS` of `main.py`, and its examples in `terminal/examples.py`.
"""
