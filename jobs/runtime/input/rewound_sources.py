"""Rows that a region read from a table of another region, and that a rewind of that region withdrew later.

A slice tells of the rewinds in its versions. States in force that read rows which left by such a rewind are wrong, and
nothing that the region reads later can mend them. So the region halts, and the remedy is its own rewind: slices that
are read again come without these rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drainmark.jobs.errors import SourceRewound
from drainmark.jobs.operators.sources.contract import RowSlices
from drainmark.jobs.operators.sources.slices import Slice
from drainmark.jobs.operators.sources.source import SlicedSource
from drainmark.jobs.protocol.chains import first_reading, stays_of
from drainmark.jobs.protocol.history import RegionHistory, target_before
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow
from drainmark.jobs.runtime.input.inbox import Assigned
from drainmark.jobs.runtime.input.slices import slice_of
from drainmark.jobs.runtime.outside import Outside


def require_in_force(
    source: SlicedSource, reads: RowSlices, pieces: Sequence[tuple[Assigned, Slice]], outside: Outside, horizon: int
) -> None:
    """Refuse a group with slices that tell of rewinds, if states in force read rows that these withdrew.

    Args:
        pieces: the slices of the source in the group, in their order; their rows are not read yet.
        horizon: how many ids back the region can be rewound.

    Raises:
        SourceRewound: the remedy names the last state that read none of them.
    """
    if not pieces:
        return
    told = [(to, member) for member, piece in pieces if (to := reads.left_above(piece)) is not None]
    seen, (first, _) = outside.access.ids_read, pieces[0]
    if source.name not in seen.sources:  # once: no slice is skipped while a run has the region
        known = outside.store.checkpoint.history()
        upstream = reads.upstream(outside.access)
        facts = upstream.facts() if upstream is not None else None
        # Slices that were cut before the rewind do not tell of it: what stands before them may be wrong already.
        stays = stays_of(known, source.name, facts) if facts is not None else None
        found = [*map(reads.left_above, _skipped_last(source, known)), stays]
        told += [(to, first) for to in found if to is not None]
    if told:
        to, member = min(told, key=lambda each: each[0])
        history = outside.store.checkpoint.history()
        wrong = _first_wrong(source, reads, history, to, outside)
        # What this group read in an earlier attempt is read again, without the rows that left.
        if wrong is not None or seen.before(source.name, first.trigger.order_index) > to:
            before = target_before(history, history.committed_id + 1 if wrong is None else wrong, horizon)
            raise _halting(source, member, to, before)
    seen.sources.add(source.name)


def _halting(source: SlicedSource, member: Assigned, to: int, before: int) -> SourceRewound:
    region = member.trigger.region
    back = f"drainmark reset {region} --to {before} --cascade"
    return SourceRewound(
        f"{region} has read rows with ids above {to} of the region behind {source.name!r}, and a rewind of that region"
        " withdrew them",
        operator=source.name,
        location=source.location,
        remedy=f"{back}, and run: what comes after that state is read again without these rows. Or keep them:"
        f' on_change="ignore" at the source, and drainmark resume {region}; rows that come again are then there twice',
        commands=(f"{back} --yes",),
        trigger=member.trigger.uri,
        to=before,
    )


def _skipped_last(source: SlicedSource, history: RegionHistory) -> Iterator[Slice]:
    """Yield the source's slices that were skipped after its last state: what they tell of rewinds still holds."""
    for number in sorted(history.skips, reverse=True):
        piece = _slice_of(history.states[number], source)
        if piece is None:
            continue
        later = (row for at, row in history.states.above(number).items() if at not in history.skips)
        if any(_slice_of(row, source) is not None for row in later):
            return
        yield piece


def _first_wrong(
    source: SlicedSource, reads: RowSlices, history: RegionHistory, to: int, outside: Outside
) -> int | None:
    """Return the first state in force that read rows with ids above `to`, None if there is none."""
    return first_reading(
        history,
        source.name,
        lambda number: number > to,
        lambda piece: reads.highest_id(Slice.from_json(piece), outside.access),
    )


def _slice_of(row: CheckpointRow, source: SlicedSource) -> Slice | None:
    return slice_of(row.trigger_identity or {}, source.name)
