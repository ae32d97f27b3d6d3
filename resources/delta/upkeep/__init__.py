"""Upkeep of tables: few files, a short log, and no unneeded files."""
