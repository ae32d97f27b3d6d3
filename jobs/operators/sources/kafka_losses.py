"""Lost records of a `KafkaSource`: the rules for halting, and for going on if the loss is accepted.

An offset identifies a record only as long as the partition keeps its log. Retention drops the beginning of the log: a
look at the topic shows that. After an unclean election the new leader has fewer records: the log ends earlier, and new
records get offsets that were found, or even read, before. Once the new end is beyond the old end, only the leader epoch
shows that. A recreated topic begins at offset 0: the topic's id shows that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from drainmark.jobs.errors import DrainmarkError, InputMissing, UsageError
from drainmark.jobs.operators.sources.contract import Connections
from drainmark.jobs.operators.sources.kafka_topic import (
    BEGIN,
    EPOCHS,
    LOST,
    OFFSETS,
    TOPIC,
    Offsets,
    OffsetsGone,
    Stood,
    Topic,
    TopicGone,
    TopicLook,
    epochs_of,
    keyed,
    offsets_of,
    ranges_of,
)
from drainmark.jobs.operators.sources.slices import Position, Slice

Range = tuple[int, int, int]
"""A partition, the first lost offset, and the end of the range, exclusive."""

_SHOWN = 8


def position_at(look: TopicLook, after: Position | None, ends: Offsets) -> Position:
    """Return the position at the end of a slice; partitions that the code no longer reads keep their offsets."""
    epochs = {partition: look.epochs[partition] for partition in ends if partition in look.epochs}
    return {
        TOPIC: look.identity,
        OFFSETS: keyed({**offsets_of(after), **ends}),
        EPOCHS: keyed({**epochs_of(after), **epochs}),
    }


def is_another(after: Position | None, look: TopicLook) -> bool:
    """Say whether a topic is another one than that of a position: it has another id, or lacks a partition."""
    known = (after or {}).get(TOPIC, "")
    return (bool(known and look.identity) and known != look.identity) or not set(offsets_of(after)) <= set(look.end)


def shows(look: TopicLook, position: Position | None) -> bool:
    """Say whether a look has all that was found up to a position, which another process may have cut since."""
    found = offsets_of(position).items()
    return not is_another(position, look) and all(offset <= look.end[partition] for partition, offset in found)


def others_of(topic: Topic, look: TopicLook, position: Position | None, upto: Offsets) -> Offsets:
    """Return, by partition, the first offset below `upto` from which on the records that were found are gone.

    The partition has other records there, or none. A partition with all its records is left out. The brokers are asked
    only about partitions that have changed their leader.

    Args:
        position: has the leader epochs at which the partitions had these records.
    """
    epochs = epochs_of(position)
    stood = [
        Stood(partition=partition, offset=offset, epoch=epochs[partition], now=look.epochs[partition])
        for partition, offset in upto.items()
        if offset and epochs.get(partition, -1) >= 0 and epochs[partition] < look.epochs.get(partition, -1)
    ]
    others = {**look.end, **(topic.others_from(stood) if stood else {})}
    found = {partition: min(others[partition], look.end[partition]) for partition in upto}
    return {partition: other for partition, other in found.items() if other < upto[partition]}


def lost_ranges(begin: Offsets, upto: Offsets, look: TopicLook, others: Offsets) -> list[Range]:
    """Return the ranges that are to be read, or were found or read, and are gone.

    Args:
        begin: the offsets to be read next.
        upto: the ends of the ranges that were found, not before `begin`.
        others: as `others_of` returns them.
    """
    found: list[Range] = []
    for partition, offset in sorted(begin.items()):
        first, other = look.first[partition], others.get(partition)
        if other is not None and offset < first and other <= first:  # one range, the brokers have none of it
            found.append((partition, min(offset, other), max(first, upto[partition])))
            continue
        if offset < first:
            found.append((partition, offset, first))
        if other is not None:
            found.append((partition, other, upto[partition]))
    return found


def require_there(topic: Topic, after: Position | None, begin: Offsets, look: TopicLook) -> None:
    """Check that a slice after a position can go on at the end of the slice before.

    Raises:
        TopicGone: it is another topic.
        RangesLost: some records are lost.
    """
    if is_another(after, look):
        raise TopicGone
    if lost := lost_ranges(begin, begin, look, others_of(topic, look, after, begin)):
        raise RangesLost(lost)


def require_again(topic: Topic, piece: Slice, look: TopicLook | None) -> None:
    """Check that a slice can be read again unchanged.

    Args:
        look: an earlier one, which is used if it shows the whole slice.

    Raises:
        TopicGone: it is another topic.
        OffsetsGone: some of its records are lost.
    """
    if look is None or not shows(look, piece.end):
        look = topic.look()
    if is_another(piece.end, look):
        raise TopicGone
    ranges = ranges_of(piece)
    for each in ranges:
        if each.begin < look.first.get(each.partition, 0):
            raise OffsetsGone(f"partition {each.partition} begins at offset {look.first[each.partition]}")
        if each.end > look.end.get(each.partition, 0):
            raise OffsetsGone(f"partition {each.partition} ends at offset {look.end.get(each.partition, 0)}")
    for partition, other in others_of(topic, look, piece.end, {each.partition: each.end for each in ranges}).items():
        raise OffsetsGone(f"partition {partition} was written anew from offset {other} on")


def past_loss(
    topic: Topic, look: TopicLook, after: Position | None, begin: Offsets, waiting: Slice | None
) -> Slice | None:
    """Return a slice without rows that covers the lost records; None if nothing is lost.

    The input after it will be read, also new records at offsets that had been found, or read, before.

    Args:
        begin: by partition, the offset at which the input after `after` begins.
        waiting: the slices that were cut after `after` and are not committed, as one slice.
    """
    # the facts of the very first slice say where it began
    stood = after if after is not None or waiting is None else {**waiting.end, OFFSETS: waiting.facts.get(BEGIN, {})}
    known = waiting.end if waiting is not None else after
    if is_another(known, look):
        offsets: Offsets = {partition: look.first[partition] for partition in begin}
        lost: list[list[int | None]] = [[each, offset, None] for each, offset in offsets_of(stood).items()]
        base = None
    else:
        found = offsets_of(known)
        upto = {each: max(offset, found.get(each, offset)) for each, offset in begin.items()}
        others = others_of(topic, look, known, upto)
        offsets = {each: max(look.first[each], min(begin[each], others.get(each, begin[each]))) for each in begin}
        lost = [list(each) for each in lost_ranges(begin, upto, look, others)]
        base = after
    if not lost:
        return None
    facts = {LOST: lost, **({BEGIN: keyed(begin)} if after is None else {})}
    return Slice(start=after, end=position_at(look, base, offsets), size_bytes=0, facts=facts)


def told(lost: Sequence[Sequence[int | None]]) -> str:
    """Return lost ranges (partition, first offset, end) in words; the end is None if the topic was replaced."""
    found = []
    for partition, begin, end in lost:
        upto = f"offsets {begin} to {end - 1}" if end is not None else f"from offset {begin} on, of the topic before"
        found.append(f"partition {partition}, {upto}")
    return "; ".join(found)


class RangesLost(Exception):
    """The error for lost records that are to be read next, or were read last; `lost` has their ranges."""

    def __init__(self, lost: Sequence[Range]) -> None:
        super().__init__(f"{told(lost)}: the brokers do not have them any more, or others in their place")
        self.lost = lost


@contextmanager
def telling(name: str, access: Connections, after: Position | None, label: str | None = None) -> Iterator[None]:
    """Turn errors about lost records into an error that names the topic, and the way to go on.

    Raises:
        InputMissing: in place of `TopicGone`, `RangesLost` and `OffsetsGone`.
        UsageError: there is no such topic, and no slice of it was read.
    """
    try:
        yield
    except TopicGone as error:
        if after is None:
            raise UsageError(f"there is no topic {name}", remedy="make it first") from error
        stood = told([(each, offset, None) for each, offset in list(offsets_of(after).items())[:_SHOWN]])
        raise _lost(name, access, f"it was deleted, or made anew; missing is {stood}", label) from error
    except RangesLost as error:
        raise _lost(name, access, str(error), label, lost=error.lost) from error
    except OffsetsGone as error:
        raise _lost(name, access, str(error), label) from error


def _lost(name: str, access: Connections, why: str, label: str | None, **facts: Any) -> DrainmarkError:
    accept = f"drainmark resume {access.region} --accept-loss --reason '…'"
    remedy = f"to go on after the missing input: {accept}"
    facts |= {"triggers": (), "trigger": label or f"kafka:{name}"}
    return InputMissing(f"topic {name}: {why}", remedy=remedy, commands=(accept,), **facts)
