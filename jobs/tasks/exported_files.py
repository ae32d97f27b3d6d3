"""Files of sinks outside Delta, each with the rows of one sequence id: the writer, and the task that writes them.

A task reads Parquet files and streams the rows of some ids into new files, under names that no other attempt has.
The sink then moves a file to its final name (`resources/sinks/sink_files.py`).
"""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.printable import without_nan
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.tasks.executor import Facts
from drainmark.jobs.tasks.parquet_files import WrittenFile, new_name, parquet_writer
from drainmark.jobs.tasks.parquet_shares import batches_of_groups, typed
from drainmark.jobs.tasks.places import Place

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_SHARE_BYTES, _MOST_IDS = 32 * 2**20, 16
"""The bytes that one task reads, about, unless one id has more; and the most ids that one task writes files for."""

_HELD_BYTES = 32 * 2**20
"""Rows in memory are written when they have more bytes than this."""

_ROWS_AT_ONCE = 10_000
"""The number of rows that are converted to Python objects at a time."""


class RowsWriter:
    """A writer of rows as CSV, JSON, text or Parquet. `close` completes the file; the sink stays open.

    CSV has a header, empty nulls, and texts in quotes; JSON and text have one line for each row.

    Args:
        sink: takes the bytes.
        schema: of the rows.
        file_format: "csv", "json", "parquet" or "text".
    """

    def __init__(self, sink: Any, schema: pa.Schema, file_format: str) -> None:
        self._sink = sink
        self._format = file_format
        self._writer: Any = None
        if file_format == "csv":
            import pyarrow.csv

            self._writer = pyarrow.csv.CSVWriter(sink, _printable(schema))
        elif file_format == "parquet":
            self._writer = parquet_writer(sink, schema, is_shown=True)

    def write(self, rows: pa.Table) -> None:
        if self._format == "csv":
            self._writer.write_table(rows.cast(_printable(rows.schema)))
        elif self._format == "parquet":
            self._writer.write_table(rows)
        else:
            for start in range(0, rows.num_rows, _ROWS_AT_ONCE):
                part = rows.slice(start, _ROWS_AT_ONCE)
                self._sink.write("".join(f"{line}\n" for line in self._lines(part)).encode())

    def _lines(self, rows: pa.Table) -> Iterator[str]:
        if self._format == "json":
            return map(_json_of, rows.to_pylist())
        return (text or "" for text in rows.column(0).to_pylist())

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportTask:
    """The writing of a file for each id that has rows; a share is some ids.

    Attributes:
        source: the place of the files with the rows.
        files: with the rows, in the order of the rows.
        schema: columns of the rows, with `_sequence_id`, which the new files do not have.
        file_format: see `RowsWriter`.
        every_id: ids without rows get a file, too.
        place, folder: of the new files.
    """

    source: Place
    files: tuple[StagedFile, ...]
    schema: pa.Schema
    file_format: str
    every_id: bool
    place: Place
    folder: str

    def work(self, share: Sequence[int]) -> Iterator[Facts]:
        """Write the files of a share; yield the facts of each file when all of them are durable."""
        import pyarrow as pa

        content = pa.schema([field for field in self.schema if field.name != SEQUENCE_ID])
        names, writers, counts = dict[int, str](), dict[int, RowsWriter](), dict[int, int]()
        with ExitStack() as opened:

            def begin(of: int) -> RowsWriter:
                names[of] = f"{self.folder}/{new_name(self.file_format)}"
                counts[of] = 0
                sink = opened.enter_context(self.place.new_file(names[of]))
                writers[of] = RowsWriter(sink, content, self.file_format)
                opened.callback(writers[of].close)  # runs before the sink is closed
                return writers[of]

            for each, rows in self._parts(share):
                writer = writers.get(each) or begin(each)
                writer.write(rows.select(content.names))
                counts[each] += rows.num_rows
            for each in share if self.every_id else ():
                if each not in writers:
                    begin(each)
        for each, name in sorted(names.items()):
            size, mark = self.place.stamp(name)
            file = WrittenFile(
                name=name,
                size=size,
                rows=counts[each],
                footer_rows=counts[each],
                first_id=each,
                last_id=each,
                without_id=0,
                mark=mark,
            )
            yield asdict(file)

    def _parts(self, ids: Sequence[int]) -> Iterator[tuple[int, pa.Table]]:
        """Yield (id, rows) for the rows of some ids, each id's in their order; the rows in memory are bounded."""
        import pyarrow as pa

        held: dict[int, list[pa.Table]] = {}
        size = 0
        for rows in self._rows(ids):
            for number, part in _by_id(rows):
                held.setdefault(number, []).append(part)
            size += rows.nbytes
            if size > _HELD_BYTES:
                yield from ((number, pa.concat_tables(held[number])) for number in sorted(held))
                held, size = {}, 0
        yield from ((number, pa.concat_tables(held[number])) for number in sorted(held))

    def _rows(self, ids: Sequence[int]) -> Iterator[pa.Table]:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        wanted = pa.array(ids, pa.int64())
        for path in (file.path for file in self.files if file.may_hold(ids)):
            with pq.ParquetFile(self.source.opened(path)) as opened:
                groups = [n for n in range(opened.num_row_groups) if _may_hold(opened.metadata.row_group(n), ids)]
                for batch in batches_of_groups(opened, groups, self.schema):
                    rows = pa.Table.from_batches([typed(batch, self.schema)])
                    yield rows.filter(pc.is_in(rows.column(SEQUENCE_ID), wanted))


def shares_of_ids(ids: Collection[int], files: Sequence[StagedFile]) -> tuple[tuple[int, ...], ...]:
    """Return the ids of each task, about equal bytes for each. A file is assumed to have equal bytes of all its ids."""
    sizes = dict.fromkeys(ids, 0.0)
    for file in files:
        within = [number for number in sizes if file.may_hold([number])]
        for number in within:
            sizes[number] += file.size / len(within)
    shares: list[list[int]] = []
    held = 0.0
    for number in sorted(sizes):
        if not shares or held + sizes[number] > _SHARE_BYTES or len(shares[-1]) == _MOST_IDS:
            shares.append([])
            held = 0.0
        shares[-1].append(number)
        held += sizes[number]
    return tuple(map(tuple, shares))


def _by_id(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    import pyarrow.compute as pc

    numbers = pc.unique(rows.column(SEQUENCE_ID)).to_pylist()
    if len(numbers) == 1:
        yield numbers[0], rows
        return
    for number in numbers:
        yield number, rows.filter(pc.field(SEQUENCE_ID) == number)


def _may_hold(group: pq.RowGroupMetaData, ids: Collection[int]) -> bool:
    """Say whether a row group may have rows of some ids, according to its bounds."""
    for place in range(group.num_columns):
        column = group.column(place)
        if column.path_in_schema == SEQUENCE_ID:
            known = column.statistics
            return known is None or not known.has_min_max or any(known.min <= each <= known.max for each in ids)
    return True


# --- values ---------------------------------------------------------------------------------------------------------


def _printable(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a CSV file, with decimals as texts."""
    import pyarrow as pa

    return pa.schema([pa.field(each.name, pa.string()) if pa.types.is_decimal(each.type) else each for each in schema])


def _json_of(row: dict[str, Any]) -> str:
    try:
        return json.dumps(row, default=_as_json, ensure_ascii=False, allow_nan=False)
    except ValueError:  # JSON has no NaN or infinity: they become texts, as Spark writes them
        return json.dumps(without_nan(row), default=_as_json, ensure_ascii=False)


def _as_json(value: Any) -> Any:
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    msg = f"no JSON for {type(value)}"
    raise TypeError(msg)
