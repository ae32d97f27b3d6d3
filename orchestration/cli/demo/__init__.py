"""`drainmark demo`: killed and recovered before your eyes."""
