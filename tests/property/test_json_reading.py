"""Arrow's reader of JSON gives what the definition gives; a second library and Spark are compared with it."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa
import pydantic_core
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
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

from drainmark.jobs.formats.format import Expected
from drainmark.jobs.formats.json import JsonLines
from drainmark.jobs.formats.json_records import tokens_of
from drainmark.resources.spark.session import SparkEngine

LINES = JsonLines()
ZEROS = "0" * 50
NUMBERS = [
    *("0", "-0", "1", "-128", "128", "2147483648", "9223372036854775807", "9223372036854775808", "9007199254740993"),
    *("1.0", "1.5", "1.50", "0.005", "1e2", "1E-2", "1e400", "1e39", "1e-50", "1e-400", "5e-324", "2e-324", "0e5"),
    *("1" * 45, "1" * 400, f"0.{ZEROS}1", f"0.{ZEROS * 8}1", "99999999.99", "999999999", "1e7", "3.4028236e38", "-0.0"),
    *(
        "12345678901234567890.123",
        "1.00000017881393432617187499",
        "NaN",
        "-Infinity",
        "01",
        "+1",
        ".5",
        "1.",
        "1e",
        "0x1",
    ),
]
STRINGS = [
    *("", "a", "1", "1.5", " 1", "+1", ".5", "5.", "1e2", "NaN", "1,5", "true", f"{ZEROS}1", "é😀", "\\n", "\\u0000"),
    *("2024-01-01", "2024-1-1", "2024-02-30", "2024-01-01T00:00:00Z", "2024-01-01 1:2", "2024-01-01T00:00:00.1234567"),
    *(
        "2024-01-01T00:00:00+01:00",
        "20240101",
        "AAEC",
        "AA==",
        "AA=",
        "\\ud83d\\ude00",
        "\\ud800",
        "\\udc00",
        "\\\\ud800",
    ),
    *("9999-12-31T23:59:59.999999Z", "0001-01-01", "\t", "\\x", "\\/", ":1e-5", "}{"),
]
NAMES = ["a", "b", "c", "A", "\\u0061", "q", "a.b"]
PLAIN: list[DataType] = [
    *(StringType(), IntegerType(), LongType(), ByteType(), DoubleType(), FloatType(), DecimalType(10, 2), BinaryType()),
    *(DecimalType(38, 10), BooleanType(), DateType(), TimestampType(), TimestampNTZType()),
]


def struct_of(kinds: list[DataType]) -> StructType:
    made = StructType()
    for name, kind in zip("abc", kinds, strict=False):
        made.add(name, kind)
    return made


types = st.recursive(
    st.sampled_from(PLAIN),
    lambda inner: st.one_of(
        inner.map(ArrayType),
        st.lists(inner, min_size=1, max_size=3).map(struct_of),
        inner.map(lambda kind: MapType(StringType(), kind)),
    ),
    max_leaves=4,
)
texts = st.sampled_from(STRINGS).map(lambda text: f'"{text}"')
anything = st.recursive(
    st.one_of(st.sampled_from([*NUMBERS, "null", "true", "false", "nul"]), texts),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.lists(st.tuples(st.sampled_from(NAMES), inner), max_size=3).map(
            lambda members: "{" + ",".join(f'"{name}" :{value}' for name, value in members) + "}"
        ),
    ),
    max_leaves=5,
)


def tokens_for(kind: Any) -> st.SearchStrategy[str]:
    """Return JSON that may be a value of a type."""
    if isinstance(kind, ArrayType):
        return st.lists(tokens(kind.elementType), max_size=3).map(lambda items: f"[{','.join(items)}]")
    if isinstance(kind, MapType):
        return st.lists(tokens(kind.valueType), max_size=3).map(
            lambda items: "{" + ",".join(f'"k{at}":{item}' for at, item in enumerate(items)) + "}"
        )
    if isinstance(kind, StructType):
        return objects(kind)
    if isinstance(kind, BooleanType):
        return st.sampled_from(["true", "false"])
    if kind.typeName() in ("byte", "integer", "long", "float", "double", "decimal"):
        return st.sampled_from(["0", "1", "-7", "127", "0.5", "1.50", "1e2", *NUMBERS[:20]])
    return texts


def tokens(kind: Any) -> st.SearchStrategy[str]:
    return st.integers(0, 29).flatmap(
        lambda dice: st.just("null") if dice < 3 else anything if dice == 3 else tokens_for(kind)
    )


def objects(kind: StructType) -> st.SearchStrategy[str]:
    fields = [st.tuples(st.just(f'"{field.name}":'), tokens(field.dataType)) for field in kind.fields]
    others = st.lists(st.tuples(st.sampled_from(NAMES).map(lambda name: f'"{name}":'), anything), max_size=1)
    return st.tuples(st.integers(0, 9), others, *fields).map(
        lambda made: "{" + ",".join(map("".join, (*made[2:], *(made[1] if made[0] == 0 else ())))) + "}"
    )


@st.composite
def mutated(draw: st.DrawFn, records: st.SearchStrategy[str]) -> str:
    record = draw(records)
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(record) - 1))
        record = record[:at] + draw(st.sampled_from(["", *'{}[],:"\\1e \t', "null"])) + record[at + 1 :]
    return record


@st.composite
def chunks(draw: st.DrawFn) -> tuple[Expected, list[str]]:
    columns = draw(st.lists(types, min_size=1, max_size=3).map(struct_of))
    declared = Expected(
        format="json",
        columns=tuple((field.name, field.dataType) for field in columns.fields),
        rounding=draw(st.sampled_from([None, "half_up"])),
        on_schema=draw(st.sampled_from([None, None, "rescue", "halt"])),
        options=draw(st.sampled_from([{}, {"allownofields": "true"}])),
    )
    return declared, draw(st.lists(mutated(objects(columns)), min_size=1, max_size=4))


@given(chunks(), st.sampled_from(["\n", "\r\n"]))
@settings(deadline=None, max_examples=examples(150))
def test_what_arrow_reads_is_what_the_definition_says(made: tuple[Expected, list[str]], line_end: str) -> None:
    declared, records = made
    defined = LINES.parse([record.encode() for record in records], declared)
    defined.rows.validate(full=True)
    assert defined.rows.num_rows == len(records)
    for place, record in enumerate(records):  # each is the same alone
        alone = LINES.parse([record.encode()], declared)
        assert alone.faults.get(0) == defined.faults.get(place)
        assert alone.faults or repr(alone.rows.to_pylist()) == repr(defined.rows.slice(place, 1).to_pylist())
    quickly = LINES.parse_quickly(line_end.join(records).encode(), declared)
    if quickly is not None:
        assert (quickly.faults, defined.faults) == ({}, {})
        assert quickly.rows.schema == defined.rows.schema
        assert repr(quickly.rows.to_pylist()) == repr(defined.rows.to_pylist())  # 0.0 and -0.0 are two


def as_read(token: Any) -> Any:
    """Return a token as a library reads it."""
    if isinstance(token, dict):
        return {name: as_read(each) for name, each in token.items()}
    if isinstance(token, list):
        return [as_read(each) for each in token]
    return json.loads(token) if isinstance(token, bytes) else token


@given(mutated(st.lists(st.tuples(st.sampled_from(NAMES), anything), max_size=4).map(
    lambda members: " {" + ", ".join(f'"{name}":{value}' for name, value in members) + "} "
)))  # fmt: skip
@settings(deadline=None, max_examples=examples(300))
def test_a_second_library_finds_the_same_records(record: str) -> None:
    """The library is jiter, in Rust. Of names that stand twice it keeps the last; it is laxer in nothing else."""
    found = tokens_of(record)
    try:
        read = pydantic_core.from_json(record, allow_inf_nan=False)
    except ValueError:
        assert isinstance(found, str)
        return
    if isinstance(found, str):
        assert "stands twice" in found or not isinstance(read, dict)
    else:
        assert repr(as_read(found)) == repr(read)


# --- Spark ----------------------------------------------------------------------------------------------------------

LAXER = {
    "Spark takes whole numbers with a point and an exponent": ("tinyint|int|bigint", r"-?[0-9].*[.eE].*"),
    "Spark wraps numbers that the type does not hold: 128 is -128": ("tinyint|smallint", r"-?[0-9]+"),
    "Spark has texts for numbers that JSON has not": ("float|double", r'"[+-]?(NaN|INF|Infinity)"'),
    "Spark makes infinity or zero of numbers that the type does not hold (A1)": ("float|double", r"-?[0-9].*"),
    "Spark rounds decimals (RT5), and takes a comma for thousands (A1)": ("decimal.*", r'-?[0-9].*|"1,5"'),
    "Spark takes numbers for times since 1970, and texts that begin or end otherwise (A1, RT11)": (
        "date|timestamp.*", r'-?[0-9].*|".*"',
    ),
    "Spark's base64 passes over what is no base64": ("binary", r'".*"'),
}  # fmt: skip
"""Reasons why Spark has a value where the definition has none: type and token of the field, as patterns."""

OTHER = {
    "Spark writes anew what is no text, in a column of texts (B01)": ("string", r"[-0-9\[{].*"),
    "Spark loses the sign of the whole number -0": ("float|double", "-0"),
}
"""Reasons why Spark has another value, or none."""

NUMBER_OF = {"date": "unix_date({})", "timestamp": "unix_micros({})", "timestamp_ntz": "unix_micros({}::timestamp)"}


def is_named(reasons: dict[str, tuple[str, str]], kind: DataType, token: str) -> bool:
    name = kind.simpleString()
    return any(re.fullmatch(kinds, name) and re.fullmatch(form, token, re.S) for kinds, form in reasons.values())


@pytest.mark.spark
def test_spark_has_the_same_values_but_for_named_differences(engine: SparkEngine) -> None:
    """What is no JSON is the matter of the test above: Spark is laxer there, too (B15)."""
    kinds = {f"c{at}": kind for at, kind in enumerate(PLAIN)}
    tokens = [*NUMBERS, *(f'"{text}"' for text in STRINGS), "null", "true", "false", "{}", "[1]", '{"x":1.50}']
    cells = [(name, token) for name in kinds for token in tokens if isinstance(tokens_of(f'{{"a":{token}}}'), dict)]
    records = [f'{{"{name}":{token}}}' for name, token in cells]
    ours = LINES.parse([each.encode() for each in records], Expected(format="json", columns=tuple(kinds.items())))
    ddl = ", ".join(f"{name} {kind.simpleString()}" for name, kind in kinds.items())
    read = f"from_json(text, '{ddl}, bad string', map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', 'bad'))"
    values = [
        NUMBER_OF.get(kind.typeName(), "{}").format(f"row.{name}") + f" as {name}" for name, kind in kinds.items()
    ]
    frame = engine.session.createDataFrame([*enumerate(records)], "at int, text string")
    theirs = frame.selectExpr("at", f"{read} as row").selectExpr("at", "row.bad", *values).orderBy("at").toArrow()
    unnamed = []
    for place, (name, token) in enumerate(cells):
        kind, column, is_bad = kinds[name], ours.rows.column(name), theirs.column("bad")[place].is_valid
        if kind.typeName() in NUMBER_OF:
            column = column.cast(pa.int32() if kind.typeName() == "date" else pa.int64())
        mine, their = repr(column[place].as_py()), repr(theirs.column(name)[place].as_py())
        if place in ours.faults:
            is_known = is_bad or is_named(LAXER, kind, token)
        else:
            is_known = (mine == their and not is_bad) or is_named(OTHER, kind, token)
        if not is_known:
            unnamed.append((kind.simpleString(), token[:40], ours.faults.get(place, mine), "bad" if is_bad else their))
    assert unnamed == []
