"""Sources, one a file: folders, files, tables, databases, topics, and starts written in Python."""
