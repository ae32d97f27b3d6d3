"""The command line: a verb a function, its words and its output."""
