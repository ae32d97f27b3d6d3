"""The view of a `KafkaSource` on a topic; `resources.kafka.topic` implements it.

Offsets are those of Kafka: they number the records of a partition from 0. Some of these records reach no reader: marks
of transactions, records of aborted transactions, and records that compaction removed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from drainmark.jobs.operators.sources.slices import Position, Slice

if TYPE_CHECKING:
    import pyarrow as pa

Offsets = Mapping[int, int]
"""An offset, or a leader epoch, by partition."""

TOPIC, OFFSETS, EPOCHS = "topic", "offsets", "epochs"
"""In a position: the topic's id; by partition, the offset of the next record, and the leader epoch."""

BEGIN, LOST = "begin", "lost"
"""Facts of a slice: the offsets at which the very first slice begins; the lost ranges, as they were accepted."""

_RANGES = "ranges"
"""Fact of a share of a slice: the ranges that are its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLook:
    """A topic at one moment.

    Attributes:
        identity: the topic's id, which another topic of the same name does not have; "" if the brokers tell none.
        first: the oldest offset that is kept.
        end: the offset after the last committed record: not beyond the first record of an open transaction.
        epochs: the leader epoch (the number of changes of the leader) of the partitions for which the brokers tell it.
    """

    identity: str
    first: Offsets
    end: Offsets
    epochs: Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Offsets of a partition, `begin` included and `end` not.

    Attributes:
        epoch: leader epoch when the range was cut; a record of a later epoch was not there then. -1 if unknown.
    """

    partition: int
    begin: int
    end: int
    epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Stood:
    """A place in a partition that has changed its leader since.

    Attributes:
        offset: end (exclusive) of the records that the partition had then.
        epoch: leader epoch then.
        now: leader epoch now, a later one.
    """

    partition: int
    offset: int
    epoch: int
    now: int


class TopicGone(Exception):
    """The error for a topic that does not exist, or that was replaced by another topic of its name."""


class OffsetsGone(Exception):
    """The error for a range that cannot be read unchanged; its text is the reason, beginning with the partition."""


class Topic(Protocol):
    """One topic. Every method asks the brokers, within seconds.

    Raises:
        StoreUnavailable: the brokers do not answer now.
        StoreRefused: the brokers refuse the request.
        TopicGone: the topic does not exist, or was replaced.
    """

    def look(self) -> TopicLook: ...

    def kept_look(self, seconds: float) -> TopicLook | None:
        """Return the last look of this process, if it is not older than `seconds`; else None."""

    def is_compacted(self) -> bool:
        """Say whether the brokers drop a record once a later one has its key; False if they do not tell."""

    def others_from(self, stood: Sequence[Stood]) -> Offsets:
        """Return the first offset at which a partition has other records than before, or none; else `Stood.offset`."""

    def at_time(self, moment: dt.datetime) -> Offsets:
        """Return the offsets of the first records at or after a moment, -1 if there is none."""

    def committed(self, group: str) -> Offsets:
        """Return the offsets that a group of consumers has committed; partitions without one are missing."""

    def commit(self, group: str, offsets: Offsets) -> None:
        """Commit offsets for a group that has no members."""

    def read(self, identity: str, ranges: Sequence[OffsetRange], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the committed records of ranges, one range after the other, by offset.

        Columns: `_position`, struct of the partition (`block`) and the offset (`row`); `value` binary; the requested
        columns of `METADATA`.

        Raises:
            OffsetsGone: a range cannot be read unchanged any more, or a record is damaged.
        """


METADATA: Mapping[str, str] = {
    "key": "binary",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "headers": "array<struct<key: string, value: binary>>",
}
"""The columns of a record beside its value; names and types are those of Spark's own Kafka source."""


def offsets_of(position: Position | None) -> Offsets:
    """Return the offsets of a position: the offset of the next record of each partition."""
    return {int(partition): int(offset) for partition, offset in (position or {}).get(OFFSETS, {}).items()}


def epochs_of(position: Position | None) -> Offsets:
    """Return the leader epochs of a position, for the partitions with a known epoch."""
    return {int(partition): int(epoch) for partition, epoch in (position or {}).get(EPOCHS, {}).items()}


def keyed(offsets: Offsets) -> dict[str, int]:
    """Return offsets in the form of a JSON object, with texts as keys."""
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


def ranges_of(piece: Slice) -> list[OffsetRange]:
    """Return the ranges of a slice, or of a share of one, by partition; none for a slice that covers lost records."""
    if LOST in piece.facts:
        return []
    if _RANGES in piece.facts:
        return list(piece.facts[_RANGES])
    begin = offsets_of(piece.start) if piece.start is not None else offsets_of({OFFSETS: piece.facts.get(BEGIN, {})})
    epochs = epochs_of(piece.end)
    return [
        OffsetRange(partition=each, begin=begin.get(each, 0), end=end, epoch=epochs.get(each, -1))
        for each, end in sorted(offsets_of(piece.end).items())
        if end > begin.get(each, 0)
    ]


def has_records_of(piece: Slice, other: Slice) -> bool:
    """Say whether two slices have records in common; False for slices of something else."""
    if TOPIC not in piece.end or piece.end.get(TOPIC) != other.end.get(TOPIC):
        return False
    others = {each.partition: each for each in ranges_of(other)}
    return any(
        (found := others.get(each.partition)) is not None and max(each.begin, found.begin) < min(each.end, found.end)
        for each in ranges_of(piece)
    )


def shares_of(piece: Slice, share_bytes: int, record_bytes: int) -> list[Slice]:
    """Cut a slice into shares of about `share_bytes` each, in order; a small partition joins its neighbours."""
    shares: list[list[OffsetRange]] = [[]]
    room = most = max(1, share_bytes // record_bytes)
    for whole in ranges_of(piece):
        begin = whole.begin
        while begin < whole.end:
            end = min(whole.end, begin + room)
            shares[-1].append(replace(whole, begin=begin, end=end))
            begin, room = end, room - (end - begin)
            if not room:
                shares.append([])
                room = most
    return [
        replace(piece, size_bytes=sum(each.end - each.begin for each in ranges) * record_bytes, facts={_RANGES: ranges})
        for ranges in shares
        if ranges
    ]
