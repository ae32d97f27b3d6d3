"""What an operator does to a region, as values and deeds; the words of it are in `orchestration/cli`."""
