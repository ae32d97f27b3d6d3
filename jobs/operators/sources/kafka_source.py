"""`KafkaSource`: the records of a Kafka topic, by ranges of offsets over all partitions."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from drainmark.jobs import world
from drainmark.jobs.errors import UsageError
from drainmark.jobs.failpoints import SourcePoint
from drainmark.jobs.formats.byte_records import Records, wrong_options
from drainmark.jobs.formats.format import taken_name, with_added
from drainmark.jobs.graph.annotations import is_count
from drainmark.jobs.operators.sources import kafka_losses
from drainmark.jobs.operators.sources.contract import Connections, RowSlices, SourceAccess, Workers
from drainmark.jobs.operators.sources.kafka_losses import (
    position_at,
    require_again,
    require_there,
    shows,
    telling,
    told,
)
from drainmark.jobs.operators.sources.kafka_topic import (
    BEGIN,
    LOST,
    METADATA,
    OFFSETS,
    TOPIC,
    Offsets,
    Topic,
    TopicGone,
    TopicLook,
    keyed,
    offsets_of,
    ranges_of,
    shares_of,
)
from drainmark.jobs.operators.sources.slices import Position, Slice, SliceLimit

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KafkaSource"]

_FORMATS = ("bytes", "text", "csv", "json", "debezium")
_PARSED = ("csv", "json", "debezium")
_PLAIN = ("key", "partition", "offset", "timestamp")
_POLICIES: Mapping[str, tuple[str, ...]] = {
    "on_bad": ("quarantine", "halt"),
    "tombstones": ("quarantine", "null"),
    "on_compacted": ("halt", "read"),
}
_STARTS = ("earliest", "latest", "group")
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SHOWN = 8

_KEPT_SECONDS = 1.0
"""The age up to which a look at the topic is used again: with a backlog many slices are cut from one look."""


@dataclass(frozen=True)
class KafkaSource(RowSlices):
    """The records of a Kafka topic: each scan makes one trigger, a range of offsets over all partitions.

    The position of the region is in its checkpoints, beside its states and sinks. Offsets that are committed to the
    group are for other tools, and follow each state; no recovery and no rewind reads them. Only committed records
    are read (`read_committed`). A range is read again unchanged, or the region halts: if the brokers have dropped
    records that were not read yet (retention), if the topic was deleted or created again, or if a partition lost its
    end (unclean election), even if it has other records there by now. The error names the missing offsets of each
    partition, and `drainmark resume REGION --accept-loss` goes on after them; the history keeps the lost offsets.
    A partition that is added later is read from offset 0, from the next slice on.

    `_position` is the partition and the offset. Rows have the columns of the format, and those of `metadata`.

    In an operator-driven region a slice has at most `max_messages` offsets of each partition; the next slice has more.
    In a periodic region it ends at the offsets of the tick, or at its limit of bytes, with `message_bytes` per offset.

    It needs the extra `kafka` (`pip install 'drainmark[kafka]'`), and no jar. Tasks read the records of a group above
    `small_group_bytes`, each task a range of bounded size, with the credentials of its own environment.

    Args:
        topic: its name.
        bootstrap_servers: `host:port`, several with commas; those of `cluster` by default.
        group_id: the group for which offsets are committed; none by default.
        format: `bytes` and `text` (UTF-8) have the column `value`; `json` (one object per record) and `csv` (one line
            per record) have the columns of the schema; `debezium` (a change per record) has `_op`, `_sequence`,
            `_changed_at` beside them: see docs/how-to/sources.md.
        schema: DDL of the columns, for JSON, CSV and Debezium.
        options: as for `DirectoryScan`, e.g. `{"sep": ";"}`.
        metadata: columns beside those of the format, of `key`, `partition`, `offset`, `timestamp`, `headers`; by
            default the first four for `bytes` and `text`, and none for the others. A time that microseconds cannot hold
            is null.
        start_from: the place at which the very first run begins: `earliest`; `latest`, after the records that are there
            at the first scan; an ISO time, at the first record of each partition that is not older; or `group`, at the
            offsets that the group has committed, and at the earliest offset of each other partition.
        partitions: read these only; all of them, and those added later, by default.
        max_messages: the most offsets of a partition in a slice.
        message_bytes: assumed size of a record, since Kafka tells none; sizes of slices and groups come from it.
        cluster: name of an entry of the setting `kafka`, which has the options of the client, with the credentials.
        tombstones: the treatment of a record without a value, in JSON and CSV: a bad record, or a row of nulls.
        on_bad: the treatment of a record that does not fit: it goes to the region's quarantine, which names partition
            and offset, or the region halts.
        on_compacted: a compacted topic gives other rows after a rewind than before it: `"read"` accepts that, `"halt"`
            refuses it.

    Example:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.KafkaSource("clicks", "localhost:9092", format="json", schema="customer string, page string"))
        def clicks(scanned):
            return scanned
    """

    kind: ClassVar[str] = "kafka"
    hears_checkpoints: ClassVar[bool] = True

    topic: str
    bootstrap_servers: str = ""
    group_id: str | None = None
    format: Literal["bytes", "text", "csv", "json", "debezium"] = "bytes"
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    metadata: Sequence[str] | None = None
    start_from: str = "earliest"
    partitions: Sequence[int] | None = None
    max_messages: int = 10_000
    message_bytes: int = 1024
    cluster: str | None = None
    tombstones: Literal["quarantine", "null"] = "quarantine"
    on_bad: Literal["quarantine", "halt"] = "quarantine"
    on_compacted: Literal["halt", "read"] = "halt"

    # --- the declaration ---------------------------------------------------------------------------------------------

    def problems(self, trigger: str | None) -> Iterator[tuple[str, str, str]]:
        if not _TOPIC_NAME.fullmatch(self.topic):
            yield "TOPIC", f"topic={self.topic!r} is no name of a topic", "letters, digits, . _ and -"
        if not (self.bootstrap_servers or self.cluster):
            yield "KAFKA_SERVERS", "nothing says where the brokers are", 'bootstrap_servers="host:9092", or cluster='
        if set("@/") & set(self.bootstrap_servers):
            message = "the code names more of the brokers than hosts and ports"
            yield "KAFKA_SERVERS", message, "put the client's options into the setting kafka, and name it: cluster="
        if self.format not in _FORMATS:
            yield "UNKNOWN_FORMAT", f"format {self.format!r} is not known", f"one of {', '.join(_FORMATS)}"
        elif (self.schema is None) == (self.format in _PARSED):
            message = "needs a schema" if self.schema is None else "has columns of its own"
            remedy = 'add schema="id bigint, …"' if self.schema is None else "leave schema out"
            yield "SCHEMA_MISSING" if self.schema is None else "SCHEMA_UNUSED", f"{self.format!r} {message}", remedy
        for name, known in _POLICIES.items():
            if getattr(self, name) not in known:
                yield "UNKNOWN_POLICY", f"{name}={getattr(self, name)!r} is not known", f"one of {', '.join(known)}"
        if self.format in _PARSED:
            yield from (("READER_OPTION", *found) for found in wrong_options(self.format, self.options))
            yield from _change_problems(self)
        yield from _column_problems(self._metadata, self.schema)
        yield from _offset_problems(self)

    def fingerprint(self) -> Any:
        facts = [self.format, self.schema, dict(self.options), list(self._metadata), self.tombstones]
        wanted = sorted(self.partitions) if self.partitions is not None else None
        return {"topic": self.topic, "records": facts, "partitions": wanted}

    @property
    def _metadata(self) -> Sequence[str]:
        default = () if self.format in _PARSED else _PLAIN
        return default if self.metadata is None else self.metadata

    def columns(self, access: SourceAccess) -> str:
        own = {"bytes": "value binary", "text": "value string"}.get(self.format) or _rows(self)
        return ", ".join([own, *(f"`{name}` {METADATA[name]}" for name in self._metadata)])

    @property
    def records(self) -> Records | None:
        if self.format == "bytes":
            return None
        return Records(
            column="value",
            format=self.format,
            schema=_rows(self) or None,
            options=self.options,
            others={name: METADATA[name] for name in self._metadata},
            on_bad=self.on_bad,
            takes_null=self.format == "text" or self.tombstones == "null" or self.format == "debezium",
            key="key" if self.format == "debezium" else "",
            place="partition {block}, offset {row}",
        )

    # --- slices ------------------------------------------------------------------------------------------------------

    def next_slice(self, after: Position | None, access: SourceAccess, cut: SliceLimit) -> Slice | None:
        with telling(self.topic, access, after):
            topic = self._topic(access)
            look = topic.kept_look(_KEPT_SECONDS) if after is not None and not cut.is_periodic else None
            if look is None or not (shows(look, after) and self._fills(after, look)):
                look = topic.look()
            begin = self._begin(after, look, topic)
            if begin is None:
                return None
            self._require_partitions(look)
            require_there(topic, after, begin, look)
            ends = self._ends(begin, look, cut)
            number = sum(ends[partition] - begin[partition] for partition in ends)
            if not number and (after is not None or self.start_from == "earliest"):  # nothing is to be remembered
                return None
            self._require_kept(topic)
        facts, end = {BEGIN: keyed(begin)} if after is None else {}, position_at(look, after, ends)
        return Slice(start=after, end=end, size_bytes=number * self.message_bytes, facts=facts)

    def _fills(self, after: Position | None, look: TopicLook) -> bool:
        """Say whether an earlier look shows enough records for a whole slice."""
        before = offsets_of(after)
        return any(look.end.get(partition, 0) - offset >= self.max_messages for partition, offset in before.items())

    def _begin(self, after: Position | None, look: TopicLook, topic: Topic) -> Offsets | None:
        """Return the offset at which a slice begins in each partition; None if `start_from` is in the future."""
        if after is not None:
            before = offsets_of(after)
            return {partition: before.get(partition, 0) for partition in self._own(look.end)}
        found: Offsets = look.first
        if self.start_from == "latest":
            found = look.end
        elif self.start_from == "group":
            found = {**look.first, **topic.committed(self.group_id or "")}
        elif (moment := _moment(self.start_from)) is not None:
            if moment > dt.datetime.now(dt.UTC):
                return None
            found = {**look.end, **{each: offset for each, offset in topic.at_time(moment).items() if offset >= 0}}
        return {partition: found[partition] for partition in self._own(look.end)}

    def _own(self, partitions: Mapping[int, Any]) -> list[int]:
        return [each for each in sorted(partitions) if self.partitions is None or each in self.partitions]

    def _ends(self, begin: Offsets, look: TopicLook, cut: SliceLimit) -> Offsets:
        most: int | None = self.max_messages
        if cut.is_periodic:
            behind = sum(look.end[partition] > offset for partition, offset in begin.items())
            share = None if cut.max_bytes is None else cut.max_bytes // self.message_bytes // max(1, behind)
            most = None if share is None else max(1, share)
        ends = {partition: look.end[partition] for partition in begin}
        if most is None:
            return ends
        return {partition: min(end, begin[partition] + most) for partition, end in ends.items()}

    def label(self, piece: Slice, source: str, access: Connections) -> str:
        ranges = [(each.partition, each.begin, each.end) for each in ranges_of(piece)]
        lost = piece.facts.get(LOST)
        shown = [f"{partition}:{begin}..{'' if end is None else end}" for partition, begin, end in lost or ranges]
        if len(shown) > _SHOWN:  # shows a few of many; the sum makes the label unique
            shown[_SHOWN:] = ["…", str(sum(offsets_of(piece.end).values()))]
        return f"kafka:{self.topic}#{','.join(shown) or 'start'}{'(lost)' if lost else ''}"

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(self, piece: Slice, access: Connections) -> Iterator[pa.RecordBatch]:
        if ranges := ranges_of(piece):
            with telling(self.topic, access, piece.end, self.label(piece, "", access)):
                read = dict.fromkeys([*self._metadata, "key"] if self.format == "debezium" else self._metadata)
                yield from self._topic(access).read(piece.end[TOPIC], ranges, [*read])

    def shares(self, piece: Slice, access: SourceAccess, *, share_bytes: int, workers: Workers) -> Sequence[Slice]:
        return shares_of(piece, share_bytes, self.message_bytes)

    def remark(self, piece: Slice, rows: int) -> str | None:
        lost = piece.facts.get(LOST)
        return f"accepted as lost: {told(lost)}" if lost else None

    def check(self, piece: Slice, access: SourceAccess, source: str) -> None:
        if LOST not in piece.facts:
            with telling(self.topic, access, piece.end, self.label(piece, source, access)):
                topic = self._topic(access)
                require_again(topic, piece, topic.kept_look(_KEPT_SECONDS))

    def on_checkpointed(
        self, read: Iterator[Slice], access: SourceAccess, source: str, *, beyond_horizon: bool
    ) -> None:
        """Commit the offsets of the last slice to the group; Drainmark never reads them, so a failure costs nothing."""
        if beyond_horizon or not self.group_id:
            return
        *_, last = read
        world.pass_point(SourcePoint.GROUP_BEFORE)
        self._topic(access).commit(self.group_id, offsets_of(last.end))
        world.pass_point(SourcePoint.GROUP_AFTER)

    def past_loss(
        self, after: Position | None, access: SourceAccess, source: str, *, waiting: Slice | None
    ) -> Slice | None:
        try:
            topic = self._topic(access)
            look = topic.look()
        except TopicGone as error:
            remedy = "create it again: then its rows can be read"
            raise UsageError(f"there is no topic {self.topic}", remedy=remedy) from error
        stood = after
        if after is None and waiting is not None:  # the very first slice: its facts say where it began
            stood = {TOPIC: waiting.end[TOPIC], OFFSETS: waiting.facts.get(BEGIN, {})}
        begin = self._begin(stood, look, topic)
        return None if begin is None else kafka_losses.past_loss(topic, look, after, begin, waiting)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _require_partitions(self, look: TopicLook) -> None:
        if unknown := sorted(set(self.partitions or ()) - set(look.end)):
            msg = f"topic {self.topic} has no partition {unknown[0]}"
            raise UsageError(msg, remedy=f"it has {len(look.end)}, numbered from 0")

    def _require_kept(self, topic: Topic) -> None:
        if self.on_compacted == "halt" and topic.is_compacted():
            msg = f"topic {self.topic} is compacted: after a rewind it would give other rows than before"
            raise UsageError(msg, remedy='on_compacted="read" at the source takes that')

    def _topic(self, access: Connections) -> Topic:
        return access.kafka(self.topic, servers=self.bootstrap_servers, cluster=self.cluster)


def _rows(source: KafkaSource) -> str:
    """Return the DDL of the rows of records, "" for bytes and texts."""
    return with_added(source.format, source.schema) if source.schema else ""


def _change_problems(source: KafkaSource) -> Iterator[tuple[str, str, str]]:
    if (name := taken_name(source.format, source.schema or "")) is not None:
        msg = f"the schema has a column {name!r}, which each row of {source.format} gets"
        yield "COLUMN_TAKEN", msg, "leave it out: the column is added"
    if source.format == "debezium" and source.tombstones != "quarantine":
        yield "TOMBSTONES", "a tombstone behind a delete never is a row", "leave tombstones= out"


def _column_problems(metadata: Iterable[str], schema: str | None) -> Iterator[tuple[str, str, str]]:
    for name in metadata:
        if name not in METADATA:
            yield "KAFKA_COLUMN", f"a record has no {name!r}", f"some of {', '.join(METADATA)}"
        elif schema and re.search(rf"(?:^|,)\s*`?{name}`?\s", schema, re.IGNORECASE):
            yield "KAFKA_COLUMN", f"the schema has a column {name!r}, too", "rename it, or leave it out of metadata"


def _offset_problems(source: KafkaSource) -> Iterator[tuple[str, str, str]]:
    for name in ("max_messages", "message_bytes"):
        value = getattr(source, name)
        if not is_count(value):
            yield name.upper(), f"{name}={value!r} is none", "give a whole number from 1 up"
    wanted = list(source.partitions or ())
    is_set = bool(wanted) and len(set(wanted)) == len(wanted) and all(is_count(number, 0) for number in wanted)
    if source.partitions is not None and not is_set:
        yield "PARTITIONS", f"partitions={source.partitions!r} names none, or one twice", "numbers from 0 up"
    if source.start_from == "group" and not source.group_id:
        yield "START_FROM", "no group says where to start", "group_id=…"
    if source.start_from not in _STARTS and _moment(source.start_from) is None:
        remedy = f"{', '.join(_STARTS)}, or an ISO time"
        yield "START_FROM", f"start_from={source.start_from!r} is no place to start from", remedy


def _moment(text: str) -> dt.datetime | None:
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=dt.UTC)
