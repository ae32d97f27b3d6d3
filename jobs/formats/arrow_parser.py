"""How Arrow parses what is good and plain of CSV and text files (`csv.py`, `text.py`), several times as fast as Spark.

Only what is sure to come out as Spark's own rows is taken: plain options, types whose texts both parsers read alike,
and content in which nothing is open to interpretation. Every other file is left to Spark. A test reads the same files
both ways. What is parsed is materialised by that: in memory for a small group, else as Parquet in the attempt's inbox.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.formats.format import Expected
from drainmark.jobs.formats.text_values import NotSure
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

FILE_BYTES = 64 * 1024 * 1024
"""A file beyond is left to Spark, which reads it by several tasks."""

_BATCH_BYTES = 16 * 1024 * 1024
_WORKERS = 2
_WAITING = 3
_ROW_GROUP_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class File:
    """A good file's content in UTF-8, without its header, and the records that the inspection counted."""

    number: int
    content: bytes
    records: int


@dataclass(slots=True)
class Content:
    """Collects the pieces of a file, as long as they are few enough to be held."""

    pieces: list[bytes] = field(default_factory=list)
    size: int = 0

    @property
    def is_whole(self) -> bool:
        return self.size <= FILE_BYTES

    def take(self, piece: bytes) -> None:
        self.size += len(piece)
        self.pieces.append(piece)
        if not self.is_whole:
            self.pieces.clear()


@dataclass(slots=True)
class Parsed:
    """What was parsed, in no order: tables of a small group, Parquet files of a large one.

    Columns are `_sequence_id` bigint, `_position` struct<block, row> and the declared ones.

    Attributes:
        counts: rows by id, of the files that were parsed; every other file is left to Spark.
    """

    counts: dict[int, int] = field(default_factory=dict)
    tables: list[pa.Table] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


class Parser:
    """Parses the files of one output, batch by batch, beside whoever reads them; used once.

    Args:
        expected: what the files are declared to be; see `can_parse`.
        folder: for the Parquet files of a large group; None keeps the rows in memory.
    """

    def __init__(self, expected: Expected, folder: Path | None) -> None:
        self._expected = expected
        self._folder = folder
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="parse")
        self._batch: list[File] = []
        self._batches: list[Future[tuple[dict[int, int], Any]]] = []
        self._bytes = 0

    def add(self, number: int, content: bytes, records: int) -> None:
        """Take a file in, if its content is as plain as it must be."""
        if not is_plain(content, self._expected):
            return
        if self._expected.header is not None:
            content = _without_header(content)
        if content.startswith(codecs.BOM_UTF8):
            return  # one that is not at the file's beginning; Arrow would take it off at the beginning of a batch
        self._batch.append(File(number, content, records))
        self._bytes += len(content)
        if self._bytes >= _BATCH_BYTES:
            self._submit()

    def finish(self) -> Parsed:
        """Return what was parsed, whole files only."""
        if self._batch:
            self._submit()
        parsed = Parsed()
        try:
            for batch in self._batches:
                counts, rows = batch.result()
                parsed.counts.update(counts)
                if rows is not None:
                    (parsed.tables if self._folder is None else parsed.paths).append(rows)
        finally:
            self.close()
        return parsed

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _submit(self) -> None:
        waiting = [batch for batch in self._batches if not batch.done()]
        if len(waiting) >= _WAITING:  # memory: no more than this is read ahead of the parser
            waiting[0].result()
        self._batches.append(self._pool.submit(self._parse, len(self._batches), self._batch))
        self._batch, self._bytes = [], 0

    def _parse(self, place: int, files: Sequence[File]) -> tuple[dict[int, int], Any]:
        table, counts = parse_files(files, self._expected)
        if table is None or self._folder is None:
            return counts, table
        import pyarrow.parquet as pq

        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{place:06d}.parquet"
        pq.write_table(table, path, compression="lz4", row_group_size=_ROW_GROUP_ROWS, store_schema=False)
        return counts, str(path)


def can_parse(expected: Expected) -> bool:
    """Say whether files declared so are parsed here, as far as their content allows it."""
    return expected.has_records_in_lines and expected.reads.can_parse(expected)


def is_plain(content: bytes, expected: Expected) -> bool:
    """Say whether both parsers split a good file's content into the same records and fields."""
    if b"\r" in content and content.count(b"\r") != content.count(b"\r\n"):
        return False
    if expected.header is not None and content[:1] <= b" ":
        return False  # the header may be further down
    return expected.reads.is_plain(content, expected)


def schema_of(expected: Expected) -> StructType:
    """Return the type of what is parsed: tags, then the declared columns."""
    from pyspark.sql.types import LongType, StringType, StructType

    place = StructType().add("block", LongType()).add("row", LongType())
    schema = StructType().add(SEQUENCE_ID, LongType()).add(POSITION, place)
    for name, kind in expected.columns or (("value", StringType()),):
        schema.add(name, kind)
    return schema


def parse_files(files: Sequence[File], expected: Expected) -> tuple[pa.Table | None, dict[int, int]]:
    """Parse files together, and one by one where they cannot be: one odd file costs the others nothing.

    Returns:
        the rows, None for none, and the rows of each file that was parsed.
    """
    import pyarrow as pa

    try:
        table = _rows_of(files, expected)
    except (NotSure, pa.ArrowException):
        if len(files) == 1:
            return None, {}
    else:
        # Alone, a file's rows are what there is: the inspection may have counted an empty line.
        counts = {file.number: file.records for file in files} if len(files) > 1 else {files[0].number: table.num_rows}
        return _tagged(table, counts), counts
    alone = [parse_files([file], expected) for file in files]
    tables = [table for table, _ in alone if table is not None]
    return pa.concat_tables(tables) if tables else None, {n: rows for _, counts in alone for n, rows in counts.items()}


def _rows_of(files: Sequence[File], expected: Expected) -> Any:
    content = b"".join(_terminated(file.content) for file in files)
    table = expected.reads.parse(content, expected)
    # A file has at most as many rows as lines: where the sums are equal, each file's count is.
    if len(files) > 1 and table.num_rows != sum(file.records for file in files):
        raise NotSure
    return table


def _terminated(content: bytes) -> bytes:
    return content if not content or content.endswith(b"\n") else content + b"\n"


def _without_header(content: bytes) -> bytes:
    """Return what follows the first line, which the inspection knows for the header where it is not blank."""
    end = content.find(b"\n")
    return content[end + 1 :] if end >= 0 else b""


def _tagged(table: pa.Table, rows_by_id: Mapping[int, int]) -> pa.Table:
    """Put the id, and the place in the file, before the columns."""
    import numpy as np
    import pyarrow as pa

    counts = np.fromiter(rows_by_id.values(), np.int64)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    ids = np.repeat(np.fromiter(rows_by_id, np.int64), counts)
    places = np.arange(len(ids), dtype=np.int64) - starts
    position = pa.StructArray.from_arrays([np.zeros(len(ids), np.int64), places], names=["block", "row"])
    columns = [pa.array(ids), position, *table.columns]
    return pa.table(columns, names=[SEQUENCE_ID, POSITION, *table.column_names])


def block_size(content: bytes) -> int:
    """Return a size that no line of the content exceeds, and that gives both cores work."""
    return max(1 << 20, len(content) // 4, _longest_line(content) + 2)


def _longest_line(content: bytes) -> int:
    window = 1 << 19
    if all(content.find(b"\n", at, at + window) >= 0 for at in range(0, len(content), window)):
        return 2 * window
    return len(content)
