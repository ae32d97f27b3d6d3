"""The view of a `KafkaSource` on a topic; `resources.kafka.topic` implements it.

Offsets are those of Kafka: numbers of a partition's records from 0, some of which nobody sees (marks of transactions,
records of aborted ones, records that compaction took).
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
"""By partition."""

TOPIC, OFFSETS, EPOCHS = "topic", "offsets", "epochs"
"""In a position: the topic's id; by partition, the offset of the next record, and the leader epoch."""

BEGIN, LOST = "begin", "lost"
"""Facts of a slice: where the very first one begins; and what there is nothing of any more, as it was accepted."""

_RANGES = "ranges"
"""Fact of a share of a slice: the ranges that are its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLook:
    """A topic at one moment.

    Attributes:
        identity: the topic's id, which another topic of the same name does not have; "" of brokers that tell none.
        first: the oldest offset that is kept.
        end: the offset behind the last record that is committed: before the first one of an open transaction.
        epochs: how often the partition had changed its leader, for those of which the brokers tell it.
    """

    identity: str
    first: Offsets
    end: Offsets
    epochs: Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Offsets of a partition, `begin` included and `end` not.

    Attributes:
        epoch: of the leader when the range was cut; a record of a later one was not there then. -1 where unknown.
    """

    partition: int
    begin: int
    end: int
    epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Stood:
    """A place in a partition that had another leader since.

    Attributes:
        offset: behind the records that are meant, which the partition had.
        epoch: of its leader then.
        now: of its leader now, a later one.
    """

    partition: int
    offset: int
    epoch: int
    now: int


class TopicGone(Exception):
    """There is no topic of that name, or it is another one now."""


class OffsetsGone(Exception):
    """A range cannot be read as it was; the text says why, beginning with the partition."""


class Topic(Protocol):
    """One topic. Every method asks the brokers, within seconds.

    Raises:
        StoreUnavailable: there is no answer now.
        StoreRefused: there is, and it is no.
        TopicGone: see there.
    """

    def look(self) -> TopicLook: ...

    def kept_look(self, seconds: float) -> TopicLook | None:
        """Return the last look of this process, if it is not older than that."""

    def is_compacted(self) -> bool:
        """Say whether the brokers drop records that have a later one of the same key; False where they do not tell."""

    def others_from(self, stood: Sequence[Stood]) -> Offsets:
        """Return where partitions begin to have other records than they had, or none; the place where they have all."""

    def at_time(self, moment: dt.datetime) -> Offsets:
        """Return the offsets of the first records at or after a moment, -1 where there is none."""

    def committed(self, group: str) -> Offsets:
        """Return the offsets that a group of consumers has committed; partitions without one are missing."""

    def commit(self, group: str, offsets: Offsets) -> None:
        """Commit offsets for a group that has no members."""

    def read(self, identity: str, ranges: Sequence[OffsetRange], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the committed records of ranges, one range after the other, by offset.

        Columns: `_position`, struct of the partition (`block`) and the offset (`row`); `value` binary; those asked for
        (`METADATA`).

        Raises:
            OffsetsGone: a range is not there any more as it was, or a record is damaged.
        """


METADATA: Mapping[str, str] = {
    "key": "binary",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "headers": "array<struct<key: string, value: binary>>",
}
"""What a record has beside its value: names and types are those of Spark's own Kafka source."""


def offsets_of(position: Position | None) -> Offsets:
    """Return the offsets of a position: of the next record of each partition."""
    return {int(partition): int(offset) for partition, offset in (position or {}).get(OFFSETS, {}).items()}


def epochs_of(position: Position | None) -> Offsets:
    """Return the leader epochs of a position, of the partitions of which they are known."""
    return {int(partition): int(epoch) for partition, epoch in (position or {}).get(EPOCHS, {}).items()}


def keyed(offsets: Offsets) -> dict[str, int]:
    """Return offsets as JSON has them."""
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


def ranges_of(piece: Slice) -> list[OffsetRange]:
    """Return what a slice, or a share of one, has of each partition; nothing of one that stands for what is lost."""
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


def shares_of(piece: Slice, share_bytes: int, record_bytes: int) -> list[Slice]:
    """Return a slice as shares of about so many bytes: in its order, a small partition with its neighbours."""
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
