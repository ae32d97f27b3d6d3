"""The log of a table: its entries, read and written, and what they say of files and their deletion vectors."""
