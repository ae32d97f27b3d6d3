"""One group: its size, its ids, its computation, staging and quarantine, and its numbers. Nothing here commits."""
