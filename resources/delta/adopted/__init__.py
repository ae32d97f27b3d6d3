"""Adopted tables, which others made; Drainmark publishes to them through delta-spark."""
