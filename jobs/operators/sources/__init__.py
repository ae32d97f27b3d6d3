"""Sources, one a file: tables, databases, topics; folders and files in `files/`, starts of your own in `pushed/`."""
