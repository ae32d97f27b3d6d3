"""Operators outside of consistent regions: at most once before them, at least once after them."""
