"""The operator library: one operator a file. A new file is in the catalogue by itself, and its name
in `dm.` by a line of `drainmark/api.py`."""
