"""Formats: how files are judged and parsed as text, CSV, JSON lines, Parquet, records of bytes."""
