"""How a file of each format is judged and parsed: text, CSV, JSON lines, Parquet, records of bytes."""
