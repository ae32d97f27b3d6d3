"""Formats, one per module: how files are judged and parsed as text, CSV, JSON lines, Parquet, ORC, records of bytes.

Plain CSV (`csv.py`) and text are parsed by Arrow (called by `lines/arrow_parser`), everything else by Spark
(`runtime/input/spark_reading`). The formats that sinks write are in `resources/sinks/file_formats.py`.
"""
