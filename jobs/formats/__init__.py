"""Formats: how files are judged and parsed as text, CSV, JSON lines, Parquet, records of bytes.

Plain CSV and text are parsed by Arrow (`arrow_parser`), everything else by Spark (`runtime/input/spark_reading`).
"""
