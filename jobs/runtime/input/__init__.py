"""The input of a group: files, slices of files and slices of rows, read once."""
