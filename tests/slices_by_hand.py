"""The slices of a `TableSource` as `RowIntake` checks and reads them, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from drainmark.jobs.frames.origins import ORIGIN, OriginsSeen
from drainmark.jobs.operators.sources.source import SlicedSource
from drainmark.jobs.runtime.input.inbox import Assigned
from drainmark.jobs.runtime.input.rewound_sources import require_in_force
from drainmark.jobs.runtime.input.slices import slice_of
from drainmark.jobs.runtime.outside import Outside


def read_slices(
    source: Any, members: Sequence[Assigned], outside: Outside, horizon: int, *, notes: bool = True
) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
    """Yield the rows of each member that has a slice of a start, in the order that they have in their table.

    Args:
        notes: whether the states note what they read, as those of earlier versions did not.

    Raises:
        SourceRewound: states in force read rows that left.
    """
    assert isinstance(source, SlicedSource)
    reads: Any = source.reads
    found = ((member, slice_of(member.trigger.identity, source.name)) for member in members)
    pieces = [(member, piece) for member, piece in found if piece is not None]
    require_in_force(source, reads, pieces, outside, horizon)
    for member, piece in pieces:
        seen = OriginsSeen()
        batches = [batch for batch in reads.read(piece, outside.access) if batch.num_rows]
        for batch in batches:
            seen.add(batch.column(ORIGIN))
        if batches:
            rows = pa.Table.from_batches(batches)
            rows = rows.take(pc.sort_indices(pc.struct_field(rows[ORIGIN], "id")))
            batches = rows.drop_columns([ORIGIN]).to_batches()
        yield member.sequence_id, batches
        if notes:
            member.trigger.digests[source.name] = str(seen.highest_id)
            outside.access.ids_read.note(source.name, member.trigger.order_index, seen.highest_id)
