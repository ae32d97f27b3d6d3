"""Sinks, one a file: Delta tables, databases, files, the quarantine."""
