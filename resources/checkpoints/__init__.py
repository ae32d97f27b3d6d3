"""The checkpoint table of a region, the tables around it, and stores of handlers' checkpoints."""
