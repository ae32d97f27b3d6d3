"""Inputs: where they are, how they are listed and read, and how they are disposed of."""
