"""Declare: operators, ports, streams, applications. Pure."""
