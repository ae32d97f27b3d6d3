"""The command line: one function for each verb. Code that all verbs share is in `terminal/`.

A new verb needs its function, a line in `VERBS` of `main.py`, and examples in `terminal/options.py`.
"""
