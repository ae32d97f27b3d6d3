"""Binary files: each file is one row, with its content unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from drainmark.jobs.formats.bad_records import CAPS, FileVerdict
from drainmark.jobs.formats.format import Expected, Format, Take

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader


class Binary(Format):
    """Files of any content, which becomes the column `content` of one row."""

    name = "binary"
    has_schema = False
    columns = "content binary, length bigint"
    picked = ("content", "length")

    def judge(self, path: Path, expected: Expected, cleaned: Path, take: Take) -> FileVerdict:
        """Judge a file by its size alone; an empty one has no row."""
        size = path.stat().st_size
        if size > CAPS.document_bytes:
            return FileVerdict(refused=f"has {size} bytes, more than the {CAPS.document_bytes} of one row")
        return FileVerdict(records=1 if size else 0)

    def reader(self, reader: DataFrameReader, ddl: str | None) -> DataFrameReader:
        return reader.format("binaryFile")

    def values_of(self, path: Path, expected: Expected) -> Iterator[bytes] | None:
        return (content for content in map(Path.read_bytes, [path]) if content) if not expected.options else None

    def columns_of_values(self, value: str, ddl: str | None, options: Mapping[str, str]) -> tuple[str, ...]:
        return f"{value} as content", f"cast(octet_length({value}) as bigint) as length"


FORMAT = Binary()
