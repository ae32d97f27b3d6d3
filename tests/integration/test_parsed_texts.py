"""`dm.parse`: texts become columns as the records of files do, in this process and by tasks."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pytest

import drainmark as dm
from drainmark.jobs.errors import OperatorFailed
from drainmark.jobs.graph.context import OperatorContext
from drainmark.jobs.graph.operator import StepResult
from drainmark.orchestration.testing.running import Result
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark

SCHEMA = "k string, d decimal(10,2), l array<timestamp>, s struct<`x.y`: int>"
TEXTS = (
    '{"k": 1.10, "d": 1.5, "l": ["2026-01-01"], "s": {"x.y": 1}}',
    '{"k": "a",\n"l": []}',
    '{"k": "a", "k": "b"}',
    '{"k": "c", "d": 0.005}',
    '{"k": "d"} {"k": "e"}',
    "{}",
    None,
)
GOOD = 2


def step(
    engine: SparkEngine, texts: Sequence[str | None], sql: str = "text", *, is_local: bool = False, **parse: Any
) -> StepResult:
    """Parse texts, changed by some SQL, in this process or by tasks; the rows have a further column."""
    with dm.application("parsed"):
        parsed = dm.parse("texts", "text", **parse)
    rows = engine.session.createDataFrame([*enumerate(texts)], "pos bigint, text string").selectExpr(
        "1L as _sequence_id",
        "struct(0L as block, pos as row) as _position",
        "map('pos', pos) as other",
        f"{sql} as text",
    )
    frames = OperatorContext(
        session=engine.session, params=dm.Params(), first_id=1, last_id=1, scanned_frames={},
        streams={"texts": rows},
        read_state=lambda operator, partials: (partials, None), read_lookup=lambda operator: None,
        read_statement=lambda name: "", is_run=is_local, few=lambda operator: is_local,
    )  # fmt: skip
    return parsed.operator.step(frames)


def collected(found: StepResult) -> tuple[list[Any], list[Any]]:
    assert found.output is not None
    assert found.bad is not None
    rows = sorted(found.output.collect(), key=lambda row: row["_position"]["row"])
    return [row.asDict(recursive=True) for row in rows], sorted(map(tuple, found.bad.collect()))


@pytest.mark.seed("RT5", "I12")
def test_this_process_and_tasks_give_the_same_rows_and_reasons(engine: SparkEngine) -> None:
    given = {"format": "json", "schema": SCHEMA}
    rows, bad = collected(step(engine, TEXTS, is_local=True, **given))
    assert (rows, bad) == collected(step(engine, TEXTS, **given))
    assert [(row["k"], row["other"]) for row in rows] == [("1.10", {"pos": 0}), ("a", {"pos": 1})]
    assert rows[0]["s"] == {"x.y": 1}
    assert [(place, raw) for _, place, raw, _ in bad] == [*enumerate(TEXTS[GOOD:], GOOD + 1)]
    parts = ("twice", "0.005", "no JSON", "no declared field", "there is no text")
    assert all(part in row[3] for part, row in zip(parts, bad, strict=True)), bad


WRITTEN = {
    "s": "string", "at": "timestamp", "there": "timestamp_ntz", "day": "date", "x": "double", "f": "float",
    "n": "bigint", "price": "decimal(38,30)", "flag": "boolean", "last": "string",
}  # fmt: skip
ODD_TEXTS = (
    " a", "a ", " ", "\t", '"', ' "a" ', "a\\", "\\\\", 'a\\"b', "a\nb", "a\r\nb", "a\rb", "a,b",
    "a;b", "#a", "null", "\u00e4\u2028", "'",
)  # fmt: skip
PLAIN_TEXTS = ("a", "a b", "null", "\u00e4", "1", "'")
"""Of `key_value`, which has no quotes."""


def drawn(chance: random.Random, form: str) -> list[Any]:
    """Return a row of the columns `WRITTEN`; many are null, and times have any number of microseconds."""
    odd = PLAIN_TEXTS if form == "key_value" else ODD_TEXTS
    micros = chance.choice([0, 1, 9, 999, 1000, 123_456, 999_999])
    at = dt.datetime(chance.choice([1000, 1582, 1969, 2026, 9998]), 3, 29, 1, 30, 59, micros, dt.UTC)
    numbers = [0.0, -0.0, 0.1, 1e22, 5e-324, -1.7976931348623157e308]
    row = [
        chance.choice(odd), at, at.replace(tzinfo=None), at.date(), chance.choice(numbers), chance.choice([0.5, -0.0]),
        chance.choice([2**63 - 1, -(2**63), 0]), chance.choice([Decimal("1E-30"), Decimal("-12345678.5")]),
        chance.choice([True, False]),
    ]  # fmt: skip
    return [*(None if chance.random() < 0.2 else value for value in row), chance.choice(odd)]


@pytest.mark.parametrize("form", ["csv", "json", "key_value"])
@pytest.mark.parametrize("separator", [",", ";"])
def test_what_format_writes_is_read_by_parse_as_it_was(engine: SparkEngine, form: str, separator: str) -> None:
    chance = random.Random(form + separator)
    schema = ", ".join(f"{name} {kind}" for name, kind in WRITTEN.items())
    given = [[number, *drawn(chance, form)] for number in range(80)]
    rows = engine.session.createDataFrame(given, f"number bigint, {schema}")
    texts = formatted(engine, rows.drop("number"), form, separator=separator)
    found = step(engine, texts, format=form, schema=schema, separator=separator)
    assert found.bad is not None
    assert found.bad.collect() == []
    wanted = [row.asDict() for row in rows.drop("number").collect()]
    read, _ = collected(found)
    for was, row in zip(wanted, read, strict=True):
        assert repr({name: row[name] for name in WRITTEN}) == repr(was)


def formatted(engine: SparkEngine, rows: Any, form: str, **how: Any) -> list[str | None]:
    """Return the texts that `dm.format` makes of rows, in their order."""
    with dm.application("formatted"):
        made = dm.format("rows", form, **how)
    frames = OperatorContext(
        session=engine.session, params=dm.Params(), first_id=1, last_id=1, scanned_frames={}, streams={"rows": rows},
        read_state=lambda operator, partials: (partials, None), read_lookup=lambda operator: None,
        read_statement=lambda name: "",
    )  # fmt: skip
    return [row["value"] for row in made.operator.apply(frames).collect()]


def test_a_null_in_the_only_column_has_a_text_in_every_format(engine: SparkEngine) -> None:
    rows = engine.session.createDataFrame([("a",), (None,)], "`k y` string")
    found = {form: formatted(engine, rows, form) for form in ("csv", "json", "key_value")}
    assert found == {"csv": ["a", ""], "json": ['{"k y":"a"}', '{"k y":null}'], "key_value": ["k y=a", ""]}


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize(
    ("form", "texts"), [("json", ('{"k": "a", "n": "x"}',)), ("csv", ("a,x", "a")), ("key_value", ("k=a,n=x", ""))]
)
def test_a_bad_text_has_nulls_in_all_its_columns(
    engine: SparkEngine, form: str, texts: tuple[str, ...], is_local: bool
) -> None:
    given = {"format": form, "schema": "k string, n int", "on_bad": "null"}
    found = step(engine, [*texts, None], is_local=is_local, **given)
    assert found.output is not None
    assert {(row["k"], row["n"]) for row in found.output.collect()} == {(None, None)}


def test_options_are_those_of_files(engine: SparkEngine) -> None:
    given = {"options": {"dateFormat": "dd.MM.yyyy", "allowNoFields": "true"}, "is_local": True}
    rows, bad = collected(step(engine, ['{"d": "31.12.2026"}', "{}"], format="json", schema="d date", **given))
    assert [str(row["d"]) for row in rows] == ["2026-12-31", "None"]
    assert bad == []


def test_bytes_are_texts_and_other_columns_are_refused_until_they_are_cast(engine: SparkEngine) -> None:
    given = {"format": "csv", "schema": "n int"}
    rows, bad = collected(step(engine, ["7"], "cast(text as binary)", **given))
    assert ([row["n"] for row in rows], bad) == ([7], [])
    with pytest.raises(OperatorFailed, match="no text") as failed:
        step(engine, ["7"], "cast(text as int)", **given)
    assert "F.col('text').cast('string')" in (failed.value.remedy or "")
    rows, _ = collected(step(engine, ["7"], "cast(cast(text as int) as string)", **given))
    assert [row["n"] for row in rows] == [7]


@pytest.mark.parametrize(
    ("form", "schema"),
    [("csv", "a int, v struct<b: int>"), ("key_value", "v array<int>"), ("json", "v array<interval day>"),
     ("json", "v variant"), ("csv", "v char(3)"), ("json", "v map<int, string>")],
)  # fmt: skip
def test_a_type_that_no_text_becomes_is_refused_by_its_column(engine: SparkEngine, form: str, schema: str) -> None:
    with pytest.raises(OperatorFailed, match="'v'") as failed:
        step(engine, ["7"], format=form, schema=schema)
    assert failed.value.remedy


def rows_beside_a_struct_that_is_missing() -> None:
    @dm.consistent(trigger="operator-driven")
    @dm.source(dm.DirectoryScan(path="inbox", format="text"))
    def lines(scanned: Any) -> Any:
        return scanned.drop("source_file")

    missing = "if(value = '{\"n\": 1}', null, named_struct('made', true)) as beside"
    made = dm.functor(lambda lines: lines.selectExpr("*", missing), name="made", inputs=[lines])
    dm.sink(dm.parse(made, "value", format="json", schema="n int"), dm.DeltaAppend("out"))


def test_a_null_struct_beside_the_text_stays_one(run_app: Callable[..., Result]) -> None:
    """Spark says that its members are never null, and Arrow refuses to convert it as it is."""
    result = run_app(rows_beside_a_struct_that_is_missing, {"1.txt": '{"n": 1}\n{"n": 2}\nx\n'})
    assert {row["n"]: row["beside"] for row in result.sink("out")} == {1: None, 2: {"made": True}}
    assert [row["raw"] for row in result.quarantine()] == ["x"]
