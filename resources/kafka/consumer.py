"""Reading of offset ranges with a consumer that belongs to no group: each record once, in order, to the range's end.

Some offsets have no record for readers: marks of transactions, records of aborted transactions, and records that
compaction removed. So a range ends at its last offset, at a later one, or at the end of the partition.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import StoreUnavailable
from drainmark.jobs.frames.tags import POSITION
from drainmark.jobs.operators.sources.kafka_topic import OffsetRange, OffsetsGone, Stood

if TYPE_CHECKING:
    import pyarrow as pa

STALL_SECONDS = 30.0
"""A read gives up after so long without a record or an end; the region then retries."""

_AT_ONCE = 10_000
_ANY = -1  # the partition of an error that concerns the whole topic
_WAIT_SECONDS = 0.05
_MOST_MS = (2**63 - 1) // 1000
_CONF = {
    "group.id": "drainmark",  # the client requires it, but it is not used
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "auto.offset.reset": "error",  # lost offsets raise an error and are never passed over
    "isolation.level": "read_committed",
    "enable.partition.eof": "true",
    "check.crcs": "true",
    "fetch.wait.max.ms": "20",  # a fetch that still waits after the end of a range delays the next range
    "queued.max.messages.kbytes": "32768",
}
_DAMAGED = ("_BAD_MSG", "_BAD_COMPRESSION", "INVALID_MSG", "_NOT_IMPLEMENTED", "_MSG_SIZE_TOO_LARGE")
_OUT_OF_RANGE = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE", "_LOG_TRUNCATION")


class PartitionReads:
    """A consumer that reads ranges one after the other.

    Args:
        library: confluent-kafka.
        columns: of `METADATA`.
    """

    def __init__(self, *, library: Any, conf: Mapping[str, str], topic: str, columns: Sequence[str]) -> None:
        self._library = library
        self._topic = topic
        self._columns = columns
        self._consumer = library.Consumer({**conf, **_CONF})

    def close(self) -> None:
        self._consumer.close()

    def read(self, wanted: OffsetRange, end_of: Callable[[int], int]) -> Iterator[pa.RecordBatch]:
        """Yield a range's records.

        Args:
            end_of: returns the present end (exclusive) of a partition.

        Raises:
            OffsetsGone: see `Topic.read`.
            StoreUnavailable: the brokers deliver no records.
        """
        place = self._library.TopicPartition(self._topic, wanted.partition, wanted.begin)
        self._consumer.incremental_assign([place])
        try:
            is_done, told_at, left = False, time.monotonic(), wanted.end - wanted.begin
            while not is_done:
                messages = self._consumer.consume(min(left, _AT_ONCE), _WAIT_SECONDS)
                taken, is_done = self._taken(messages, wanted)
                if taken:
                    left = max(1, wanted.end - 1 - taken[-1].offset())
                    yield record_batch(taken, self._columns)
                if messages:
                    told_at = time.monotonic()
                elif time.monotonic() - told_at > STALL_SECONDS:
                    self._give_up(wanted, end_of)
        finally:
            self._consumer.incremental_unassign([place])

    def _taken(self, messages: Sequence[Any], wanted: OffsetRange) -> tuple[list[Any], bool]:
        """Return the records among messages that belong to a range, and whether the range ends with them."""
        taken: list[Any] = []
        for message in messages:
            if message.partition() not in (wanted.partition, _ANY):
                continue  # a message of the range before
            if message.error() is not None:
                if self._is_end(message, wanted):
                    return taken, True
                continue
            offset = message.offset()
            if offset >= wanted.end:
                return taken, True
            if 0 <= wanted.epoch < (message.leader_epoch() or 0):
                raise OffsetsGone(
                    f"partition {wanted.partition}: offset {offset} was written anew since it was found: a leader that "
                    "had fewer records took over"
                )
            taken.append(message)
            if offset == wanted.end - 1:
                return taken, True
        return taken, False

    def _is_end(self, message: Any, wanted: OffsetRange) -> bool:
        """Say whether a message reports the end of the partition, at or after the end of the range.

        Raises:
            OffsetsGone, KafkaException: it reports an error.
        """
        error = message.error()
        name = error.name()
        if name == "_PARTITION_EOF":
            return bool(message.offset() >= wanted.end)  # a new leader may report an earlier end than the real one
        if name in _OUT_OF_RANGE or name in _DAMAGED:
            which = f"partition {wanted.partition}, offsets {wanted.begin} to {wanted.end - 1}"
            raise OffsetsGone(f"{which} cannot be read as they were: {error.str()}")
        raise self._library.KafkaException(error)

    def _give_up(self, wanted: OffsetRange, end_of: Callable[[int], int]) -> None:
        end = end_of(wanted.partition)
        if end < wanted.end:
            raise OffsetsGone(f"partition {wanted.partition} ends at offset {end}, and had records up to {wanted.end}")
        msg = f"Kafka gives no records of partition {wanted.partition} of {self._topic}"
        raise StoreUnavailable(msg, remedy="a new attempt starts by itself; look at the brokers")


def record_batch(messages: Sequence[Any], columns: Sequence[str]) -> pa.RecordBatch:
    """Return records as the rows of `Topic.read`.

    Args:
        messages: of the client.
        columns: of `METADATA`.
    """
    import pyarrow as pa

    partitions = pa.array([message.partition() for message in messages], pa.int64())
    offsets = pa.array([message.offset() for message in messages], pa.int64())
    found = {
        POSITION: pa.StructArray.from_arrays([partitions, offsets], ["block", "row"]),
        "value": pa.array([message.value() for message in messages], pa.binary()),
    }
    others: Mapping[str, Callable[[], pa.Array]] = {
        "key": lambda: pa.array([message.key() for message in messages], pa.binary()),
        "partition": lambda: partitions.cast(pa.int32()),
        "offset": lambda: offsets,
        "timestamp": lambda: _times(messages),
        "headers": lambda: _headers(messages),
    }
    found.update({name: others[name]() for name in columns})
    return pa.record_batch(list(found.values()), names=list(found))


def others_from(library: Any, conf: Mapping[str, str], topic: str, stood: Sequence[Stood]) -> dict[int, int]:
    """Return for each partition the first offset with another record than before, or with none; else `Stood.offset`.

    The brokers know the end of each epoch. A consumer that starts at an offset with an epoch asks them for that end
    (KIP-320). If the log was cut off before the offset, it goes on at the cut, or at the next offset with a record.

    Raises:
        StoreUnavailable: the brokers deliver nothing.
    """
    places = {
        each.partition: library.TopicPartition(topic, each.partition, each.offset, leader_epoch=each.epoch)
        for each in stood
    }
    found: dict[int, int] = {}
    asking = {
        "auto.offset.reset": "earliest",
        "isolation.level": "read_uncommitted",  # aborted records, too, may have replaced the records that were read
        "max.partition.fetch.bytes": "1024",
    }
    consumer = library.Consumer({**conf, **_CONF, **asking})
    try:
        consumer.assign(list(places.values()))
        told_at = time.monotonic()
        while len(found) < len(places) and time.monotonic() - told_at <= STALL_SECONDS:
            message = consumer.poll(_WAIT_SECONDS)
            if message is None:
                continue
            if message.error() is not None and message.error().name() != "_PARTITION_EOF":
                raise library.KafkaException(message.error())
            partition = message.partition()
            if partition not in found:
                found[partition] = min(int(message.offset()), places[partition].offset)
                told_at = time.monotonic()
                consumer.pause([library.TopicPartition(topic, partition)])
    finally:
        consumer.close()
    if len(found) < len(places):
        msg = f"Kafka does not tell where partitions {sorted(places.keys() - found.keys())} of {topic} were cut off"
        raise StoreUnavailable(msg, remedy="a new attempt starts by itself; look at the brokers")
    return found


def _times(messages: Sequence[Any]) -> pa.Array:
    """Return the times of records: of creation or of appending, as the topic is set.

    Null if a record has no time, or one that microseconds cannot tell: some producers give nanoseconds.
    """
    import pyarrow as pa

    told = [message.timestamp() for message in messages]
    times = [ms * 1000 if kind and abs(ms) <= _MOST_MS else None for kind, ms in told]
    return pa.array(times, pa.timestamp("us", "UTC"))


def _headers(messages: Sequence[Any]) -> pa.Array:
    import pyarrow as pa

    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    told = (message.headers() for message in messages)
    return pa.array([None if pairs is None else [{"key": k, "value": v} for k, v in pairs] for pairs in told], kind)
