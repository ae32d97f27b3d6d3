"""Arrow's parser for good and plain CSV and text files (`csv.py`, `text.py`), several times as fast as Spark.

It takes only files that are sure to give the same rows as Spark: plain options, types whose texts both parsers read
alike, and content without ambiguity. Every other file is left to Spark. A test reads the same files both ways.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from drainmark.jobs.formats.format import Expected
from drainmark.jobs.formats.values.text_values import NotSure
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class File:
    """A good file's content in UTF-8, without its header, and the records that the inspection counted."""

    number: int
    content: bytes
    records: int


def can_parse(expected: Expected) -> bool:
    """Say whether files of this declaration are parsed here if their content allows it."""
    return expected.has_records_in_lines and expected.reads.can_parse(expected)


def file_of(number: int, content: bytes, records: int, expected: Expected) -> File | None:
    """Return a good file in the form for the parser; None if its content is not plain enough."""
    if not is_plain(content, expected):
        return None
    if expected.header is not None:
        content = _without_header(content)
    if content.startswith(codecs.BOM_UTF8):
        return None  # it is not at the file's beginning; Arrow would remove it at the beginning of a batch
    return File(number, content, records)


def is_plain(content: bytes, expected: Expected) -> bool:
    """Say whether both parsers split a good file's content into the same records and fields."""
    if b"\r" in content and content.count(b"\r") != content.count(b"\r\n"):
        return False
    if expected.header is not None and content[:1] <= b" ":
        return False  # the header may be further down
    return expected.reads.is_plain(content, expected)


def schema_of(expected: Expected) -> StructType:
    """Return the type of the parsed rows: tags, then the declared columns."""
    from pyspark.sql.types import LongType, StringType, StructType

    place = StructType().add("block", LongType()).add("row", LongType())
    schema = StructType().add(SEQUENCE_ID, LongType()).add(POSITION, place)
    for name, kind in expected.columns or (("value", StringType()),):
        schema.add(name, kind)
    return schema


def parse_files(files: Sequence[File], expected: Expected) -> tuple[pa.Table | None, dict[int, int]]:
    """Parse files together, or one by one if that fails, so that one odd file does not keep the others from Arrow.

    Returns:
        the rows, None if no file was parsed, and the number of rows of each file that was parsed.
    """
    import pyarrow as pa

    try:
        table = _rows_of(files, expected)
    except (NotSure, pa.ArrowException):
        if len(files) == 1:
            return None, {}
    else:
        # The rows of a single file are its count: the inspection may have counted an empty line.
        counts = {file.number: file.records for file in files} if len(files) > 1 else {files[0].number: table.num_rows}
        return _tagged(table, counts), counts
    alone = [parse_files([file], expected) for file in files]
    tables = [table for table, _ in alone if table is not None]
    return pa.concat_tables(tables) if tables else None, {n: rows for _, counts in alone for n, rows in counts.items()}


def parse_lines(number: int, block: int, content: bytes, records: int, expected: Expected) -> pa.Table | None:
    """Parse whole lines of a file, without its header; None if Spark might read other rows.

    Args:
        block: block number in the rows' positions.
        records: number that the inspection counted.
    """
    import pyarrow as pa

    options = {name: value for name, value in expected.options.items() if name != "header"}
    below = replace(expected, options=options)
    file = file_of(number, content, records, below)
    try:
        table = _rows_of([file], below) if file is not None else None
    except (NotSure, pa.ArrowException):
        return None
    return _tagged(table, {number: table.num_rows}, block) if table is not None else None


def _rows_of(files: Sequence[File], expected: Expected) -> Any:
    content = b"".join(_terminated(file.content) for file in files)
    table = expected.reads.parse(content, expected)
    # A file has at most as many rows as counted records. So if the sums are equal, each file's count is right.
    if len(files) > 1 and table.num_rows != sum(file.records for file in files):
        raise NotSure
    return table


def _terminated(content: bytes) -> bytes:
    return content if not content or content.endswith(b"\n") else content + b"\n"


def _without_header(content: bytes) -> bytes:
    """Return the content behind the first line; the inspection found that line, if not blank, to be the header."""
    end = content.find(b"\n")
    return content[end + 1 :] if end >= 0 else b""


def _tagged(table: pa.Table, rows_by_id: Mapping[int, int], block: int = 0) -> pa.Table:
    """Return the table with the id and the place in the file before its columns."""
    import numpy as np
    import pyarrow as pa

    counts = np.fromiter(rows_by_id.values(), np.int64)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    ids = np.repeat(np.fromiter(rows_by_id, np.int64), counts)
    places = np.arange(len(ids), dtype=np.int64) - starts
    position = pa.StructArray.from_arrays([np.full(len(ids), block, np.int64), places], names=["block", "row"])
    columns = [pa.array(ids), position, *table.columns]
    return pa.table(columns, names=[SEQUENCE_ID, POSITION, *table.column_names])


def block_size(content: bytes) -> int:
    """Return a block size that no line of the content exceeds, and that gives two cores work."""
    return max(1 << 20, len(content) // 4, _longest_line(content) + 2)


def _longest_line(content: bytes) -> int:
    window = 1 << 19
    if all(content.find(b"\n", at, at + window) >= 0 for at in range(0, len(content), window)):
        return 2 * window
    return len(content)
