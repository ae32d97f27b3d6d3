"""The search for a person in files: in the rows of Parquet, in the bytes of all others, also compressed ones.

Inputs are searched as far as they lie on this machine; they are never changed. After an erasure everything that lies in
a folder is searched: what is found is in its certificate.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from drainmark.jobs.protocol.persons import Person
from drainmark.jobs.protocol.records.addresses import is_object
from drainmark.jobs.protocol.records.triggers import FILE
from drainmark.jobs.scan.folder import path_of
from drainmark.resources.erasure.conditions import condition_of
from drainmark.resources.erasure.files import content
from drainmark.resources.erasure.notes import BlockedInput
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    import pyarrow as pa

_PARQUET = b"PAR1"
_CHUNK = 1 << 20
_OVERLAP = 4096
_DAMAGED = (OSError, ValueError, EOFError, NotImplementedError, zlib.error, lzma.LZMAError)
"""What readers of compressed and of Parquet files raise."""

SURE, MAYBE, UNSEARCHED = "holds rows", "may hold rows", "not searched"


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
    missing, text, chunk = person.patterns(), b"", stream.read(_CHUNK)
    while missing and chunk:
        text, chunk = text + chunk, stream.read(_CHUNK)
        whole = text + b"_" if chunk else text  # a word that is cut is not known yet
        missing = [pattern for pattern in missing if not pattern.search(whole)]
        text = text if len(text) <= _OVERLAP else b"_" + text[-_OVERLAP:]
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


def judged(inputs: Iterable[BlockedInput], person: Person) -> Iterator[BlockedInput]:
    """Yield the inputs that hold a person, that may, or that nobody searched, with that said.

    A file of text may hold rows if it has the value somewhere; a value of some letters is sure to be the person's.
    """
    for each in inputs:
        if each.kind not in ("", FILE) or is_object(each.uri):
            yield replace(each, state=UNSEARCHED)
            continue
        path = path_of(each.uri)
        if not os.path.exists(path):
            continue
        try:
            state = _state_of(path, person)
        except _DAMAGED:
            state = UNSEARCHED
        if state:
            yield replace(each, state=state)


def _state_of(path: str, person: Person) -> str:
    with open(path, "rb") as file:
        is_table = is_parquet(file.read(4))
    if is_table:
        return SURE if is_in_rows(path, person) else ""
    with opened(path) as stream:
        if not is_in_bytes(stream, person):
            return ""
    return SURE if person.is_text else MAYBE


def places(folder: Folder, person: Person) -> Iterator[dict[str, Any]]:
    """Yield each file in which a person is found: in its rows, by the columns; in its bytes, if the values are long."""
    for entry in sorted(folder.everything(""), key=lambda entry: entry.path):
        try:
            data = content(folder, entry.path)
        except FileNotFoundError:
            continue  # a page that was written again, a log that was cut
        found = _found(data, person)
        if found:
            yield {"path": entry.path, "found": found}


def _found(data: bytes, person: Person) -> str:
    if is_parquet(data):
        import pyarrow as pa

        try:
            if is_in_rows(io.BytesIO(data), person):
                return "rows"
            if person.is_text and (is_in_texts(io.BytesIO(data), person) or is_in_bytes(io.BytesIO(data), person)):
                return "text"
        except (pa.ArrowInvalid, OSError):
            return "a file that cannot be read"
        return ""
    return "bytes" if person.is_text and is_in_bytes(io.BytesIO(data), person) else ""
