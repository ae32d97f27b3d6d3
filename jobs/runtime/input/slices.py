"""The cutting of source input into triggers: one per slice of an operator-driven start, or one per period of a region.

The functions are pure, except that sources look at their input. Cutting claims nothing: two processes that cut at the
same time cut the same next slice, and the registry takes one of the two.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from drainmark.jobs.operators.sources.contract import SourceAccess
from drainmark.jobs.operators.sources.slices import Position, Slice, SliceLimit
from drainmark.jobs.operators.sources.source import SlicedSource, Source
from drainmark.jobs.protocol.records.triggers import DROPPED, KIND, PERIOD, SLICES, NewTrigger, slices_of

SMALLEST_BYTES = 1024 * 1024
LARGEST_BYTES = 64 * 1024**3

LIMIT = "limit"
"""In a period's identity: the upper bound of its slice, in bytes."""

NUMBER = "number"
_TO = "to"


def positions(newest: Mapping[str, Any] | None) -> dict[str, Position | None]:
    """Return the position of each start after the trigger with this identity; empty if there is no trigger.

    The newest trigger in the region's order has all positions: every slice begins at the end of the slice before it,
    even if that was never committed. An empty position counts as none: earlier versions wrote it for removed starts.
    """
    return {name: taken[_TO] or None for name, taken in slices_of(newest or {}).items()}


def cut_one(source: Source, after: Position | None, access: SourceAccess) -> NewTrigger | None:
    """Return the next trigger of an operator-driven start that gives slices; None if it has nothing new."""
    piece = source.next_slice(after, access, SliceLimit(source=source.name))
    if piece is None or not isinstance(source, SlicedSource):
        return None
    identity = {KIND: source.reads.kind, SLICES: {source.name: piece.to_json()}}
    return _trigger(source.reads.label(piece, source.name, access), identity, piece.size_bytes)


def cut_all(source: Source, newest: Mapping[str, Any] | None, access: SourceAccess, most: int) -> Iterator[NewTrigger]:
    """Yield the triggers that an operator-driven start has now, in order, at most `most` of them."""
    after = positions(newest).get(source.name)
    for _ in range(most):
        trigger = cut_one(source, after, access)
        if trigger is None:
            return
        yield trigger
        after = slices_of(trigger.identity)[source.name][_TO]


def cut_period(
    sources: Sequence[Source],
    newest: Mapping[str, Any] | None,
    access: SourceAccess,
    *,
    limit: int | None,
    dropped: int = 0,
    with_endless: bool = True,
) -> NewTrigger | None:
    """Return the new input of all starts at a tick as one trigger; None if no start has new input.

    A start without new input takes part with an empty slice, so that the newest trigger has the position of every
    start. A start that is no longer in the code is carried along in the same way.

    Args:
        limit: upper bound of the slice in bytes, divided equally among the starts; None for no bound.
        with_endless: whether new input of endless starts alone makes a trigger; they take part in any case.
    """
    before = positions(newest)
    share = max(1, limit // len(sources)) if limit is not None else None
    slices = {name: _nothing(after) for name, after in before.items()}
    size, has_news = 0, False
    for source in sources:
        cut = SliceLimit(source=source.name, max_bytes=share, is_periodic=True)
        piece = source.next_slice(before.get(source.name), access, cut)
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
    return _trigger(uri_of_period(access.region, number), identity, size)


def cut_loss(
    sources: Sequence[Source],
    newest: Mapping[str, Any] | None,
    access: SourceAccess,
    *,
    waiting: Sequence[Mapping[str, Any]] = (),
) -> NewTrigger | None:
    """Return a trigger without rows that continues after the input that starts have lost; None if nothing is lost.

    Args:
        waiting: identities of the triggers that are cut but not committed, and will be cut again, in their order. The
            loss may concern only the last of them, so that the first could still be read.
    """
    starts = [source for source in sources if isinstance(source, SlicedSource)]
    before = positions(newest)
    if waiting:
        before = {name: piece["from"] or None for name, piece in slices_of(waiting[0]).items()}
    found: dict[str, Slice | None] = {}
    for start in starts:
        cut = _joined(waiting, start.name)
        found[start.name] = start.reads.past_loss(before.get(start.name), access, start.name, waiting=cut)
    lost = {name: piece for name, piece in found.items() if piece is not None}
    if not lost:
        return None
    slices = {name: _nothing(after) for name, after in before.items()}
    slices |= {name: piece.to_json() for name, piece in lost.items()}
    start = next(start for start in starts if start.name in lost)
    if not start.is_periodic:
        uri = start.reads.label(lost[start.name], start.name, access)
        return _trigger(uri, {KIND: start.reads.kind, SLICES: slices}, 0)
    number = int((newest or {}).get(NUMBER, 0)) + 1
    identity = {KIND: PERIOD, NUMBER: number, SLICES: slices, LIMIT: (newest or {}).get(LIMIT)}
    return _trigger(uri_of_period(access.region, number), identity, 0)


def _joined(waiting: Sequence[Mapping[str, Any]], source: str) -> Slice | None:
    """Return the slices of a start in consecutive triggers, joined to one slice; None if there are none."""
    pieces = [piece for identity in waiting if (piece := slice_of(identity, source)) is not None]
    return replace(pieces[0], end=pieces[-1].end) if pieces else None


def uri_of_period(region: str, number: int) -> str:
    """Return the uri of the trigger that is a region's period of this number."""
    return f"{PERIOD}:{region}#{number}"


def slice_of(identity: Mapping[str, Any], source: str) -> Slice | None:
    """Return the slice that a trigger takes of a start; None if it takes nothing."""
    taken = slices_of(identity).get(source)
    if taken is None or not taken[_TO] or taken["from"] == taken[_TO]:
        return None
    return Slice.from_json(taken)


def next_limit(limit: int, *, taken: int, seconds: float, period: float) -> int:
    """Return the upper bound of the next slice in bytes, so that with a backlog a state takes about one period.

    Args:
        limit: the upper bound of the last slice, in bytes.
        taken: bytes of the last slice; a slice of less than half its limit does not show that more would be fine.
        seconds: duration of its state.
        period: seconds; the limit is doubled if the state took at most half of it, and halved if it took longer.
    """
    if seconds > period:
        return max(min(SMALLEST_BYTES, limit), limit // 2)
    if seconds <= period / 2 and taken * 2 >= limit:
        return min(LARGEST_BYTES, limit * 2)
    return limit


def dropped_ticks(seconds: float, period: float) -> int:
    """Return how many ticks of the clock, which never waits, pass during a state; such ticks make no trigger."""
    return math.floor(seconds / period) if period > 0 else 0


def _nothing(after: Position | None) -> dict[str, Any]:
    """Return the empty slice of a start without new input, as `Slice.to_json` does; it may have no position yet."""
    return {"from": after, _TO: after, "bytes": 0}


def _trigger(uri: str, identity: Mapping[str, Any], size: int) -> NewTrigger:
    key = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return NewTrigger(uri=uri, identity=identity, identity_key=key, size_bytes=size)
