"""Parquet: a file is judged by its footer, and read by Spark."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from drainmark.jobs.formats.bad_records import CAPS, FileVerdict, require_fault_of_file
from drainmark.jobs.formats.column_fit import Found, fault_of_columns, fault_of_others, short, spark_columns
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
            found = metadata.schema.to_arrow_schema()
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
                schema = opened.schema_arrow
                columns = [opened.schema.column(at) for at in range(len(opened.schema))]
            for column in columns:
                if column.physical_type == "INT96" and column.path in schema.names:  # Arrow says nanoseconds
                    place = schema.get_field_index(column.path)
                    schema = schema.set(place, pa.field(column.path, pa.timestamp("us", "UTC")))
            return spark_columns(schema)
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


FORMAT = Parquet()
