"""Declarations: operators, ports, streams, applications. Pure code. Its public names are in `drainmark/api.py`."""
