"""Binary files: each file is one row, with its content unchanged."""

from __future__ import annotations

from collections.abc import Iterator

from drainmark.jobs.formats.bad_records import CAPS, Parsed, Refused
from drainmark.jobs.formats.format import Expected, Format
from drainmark.jobs.formats.lines.content import Readable


class Binary(Format):
    """Files of any content, which becomes the column `content` of one row; an empty file has no row."""

    name = "binary"
    has_schema = False
    columns = "content binary, length bigint"

    def rows_of(self, data: Readable, expected: Expected, start: int, end: int) -> Iterator[Parsed]:
        import pyarrow as pa

        if data.size > CAPS.document_bytes:
            raise Refused(f"has {data.size} bytes, more than the {CAPS.document_bytes} of one row")
        if content := data.read(0, data.size):
            lengths = pa.array([len(content)], pa.int64())
            yield Parsed(pa.table({"content": pa.array([content], pa.binary()), "length": lengths}), {})


FORMAT = Binary()
