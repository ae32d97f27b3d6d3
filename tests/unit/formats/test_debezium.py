"""What messages of Debezium become: rows of the declared columns, or the reason why they are none."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from debezium_samples import FIELDS, MYSQL, ORACLE, POSTGRES, SQL_SERVER, envelope, message, schema_of, written
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

import drainmark as dm
from drainmark.jobs.formats.bad_records import Parsed
from drainmark.jobs.formats.debezium import FORMAT
from drainmark.jobs.formats.format import Expected

CUSTOMERS = (
    ("id", IntegerType()),
    ("name", StringType()),
    ("credit", DecimalType(10, 2)),
    ("born", DateType()),
    ("seen", TimestampNTZType()),
)
ADDED = (("_op", StringType()), ("_sequence", LongType()), ("_changed_at", TimestampType()))
ANN = {
    "id": 1004,
    "name": "Ann",
    "credit": Decimal("-12.34"),
    "born": dt.date(1969, 7, 20),
    "seen": dt.datetime(2019, 5, 28, 8, 58, 24, 863123),  # noqa: DTZ001
}
EMPTY = dict.fromkeys(ANN)


def expected(columns: Any = CUSTOMERS, on_schema: str | None = None, **options: str) -> Expected:
    given = {name.lower(): value for name, value in options.items()}
    return Expected(format="debezium", columns=(*columns, *ADDED), options=given, on_schema=on_schema)


def parse(*messages: bytes, keys: Any = None, of: Expected | None = None) -> Parsed:
    lines = FORMAT.lines
    return lines.parse_keyed(messages, keys or [None] * len(messages), of or expected())


def rows(*messages: bytes, **more: Any) -> list[dict[str, Any]]:
    found = parse(*messages, **more)
    assert found.faults == {}
    return found.good.to_pylist()


def row(*messages: bytes, **more: Any) -> dict[str, Any]:
    (found,) = rows(*messages, **more)
    return found


def fault(sent: bytes, **more: Any) -> str:
    found = parse(sent, **more)
    assert found.good.num_rows == 0
    assert found.tombstones == frozenset()
    return found.faults[0]


def one(token: Any, kind: DataType, schema: dict[str, Any] | None = None, **options: str) -> Any:
    """Return the value of one field."""
    return row(_with(token, schema), of=expected((("x", kind),), **options))["x"]


def why(token: Any, kind: DataType, schema: dict[str, Any] | None = None, **options: str) -> str:
    return fault(_with(token, schema), of=expected((("x", kind),), **options))


def _with(token: Any, schema: dict[str, Any] | None) -> bytes:
    return message(envelope("c", {"x": token}), None if schema is None else [{**schema, "field": "x"}])


def logical(name: str, written_as: str, **parameters: str) -> dict[str, Any]:
    return {"type": written_as, "name": name, "parameters": parameters}


# --- envelopes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["c", "u", "r", "d"])
def test_a_change_has_its_row_its_operation_its_place_and_its_time(op: str) -> None:
    with_schema, bare = (message(envelope(op, written(ANN)), fields) for fields in (FIELDS, None))
    time = dt.datetime(2019, 5, 28, 8, 58, 24, 863123, dt.UTC)
    wanted = {**ANN, "_op": op, "_sequence": 24023128, "_changed_at": time}
    assert row(with_schema) == wanted
    assert fault(bare).startswith("field 'credit'"), "its bytes have no scale"
    told = row(
        message(envelope(op, {**written(ANN), "credit": "-12.34"})), of=expected(timePrecisionMode="microseconds")
    )
    assert told == wanted


def test_a_truncated_table_is_a_row_of_nulls() -> None:
    for fields in (FIELDS, None):
        found = row(message({"source": POSTGRES, "op": "t", "ts_ms": 1559033904961, "transaction": None}, fields))
        assert {name: found[name] for name in ANN} == EMPTY
        assert (found["_op"], found["_sequence"]) == ("t", 24023128)


def test_a_tombstone_is_no_row_and_no_fault() -> None:
    for none in (b"null", b" null \t", b'{"schema":null,"payload":null}'):
        found = parse(none, message(envelope("d", written(ANN)), FIELDS), none)
        assert (found.faults, found.tombstones, found.good.num_rows) == ({}, {0, 2}, 1)


def test_a_delete_of_which_only_the_key_is_known_has_nulls() -> None:
    assert row(message(envelope("d", {"id": 7}), FIELDS))["id"] == 7
    assert row(message(envelope("d", {"id": 7}), FIELDS))["name"] is None
    none = message({**envelope("d", None), "before": None}, FIELDS)
    plain, with_schema = (
        b'{"id":8}',
        json.dumps({"schema": {"type": "struct", "fields": [FIELDS[0]]}, "payload": {"id": 9}}),
    )
    assert [each["id"] for each in rows(none, none, keys=[plain, with_schema.encode()])] == [8, 9]
    assert "replica identity full" in fault(none)
    assert "has no declared field" in fault(none, keys=[b'{"other":1}'])
    assert "is no JSON" in fault(none, keys=[b"\xff"])
    assert "no object" in fault(none, keys=[b"5"])


@pytest.mark.parametrize(
    ("source", "number"),
    [
        (POSTGRES, 24023128),
        ({**POSTGRES, "lsn": None}, None),
        (MYSQL, (3 << 32) + 484),
        ({**MYSQL, "file": "mysql-bin.000010", "pos": 4}, (10 << 32) + 4),
        ({**MYSQL, "file": f"a.{'0' * 20}3", "pos": "0" * 30}, 3 << 32),
        (ORACLE, 2122185),
        ({**ORACLE, "scn": f"{'0' * 24}17"}, 17),
        ({**ORACLE, "scn": f"-{'0' * 5000}17"}, -17),
        ({**ORACLE, "scn": None}, None),
        (SQL_SERVER, 1559729468470),
        ({}, 1559033904961),
    ],
)
def test_the_sequence_is_the_place_in_the_log(source: dict[str, Any], number: int | None) -> None:
    assert row(message(envelope("c", {"id": 1}, source)))["_sequence"] == number


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({**POSTGRES, "lsn": 1.5}, "lsn is no bigint"),
        ({**POSTGRES, "lsn": True}, "lsn is no bigint"),
        ({**POSTGRES, "lsn": 1 << 63}, "lsn is no bigint"),
        ({**ORACLE, "scn": "12x"}, "scn is no bigint"),
        ({**ORACLE, "scn": "0" * 30 + "9" * 30}, "scn is no bigint"),
        ({**ORACLE, "scn": "9" * 5000}, "scn is no bigint"),
        ({**MYSQL, "file": "binlog"}, "no order"),
        ({**MYSQL, "file": f"a.{'0' * 13}{1 << 70}"}, "no order"),
        ({**MYSQL, "pos": 1 << 32}, "no order"),
        ({**MYSQL, "file": f"a.{1 << 31}"}, "no order"),
        ({**POSTGRES, "ts_us": 1 << 62}, "no time of the years"),
    ],
)
def test_a_place_without_an_order_is_bad(source: dict[str, Any], said: str) -> None:
    assert said in fault(message(envelope("c", {"id": 1}, source)))


def test_the_time_is_that_of_the_database_else_that_of_the_connector() -> None:
    def at(source: dict[str, Any], **more: Any) -> dt.datetime | None:
        found: dt.datetime | None = row(message(envelope("c", {"id": 1}, source, **more)))["_changed_at"]
        return found

    assert at({"ts_ms": 1, "ts_us": 1005}) == dt.datetime(1970, 1, 1, 0, 0, 0, 1005, dt.UTC)
    assert at({"ts_ms": 1}) == dt.datetime(1970, 1, 1, 0, 0, 0, 1000, dt.UTC)
    assert at({}, ts_ms=2) == dt.datetime(1970, 1, 1, 0, 0, 0, 2000, dt.UTC)
    assert at({}, ts_ms=None) is None


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({"id": 1, "name": "Ann"}, "ExtractNewRecordState"),
        ({**envelope("c", {"id": 1}), "op": "m"}, "the operation 'm'"),
        ({**envelope("c", {"id": 1}), "op": None}, "has no op"),
        (envelope("c", None), "without after"),
        ({**envelope("u", None), "before": {"id": 1}}, "without after"),
        ({**envelope("c", None), "after": '{"_id": 1}'}, "MongoDB"),
        ({**envelope("c", None), "after": [1]}, "without after"),
        ({"source": MYSQL, "databaseName": "inventory", "ddl": "CREATE TABLE …", "tableChanges": []}, "schema"),
        ({"status": "BEGIN", "id": "571:53195829", "event_count": None, "data_collections": None}, "transactions"),
        ({"ts_ms": 1559033904961}, "heartbeat"),
        ([], "no object"),
        (5, "no object"),
        ("c", "no object"),
        ({}, "has no op"),
    ],
)
def test_what_is_no_change_of_a_row_is_bad(payload: Any, said: str) -> None:
    assert said in fault(message(payload))
    if isinstance(payload, dict):
        assert said in fault(message(payload, FIELDS))


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"{",
        b"nul",
        b'{"op":"c","op":"c","after":{}}',
        b'{"schema":5,"payload":{"op":"c","after":{"id":1}}}',
        b'{"schema":{},"payload":{"op":"c","after":{"id":1}}}',
        b'{"schema":{"fields":[{"field":"after"}]},"payload":{"op":"c","after":{"id":1}}}',
        b'{"schema":null,"payload":{"op":"c","after":{"id":1}},"payload":{}}',
        b'{"op":"c","after":{"id":1}} x',
        b'{"op":"c","after":{"id":1,"id":2}}',
        b'{"op":"c","after":{"name":"\\ud800","id":1}}',
        b'{"op":"c","after":{"ID":1}}',
        b'{"op":"c","after":{}}',
        b'{"op":"c","after":{"id":1.5}}',
        b'{"op":"c","after":{"id":"1"}}',
        b'{"op":"c","after":{"id":NaN}}',
        b'{"op":"c","after":' + b"[" * 600 + b"]" * 600 + b"}",
    ],
)
def test_what_is_broken_is_bad_and_leaves_its_neighbours_right(sent: bytes) -> None:
    good = message(envelope("c", written(ANN)), FIELDS)
    found = parse(good, sent, good, sent, b"null")
    assert (sorted(found.faults), found.tombstones) == ([1, 3], {4})
    assert found.faults[1] == found.faults[3] == fault(sent)
    assert [each["id"] for each in found.good.to_pylist()] == [1004, 1004]


def test_a_schema_is_that_of_its_own_message() -> None:
    """The schema of the message before is used again only where it is the same."""
    later = [*FIELDS[:4], {**FIELDS[4], "name": "io.debezium.time.Timestamp"}]
    first, second = message(envelope("c", {"seen": 5}), FIELDS), message(envelope("c", {"seen": 5}), later)
    turned = json.dumps({"payload": envelope("c", {"seen": 6}), "schema": schema_of(later)}).encode()
    bare = json.dumps({"schema": None, "payload": envelope("c", {"id": 1})}).encode()
    found = rows(first, second, first, bare, turned, second)
    assert [each["seen"] and each["seen"].microsecond for each in found] == [5, 5000, 5, None, 6000, 5000]


# --- values -----------------------------------------------------------------------------------------------------------

_DATE = "io.debezium.time.Date"
_DECIMAL = logical("org.apache.kafka.connect.data.Decimal", "bytes", scale="2")
_VARIABLE = logical("io.debezium.data.VariableScaleDecimal", "struct")
_AYAG = base64.b64encode((1234567).to_bytes(3, "big")).decode()
_NTZ = dt.datetime(2020, 2, 29, 1, 2, 3, 4005)  # noqa: DTZ001
_MS, _US = 1582938123004, 1582938123004005


@pytest.mark.parametrize(
    ("token", "kind", "schema", "value"),
    [
        (18321, DateType(), logical(_DATE, "int32"), dt.date(2020, 2, 29)),
        (-719162, DateType(), logical("org.apache.kafka.connect.data.Date", "int32"), dt.date(1, 1, 1)),
        (18321, StringType(), logical(_DATE, "int32"), "2020-02-29"),
        (18321, IntegerType(), logical(_DATE, "int32"), 18321),
        (18321, DateType(), None, dt.date(2020, 2, 29)),
        ("2020-02-29Z", DateType(), logical("io.debezium.time.IsoDate", "string"), dt.date(2020, 2, 29)),
        ("2020-02-29", DateType(), None, dt.date(2020, 2, 29)),
        (_MS, TimestampNTZType(), logical("io.debezium.time.Timestamp", "int64"), _NTZ.replace(microsecond=4000)),
        (_US, TimestampNTZType(), logical("io.debezium.time.MicroTimestamp", "int64"), _NTZ),
        (_US * 1000, TimestampNTZType(), logical("io.debezium.time.NanoTimestamp", "int64"), _NTZ),
        (_US, TimestampType(), logical("io.debezium.time.MicroTimestamp", "int64"), _NTZ.replace(tzinfo=dt.UTC)),
        (-1, TimestampType(), logical("org.apache.kafka.connect.data.Timestamp", "int64"),
         dt.datetime(1969, 12, 31, 23, 59, 59, 999000, dt.UTC)),
        (_US, LongType(), logical("io.debezium.time.MicroTimestamp", "int64"), _US),
        (_US, LongType(), None, _US),
        ("2020-02-29T02:02:03.004005+01:00", TimestampType(), logical("io.debezium.time.ZonedTimestamp", "string"),
         _NTZ.replace(tzinfo=dt.UTC)),
        ("2020-02-29T01:02:03.004005Z", TimestampNTZType(), logical("io.debezium.time.IsoTimestamp", "string"), _NTZ),
        (3723004005, StringType(), logical("io.debezium.time.MicroTime", "int64"), "01:02:03.004005"),
        (3723000, StringType(), logical("io.debezium.time.Time", "int32"), "01:02:03"),
        (3723000, LongType(), logical("io.debezium.time.Time", "int32"), 3723000),
        (_AYAG, DecimalType(10, 2), _DECIMAL, Decimal("12345.67")),
        (_AYAG, StringType(), _DECIMAL, "12345.67"),
        ("AMg=", LongType(), _DECIMAL, 2),
        ("/w==", DecimalType(10, 2), _DECIMAL, Decimal("-0.01")),
        (12.5, DecimalType(10, 2), _DECIMAL, Decimal("12.50")),
        (_AYAG, DoubleType(), _DECIMAL, 12345.67),
        ({"scale": 1, "value": "AMg="}, DecimalType(10, 2), _VARIABLE, Decimal("20.00")),
        ({"scale": 0, "value": "AMg="}, LongType(), _VARIABLE, 200),
        ({"scale": -2, "value": "Ag=="}, LongType(), _VARIABLE, 200),
        ({"scale": 1, "value": "AMg="}, DecimalType(10, 2), None, Decimal("20.00")),
        ("12.50", DecimalType(10, 2), None, Decimal("12.50")),
        ("-125", DecimalType(10, 2), None, Decimal(-125)),
        (12.5, DecimalType(10, 2), {"type": "double"}, Decimal("12.50")),
        ("NaN", DoubleType(), {"type": "double"}, "NaN"),
        ("-Infinity", DoubleType(), None, float("-inf")),
        ("AAE=", BinaryType(), {"type": "bytes"}, b"\0\1"),
        ("AAE=", BinaryType(), None, b"\0\1"),
        (True, BooleanType(), {"type": "boolean"}, True),
        ({"a": [1, {"b": None}]}, StringType(), None, '{"a": [1, {"b": null}]}'),
        ({"wkb": "AQ==", "srid": None}, StructType([StructField("wkb", BinaryType())]),
         {"type": "struct", "fields": [{"type": "bytes", "field": "wkb"}]}, {"wkb": b"\1"}),
        ([18321, None], ArrayType(DateType()), {"type": "array", "items": logical(_DATE, "int32")},
         [dt.date(2020, 2, 29), None]),
        (None, DecimalType(10, 2), _DECIMAL, None),
    ],
)  # fmt: skip
def test_a_value_is_what_the_database_has(token: Any, kind: DataType, schema: Any, value: Any) -> None:
    found = one(token, kind, schema)
    assert found == value or (value == "NaN" and math.isnan(found))


@pytest.mark.parametrize(
    ("token", "kind", "schema", "said"),
    [
        (_US, TimestampType(), None, "schemas.enable"),
        ("1234", DecimalType(10, 2), None, "schemas.enable"),
        (_AYAG, DecimalType(10, 2), None, "decimal.handling.mode"),
        (_US, TimestampType(), {"type": "int64"}, "declare bigint"),
        (18321, TimestampType(), logical(_DATE, "int32"), "declare date"),
        (_MS, DateType(), logical("io.debezium.time.Timestamp", "int64"), "declare timestamp"),
        (_MS, DateType(), None, "no date of the years"),
        (1, TimestampType(), logical("io.debezium.time.NanoTimestamp", "int64"), "whole number of microseconds"),
        (1 << 62, TimestampType(), logical("io.debezium.time.MicroTimestamp", "int64"), "no time of the years"),
        (1.5, DateType(), logical(_DATE, "int32"), "no whole number"),
        ("18321", DateType(), logical(_DATE, "int32"), "no whole number"),
        (86_400_001, StringType(), logical("io.debezium.time.Time", "int32"), "no time of a day"),
        (3723000, TimestampType(), logical("io.debezium.time.Time", "int32"), "a time of day"),
        (_AYAG, DecimalType(10, 1), _DECIMAL, "digits behind the point"),
        (_AYAG, LongType(), _DECIMAL, "has a point"),
        ("", DecimalType(10, 2), _DECIMAL, "no digits"),
        ("?", DecimalType(10, 2), _DECIMAL, "no decimal"),
        (_AYAG, DecimalType(10, 2), logical("org.apache.kafka.connect.data.Decimal", "bytes"), "no decimal"),
        (_AYAG, DecimalType(10, 2), {**_DECIMAL, "parameters": "2"}, "no decimal"),
        (_AYAG, DecimalType(10, 2), {**_DECIMAL, "parameters": ["scale"]}, "no decimal"),
        (
            _AYAG,
            DecimalType(10, 2),
            logical("org.apache.kafka.connect.data.Decimal", "bytes", scale="9999"),
            "more than",
        ),
        (_AYAG, BinaryType(), _DECIMAL, "declare decimal"),
        (5, DecimalType(10, 2), _VARIABLE, "variable scale"),
        (12345678901234.567, DecimalType(30, 5), {"type": "double"}, "more digits"),
        (1234567.25, DecimalType(30, 5), {"type": "float"}, "more digits"),
        ("cafe", BinaryType(), {"type": "string"}, "binary.handling.mode"),
        ("AAE=", StringType(), {"type": "bytes"}, "declare binary"),
        ("AAE", BinaryType(), {"type": "bytes"}, "base64"),
        (1, BooleanType(), {"type": "int16"}, "true or false"),
        ([18321, "x"], ArrayType(DateType()), {"type": "array", "items": logical(_DATE, "int32")}, "no whole number"),
    ],
)
def test_a_value_that_is_not_exact_or_not_certain_is_bad(token: Any, kind: DataType, schema: Any, said: str) -> None:
    found = why(token, kind, schema)
    assert found.startswith("field 'x'")
    assert said in found


@pytest.mark.parametrize(
    ("mode", "number"), [("connect", _US // 1000), ("microseconds", _US), ("nanoseconds", _US * 1000)]
)
def test_the_connectors_setting_tells_what_a_schema_would(mode: str, number: int) -> None:
    found = one(number, TimestampNTZType(), None, timePrecisionMode=mode)
    assert found == (_NTZ if mode != "connect" else _NTZ.replace(microsecond=4000))
    assert one("1234", DecimalType(10, 2), None, decimalHandlingMode="string") == Decimal(1234)


@pytest.mark.parametrize(
    ("token", "kind"),
    [
        ("__debezium_unavailable_value", StringType()),
        (base64.b64encode(b"__debezium_unavailable_value").decode(), BinaryType()),
        (["__debezium_unavailable_value"], ArrayType(StringType())),
        ([*b"__debezium_unavailable_value"], ArrayType(IntegerType())),
        ({"__debezium_unavailable_value": "__debezium_unavailable_value"}, StringType()),
    ],
)
@pytest.mark.seed("CD3")
def test_a_value_that_the_log_lacks_is_never_a_value(token: Any, kind: DataType) -> None:
    assert "replica identity full" in why(token, kind)
    other = message(envelope("u", {"id": 1, "other": token}))
    assert row(other, of=expected((("id", IntegerType()),)))["id"] == 1, "a column that is not declared does not matter"
    assert "replica identity full" in fault(other, of=expected((("id", IntegerType()),), on_schema="rescue"))


# --- columns that are not declared ------------------------------------------------------------------------------------

_ONE = (("id", IntegerType()),)


def test_other_fields_are_left_out_rescued_or_bad() -> None:
    for fields in (None, [*FIELDS]):
        sent = message(envelope("c", {"id": 1, "more": {"a": 1.50}, "none": None}), fields)
        assert "more" not in row(sent, of=expected(_ONE))
        assert row(sent, of=expected(_ONE, on_schema="rescue"))["_rescued"] == '{"more":{"a": 1.5}}'
        assert "not declared: 'more'" in fault(sent, of=expected(_ONE, on_schema="quarantine"))
    assert row(message(envelope("d", {"id": 2})), of=expected(_ONE, on_schema="rescue"))["_rescued"] is None
    assert [*parse(message(envelope("c", {"id": 1})), of=expected(_ONE, on_schema="rescue")).rows.column_names] == [
        *("id", "_op", "_sequence", "_changed_at", "_rescued")
    ]


@pytest.mark.parametrize("name", ["_op", "_SEQUENCE", "`_changed_at`"])
def test_a_column_that_changes_have_is_refused_in_a_schema(name: str) -> None:
    scan = dm.DirectoryScan(path="inbox", format="debezium", schema=f"id bigint, {name} string")
    topic = dm.KafkaSource("t", "h:1", format="debezium", schema=f"id bigint, {name} string")
    assert "COLUMN_TAKEN" in {rule for rule, _, _ in scan.problems()}
    assert "COLUMN_TAKEN" in {rule for rule, _, _ in topic.problems("operator-driven")}


@pytest.mark.parametrize(
    ("rule", "given"),
    [
        ("SCHEMA_MISSING", {}),
        ("READER_OPTION", {"schema": "a int", "options": {"timePrecisionMode": "adaptive"}}),
        ("READER_OPTION", {"schema": "a int", "options": {"decimalHandlingMode": "precise"}}),
        ("READER_OPTION", {"schema": "a int", "options": {"multiLine": "true"}}),
        ("ON_SCHEMA", {"schema": "a int", "on_schema": "evolve"}),
    ],
)
def test_what_does_not_fit_is_refused(rule: str, given: dict[str, Any]) -> None:
    scan = dm.DirectoryScan(path="inbox", format="debezium", **given)
    assert rule in {found for found, _, _ in scan.problems()}
    assert not scan.says_columns


def test_a_tombstone_of_a_topic_never_is_a_row() -> None:
    topic = dm.KafkaSource("t", "h:1", format="debezium", schema="id bigint", tombstones="null")
    assert "TOMBSTONES" in {rule for rule, _, _ in topic.problems("operator-driven")}
    kept = dm.KafkaSource("t", "h:1", format="debezium", schema="id bigint")
    assert list(kept.problems("operator-driven")) == []


def test_rows_of_a_test_become_messages() -> None:
    told = [{"id": 1, "name": "a", "_op": "u", "_sequence": 5}, {"id": 2, "_op": "d"}, {"id": 3}]
    content = FORMAT.encoded(told, (), {}, lambda: pa.schema([]))
    found = rows(*content.splitlines())
    assert [(each["id"], each["_op"], each["_sequence"]) for each in found] == [
        (1, "u", 5),
        (2, "d", None),
        (3, "c", None),
    ]
