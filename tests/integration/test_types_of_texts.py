"""A type that is never read from a format is refused when the application is analysed, before any input is read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import drainmark as dm
from drainmark.jobs.errors import UsageError
from drainmark.jobs.operators.sources.source import row_type
from drainmark.orchestration.testing.running import Result
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark

SOURCES: dict[str, Callable[[str, str], Any]] = {
    "files": lambda form, schema: dm.DirectoryScan(path="nowhere", format=form, schema=schema),
    "lines": lambda form, schema: dm.FileSource(path="nowhere", format=form, schema=schema),
    "topic": lambda form, schema: dm.KafkaSource("clicks", "nowhere:9092", format=form, schema=schema),
}
NEVER = {
    "csv": ("interval day to second", "variant", "char(3)", "varchar(3)", "array<int>", "map<string, int>",
            "struct<a: int>"),
    "json": ("interval year to month", "void", "map<int, string>", "array<map<date, int>>",
             "struct<a: struct<b: char(2)>>"),
    "parquet": ("char(3)", "array<varchar(3)>", "interval year to month"),
}  # fmt: skip
CASES = [
    (source, form, kind)
    for source in SOURCES
    for form, kinds in NEVER.items()
    for kind in kinds
    if source == "files" or form != "parquet"
]


def operator_of(source: Any) -> Any:
    with dm.application("refused"):

        @dm.consistent(trigger="operator-driven")
        @dm.source(source)
        def rows(scanned: Any) -> Any:
            return scanned

    return rows.operator


@pytest.mark.seed("I12")
@pytest.mark.parametrize(("source", "form", "kind"), CASES)
def test_a_type_that_is_never_read_is_refused_with_the_one_to_declare(
    engine: SparkEngine, source: str, form: str, kind: str
) -> None:
    assert engine.session, "types are parsed by a session"
    access: Any = None  # nothing outside is asked
    operator = operator_of(SOURCES[source](form, f"id bigint, odd {kind}"))
    with pytest.raises(UsageError, match="'odd'") as refused:
        row_type(operator, "", access)
    assert refused.value.operator == "rows"
    assert refused.value.location is not None
    found = re.search(r"declare (?:the column as )?(a string|the number.*|\S.*)$", refused.value.remedy or "")
    assert found is not None
    wanted = {"a string": "string", "the number that the file has": "int"}.get(found[1], found[1])
    row_type(operator_of(SOURCES[source](form, f"id bigint, odd {wanted}")), "", access)


def test_a_run_is_refused_before_a_file_is_read(run_app: Callable[..., Result]) -> None:
    def app(kind: str) -> Callable[[], None]:
        def declare() -> None:
            @dm.consistent(trigger="operator-driven")
            @dm.source(dm.DirectoryScan(path="inbox", format="csv", schema=f"id bigint, tags {kind}"))
            def rows(scanned: Any) -> Any:
                return scanned

            dm.sink(rows, dm.DeltaAppend("out"))

        return declare

    with pytest.raises(UsageError, match="'tags'") as refused:
        run_app(app("array<int>"), {"1.csv": "1,[2]\n"})
    assert refused.value.remedy == "a field of csv is one text, and never array<int>: declare the column as string"
    followed = run_app(app("string"), {"2.csv": "2,[3]\n"})
    assert [row["tags"] for row in followed.sink("out")] == ["[2]", "[3]"]


def test_the_name_of_sparks_corrupt_record_is_a_name_like_any_other(run_app: Callable[..., Result]) -> None:
    def app() -> None:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="inbox", format="csv", schema="_corrupt_record string, n int"))
        def rows(scanned: Any) -> Any:
            return scanned

        dm.sink(rows, dm.DeltaAppend("out"))

    result = run_app(app, {"1.csv": "a,1\nb,x\n"})
    assert [row["_corrupt_record"] for row in result.sink("out")] == ["a"]
    assert [row["raw"] for row in result.quarantine()] == ["b,x"]
