"""Inputs: their places, and how they are listed, read and disposed of."""
