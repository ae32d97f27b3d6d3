"""Declare: operators, ports, streams, applications. Pure. The words that an author writes are in `drainmark/api.py`."""
