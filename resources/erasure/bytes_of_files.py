"""The search for a person in single files: in the rows of Parquet, in the bytes of all others, also compressed ones."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from drainmark.jobs.protocol.erasure import Person
from drainmark.resources.erasure.conditions import condition_of

if TYPE_CHECKING:
    import pyarrow as pa

_PARQUET = b"PAR1"
_CHUNK = 1 << 20
_OVERLAP = 4096


def is_in_rows(source: Any, person: Person) -> bool:
    """Say whether a Parquet file has rows of a person, by its columns; a bounded number of rows is in memory.

    Args:
        source: path or file object.
    """
    import pyarrow.parquet as pq

    with pq.ParquetFile(source) as file:
        where = condition_of(person, file.schema_arrow)
        if where is None:
            return False
        return any(file.read_row_group(group).filter(where).num_rows for group in range(file.num_row_groups))


def is_in_texts(source: Any, person: Person) -> bool:
    """Say whether a Parquet file has a value of a person in any text, however deep, or in any bytes."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(source) as file:
        for group in range(file.num_row_groups):
            for value in _leaves(file.read_row_group(group)):
                if person.is_in(value):
                    return True
    return False


def _leaves(rows: pa.Table) -> Iterator[bytes]:
    """Yield each row's texts and bytes, joined."""
    import pyarrow as pa

    told = [f.name for f in rows.schema if pa.types.is_nested(f.type) or _is_text(f.type)]
    for row in rows.select(told).to_pylist():
        yield b"\0".join(_flat(row))


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind))


def _flat(value: Any) -> Iterator[bytes]:
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, str):
        yield value.encode("utf-8", "surrogatepass")
    elif isinstance(value, dict):
        for part in value.values():
            yield from _flat(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _flat(part)
    elif value is not None:
        yield str(value).encode()


def is_parquet(head: bytes) -> bool:
    return head.startswith(_PARQUET)


def is_in_bytes(stream: io.BufferedIOBase | Any, person: Person) -> bool:
    """Say whether a stream of bytes holds a value of each condition of a person."""
    missing = person.patterns()
    before = b""
    while missing and (chunk := stream.read(_CHUNK)):
        text = before + chunk
        missing = [pattern for pattern in missing if not pattern.search(text)]
        before = text[-_OVERLAP:]
    return not missing


def opened(path: str) -> Any:
    """Open a file for reading, decompressed if its name or its first bytes say that it is compressed.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        head = file.read(6)
    if head.startswith(b"\x1f\x8b"):
        return gzip.open(path, "rb")
    if head.startswith(b"BZh"):
        return bz2.open(path, "rb")
    if head.startswith(b"\xfd7zXZ"):
        return lzma.open(path, "rb")
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        import pyarrow as pa

        return pa.input_stream(path, compression="zstd")
    return open(path, "rb")
