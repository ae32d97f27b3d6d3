"""Parquet: a file is judged by its footer, and read by Spark or, if both read it alike, by Arrow."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from drainmark.jobs.formats.bad_records import FileVerdict, Refused, require_fault_of_file
from drainmark.jobs.formats.column_fit import (
    Columns,
    Found,
    fault_of_columns,
    fault_of_others,
    short,
    spark_columns,
    with_values,
)
from drainmark.jobs.formats.format import Expected, Format, Rows, Take
from drainmark.jobs.formats.parquet_pages import Chunk, Size, bytes_in_memory, row_groups
from drainmark.jobs.frames.row_types import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import DataFrameReader

_MODERN_DAYS = range(-24_837, 2_932_897)
"""Days since 1970 of the years 1902 to 9999. Before 1902 calendars differ, and some zones had offsets of seconds."""

_DAY_MICROSECONDS = 86_400_000_000
_BATCH_ROWS, _BATCH_BYTES = 65_536, 8 * 2**20
_WORST_BATCH_BYTES = 256 * 2**20
"""Of a batch whose rows all have the longest text: most texts of a column may be short."""


class Parquet(Format):
    """Files of rows in named and typed columns."""

    name = "parquet"
    is_judged_by_libraries = True
    is_judged_in_part = True
    has_sure_count = True
    names_columns = True
    may_give_rows = True

    def judge(self, path: Path, expected: Expected, cleaned: Path, take: Take) -> FileVerdict:
        """Judge a file by its footer and the headers of its pages; no page is read yet."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            metadata = pq.read_metadata(path)
            found = _read_by_spark(metadata.schema)
            bytes_in_memory(path, metadata.schema)
        except (pa.ArrowException, OSError, ValueError) as error:
            require_fault_of_file(error)
            return FileVerdict(refused=f"is no Parquet file that can be read: {short(error)}")
        except Refused as refused:
            return FileVerdict.of(refused)
        columns = expected.columns or ()
        fault = fault_of_columns(found, columns, has_bare=True) or (
            fault_of_others(found, columns) if expected.refuses_others else None
        )
        return FileVerdict(refused=fault, is_schema=True) if fault else FileVerdict(records=metadata.num_rows)

    def columns_in(self, file: BinaryIO, suffix: str, expected: Expected) -> Found | None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(file) as opened:
                return spark_columns(_read_by_spark(opened.schema))
        except (pa.ArrowException, OSError, ValueError) as error:
            require_fault_of_file(error)
            return None

    def fault_within(self, path: Path) -> str | None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                for _ in file.iter_batches():
                    pass
        except (pa.ArrowException, OSError, ValueError) as error:
            require_fault_of_file(error)
            return f"has pages that cannot be read: {short(error)}"
        return None

    def rows_of(self, path: Path, expected: Expected) -> Iterator[pa.RecordBatch] | None:
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            schema = _schema_alike(path, file, expected.columns or ())
        return None if schema is None else _rows(path, schema)

    def reader(self, reader: DataFrameReader, ddl: str | None) -> DataFrameReader:
        """Return a reader that verifies checksums: without that, the default, a damaged page gives other values."""
        return super().reader(reader.option("parquet.page.verify-checksum.enabled", "true"), ddl)

    def encoded(
        self, rows: Rows, columns: Sequence[str], options: Mapping[str, str], schema: Callable[[], pa.Schema]
    ) -> bytes:
        import pyarrow as pa
        import pyarrow.parquet as pq

        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema()), buffer)
        return buffer.getvalue()


def _rows(path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for number, size in enumerate(bytes_in_memory(path, file.schema)):
                count = _rows_at_once(file.metadata.row_group(number).num_rows, size)
                for batch in file.iter_batches(count, row_groups=[number], columns=schema.names):
                    yield pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=schema)
    except (pa.ArrowNotImplementedError, MemoryError):
        raise  # no fault of the file
    except (pa.ArrowException, OSError, ValueError) as error:
        require_fault_of_file(error)
        raise Refused(f"has pages that cannot be read: {short(error)}") from None


def _rows_at_once(rows: int, size: Size) -> int:
    """Return how many rows of a row group are read at once: at least one, and fewer if they are large."""
    most = min(_BATCH_BYTES * rows // max(1, size.total), _WORST_BATCH_BYTES // max(1, size.shared))
    return max(1, min(_BATCH_ROWS, most))


def _schema_alike(path: Path, file: pq.ParquetFile, columns: Columns) -> pa.Schema | None:
    """Return the declared columns in Arrow's types if the file has each once, and Arrow and Spark read them alike.

    None if Spark widens a type or uses another calendar, if a column has lists, maps or structs, or if a name differs
    from the declared one in case.
    """
    import pyarrow as pa
    from pyspark.sql.types import StructField, StructType

    found, names = _read_by_spark(file.schema), [name.casefold() for name in file.schema_arrow.names]
    schema = arrow_schema(StructType([StructField(name, kind) for name, kind in columns]))
    for field in schema:
        if names.count(field.name.casefold()) != 1 or found.get_field_index(field.name) < 0:
            return None
        stored = file.schema_arrow.field(field.name).type
        if pa.types.is_nested(field.type) or not found.field(field.name).type == stored == field.type:
            return None
    times = [field for field in schema if pa.types.is_temporal(field.type)]
    groups = row_groups(path) if times else []
    return schema if all(_is_modern(groups, field) for field in times) else None


def _is_modern(groups: Sequence[Sequence[Chunk]], field: pa.Field) -> bool:
    """Say whether all days or times of a column are surely in years that all writers and readers count alike."""
    import pyarrow as pa

    a_day = 1 if pa.types.is_date32(field.type) else _DAY_MICROSECONDS
    if not (pa.types.is_date32(field.type) or field.type in (pa.timestamp("us"), pa.timestamp("us", "UTC"))):
        return False
    for chunk in (chunk for group in groups for chunk in group if chunk.name == field.name):
        if chunk.least is not None and chunk.most is not None:
            least, most = (int.from_bytes(bound, "little", signed=True) for bound in (chunk.least, chunk.most))
            if least < _MODERN_DAYS.start * a_day or most >= _MODERN_DAYS.stop * a_day:
                return False
        elif chunk.rows and chunk.nulls != chunk.rows:
            return False
    return True


def _read_by_spark(schema: Any) -> pa.Schema:
    """Return a file's columns in the Arrow types of Spark's values; Spark ignores the types that Arrow noted there.

    Args:
        schema: Parquet's schema: one column for each place of values, at any depth.
    """
    import pyarrow as pa

    places = iter([schema.column(place).physical_type for place in range(len(schema))])

    def read(kind: Any) -> Any:
        stored = [next(places, None) for _ in range(_places(kind))]
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if stored == ["INT96"]:  # Arrow says nanoseconds
            return pa.timestamp("us", "UTC")
        if pa.types.is_duration(kind) and kind.unit != "us":  # Spark reads numbers
            return pa.int64()
        return kind

    return pa.schema([field.with_type(with_values(field.type, read)) for field in schema.to_arrow_schema()])


def _places(kind: Any) -> int:
    """Return the number of Parquet columns of a type: one, or more for a composed type that Spark lacks."""
    import pyarrow as pa

    stored = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return sum(_places(stored.field(at).type) for at in range(stored.num_fields)) or 1


FORMAT = Parquet()
