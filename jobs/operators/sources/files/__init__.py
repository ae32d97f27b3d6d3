"""Sources of files: folders that are scanned, and files that grow."""
