"""What sources read: one format a file. Bytes become records, records become fields, fields become values.

Tasks and small groups read by `tasks/read_files`. What sinks write is in `resources/sinks/file_formats.py`.
"""
