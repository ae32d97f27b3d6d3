"""Rows that a region read from a table of another region, and that a rewind of that region withdrew later.

A slice tells of the rewinds in its versions. States in force that read rows which left by such a rewind are wrong, and
nothing that the region reads later can mend them. So the region halts, and the remedy is its own rewind: slices that
are read again come without these rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from drainmark.jobs.errors import SourceRewound
from drainmark.jobs.operators.sources.contract import RowSlices
from drainmark.jobs.operators.sources.slices import Slice
from drainmark.jobs.operators.sources.source import SlicedSource
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.records.triggers import DIGESTS
from drainmark.jobs.runtime.input.inbox import Assigned
from drainmark.jobs.runtime.input.slices import slice_of
from drainmark.jobs.runtime.outside import Outside


def require_in_force(source: SlicedSource, reads: RowSlices, member: Assigned, piece: Slice, outside: Outside) -> None:
    """Refuse a slice that tells of a rewind, if states in force read rows that it withdrew.

    Raises:
        SourceRewound: the remedy names the last state that read none of them.
    """
    history, order = outside.store.checkpoint.history(), member.trigger.order_index
    told = [reads.left_above(each) for each in (piece, *_skipped_last(source, history))]
    to = min((each for each in told if each is not None), default=None)
    if to is None:
        return
    wrong = None
    for number, highest in _read_by_states(source, reads, history, outside):
        if highest is not None and 0 < highest <= to:
            break
        wrong = number if highest != 0 else wrong
    if wrong is None and outside.reach.ids_read.before(source.name, order) <= to:
        return
    region = member.trigger.region
    before = history.committed_id if wrong is None else history.state_at_most(wrong - 1) or INITIAL_ID
    raise SourceRewound(
        f"{region} has read rows with ids above {to} of the region behind {source.name!r}, and a rewind of that region"
        " withdrew them",
        operator=source.name,
        location=source.location,
        remedy=f"drainmark reset {region} --to {before}, and run: what comes after that state is read again without"
        ' these rows. Or keep them: on_change="ignore" at the source, and'
        f" drainmark resume {region}; rows that come again are then there twice",
        trigger=member.trigger.uri,
        to=before,
    )


def _skipped_last(source: SlicedSource, history: RegionHistory) -> Iterator[Slice]:
    """Yield the slices that were skipped after the last state: what they tell of rewinds still holds."""
    number = history.committed_id
    while number in history.skips:
        piece = slice_of(history.states[number].trigger_identity or {}, source.name)
        if piece is not None:
            yield piece
        number = history.states.ids.at_most(number - 1) or INITIAL_ID


def _read_by_states(
    source: SlicedSource, reads: RowSlices, history: RegionHistory, outside: Outside
) -> Iterator[tuple[int, int | None]]:
    """Yield the states in force, newest first, each with the highest id that it read, None if that is not known."""
    number = history.state_at_most(history.committed_id)
    while number:
        identity: Mapping[str, Any] = history.states[number].trigger_identity or {}
        piece = slice_of(identity, source.name)
        if piece is not None:
            noted = (identity.get(DIGESTS) or {}).get(source.name)
            yield number, int(noted) if noted is not None else reads.highest_id(piece, outside.reach)
        number = history.state_at_most(number - 1)
