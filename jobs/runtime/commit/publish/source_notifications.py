"""Notes to sources: which input is committed, and which input no rewind needs, so that the sources can drop it."""

from __future__ import annotations

from collections.abc import Iterable

from drainmark.jobs.operators.sources.contract import Reach
from drainmark.jobs.operators.sources.slices import Slice
from drainmark.jobs.operators.sources.source import Source
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.input.slices import slice_of


def tell_sources(region: RegionPlan, reach: Reach, history: RegionHistory, first: int, last: int) -> None:
    """Tell the starts of a region which ids are published, and which id is the oldest that a rewind can go to.

    Slices come in order, so it is enough to name the newest slice at or below that id.
    """
    starts = [start for start in region.starts if isinstance(start, Source) and start.hears_checkpoints]
    if not starts:
        return
    published = [history.states[number] for number in range(first, last + 1) if number in history.states]
    _tell(starts, reach, published, beyond_horizon=False)
    oldest = history.state_at_most(history.oldest_target(region.parameters.rewind_horizon))
    if oldest is not None and oldest > INITIAL_ID:
        _tell(starts, reach, [history.states[oldest]], beyond_horizon=True)


def newest_slice(history: RegionHistory, start: str, first: int, last: int) -> Slice | None:
    """Return the last slice of a start among the states `first` to `last` (inclusive); None if they have none of it."""
    for number in range(last, first - 1, -1):
        if number in history.states:
            piece = slice_of(history.states[number].trigger_identity or {}, start)
            if piece is not None:
                return piece
    return None


def _tell(starts: Iterable[Source], reach: Reach, rows: Iterable[CheckpointRow], *, beyond_horizon: bool) -> None:
    known = list(rows)
    for start in starts:
        pieces = (slice_of(row.trigger_identity or {}, start.name) for row in known)
        taken = [piece for piece in pieces if piece is not None]
        if taken:
            start.on_checkpointed(iter(taken), reach, beyond_horizon=beyond_horizon)
