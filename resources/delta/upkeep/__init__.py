"""Upkeep of tables: few files, a short log, and no file that nobody needs."""
