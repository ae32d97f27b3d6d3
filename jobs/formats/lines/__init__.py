"""Files of lines: their content, their records, and ranges of large ones that are read by several tasks."""
