"""The checkpoint table of a region (the one commit point, and the fence), and stores of handlers' checkpoints."""
