"""Formats, one a file: how files are judged and parsed as text, CSV, JSON lines, Parquet, ORC, records of bytes.

Plain CSV and text are parsed by Arrow (`lines/arrow_parser`), everything else by Spark
(`runtime/input/spark_reading`).
"""
