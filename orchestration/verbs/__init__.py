"""What an operator does to a region, one verb a module."""
