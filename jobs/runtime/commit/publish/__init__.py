"""Publishing: what a checkpoint row names becomes visible in the tables, and sources hear of it."""
