"""Topics in memory: the records of a `KafkaSource`, from a file of the test instead of from brokers.

Only the brokers are replaced: the source itself decodes records, finds bad ones, and has its slices, positions and
replays.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import UsageError
from drainmark.jobs.formats.format import format_of, with_added
from drainmark.jobs.operators.sources.kafka_source import KafkaSource
from drainmark.jobs.operators.sources.kafka_topic import OffsetRange, Offsets, Stood, TopicLook
from drainmark.jobs.operators.sources.source import SlicedSource
from drainmark.orchestration.testing.files import Record, column_names, require_columns

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.jobs.graph.application import Application
    from drainmark.jobs.operators.sources.contract import Connections

_IDENTITY = "given"


class Topics:
    """The topics that a test gives an application: one file for each topic, one line for each record.

    Args:
        sources: the sources that read them, by name.
    """

    def __init__(self, root: Path, sources: Mapping[str, KafkaSource]) -> None:
        self.sources = sources
        self.files = {name: root / f"{name}.jsonl" for name in sources}
        for file in self.files.values():
            root.mkdir(parents=True, exist_ok=True)
            file.touch()

    def add(self, name: str, records: Sequence[Record]) -> list[str]:
        """Append records to the topic of a source, and return their places, `topic#offset`.

        Raises:
            UsageError: the records are not a list, or a row has a column that is not in the schema.
        """
        source = self.sources[name]
        if isinstance(records, str | bytes | Mapping) or not isinstance(records, Sequence):
            raise UsageError(f"{name!r} reads records: give a list of them", remedy='{"' + name + '": [{…}, {…}]}')
        lines = [_line(source, record) for record in records]
        begin = len(self.files[name].read_text().splitlines())
        with self.files[name].open("a") as file:
            file.writelines(f"{line}\n" for line in lines)
        return [f"{source.topic}#{begin + number}" for number in range(len(lines))]


def kafka_sources(application: Application) -> dict[str, KafkaSource]:
    """Return the sources of an application that read Kafka, by name."""
    return {
        operator.name: operator.reads
        for operator in application.operators
        if isinstance(operator, SlicedSource) and isinstance(operator.reads, KafkaSource)
    }


def with_topics(application: Application, files: Mapping[str, str | Path]) -> Application:
    """Return the application with sources that read their topics from files.

    Args:
        files: by name of the source.
    """
    operators = tuple(
        replace(operator, reads=_given(operator.reads, files[operator.name]))
        if operator.name in files and isinstance(operator, SlicedSource) and isinstance(operator.reads, KafkaSource)
        else operator
        for operator in application.operators
    )
    return replace(application, operators=operators)


def _given(source: KafkaSource, file: str | Path) -> GivenRecords:
    declared = {each.name: getattr(source, each.name) for each in fields(source)}
    return GivenRecords(**{**declared, "file": str(file), "max_messages": 1, "start_from": "earliest"})


@dataclass(frozen=True)
class GivenRecords(KafkaSource):
    """A `KafkaSource` with a file as its topic: one slice for each record, from the first record on.

    It needs no address of brokers. Slices are as small as possible: results that do not depend on where such slices are
    cut are right for all other slices.
    """

    file: str = ""

    def _topic(self, access: Connections) -> FileTopic:
        return FileTopic(Path(self.file), tuple(self.partitions or (0,)))


@dataclass(frozen=True, slots=True)
class FileTopic:
    """A topic in a file (`jobs.operators.sources.kafka_topic.Topic`): all records are in one partition.

    Args:
        read_from: numbers of the partitions that are read. The least has the records, all others are empty.
    """

    path: Path
    read_from: tuple[int, ...]

    @property
    def partition(self) -> int:
        """Return the number of the partition with the records."""
        return min(self.read_from)

    @property
    def _partitions(self) -> range:
        return range(max(self.read_from) + 1)

    def look(self) -> TopicLook:
        first = dict.fromkeys(self._partitions, 0)
        end = {**first, self.partition: len(self._lines())}
        return TopicLook(identity=_IDENTITY, first=first, end=end, epochs={})

    def kept_look(self, seconds: float) -> TopicLook | None:
        return None

    def is_compacted(self) -> bool:
        return False

    def others_from(self, stood: Sequence[Stood]) -> Offsets:
        return {each.partition: each.offset for each in stood}  # records never leave the file

    def at_time(self, moment: dt.datetime) -> Offsets:
        wanted = moment.timestamp() * 1000
        messages = self._messages(0, len(self._lines()))
        found = next((each.offset() for each in messages if each.timestamp()[1] >= wanted), -1)
        return {**dict.fromkeys(self._partitions, -1), self.partition: found}

    def committed(self, group: str) -> Offsets:
        return {}

    def commit(self, group: str, offsets: Offsets) -> None:
        """Commit nothing: offsets of a consumer group are for other tools, and a test has none."""

    def read(self, identity: str, ranges: Sequence[OffsetRange], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        from drainmark.resources.kafka.consumer import record_batch

        for wanted in ranges:
            if wanted.partition == self.partition:
                yield record_batch(self._messages(wanted.begin, wanted.end), columns)

    def _messages(self, begin: int, end: int) -> list[_Message]:
        lines = self._lines()[begin:end]
        return [_Message(self.partition, number, json.loads(line)) for number, line in enumerate(lines, begin)]

    def _lines(self) -> list[str]:
        return self.path.read_text().splitlines()


@dataclass(frozen=True, slots=True)
class _Message:
    """A record with the methods of a message of Kafka's client."""

    number: int
    place: int
    facts: Mapping[str, Any]

    def partition(self) -> int:
        return self.number

    def offset(self) -> int:
        return self.place

    def key(self) -> bytes | None:
        return _bytes(self.facts["key"])

    def value(self) -> bytes | None:
        return _bytes(self.facts["value"])

    def timestamp(self) -> tuple[int, int]:
        return 1, int(self.facts["at"])

    def headers(self) -> None:
        return None


def _line(source: KafkaSource, record: Record) -> str:
    key, value = record if isinstance(record, tuple) else (None, record)
    facts = {"key": _text(key), "value": _text(_encoded(source, value)), "at": int(time.time() * 1000)}
    return json.dumps(facts)


def _encoded(source: KafkaSource, value: str | bytes | Mapping[str, Any] | None) -> str | bytes | None:
    if not isinstance(value, Mapping):
        return value
    if source.schema is None:
        raise UsageError(f"topic {source.topic!r} has no columns", remedy=f"give {source.format} as text or bytes")
    columns = column_names(with_added(source.format, source.schema))
    require_columns([value], columns, source.topic)
    options = {**source.options, "header": "false"}
    whole = format_of(source.format).encoded([value], columns, options, _no_types)
    return (whole or b"").removesuffix(b"\n")


def _no_types() -> pa.Schema:
    msg = "JSON and CSV are text"
    raise AssertionError(msg)


def _text(value: str | bytes | None) -> str | None:
    if value is None:
        return None
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
