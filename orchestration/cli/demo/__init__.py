"""`drainmark demo`: a run that is killed and recovers before your eyes."""
