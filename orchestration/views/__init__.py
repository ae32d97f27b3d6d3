"""What an operator sees of a region, as values."""
