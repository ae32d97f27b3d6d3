"""Changes of a database as Debezium writes them in JSON: one envelope a line, or a record of Kafka."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from drainmark.jobs.formats import json_records
from drainmark.jobs.formats.bad_records import Parsed
from drainmark.jobs.formats.column_fit import Columns
from drainmark.jobs.formats.format import Expected, Lines, Rows, as_text
from drainmark.jobs.formats.json import BLANK, faults_of_names, table_of
from drainmark.jobs.formats.lines.line_format import LINE_OPTIONS, LineFormat
from drainmark.jobs.formats.values import debezium_values as values
from drainmark.jobs.formats.values.debezium_values import Modes, Reading, Schema, Unclear
from drainmark.jobs.formats.values.json_values import fields_of

if TYPE_CHECKING:
    import pyarrow as pa

OP, SEQUENCE, CHANGED_AT = "_op", "_sequence", "_changed_at"
ADDED = f"{OP} string, {SEQUENCE} bigint, {CHANGED_AT} timestamp"
"""The columns that a change has beside those of its row."""

_SIDES = {"c": "after", "r": "after", "u": "after", "d": "before"}
_TRUNCATE = "t"
_MOST = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change.

    Attributes:
        row: tokens of its row; None for a truncated table.
        schemas: of the fields of the row; None if the message has none.
        sequence: see `_sequence`.
        micros: the time of the change, microseconds since 1970.
        text: returns the characters of the row.
    """

    op: str
    row: Mapping[str, Any] | None
    schemas: Mapping[str, Schema] | None
    sequence: int | None
    micros: int | None
    text: Callable[[], str]


class Fault(Exception):
    """A message is no change that can be read; the text says why."""


@dataclass(slots=True)
class Messages:
    """The reader of messages with and without the envelope of a schema.

    The messages of a topic have one schema after the other, and it is most of their text: its characters are read once,
    and compared. `_start` are the characters of the last one, up to the payload; `_sides` are the fields of the rows of
    `_of`, the schema that was asked for last.
    """

    _start: str = ""
    _schema: Schema | None = None
    _of: Schema | None = None
    _sides: dict[str, Mapping[str, Schema]] = field(default_factory=dict)

    def parts(self, record: str) -> tuple[Any, Schema | None]:
        """Return the payload of a message, and its schema if it has one."""
        if self._start and record.startswith(self._start) and json_records.excess_of(record) is None:
            found = json_records.tokens_of(f'{{"payload":{record[len(self._start) :]}')
            if isinstance(found, dict) and found.keys() == {"payload"}:
                return found["payload"], self._schema
        tokens = json_records.tokens_of(record)
        if isinstance(tokens, str):
            raise Fault(tokens)
        if tokens.keys() != {"schema", "payload"}:
            return tokens, None
        schema = tokens["schema"]
        if schema is not None and not isinstance(schema, dict):
            raise Fault("has a schema that is none of Kafka Connect")
        if [*tokens] == ["schema", "payload"]:
            *_, (_, payload) = json_records.members_of(record)
            self._start, self._schema = record[: record.rindex(payload)], schema
        return tokens["payload"], schema

    def change(self, record: str, key: str | None) -> Change | None:
        """Return the change of a message; None for a tombstone.

        Args:
            key: the message's key, None if there is none.

        Raises:
            Fault: it is none.
        """
        if record.strip() == "null":
            return None
        payload, schema = self.parts(record)
        if payload is None:
            return None
        if not isinstance(payload, dict) or not isinstance(payload.get("op"), str):
            raise Fault(_no_change(payload))
        op, source = payload["op"], payload.get("source")
        if op not in _SIDES and op != _TRUNCATE:
            raise Fault(f"has the operation {op[:16]!r}: c, u, d, r and t are changes of rows")
        known = source if isinstance(source, dict) else {}
        facts = {"op": op, "sequence": _sequence(known, payload), "micros": _micros(known, payload)}
        if op == _TRUNCATE:
            return Change(row=None, schemas=None, text=lambda: "{}", **facts)
        side = _SIDES[op]
        row = payload.get(side)
        if row is None and op == "d" and key is not None:
            return self._of_key(key, facts)
        if not isinstance(row, dict):
            raise Fault(_no_row(row, op, side))
        return Change(row=row, schemas=self._fields_of(schema, side), text=lambda: _characters(record, side), **facts)

    def _fields_of(self, schema: Schema | None, side: str) -> Mapping[str, Schema] | None:
        """Return the schemas of the fields of a row, the same object for the same schema; None without one."""
        if schema is None:
            return None
        if schema is not self._of:
            self._of, self._sides = schema, {}
        if side not in self._sides:
            found = values.fields_of_schema((values.fields_of_schema(schema) or {}).get(side))
            if found is None:
                raise Fault(f"has a schema without the fields of {side!r}")
            self._sides[side] = found
        return self._sides[side]

    def _of_key(self, key: str, facts: Mapping[str, Any]) -> Change:
        """Return a deleted row of which only the key is known."""
        row, schema = Messages().parts(key)
        if not isinstance(row, dict):
            raise Fault("is the delete of a row whose key is no object")
        return Change(row=row, schemas=values.fields_of_schema(schema), text=lambda: _characters(key, ""), **facts)


def _characters(record: str, side: str) -> str:
    """Return the characters of a row in a message, or of a key."""
    members = dict(json_records.members_of(record))
    if members.keys() == {"schema", "payload"}:
        record = members["payload"]
        members = dict(json_records.members_of(record))
    return members[side] if side else record


def _no_change(payload: Any) -> str:
    """Return why the payload of a message is no change of a row."""
    names = set(payload) if isinstance(payload, dict) else set()
    if names & {"ddl", "tableChanges"}:
        what = "is a change of the schema, which Debezium writes to a topic of its own"
    elif {"status", "id"} <= names and names & {"event_count", "data_collections"}:
        what = "is one of Debezium's messages on transactions, which have a topic of their own"
    elif names and names <= {"ts_ms", "ts_us", "ts_ns", "databaseName", "serverName"}:
        what = "is a heartbeat of Debezium, which has a topic of its own"
    else:
        return (
            "is no envelope of Debezium: it has no op. If the connector takes the envelope away, leave out its"
            ' transformation (ExtractNewRecordState), or read format="json"'
        )
    return f"{what}: let pattern= or topic= leave it out"


def _no_row(row: Any, op: str, side: str) -> str:
    if isinstance(row, str):
        return f"has a text as {side}, as the connector of MongoDB writes it: it has no columns"
    if op != "d":
        return f"is a change {op!r} without {side}"
    return (
        "is the delete of a row of which nothing is known: neither before nor a key. Give the table a primary key; in"
        " PostgreSQL: alter table … replica identity full, or read the topic with dm.KafkaSource, whose keys name rows"
    )


# --- order and time ---------------------------------------------------------------------------------------------------


def _sequence(source: Mapping[str, Any], payload: Mapping[str, Any]) -> int | None:
    """Return the place of a change in the log of its database, as a number that orders the changes of each row.

    The fields that a connector has say which log it is; if they are null, there is no place, and no other one is taken.
    """
    if "lsn" in source:  # PostgreSQL
        return _bounded(source["lsn"], "lsn")
    if "file" in source and "pos" in source:  # MySQL and MariaDB
        return _of_binlog(source["file"], source["pos"])
    if "scn" in source:  # Oracle
        return _bounded(source["scn"], "scn")
    ms = source.get("ts_ms")
    return _bounded(payload.get("ts_ms") if ms is None else ms, "ts_ms")


def _of_binlog(file: Any, pos: Any) -> int | None:
    """Return a position in MySQL's log: the number of the file in the upper 31 bits, the place in it in the lower 32.

    Raises:
        Fault: the file has no number, or one of them is too large.
    """
    if file is None or pos is None:
        return None
    number, place = _number_of(str(file).rpartition(".")[2]), _bounded(pos, "pos")
    if number is None or number >= 1 << 31 or place is None or not 0 <= place < 1 << 32:
        raise Fault(f"has a place in the log that has no order: file {str(file)[:64]!r}, pos {place}")
    return (number << 32) + place


def _bounded(token: Any, name: str) -> int | None:
    """Return a whole number, which Oracle's connector writes as a text."""
    if token is None:
        return None
    text = token.decode() if isinstance(token, bytes) else token if isinstance(token, str) else ""
    number = _number_of(text.removeprefix("-"))
    if number is None or not -_MOST <= (number := -number if text.startswith("-") else number) < _MOST:
        raise Fault(f"has a source whose {name} is no bigint")
    return number


def _number_of(digits: str) -> int | None:
    """Return the number of some digits, or, of too many, one that is too large for any field; None if they are none."""
    return int(digits.lstrip("0")[:24] or "0") if digits.isascii() and digits.isdigit() else None


def _micros(source: Mapping[str, Any], payload: Mapping[str, Any]) -> int | None:
    """Return the time of a change in its database, else that at which the connector took it."""
    for facts in (source, payload):
        for name, unit in (("ts_us", 1), ("ts_ms", 1000)):
            if (told := _bounded(facts.get(name), name)) is not None:
                if not _FIRST <= told * unit <= _LAST:
                    raise Fault(f"has a {name} that is no time of the years 0001 to 9999")
                return told * unit
    return None


_MICRO = dt.timedelta(microseconds=1)
_FIRST, _LAST = ((each - dt.datetime(1970, 1, 1)) // _MICRO for each in (dt.datetime.min, dt.datetime.max))  # noqa: DTZ001,DTZ901


_MOST_SCHEMAS = 16

# --- records ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Taken:
    """The rows of changes as they are taken from records.

    Attributes:
        changes: of each record; None for tombstones and bad records.
        rows: tokens of each row as its columns take them.
    """

    declared: Columns
    modes: Modes
    is_rescuing: bool
    changes: list[Change | None] = field(default_factory=list)
    rows: list[Mapping[str, Any] | None] = field(default_factory=list)
    faults: dict[int, str] = field(default_factory=dict)
    tombstones: set[int] = field(default_factory=set)
    _messages: Messages = field(default_factory=Messages)
    _readings: dict[int, tuple[Any, Reading | None]] = field(default_factory=dict)

    def add(self, record: str, key: str | None) -> None:
        """Take the next record."""
        change, row = None, None
        try:
            change = self._messages.change(record, key)
            if change is None:
                self.tombstones.add(len(self.changes))
            elif change.row is not None:
                if _may_have_placeholder(record):
                    self._require_values(change.row)
                row = self.read(change, change.row)
        except (Fault, Unclear) as fault:
            self.faults[len(self.changes)] = str(fault)
            change = None
        self.changes.append(change)
        self.rows.append(row)

    def read(self, change: Change, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the tokens of a row as its columns take them.

        Raises:
            Unclear: a value has no certain meaning.
        """
        key = id(change.schemas)
        if key not in self._readings:
            if len(self._readings) >= _MOST_SCHEMAS:
                self._readings.clear()
            # The schema is kept beside: an id is used again when its object is gone.
            self._readings[key] = (change.schemas, values.fields_reading(self.declared, change.schemas, self.modes))
        read = self._readings[key][1]
        found: Mapping[str, Any] = row if read is None else read(row)
        return found

    def _require_values(self, row: Mapping[str, Any]) -> None:
        wanted = row if self.is_rescuing else [name for name, _ in self.declared]
        for name in wanted:
            if values.is_placeholder(row.get(name)):
                raise Unclear(
                    f"field {name!r}: its value is not in the message: PostgreSQL does not log large values that a"
                    " change leaves alone. alter table … replica identity full, or leave the column out"
                )


_CODES = re.compile(r"\[\s*95\s*,\s*95\s*,")
"""The beginning of an array of numbers that stands for a value that is not there."""


def _may_have_placeholder(record: str) -> bool:
    return values.PLACEHOLDER in record or values.PLACEHOLDER_BYTES in record or _CODES.search(record) is not None


class Envelopes(Lines):
    """Lines, or records of Kafka, of which each is an envelope."""

    has_tombstones = True

    def record_test(self, expected: Expected) -> Callable[[bytes], bool]:
        return lambda line: bool(line.strip(BLANK))

    def parse(self, records: Sequence[bytes], expected: Expected) -> Parsed:
        return self.parse_keyed(records, [None] * len(records), expected)

    def parse_keyed(self, records: Sequence[bytes], keys: Sequence[bytes | None], expected: Expected) -> Parsed:
        columns = (expected.columns or ())[: -len(ADDED.split(", "))]
        own = replace(expected, columns=columns)
        taken = _Taken(columns, modes_of(expected.options), expected.on_schema == "rescue")
        for record, key in zip(records, keys, strict=True):
            taken.add(record.decode(), None if key is None else key.decode(errors="replace"))
        found = _columns(taken, own)
        others = _others(taken, [name for name, _ in columns]) if taken.is_rescuing else ()
        rows = table_of(found, own, others)
        for place, (name, column) in enumerate(_added(taken.changes)):
            rows = rows.add_column(len(columns) + place, name, column)
        return Parsed(rows, taken.faults, frozenset(taken.tombstones))


def modes_of(options: Mapping[str, str]) -> Modes:
    """Return what the options tell of the connector's settings."""
    return Modes(decimals=options.get("decimalhandlingmode"), times=options.get("timeprecisionmode"))


def _columns(taken: _Taken, expected: Expected) -> Sequence[pa.Array]:
    """Return the declared columns; what does not fit becomes a fault."""
    from pyspark.sql.types import StructField, StructType

    kind = StructType([StructField(name, each) for name, each in taken.declared])
    columns, misfits = fields_of(taken.rows, kind.fields, expected.rules)
    if in_texts := [place for place, (_, reason) in misfits.items() if reason is None]:
        for place in in_texts:
            change = taken.changes[place]
            if change is not None:
                taken.rows[place] = taken.read(change, json_records.characters_of(change.text(), kind))
        columns, misfits = fields_of(taken.rows, kind.fields, expected.rules)
    faults = {place: f"field {path[1:]!r}: {reason}" for place, (path, reason) in misfits.items()}
    taken.faults = {**faults_of_names(taken.rows, expected), **faults, **taken.faults}
    return columns


def _others(taken: _Taken, declared: Sequence[str]) -> Sequence[str | None]:
    """Return the fields of each row that are not declared, as JSON."""
    return [
        None
        if change is None or change.row is None or place in taken.faults
        else json_records.others_in(change.text(), change.row, declared)
        for place, change in enumerate(taken.changes)
    ]


def _added(changes: Sequence[Change | None]) -> Sequence[tuple[str, pa.Array]]:
    import pyarrow as pa

    ops = pa.array([None if each is None else each.op for each in changes], pa.string())
    sequences = pa.array([None if each is None else each.sequence for each in changes], pa.int64())
    times = pa.array([None if each is None else each.micros for each in changes], pa.timestamp("us", "UTC"))
    return ((OP, ops), (SEQUENCE, sequences), (CHANGED_AT, times))


class Debezium(LineFormat):
    """Files of changes."""

    name = "debezium"
    added = ADDED
    options = LINE_OPTIONS | {"allownofields", "decimalhandlingmode", "timeprecisionmode"}
    lines = Envelopes()

    def cannot_read(self, expected: Expected) -> tuple[str, str] | None:
        modes = modes_of(expected.options)
        for option, told, known in (
            ("decimalHandlingMode", modes.decimals, values.DECIMAL_MODES),
            ("timePrecisionMode", modes.times, values.TIME_MODES),
        ):
            if told is not None and told not in known:
                remedy = f"one of {', '.join(known)}; for other settings leave it out: the schema of messages tells all"
                return f"the option {option!r} has no {told!r}", remedy
        return super().cannot_read(expected)

    def encoded(
        self, rows: Rows, columns: Sequence[str], options: Mapping[str, str], schema: Callable[[], pa.Schema]
    ) -> bytes:
        return "".join(json.dumps(_envelope(row), default=as_text, ensure_ascii=False) + "\n" for row in rows).encode()


def _envelope(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row of a test, which may have the added columns, as a message without a schema."""
    own = {name: value for name, value in row.items() if name not in (OP, SEQUENCE, CHANGED_AT)}
    op, moment = row.get(OP) or "c", row.get(CHANGED_AT)
    sides = {"before": own if op == "d" else None, "after": None if op in ("d", _TRUNCATE) else own}
    micros = None if moment is None else (_naive(moment) - dt.datetime(1970, 1, 1)) // _MICRO  # noqa: DTZ001
    return {**sides, "op": op, "source": {"lsn": row.get(SEQUENCE), "ts_us": micros}}


def _naive(moment: dt.datetime) -> dt.datetime:
    return moment.astimezone(dt.UTC).replace(tzinfo=None) if moment.tzinfo else moment


FORMAT = Debezium()
