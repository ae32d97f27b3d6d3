"""The operator library: one operator a file. A file in this folder is in the catalogue without further ado."""
