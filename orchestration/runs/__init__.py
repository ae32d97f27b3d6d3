"""Runs of a region or of an autonomous part, from preparation to the wait for more input."""
