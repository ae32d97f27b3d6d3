"""Aggregates and their windows: by event time, by rows, by sessions."""
