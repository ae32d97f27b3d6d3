"""The damage that can happen to a staged file after it is written and before the commit that names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

Damage = Callable[[Path], None]


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def swap(path: Path) -> None:
    """Replace a file with another valid file of the same size, columns and rows, in reverse order."""
    table, size = pq.read_table(path).replace_schema_metadata(None), path.stat().st_size
    table = table.take(list(range(table.num_rows))[::-1])
    for padding in range(size):
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(
            sink, table.schema, compression="zstd", use_dictionary=False, write_statistics=False, store_schema=False
        ) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata({"p": "x" * padding})
        if sink.getvalue().size == size:
            path.write_bytes(sink.getvalue())
            return
    raise AssertionError(f"no file of {size} bytes")


DAMAGES: dict[str, Damage] = {"removed": remove, "cut": cut, "swapped": swap}
