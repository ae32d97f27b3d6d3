"""The state of a handler in the driver process, as the runtime keeps it: chunks as rows of a keyed state.

Its table has one row for each id and chunk that changed; chunk 0, the header, is there for each id. So it is staged,
committed, published, rewound and written whole like any keyed state. The chunks that the last checkpoint of a group
writes in the background are added when that has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.protocol.records.manifest import RegionTable, StagedFile, TableRole
from drainmark.jobs.state.checkpointed_state import Frozen, StagingFolder, Written
from drainmark.jobs.state.handlers.checkpoint import HEADER, CheckpointReader, CheckpointWriter, Header
from drainmark.jobs.state.keyed_state import KeyedState, joined

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

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


def is_of_handler(table: RegionTable) -> bool:
    """Say whether a table is the state of a handler."""
    return table.role is TableRole.CHANGES and table.keys == (ENTRY, CHUNK)


def values_shown(rows: pa.Table) -> pa.Table:
    """Return the values of the newest checkpoint among rows of a handler's state, as a person may read them.

    Returns:
        a row a value, in the order of writing: `place` from 1 on, `value` as a text, `_sequence_id`. Rows whose chunks
        are kept elsewhere are returned as they are.

    Raises:
        CheckpointUnreadable: see `Checkpoint.read`.
    """
    import pyarrow as pa

    columns = (rows[name].to_pylist() for name in (CHUNK, SEQUENCE_ID, VALUE))
    chunks = {(chunk, number): value for chunk, number, value in zip(*columns, strict=True)}
    newest = max((number for chunk, number in chunks if chunk == HEADER), default=None)
    if newest is None:
        return rows
    header = Header.from_bytes(chunks[HEADER, newest])
    if not chunks.keys() >= {*enumerate(header.written_at, 1)}:
        return rows
    reader = CheckpointReader(header=header, fetch=lambda index, at: chunks[index, at])
    values = []
    while not reader.is_at_end:
        values.append(repr(reader.read()))
    numbers = pa.array([newest] * len(values), pa.int64())
    return pa.table({SEQUENCE_ID: numbers, "place": range(1, len(values) + 1), "value": pa.array(values, pa.string())})


class Late(Protocol):
    """The unfinished checkpoints of a drained group: the work to do before the group may be committed."""

    def __call__(self) -> pa.Table:
        """Await the last checkpoint, store chunks that are kept elsewhere, and return the rows that are missing."""


@dataclass(slots=True, kw_only=True)
class HandlerState(KeyedState):
    """A `KeyedState` with the keys entry and chunk.

    Attributes:
        take: returns the unfinished checkpoints of the drained group.
    """

    take: Callable[[], Late] | None = None
    _left: Late | None = None
    _joining: pa.Table | None = None

    def prepare(self, at: int, files: Sequence[StagedFile], changes: pa.Table | None) -> Frozen:
        self._left, self._joining = self.take() if self.take is not None else None, None
        return KeyedState.prepare(self, at, files, changes)

    def checkpoint(self, frozen: Frozen, staging: StagingFolder, session: SparkSession) -> Written:
        late = self._left() if self._left is not None else None
        if late is not None and late.num_rows:
            self._joining = late
            rows = self.per_key.last(joined(frozen.rows, late)) if self._holds_rows(frozen) else None
            has_image = frozen.has_image or self.image_due(late.num_rows, 1)  # `prepare` did not know of these rows
            frozen = replace(frozen, changes=joined(frozen.changes, late), rows=rows, has_image=has_image)
        return KeyedState.checkpoint(self, frozen, staging, session)

    def checkpointed(self, written: Written) -> None:
        if self._joining is not None and self.is_in_memory:
            self.rows = self.per_key.last(joined(self.rows, self._joining))
        self._left = self._joining = None
        KeyedState.checkpointed(self, written)

    def chunks(self) -> dict[int, bytes]:
        """Return the chunks of the state by index, with the header at 0; none for the initial state."""
        rows = self.rows
        if rows is None and self.files:
            rows = self._read_all()  # also if it is large: its handler holds it in memory, too
        if rows is None:
            return {}
        return dict(zip(rows["chunk"].to_pylist(), rows["value"].to_pylist(), strict=True))

    @staticmethod
    def _holds_rows(frozen: Frozen) -> bool:
        return frozen.rows is not None or not (frozen.runs or frozen.change_files)
