"""From what sources have to triggers: each slice of an operator-driven start, or a period's slice over all starts.

Pure but for what the sources look at: cutting claims nothing, and two who cut at once cut the same next slice, of which
the registry takes one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from drainmark.jobs.operators.sources.contract import Reach
from drainmark.jobs.operators.sources.slices import Position, Slice, SliceLimit
from drainmark.jobs.operators.sources.source import SlicedSource, Source
from drainmark.jobs.protocol.records.triggers import DROPPED, KIND, PERIOD, SLICES, NewTrigger, slices_of

SMALLEST_BYTES = 1024 * 1024
LARGEST_BYTES = 64 * 1024**3

LIMIT = "limit"
"""In a period's identity: the bytes that its slice was allowed."""

NUMBER = "number"
_TO = "to"


def positions(newest: Mapping[str, Any] | None) -> dict[str, Position | None]:
    """Return where each start stands behind a trigger, by its identity; nothing behind none.

    The newest trigger in the region's order knows all: every slice begins where the one before it ended, whatever
    became of that. An empty position is none: earlier versions carried a start on so that gave nothing before it left.
    """
    return {name: taken[_TO] or None for name, taken in slices_of(newest or {}).items()}


def cut_one(source: Source, after: Position | None, reach: Reach) -> NewTrigger | None:
    """Return the next trigger of an operator-driven start that gives slices."""
    piece = source.next_slice(after, reach, SliceLimit(source=source.name))
    if piece is None or not isinstance(source, SlicedSource):
        return None
    identity = {KIND: source.reads.kind, SLICES: {source.name: piece.to_json()}}
    return _trigger(source.reads.label(piece, source.name, reach), identity, piece.size_bytes)


def cut_all(source: Source, newest: Mapping[str, Any] | None, reach: Reach, most: int) -> Iterator[NewTrigger]:
    """Yield the triggers of an operator-driven start that are there now, in order, at most so many."""
    after = positions(newest).get(source.name)
    for _ in range(most):
        trigger = cut_one(source, after, reach)
        if trigger is None:
            return
        yield trigger
        after = slices_of(trigger.identity)[source.name][_TO]


def cut_period(
    sources: Sequence[Source],
    newest: Mapping[str, Any] | None,
    reach: Reach,
    *,
    limit: int | None,
    dropped: int = 0,
    with_endless: bool = True,
) -> NewTrigger | None:
    """Return what all starts have at a tick as one trigger; None where none has anything new.

    A start that has nothing takes part with an empty slice, so that the newest trigger knows where every start stands;
    one that the code does not have any more is carried along.

    Args:
        limit: bytes of the slice, of which every start gets the same share; None for no bound.
        with_endless: whether endless starts are a reason for a slice; they take part in any case.
    """
    before = positions(newest)
    share = max(1, limit // len(sources)) if limit is not None else None
    slices = {name: _nothing(after) for name, after in before.items()}
    size, has_news = 0, False
    for source in sources:
        cut = SliceLimit(source=source.name, max_bytes=share, is_periodic=True)
        piece = source.next_slice(before.get(source.name), reach, cut)
        if piece is None:
            slices[source.name] = _nothing(before.get(source.name))
            continue
        slices[source.name] = piece.to_json()
        size += piece.size_bytes
        has_news |= with_endless or not source.is_endless
    if not has_news:
        return None
    number = int((newest or {}).get(NUMBER, 0)) + 1
    identity: dict[str, Any] = {KIND: PERIOD, NUMBER: number, SLICES: slices, LIMIT: limit}
    if dropped:
        identity[DROPPED] = dropped
    return _trigger(f"{PERIOD}:{reach.region}#{number}", identity, size)


def cut_loss(
    sources: Sequence[Source],
    newest: Mapping[str, Any] | None,
    reach: Reach,
    *,
    waiting: Sequence[Mapping[str, Any]] = (),
) -> NewTrigger | None:
    """Return a trigger without rows that goes on behind what starts have lost; None where none has.

    Args:
        waiting: identities of the triggers that are cut and not committed, and are to be cut anew, in their order. What
            is lost may be of the last of them alone, so that the first could be read.
    """
    starts = [source for source in sources if isinstance(source, SlicedSource)]
    before = positions(newest)
    if waiting:
        before = {name: piece["from"] or None for name, piece in slices_of(waiting[0]).items()}
    found: dict[str, Slice | None] = {}
    for start in starts:
        cut = _joined(waiting, start.name)
        found[start.name] = start.reads.past_loss(before.get(start.name), reach, start.name, waiting=cut)
    lost = {name: piece for name, piece in found.items() if piece is not None}
    if not lost:
        return None
    slices = {name: _nothing(after) for name, after in before.items()}
    slices |= {name: piece.to_json() for name, piece in lost.items()}
    start = next(start for start in starts if start.name in lost)
    if not start.is_periodic:
        uri = start.reads.label(lost[start.name], start.name, reach)
        return _trigger(uri, {KIND: start.reads.kind, SLICES: slices}, 0)
    number = int((newest or {}).get(NUMBER, 0)) + 1
    identity = {KIND: PERIOD, NUMBER: number, SLICES: slices, LIMIT: (newest or {}).get(LIMIT)}
    return _trigger(f"{PERIOD}:{reach.region}#{number}", identity, 0)


def _joined(waiting: Sequence[Mapping[str, Any]], source: str) -> Slice | None:
    """Return what a start has in triggers that follow each other as one slice; None for nothing."""
    pieces = [piece for identity in waiting if (piece := slice_of(identity, source)) is not None]
    return replace(pieces[0], end=pieces[-1].end) if pieces else None


def slice_of(identity: Mapping[str, Any], source: str) -> Slice | None:
    """Return what a trigger takes of a start; None for nothing."""
    taken = slices_of(identity).get(source)
    if taken is None or not taken[_TO] or taken["from"] == taken[_TO]:
        return None
    return Slice.from_json(taken)


def next_limit(limit: int, *, taken: int, seconds: float, period: float) -> int:
    """Return how many bytes the next slice may have, so that with a backlog a state takes about a period.

    Args:
        limit: of the last slice.
        taken: bytes of the last slice; one that was far from its limit tells nothing of what would be too much.
        seconds: that its state took.
        period: seconds; what takes up to half of it is doubled, what takes longer than it is halved.
    """
    if seconds > period:
        return max(min(SMALLEST_BYTES, limit), limit // 2)
    if seconds <= period / 2 and taken * 2 >= limit:
        return min(LARGEST_BYTES, limit * 2)
    return limit


def dropped_ticks(seconds: float, period: float) -> int:
    """Return how many ticks of a clock that never waits pass during a state: they ask for nothing."""
    return math.floor(seconds / period) if period > 0 else 0


def _nothing(after: Position | None) -> dict[str, Any]:
    """Return the part of a start that has nothing new, as `Slice.to_json` does; its position may be none yet."""
    return {"from": after, _TO: after, "bytes": 0}


def _trigger(uri: str, identity: Mapping[str, Any], size: int) -> NewTrigger:
    key = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return NewTrigger(uri=uri, identity=identity, identity_key=key, size_bytes=size)
