"""Sources, one in each file: tables, databases, topics; folders and files in `files/`, your own starts in `pushed/`."""
