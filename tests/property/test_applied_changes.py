"""`dm.apply_changes` against a dictionary and a list of intervals: any grouping, disorder, ties, replays, rewinds."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from change_cases import Course, Files, is_bad, log, newest, plain, shown_by, versions

import drainmark as dm
from drainmark.jobs.operators.changes import versions_in_memory
from drainmark.resources.spark.session import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SHOWN = ["a", "b", "n", "x", "y"]
DELETES = "op = 'd'"
MINUTES = dt.timedelta(minutes=5)


@dataclass(frozen=True)
class Case:
    options: dict[str, Any]
    oracle: Callable[[Files], list[list[dict[str, Any]]]]
    truncates: float = 0.0


CASES = {
    "scd 1": Case({"columns": SHOWN}, lambda files: newest(files, SHOWN)),
    "scd 1 truncates": Case(
        {"columns": SHOWN, "apply_as_truncates": "op = 't'"}, lambda files: newest(files, SHOWN), truncates=0.15
    ),
    "scd 1 within ids": Case({"columns": SHOWN, "within": 1}, lambda files: newest(files, SHOWN, 1)),
    "scd 1 within duration": Case(
        {"columns": SHOWN, "within": MINUTES, "sequence_by": "at"},
        lambda files: newest(files, SHOWN, MINUTES),
    ),
    "scd 2": Case({"columns": ["a", "b", "x", "y"], "stored_as_scd_type": 2},
                  lambda files: versions(files, ["a", "b", "x", "y"], ["x", "y"])),
    "scd 2 tracked": Case(
        {"columns": ["a", "b", "x", "y"], "stored_as_scd_type": 2, "track_history_columns": ["x"]},
        lambda files: versions(files, ["a", "b", "x", "y"], ["x"]),
    ),
}  # fmt: skip


def operator_of(case: Case) -> Any:
    options = {"keys": ["a", "b"], "sequence_by": "n", "apply_as_deletes": DELETES, **case.options}
    with dm.application("applied"):
        return dm.apply_changes("changes", **options).operator


def in_groups(chance: random.Random, ids: list[int]) -> list[list[int]]:
    """Return ids cut into groups."""
    groups: list[list[int]] = []
    for number in ids:
        if not groups or chance.random() < 0.5:
            groups.append([])
        groups[-1].append(number)
    return groups


WAYS = [(name, True) for name in CASES] + [("scd 1", False), ("scd 2", False)]
"""A configuration, and whether a small group is applied in memory if it can be."""


@pytest.mark.seed("AC1", "AC2")
@pytest.mark.parametrize(("name", "is_local"), WAYS)
@pytest.mark.parametrize(
    ("seed", "count"), [(0, 6), *(pytest.param(seed, 9, marks=pytest.mark.slow) for seed in (0, 1, 2))]
)
def test_any_grouping_gives_what_plain_python_gives(
    engine: SparkEngine, name: str, is_local: bool, seed: int, count: int
) -> None:
    case, chance = CASES[name], random.Random(seed)
    files = log(chance, count, truncates=case.truncates)
    wanted = case.oracle(files)
    ids = [2 * number + 1 for number in range(count)]  # a failed attempt leaves a gap
    course = Course(engine.session, operator_of(case), is_local=is_local)
    for group in in_groups(chance, ids):
        course.go({number: files[ids.index(number)] for number in group})
    for number, rows, expected in zip(ids, files, wanted, strict=True):
        assert plain(course.out[number]) == plain(expected), number
        assert course.refused[number] == sum(map(is_bad, rows))
        if course.operator.kept[0].history_of:
            assert shown_by(course, number) == shown_by_rows(wanted[: ids.index(number) + 1])
    back = chance.randrange(count)
    course.rewind(ids[back])
    for group in in_groups(chance, ids[back + 1 :]):
        course.go({number: files[ids.index(number)] for number in group})
    assert [plain(course.out[number]) for number in ids] == [plain(rows) for rows in wanted]


def shown_by_rows(wanted: list[list[dict[str, Any]]]) -> list[str]:
    """Return the rows of a table after files that each took some rows back and brought some."""
    table: Counter[str] = Counter()
    for rows in wanted:
        for row in rows:
            values = {name: value for name, value in row.items() if name != "_gone"}
            table[plain([values])[0]] += -1 if row["_gone"] else 1
    return sorted(table.elements())


ODD = pa.schema(
    [("a.b", pa.string()), ("when it was", pa.timestamp("us")), ("n", pa.int32()), ("op", pa.string()),
     ("tags", pa.map_(pa.string(), pa.int64())), ("of", pa.struct([("x.y", pa.float64())]))]
)  # fmt: skip


def odd(key: str, minute: int, n: int, tag: int | None, *, op: str = "u", x: float = 0.5) -> dict[str, Any]:
    when = dt.datetime(2026, 1, 1, 12, minute, tzinfo=dt.UTC).replace(tzinfo=None)
    tags = None if tag is None else [("t", tag)]
    return {"a.b": key, "when it was": when, "n": n, "op": op, "tags": tags, "of": {"x.y": x}}


@pytest.mark.seed("AC1", "AC2")
@pytest.mark.parametrize("scd_type", [1, 2])
def test_names_with_points_maps_and_sequences_of_several_columns(engine: SparkEngine, scd_type: int) -> None:
    options = {
        "keys": ["a.b"], "sequence_by": ["`when it was`", "n"], "except_columns": ["op", "when it was", "n"],
        "stored_as_scd_type": scd_type,
    }  # fmt: skip
    course = Course(engine.session, operator_of(Case(options, lambda files: [])), schema=ODD)
    course.go({1: [odd("k", 2, 1, 7), odd("k", 1, 9, 6)], 2: [odd("k", 2, 0, 5), odd("l", 1, 1, None)]})
    course.go({3: [odd("k", 2, 1, 7), odd("l", 1, 1, None, x=-0.0)]})  # again, and a tie
    course.go({4: [odd("k", 2, 2, 0, op="d"), odd("k", 2, 3, 8)], 5: [odd("k", 3, 0, 8)]})
    brought = [[(row["a.b"], row["tags"], row["of"]["x.y"]) for row in course.out[number] if not row["_gone"]]
               for number in range(1, 6)]  # fmt: skip
    taken = [[(row["a.b"], row["tags"]) for row in course.out[number] if row["_gone"]] for number in range(1, 6)]
    if scd_type == 1:
        assert brought == [
            [("k", [("t", 7)], 0.5)],
            [("l", None, 0.5)],
            [("l", None, 0.0)],
            [("k", [("t", 8)], 0.5)],
            [],
        ]
        assert taken == [[], [], [("l", None)], [("k", [("t", 7)])], []]
        return
    spans = {
        (
            row["tags"][0][1],
            *(row[end] and (row[end]["part_1"].minute, row[end]["n"]) for end in ("valid_from", "valid_to")),
        )
        for number in range(1, 6)
        for row in course.out[number]
        if row["a.b"] == "k" and not row["_gone"]
    }
    assert {(6, (1, 9), (2, 0)), (5, (2, 0), (2, 1)), (7, (2, 1), (2, 2)), (8, (2, 3), None)} <= spans
    assert course.out[5] == []


def test_a_row_with_a_part_of_its_sequence_is_refused(engine: SparkEngine) -> None:
    course = Course(engine.session, operator_of(Case({"sequence_by": ["at", "n"]}, lambda files: [])))
    row = {"a": "p", "b": 1, "n": None, "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "op": "u", "x": 1, "y": None}
    course.go({1: [row, {**row, "n": 3}]})
    assert (course.refused, len(course.out[1])) == ({1: 1}, 1)


def test_what_spark_would_do_cannot_be_compared_yet(engine: SparkEngine) -> None:
    """Spark's `create_auto_cdc_flow` needs a table that implements `SupportsRowLevelOperations`."""
    jvm = engine.session.sparkContext._jvm  # type: ignore[attr-defined]
    names = ("connector.catalog.SupportsRowLevelOperations", "delta.catalog.DeltaTableV2")
    needed, delta = (
        jvm.org.apache.spark.util.Utils.classForName(f"org.apache.spark.sql.{n}", True, False) for n in names
    )
    assert not needed.isAssignableFrom(delta), "compare with create_auto_cdc_flow here: it takes Delta tables now"
    pytest.skip("create_auto_cdc_flow refuses Delta tables, and Spark comes with no catalogue whose tables it takes")


KINDS = {
    "bigint": [-(2**63), -1, 0, 1, 2**63 - 1],
    "smallint": [-2, -1, 0, 7],
    "double": [float("-inf"), -1.5, 0.0, -0.0, 1e300, float("nan")],
    "float": [-1.5, 0.0, -0.0, float("nan")],
    "string": ["", "A", "a", "ab", "é", "\U0001f600", "\uffff"],
    "binary": [b"", b"\x00", b"\x7f", "é".encode()],
    "date": [dt.date(1900, 1, 1), dt.date(1970, 1, 1), dt.date(2026, 1, 2)],
    "timestamp": [dt.datetime(1900, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 1, 0, 0, 0, 7, tzinfo=dt.UTC)],
    "timestamp_ntz": [dt.datetime(1900, 1, 1), dt.datetime(2026, 1, 1, 0, 0, 0, 7)],  # noqa: DTZ001
    "decimal(20,3)": [Decimal("-1.5"), Decimal("0.001"), Decimal("99999999999999999.999")],
    "boolean": [False, True],
}
"""Values that are easily compared or ordered in another way, by type."""


@pytest.mark.seed("AC1", "AC2")
@pytest.mark.parametrize("scd_type", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_in_memory_and_by_spark_the_state_is_the_same(engine: SparkEngine, kind: str, scd_type: int) -> None:
    chance, arrow = random.Random(f"{kind}{scd_type}"), as_arrow(engine, kind)
    schema = pa.schema([("k", arrow), ("by", arrow), ("v", arrow), ("op", pa.string())])
    options = {"keys": ["k"], "sequence_by": "by", "except_columns": ["op"], "stored_as_scd_type": scd_type}
    courses = [
        Course(engine.session, operator_of(Case(options, lambda files: [])), schema=schema, is_local=is_local)
        for is_local in (True, False)
    ]
    values = KINDS[kind]
    for first in (1, 4):
        files = {
            number: [
                {"k": chance.choice(values[:2]), "by": chance.choice([*values, None]),
                 "v": chance.choice([*values, None]), "op": chance.choice("uuud")}
                for _ in range(chance.choice([0, 2, 5, 9]))
            ]
            for number in (first, first + 1, first + 2)
        }  # fmt: skip
        for course in courses:
            course.go(files)
        ours, sparks = (course.kept[""][-1] for course in courses)
        types = [[(column.name, column.type) for column in rows.schema] for rows in (ours, sparks)]
        assert types[0] == types[1]
        assert shown(ours) == shown(sparks)
        for number in files:
            assert plain(courses[0].out[number]) == plain(courses[1].out[number])
        assert courses[0].refused == courses[1].refused


@pytest.mark.seed("AC2", "ER1")
def test_an_erased_change_does_not_come_back_as_it_was_before(engine: SparkEngine) -> None:
    """A change with the same sequence had replaced another one; an erasure leaves the key of the last one alone."""
    options = {"columns": ["a", "b", "x", "y"], "stored_as_scd_type": 2}
    course = Course(engine.session, operator_of(Case(options, lambda files: [])))
    row = {"a": "p", "b": 1, "n": 1, "at": None, "op": "u", "x": 1, "y": None}
    course.go({1: [row]})
    kept = course.kept[""][0]
    (first,) = kept.to_pylist()
    left = {name: first[name] for name in ("a", "b", "_by_text")} | {"_gone": True, "_sequence_id": 2}
    course.kept[""].append(pa.Table.from_pylist([left], kept.schema))
    course.go({3: [{**row, "n": 2, "x": 2}]})
    assert [(found["valid_from"], found["_gone"]) for found in course.out[3]] == [(2, False)]


@pytest.mark.seed("AC2")
def test_late_changes_before_a_long_history_are_not_applied_in_memory(
    engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each id of a group has all later versions: fifty late changes of a key with a million took six gigabytes."""
    monkeypatch.setattr(versions_in_memory, "MOST_PLACES", 60)
    options = {"columns": ["a", "b", "x", "y"], "stored_as_scd_type": 2}
    row = {"a": "p", "b": 1, "at": None, "op": "u", "y": None}
    files = {1: [{**row, "n": n, "x": n} for n in range(10, 30)]}
    late = {number: [{**row, "n": number, "x": -1}] for number in (2, 3, 4)}
    courses = [
        Course(engine.session, operator_of(Case(options, lambda files: [])), is_local=is_local)
        for is_local in (True, False)
    ]
    for course in courses:
        course.go(files)
        course.go(late)
    assert courses[0].in_memory == [True, False]
    assert shown(courses[0].kept[""][-1]) == shown(courses[1].kept[""][-1])
    assert [plain(courses[0].out[number]) for number in late] == [plain(courses[1].out[number]) for number in late]


def as_arrow(engine: SparkEngine, kind: str) -> pa.DataType:
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(engine.session.createDataFrame([], f"v {kind}").schema["v"].dataType, timezone="UTC")


def shown(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.to_pylist()))
