"""Parquet: a file is judged by its footer, and read by Spark."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from drainmark.jobs.formats.bad_records import CAPS, FileVerdict, require_fault_of_file
from drainmark.jobs.formats.column_fit import (
    Found,
    fault_of_columns,
    fault_of_others,
    short,
    spark_columns,
    with_values,
)
from drainmark.jobs.formats.format import Expected, Format, Rows, Take

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrameReader


class Parquet(Format):
    """Files of rows in columns, which say what they are."""

    name = "parquet"
    is_judged_by_libraries = True
    is_judged_in_part = True
    has_sure_count = True
    names_columns = True

    def judge(self, path: Path, expected: Expected, cleaned: Path, take: Take) -> FileVerdict:
        """Judge a file by its footer; its pages are read by nobody yet."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            metadata = pq.read_metadata(path)
            found = _read_by_spark(metadata.schema)
        except (pa.ArrowException, OSError, ValueError) as error:
            require_fault_of_file(error)
            return FileVerdict(refused=f"is no Parquet file that can be read: {short(error)}")
        size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
        if size > CAPS.decompressed_bytes:
            return FileVerdict(refused=f"holds more than {CAPS.decompressed_bytes} bytes when decompressed")
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

    def reader(self, reader: DataFrameReader, ddl: str | None) -> DataFrameReader:
        """Return a reader that verifies checksums: it is off by default, and a damaged page is read as other values."""
        return super().reader(reader.option("parquet.page.verify-checksum.enabled", "true"), ddl)

    def encoded(
        self, rows: Rows, columns: Sequence[str], options: Mapping[str, str], schema: Callable[[], pa.Schema]
    ) -> bytes:
        import pyarrow as pa
        import pyarrow.parquet as pq

        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema()), buffer)
        return buffer.getvalue()


def _read_by_spark(schema: Any) -> pa.Schema:
    """Return a file's columns in Arrow's types of what Spark reads, which does not look at Arrow's own note of them.

    Args:
        schema: Parquet's, a column for each place of values, however deep.
    """
    import pyarrow as pa

    places = iter([schema.column(place).physical_type for place in range(len(schema))])

    def read(kind: Any) -> Any:
        stored = [next(places, None) for _ in range(_places(kind))]
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if stored == ["INT96"]:  # Arrow says nanoseconds
            return pa.timestamp("us", "UTC")
        if pa.types.is_duration(kind) and kind.unit != "us":  # for Spark numbers, or microseconds
            return pa.int64()
        return kind

    return pa.schema([field.with_type(with_values(field.type, read)) for field in schema.to_arrow_schema()])


def _places(kind: Any) -> int:
    """Return how many columns of Parquet a type has, which is of a kind that Spark does not have or of one value."""
    import pyarrow as pa

    stored = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return sum(_places(stored.field(at).type) for at in range(stored.num_fields)) or 1


FORMAT = Parquet()
