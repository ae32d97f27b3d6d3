"""What a record of JSON says in columns: each value as the file has it, or the record is bad (B01, B15, N2)."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from drainmark.jobs.formats.bad_records import CAPS, OtherFields, Refused
from drainmark.jobs.formats.format import Expected
from drainmark.jobs.formats.json import JsonLines

DATA = Path(__file__).parents[4] / "shared" / "data" / "badinput" / "json" / "test_parsing"
LINES = JsonLines()
TEXTS = ArrayType(StringType())
PART = StructType().add("b", ArrayType(IntegerType())).add("t", StringType())
KINDS: dict[str, DataType] = {
    "a": StringType(), "i": IntegerType(), "tiny": ByteType(), "big": LongType(), "x": DoubleType(), "f": FloatType(),
    "c": DecimalType(10, 2), "ok": BooleanType(), "day": DateType(), "at": TimestampType(), "local": TimestampNTZType(),
    "raw": BinaryType(), "texts": TEXTS, "part": PART, "parts": ArrayType(PART), "by_name": MapType(StringType(), PART),
    "k\"'é.": MapType(StringType(), TEXTS),
}  # fmt: skip


def expected(*names: str, **declared: Any) -> Expected:
    return Expected(format="json", columns=tuple((name, KINDS[name]) for name in names or KINDS), **declared)


def fault_of(record: str, declared: Expected | None = None) -> str | None:
    return LINES.parse([record.encode()], declared or expected()).faults.get(0)


def value_of(record: str, name: str) -> Any:
    found = LINES.parse([record.encode()], expected())
    assert found.faults == {}
    return found.rows.column(name).to_pylist()[0]


@pytest.mark.seed("B01")
@pytest.mark.parametrize(
    "characters",
    [
        "1.10", "-0", "1E5", "-999.99999999999999999999999999999999995", "1e400", "9" * 5000, "true", "false",
        "0.10000000000000000555", '{"x" : 1.0e2}', "[1, 2]", "{}", "[ ]", '["]", {"}" : "\\"[{"}]', '{"é":"\\u00e9"}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("way", ["{}", ' {{ "i":1 , "a" : {} }} '])
def test_a_value_that_is_no_text_is_its_characters_in_a_column_of_texts(characters: str, way: str) -> None:
    record = way.format(f'{{"a":{characters}}}') if way == "{}" else way.format(characters)
    assert value_of(record, "a") == characters
    assert value_of(f'{{"texts":["x",{characters},null]}}', "texts") == ["x", characters, None]
    assert value_of(f'{{"parts":[{{"t":"x"}},{{"q":[1],"t":{characters}}}]}}', "parts")[1]["t"] == characters
    assert value_of(f'{{"by_name":{{"[":{{"t":{characters}}}}}}}', "by_name")[0][1]["t"] == characters


def test_a_json_string_in_a_column_of_texts_is_its_text() -> None:
    assert value_of('{"a":"\\u0041\\n\\ud83d\\ude00\\u0000 \\/"}', "a") == "A\n😀\0 /"
    assert value_of('{"a":null}', "a") is None


@pytest.mark.parametrize(
    ("name", "token", "value"),
    [
        ("i", "-0", 0), ("tiny", "-128", -128), ("big", str(2**63 - 1), 2**63 - 1), ("x", "9007199254740993", 2.0**53),
        ("x", "-0.0", -0.0), ("x", "5e-324", 5e-324), ("c", "1.500", Decimal("1.50")), ("c", '"+.5"', Decimal("0.50")),
        ("c", "1e2", Decimal(100)), ("ok", "true", True), ("day", '"2024-2-9"', dt.date(2024, 2, 9)),
        ("at", '"2024-02-09T01:00:00+01:00"', dt.datetime(2024, 2, 9, tzinfo=dt.UTC)),
        ("local", '"2024-02-09 00:00"', dt.datetime.fromisoformat("2024-02-09")),
        ("raw", '"AAEC"', b"\0\1\2"), ("raw", '""', b""),
        ("part", '{"b":[1,null]}', {"b": [1, None], "t": None}), ("part", "{}", {"b": None, "t": None}),
        ("parts", "[null,{}]", [None, {"b": None, "t": None}]), ("texts", "[]", []),
        ("k\"'é.", '{"":["x"],"2":null}', [("", ["x"]), ("2", None)]), ("by_name", "null", None),
    ],
)  # fmt: skip
def test_a_token_becomes_the_value_that_it_writes(name: str, token: str, value: Any) -> None:
    found = value_of(f"{{{json.dumps(name)}:{token}}}", name)
    assert repr(found) == repr(value) or found == value


@pytest.mark.seed("B15")
@pytest.mark.parametrize(
    ("name", "token", "path"),
    [
        ("i", "1.0", "i"), ("i", "1e2", "i"), ("i", '"5"', "i"), ("i", "true", "i"), ("i", "2147483648", "i"),
        ("tiny", "128", "tiny"), ("big", str(2**63), "big"), ("x", '"1.5"', "x"), ("x", '"NaN"', "x"),
        ("x", "1e400", "x"), ("x", "1e-400", "x"), ("f", "1e39", "f"), ("f", "1e-50", "f"), ("x", "[1]", "x"),
        ("c", "1.505", "c"), ("c", '"1,5"', "c"), ("c", "123456789", "c"), ("c", "true", "c"), ("ok", '"true"', "ok"),
        ("ok", "1", "ok"), ("day", "20240101", "day"), ("day", '"2024-01-01 junk"', "day"), ("at", "1700000000", "at"),
        ("at", '"12:34"', "at"), ("local", '"2024-01-01T00:00:00Z"', "local"), ("raw", '"A=="', "raw"),
        ("raw", '"_-=="', "raw"), ("raw", '"AAEC\\n"', "raw"), ("raw", "[0]", "raw"), ("texts", '"x"', "texts"),
        ("part", "[]", "part"), ("part", '{"b":[0,1,"2"]}', "part.b[2]"), ("parts", "[{},{},{}, 5]", "parts[3]"),
        ("parts", '[{},{"b":[1.5]}]', "parts[1].b[0]"), ("by_name", '{"q":{"b":{}}}', "by_name['q'].b"),
        ("by_name", "[]", "by_name"), ("by_name", '{"q":{"B":[]}}', "by_name['q'].B"), ("part", '{"T":"x"}', "part.T"),
    ],
)  # fmt: skip
def test_a_token_that_is_no_value_of_its_type_makes_the_record_bad_and_the_reason_names_its_path(
    name: str, token: str, path: str
) -> None:
    fault = fault_of(f'{{"a":"x",{json.dumps(name)}:{token}}}')
    assert fault is not None
    assert fault.startswith(f"field {path!r}: ")


def test_the_first_misfit_of_a_record_is_told_and_its_neighbours_are_rows() -> None:
    records = [b'{"i":1}', b'{"i":"x","parts":[{"b":[1]},{"b":["y"]}]}', b'{"parts":[{"b":["y"]}]}', b'{"i":4,"a":[]}']
    found = LINES.parse(records, expected("i", "a", "parts"))
    assert {place: fault[:20] for place, fault in found.faults.items()} == {
        1: "field 'i': \"x\" is no",
        2: "field 'parts[0].b[0]",
    }
    assert found.rows.column("i").to_pylist() == [1, None, None, 4]
    assert found.rows.column("a").to_pylist() == [None, None, None, "[]"]


@pytest.mark.seed("B15")
@pytest.mark.parametrize(
    "record",
    [
        '{"i":1}{"i":2}', '{"i":1} and more', '{"i":1,"i":2}', '{"q":{"z":1,"\\u007a":2}}', '{"x":NaN}',
        '{"q":-Infinity}', '{"a":"\\ud800"}', '{"q":["\\udc00"]}', '{"\\ud83d":1}', '{"i":6,"x":1,"a":"\\ud83dx"}',
        "{'i':1}", '{"a":"\t"}', "", " ", "[]", '[{"i":1}]', "1", '"x"', "null", '{"i":01}', '{"i":1,}', "\ufeff{}",
        '{"q":' + "[" * 600 + "]" * 600 + "}",
    ],
)  # fmt: skip
def test_a_text_that_is_not_one_object_is_no_record(record: str) -> None:
    assert fault_of(record, expected("i", "x", "a")) is not None
    assert LINES.parse_quickly(record.encode() + b"\n", expected("i", "x", "a")) is None


def test_a_record_with_more_values_than_the_cap_is_bad_on_both_ways() -> None:
    record = b'{"i":1,"q":[%s]}' % b",".join([b"1"] * CAPS.json_values)
    assert "values" in LINES.parse([record], expected("i")).faults[0]
    assert LINES.parse_quickly(record, expected("i")) is None


def test_a_record_without_any_declared_field_is_bad_unless_the_author_allows_it() -> None:
    envelope = '{"schema": {}, "payload": {"i": 1}}'
    assert "no declared field, it has 'schema', 'payload'" in (fault_of(envelope) or "")
    assert "it is empty" in (fault_of("{}") or "")
    assert fault_of('{"i":null}') is None
    allowed = expected("i", options={"allownofields": "true"})
    for record in (envelope, "{}"):
        assert LINES.parse_quickly(record.encode(), expected("i")) is None
        assert fault_of(record, allowed) is None
        quickly = LINES.parse_quickly(record.encode(), allowed)
        assert quickly is not None
        assert quickly.rows.to_pylist() == [{"i": None}]


def test_a_name_in_other_case_is_bad_only_if_the_declared_one_is_missing() -> None:
    assert "declared as 'i'" in (fault_of('{"I":1,"a":"x"}') or "")
    assert fault_of('{"I":"other","i":1}') is None
    assert LINES.parse_quickly(b'{"i":1,"a":"x"}\n{"I":1,"a":"x"}\n', expected("i", "a")) is None


def test_other_fields_are_left_out_rescued_or_bad_as_declared() -> None:
    record = '{"i":1, "q" : {"b": 1.50}, "n":null}'
    assert LINES.parse([record.encode()], expected("i")).rows.to_pylist() == [{"i": 1}]
    rescued = LINES.parse([record.encode(), b'{"i":2}', b"{"], expected("i", on_schema="rescue"))
    assert rescued.rows.column("_rescued").to_pylist() == ['{"q":{"b": 1.50}}', None, None]
    for treatment in ("quarantine", "halt"):
        assert isinstance(fault_of(record, expected("i", on_schema=treatment)), OtherFields)
        assert not isinstance(fault_of('{"i":"x","q":1}', expected("i", on_schema=treatment)), OtherFields)
        assert LINES.parse_quickly(record.encode(), expected("i", on_schema=treatment)) is None


def test_columns_have_the_types_of_sparks_rows() -> None:
    declared = expected("i", "at", "c", "parts", "by_name", on_schema="rescue")
    plain = LINES.parse([], declared).rows.schema
    assert [str(kind) for kind in plain.types] == [
        "int32", "timestamp[us, tz=UTC]", "decimal128(10, 2)",
        "list<element: struct<b: list<element: int32>, t: string>>",
        "map<string, struct<b: list<element: int32>, t: string>>", "string",
    ]  # fmt: skip
    assert plain == LINES.parse([b'{"i":1,"parts":[{}]}'], declared).rows.schema


# --- Arrow's reader -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("a", "1"), ("i", "1.0"), ("x", "1e-400"), ("x", "1" * 400), ("x", "0." + "0" * 400 + "1"), ("f", "1e39"),
        ("c", "123456789"), ("c", "1.505"), ("c", f'"{"0" * 5000}1"'), ("x", "NaN"), ("day", '"2024-02-30"'),
        ("at", '"12:34"'), ("raw", '"A=="'), ("part", '{"b":[1],"T":1}'), ("parts", '[{"b":[1],"b":[2]}]'),
    ],
)  # fmt: skip
def test_what_arrow_would_read_otherwise_is_left_to_the_definition(name: str, token: str) -> None:
    assert LINES.parse_quickly(f'{{"ok":true,"{name}":{token}}}\n'.encode(), expected("ok", name)) is None


def test_plain_lines_are_read_by_arrow_and_are_the_same_rows() -> None:
    names = [name for name, kind in KINDS.items() if kind.typeName() != "map"]
    record = (
        '{"a":"é\\u0000\\n","i":-0,"tiny":1,"big":5,"x":0.0,"f":0.25,"c":"1.50","ok":false,"day":"2024-1-1",'
        '"at":"2024-01-01T00:00:00.5Z","local":null,"raw":"AAEC","texts":[null,"x"],"part":{"b":[1],"q":[{"z":1}]},'
        '"parts":[{"t":"x"},null,{}],"other":[1]}'
    )
    other = '{"i":2,"parts":[],"part":{"q":[]}}'
    for content in (f"{record}\n{other}", f"{record}\r\n{other}\r\n", f"{other}\n{record}\n"):
        found = LINES.parse_quickly(content.encode(), expected(*names))
        assert found is not None
        assert found.rows.equals(LINES.parse([line.encode() for line in content.splitlines()], expected(*names)).rows)


# --- documents ------------------------------------------------------------------------------------------------------


def test_a_document_gives_the_characters_of_its_records_in_order() -> None:
    document = '[ {"a":1.10 , "q":["]"]},\n{"i":1,"i":2}\t, 5,{"x":NaN} ]\n'
    records = LINES.documents(document, expected())
    assert records == [b'{"a":1.10 , "q":["]"]}', b'{"i":1,"i":2}', b"5", b'{"x":NaN}']
    assert sorted(LINES.parse(records, expected()).faults) == [1, 2, 3]
    assert LINES.documents(' {"a":1}\n', expected()) == [b'{"a":1}']
    assert [LINES.documents(each, expected()) for each in ("", " \n", "[]", "[ ]")] == [[]] * 4


@pytest.mark.parametrize(
    "document",
    [
        "1",
        "null",
        '"x"',
        "[{}",
        "[{},]",
        "[{} {}]",
        "[,]",
        "[",
        "]",
        "[{}]]",
        "[{}]x",
        "{}{}",
        "{",
        "[" * 600 + "]" * 600,
    ],
)
def test_a_file_that_is_no_document_of_records_is_refused(document: str) -> None:
    with pytest.raises(Refused):
        LINES.documents(document, expected())


@pytest.mark.skipif(not DATA.is_dir(), reason="the shared data is absent")
def test_a_text_is_json_if_its_authors_say_so() -> None:
    """JSONTestSuite: `y_` is JSON, `n_` is none; here each text is a member of a record, and an item of a document."""
    judged = 0
    for path in sorted(DATA.glob("[yn]_*.json")):
        try:
            text = path.read_bytes().decode().removesuffix("\n")
        except UnicodeDecodeError:
            continue
        is_good = path.name[0] == "y" and not path.name[2:].startswith(("object_duplicated_key", "object_same_key"))
        record = f'{{"a":{text}}}'
        assert (fault_of(record, expected("a")) is None) == is_good, path.name
        if is_good:
            characters, value = text.strip(" \t\r\n"), json.loads(text)
            assert value_of(record, "a") == (value if value is None or isinstance(value, str) else characters), (
                path.name
            )
            assert LINES.documents(f"[{text}]", expected()) == [characters.encode()], path.name
        judged += 1
    assert judged > 200
