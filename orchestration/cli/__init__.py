"""The command line: a verb a function; what all of them have in common is in `terminal/`."""
