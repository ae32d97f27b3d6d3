"""The rows of a handler's state table: one header for each id, and the chunks that changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.state.handlers.checkpoint import HEADER, CheckpointWriter

if TYPE_CHECKING:
    import pyarrow as pa

ENTRY, CHUNK, VALUE = "entry", "chunk", "value"
"""Columns beside `_sequence_id`: the operator's entry, the chunk's index, the chunk."""


def chunk_rows(entry: str, writers: Sequence[CheckpointWriter], *, are_headers_all: bool) -> pa.Table:
    """Return the rows of finished checkpoints.

    Args:
        are_headers_all: return only headers, because the chunks are kept elsewhere.
    """
    import pyarrow as pa

    rows: list[tuple[int, bytes, int]] = []
    for writer in writers:
        rows.append((HEADER, writer.finish().to_bytes(), writer.sequence_id))
        if not are_headers_all:
            rows += [(index, chunk, writer.sequence_id) for index, chunk in sorted(writer.changed.items())]
    chunks, values, ids = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {
            ENTRY: pa.array([entry] * len(rows), pa.string()),
            CHUNK: pa.array(chunks, pa.int64()),
            VALUE: pa.array(values, pa.binary()),
            SEQUENCE_ID: pa.array(ids, pa.int64()),
        }
    )
