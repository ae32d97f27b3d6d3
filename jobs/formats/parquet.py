"""Parquet: a file is judged by its footer, and its row groups are read by Arrow."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO

from drainmark.jobs.formats.bad_records import Parsed, Refused, require_fault_of_file
from drainmark.jobs.formats.column_fit import (
    ColumnReader,
    Columns,
    Found,
    require_columns,
    short,
    spark_columns,
    with_values,
)
from drainmark.jobs.formats.format import Expected, Format, Rows
from drainmark.jobs.formats.lines.content import Readable
from drainmark.jobs.formats.parquet_pages import ParquetData, Size, bytes_in_memory
from drainmark.jobs.formats.values.stored_values import leaves_of, numbers_of, old_times_in, shown

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_BATCH_ROWS, _BATCH_BYTES = 65_536, 8 * 2**20
_WORST_BATCH_BYTES = 256 * 2**20
"""Of a batch whose rows all have the longest text: most texts of a column may be short."""


class Parquet(Format):
    """Files of rows in named and typed columns."""

    name = "parquet"
    names_columns = has_ranges = True

    def columns_in(self, file: BinaryIO, suffix: str, expected: Expected) -> Found | None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(file) as opened:
                found = _logical(opened.schema)
            if expected.columns is None:  # to declare them: a row with smaller parts of a second is bad
                found = pa.schema([field.with_type(with_values(field.type, _microseconds)) for field in found])
            return spark_columns(found)
        except (pa.ArrowException, OSError, ValueError) as error:
            require_fault_of_file(error)
            return None

    def rows_of(self, data: Readable, expected: Expected, start: int, end: int) -> Iterator[Parsed]:
        import pyarrow as pa

        columns = expected.columns or ()
        where = "is no Parquet file that can be read"
        try:
            file = ParquetData.of(data)
            # What holds for the whole file comes first: so the verdict is the same whatever the ranges.
            require_columns(_logical(file.metadata.schema), columns, others=not expected.refuses_others)
            _require_all_row_groups(file.metadata)
            sizes = bytes_in_memory(file, start, end)
            where = "has pages that cannot be read"
            yield from _rows(file, sizes, columns)
        except MemoryError:
            raise  # no fault of the file
        except (pa.ArrowException, OSError, ValueError) as error:
            require_fault_of_file(error)
            raise Refused(f"{where}: {short(error)}") from None

    def encoded(
        self, rows: Rows, columns: Sequence[str], options: Mapping[str, str], schema: Callable[[], pa.Schema]
    ) -> bytes:
        import pyarrow as pa
        import pyarrow.parquet as pq

        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema()), buffer)
        return buffer.getvalue()


def _require_all_row_groups(metadata: pq.FileMetaData) -> None:
    found = sum(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
    if found != metadata.num_rows:
        raise Refused(f"has {metadata.num_rows} rows by its footer, and {found} of them in its row groups")


def _rows(file: ParquetData, sizes: Mapping[int, Size], columns: Columns) -> Iterator[Parsed]:
    """Yield the rows of some row groups.

    Args:
        sizes: of the row groups, by their numbers.
    """
    with (
        file.opened(page_checksum_verification=True, coerce_int96_timestamp_unit="us") as opened,
        file.opened(coerce_int96_timestamp_unit="ns") as exact,
    ):
        found = _with_leaves(opened.schema, opened.schema_arrow, _named_bytes)
        old = _calendars(file.metadata.metadata or {})
        reader = ColumnReader.of(found, columns, is_julian=old["other"])
        with_int96 = [name for name in reader.names if _type(opened, name) != _type(exact, name)]
        with_old_times = [name for name in reader.names if old["int96" if name in with_int96 else "other"]]
        for number, size in sizes.items():
            rows, read = file.metadata.row_group(number).num_rows, 0
            count = _rows_at_once(rows, size)
            batches = opened.iter_batches(count, row_groups=[number], columns=reader.names)
            nanoseconds = exact.iter_batches(count, row_groups=[number], columns=with_int96) if with_int96 else None
            for batch in batches:
                parsed, faults = reader.read(batch), dict[int, str]()
                if nanoseconds is not None:
                    faults.update(_nanoseconds(with_int96, batch, next(nanoseconds)))
                for name in with_old_times:
                    faults.update(old_times_in(batch.column(name), name))
                read += batch.num_rows
                yield replace(parsed, faults={**faults, **parsed.faults}) if faults else parsed
            if read != rows:
                raise Refused(f"has {rows} rows in a row group by its footer, and {read} of them in its pages")


def _type(file: pq.ParquetFile, name: str) -> pa.DataType:
    return file.schema_arrow.field(name).type


def _nanoseconds(names: Sequence[str], batch: pa.RecordBatch, exact: pa.RecordBatch) -> Iterator[tuple[int, str]]:
    """Yield the rows with INT96 times that have digits beyond microseconds.

    Args:
        batch: with times in microseconds.
        exact: the same in nanoseconds, of which years beyond 1677 to 2262 are wrong by a multiple of 2**64.
    """
    for name in names:
        for (times, rows), (others, _) in zip(
            leaves_of(batch.column(name)), leaves_of(exact.column(name)), strict=True
        ):
            if times.type != others.type:
                rest = numbers_of(others) - numbers_of(times) * 1000  # wraps as they do
                for place in rest.nonzero()[0]:
                    found = f"{shown(times[int(place)])} and {rest[place]} nanoseconds"
                    yield int(rows[place]), f"{name!r}: {found} is no timestamp, which has microseconds"


def _calendars(metadata: Mapping[bytes, bytes]) -> Mapping[str, bool]:
    """Say whether days of INT96 times, and others, were counted by the Julian calendar where it was in use.

    Spark 2 did so, and later versions do if they are told to. A file that says nothing has the calendar of the format.
    """
    prefix = b"org.apache.spark."
    version = metadata.get(prefix + b"version")
    return {
        "int96": prefix + b"legacyINT96" in metadata or (version is not None and version < b"3.1.0"),
        "other": prefix + b"legacyDateTime" in metadata or (version is not None and version < b"3.0.0"),
    }


def _rows_at_once(rows: int, size: Size) -> int:
    """Return how many rows of a row group are read at once: at least one, and fewer if they are large."""
    most = min(_BATCH_BYTES * rows // max(1, size.total), _WORST_BATCH_BYTES // max(1, size.shared))
    return max(1, min(_BATCH_ROWS, most))


def _microseconds(kind: Any) -> pa.DataType:
    import pyarrow as pa

    return pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else kind


def _logical(schema: pq.ParquetSchema) -> pa.Schema:
    """Return a file's columns in the Arrow types of their values, as Parquet has them or Arrow noted them."""
    import pyarrow as pa

    def read(kind: Any, leaf: pq.ColumnSchema) -> Any:
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if leaf.physical_type == "INT96":  # Arrow says nanoseconds
            return pa.timestamp("us", "UTC")
        if pa.types.is_duration(kind) and kind.unit != "us":  # Parquet has numbers
            return pa.int64()
        return _named_bytes(kind, leaf)

    return _with_leaves(schema, schema.to_arrow_schema(), read)


def _named_bytes(kind: Any, leaf: pq.ColumnSchema) -> Any:
    """Return the type of a column that Arrow takes for bytes of a fixed length, if Parquet says what they are."""
    import pyarrow as pa

    if leaf.logical_type.type == "UUID":
        return pa.uuid()
    return pa.month_day_nano_interval() if leaf.converted_type == "INTERVAL" else kind


def _with_leaves(
    schema: pq.ParquetSchema, types: pa.Schema, change: Callable[[Any, pq.ColumnSchema], Any]
) -> pa.Schema:
    """Return types with those changed that are not nested.

    Args:
        schema: Parquet's schema: one column for each place of values, at any depth.
        change: gets a type and its column; those with several columns, which Spark lacks, are not changed.
    """
    import pyarrow as pa

    leaves = iter([schema.column(place) for place in range(len(schema))])

    def changed(kind: Any) -> Any:
        found = [leaf for _ in range(_places(kind)) if (leaf := next(leaves, None)) is not None]
        return change(kind, found[0]) if len(found) == 1 else kind

    return pa.schema([field.with_type(with_values(field.type, changed)) for field in types])


def _places(kind: Any) -> int:
    """Return the number of Parquet columns of a type: one, or more for a composed type that Spark lacks."""
    import pyarrow as pa

    stored = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return sum(_places(stored.field(at).type) for at in range(stored.num_fields)) or 1


FORMAT = Parquet()
