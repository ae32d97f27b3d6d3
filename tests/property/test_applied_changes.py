"""`dm.apply_changes` against a dictionary and a list of intervals: any grouping, disorder, ties, replays, rewinds."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from change_cases import NOON, Course, Files, is_bad, log, newest, plain, shown_by, versions
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

import drainmark as dm
from drainmark.jobs.errors import OperatorFailed
from drainmark.jobs.frames.tags import GONE, SEQUENCE_ID
from drainmark.jobs.operators.changes import versions as changed_versions
from drainmark.jobs.operators.changes.change_shape import (
    BLOCK,
    IN_BLOCK,
    KEPT_BY,
    KEPT_DELETES,
    KEPT_FORGOTTEN,
    KEPT_TEXT,
    VALID_FROM,
    ChangeShape,
)
from drainmark.jobs.operators.changes.newest import Newest
from drainmark.jobs.operators.changes.numbered_changes import NET
from drainmark.jobs.operators.changes.rules import ChangeRules
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


WAYS = [
    pytest.param(name, is_local, marks=() if is_local or number % 2 else pytest.mark.slow)
    for number, name in enumerate(CASES)
    for is_local in (True, False)
]
"""A configuration, and whether changes are applied here, else in tasks, where the same code runs."""


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


@pytest.mark.seed("AC1", "AC2")
@pytest.mark.parametrize("name", ["__net", "__block", "__IS_NEW", "__is_kept", "__key_hash", "__truncated", "__by"])
def test_a_column_that_changes_get_on_their_way_is_refused_before_a_run(engine: SparkEngine, name: str) -> None:
    """Some of them were an error only in a large group."""
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64()), (name, pa.int64())])
    course = Course(engine.session, operator_of(Case({"keys": ["k"]}, lambda files: [])), schema=schema)
    course.operator = replace(course.operator, apply_as_deletes=None)
    with pytest.raises(OperatorFailed) as caught:
        course.go({1: [{"k": 1, "n": 1, name: 1}]})
    assert name in str(caught.value)
    assert ("except_columns" in caught.value.remedy) == (name != "__by")


@pytest.mark.seed("AC2")
@pytest.mark.parametrize("leaves_out", [{"columns": ["b", "y"]}, {"except_columns": ["op", "x"]}])
def test_a_tracked_column_that_the_output_lacks_is_refused_before_a_run(
    engine: SparkEngine, leaves_out: dict[str, Any]
) -> None:
    """The first group failed with a `KeyError`, and each try after it."""
    options = {"stored_as_scd_type": 2, "track_history_columns": ["y", "x"], **leaves_out}
    course = Course(engine.session, operator_of(Case(options, lambda files: [])))
    with pytest.raises(OperatorFailed, match="output has no column x") as caught:
        course.go({1: []})
    assert caught.value.remedy.startswith("name some of a, b")


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
    "double": [0.0, -0.0, float("nan"), float("-inf"), -1.5, 1e300],
    "float": [0.0, -0.0, float("nan"), -1.5],
    "string": ["", "A", "a", "ab", "é", "\U0001f600", "\uffff"],
    "binary": [b"", b"\x00", b"\x7f", "é".encode(), b"\x80", b"\xff\x00", b"\xff\xff"],
    "date": [dt.date(1900, 1, 1), dt.date(1970, 1, 1), dt.date(2026, 1, 2)],
    "timestamp": [dt.datetime(1900, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 1, 0, 0, 0, 7, tzinfo=dt.UTC)],
    "timestamp_ntz": [dt.datetime(1900, 1, 1), dt.datetime(2026, 1, 1, 0, 0, 0, 7)],  # noqa: DTZ001
    "decimal(20,3)": [Decimal("-1.500"), Decimal("0.001"), Decimal("99999999999999999.999")],
    "boolean": [False, True],
    "struct<f:double,s:string>": [
        {"f": f, "s": s} for f, s in [(0.0, "a"), (-0.0, "a"), (float("nan"), "b"), (float("nan"), "a"), (0.0, "b")]
    ],
    "array<float>": [[0.0], [-0.0], [], [float("nan")], [None], [0.0, None], [0.5, 0.0]],
    "map<string,array<double>>": [
        [], [("a", [0.0]), ("b", None)], [("b", None), ("a", [-0.0])], [("a", [0.0])], [("a", None), ("b", [0.0])],
        [("c", [0.5]), ("a", [0.0]), ("b", None)],
    ],
}  # fmt: skip
"""Values that are easily compared or ordered in another way, by type. The first two are keys."""


def is_ordered(kind: str) -> bool:
    return not kind.startswith(("array", "map"))


def codes_of(engine: SparkEngine, kind: str) -> Callable[[Any], int | None]:
    """Return a function that numbers values: in Spark's order, and by Spark's equality."""
    values = KINDS[kind]
    rows = pa.table({"place": pa.array(range(len(values))), "v": pa.array(values, as_arrow(engine, kind))})
    frame = engine.session.createDataFrame(rows, f"place bigint, v {kind}")
    if kind.startswith("map"):
        found = frame.groupBy("v").agg({"place": "collect_list"}).toDF("v", "places").collect()
        codes = {place: code for code, row in enumerate(found) for place in row["places"]}
    else:
        ranked = frame.selectExpr("place", "dense_rank() over (order by v) as code")
        codes = {row["place"]: row["code"] for row in ranked.collect()}
    texts = {as_text(value): codes[place] for place, value in enumerate(values)}
    return lambda value: None if value is None else texts[as_text(value)]


def as_text(value: Any) -> str:
    value = value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value
    return repr(sorted(value.items()) if isinstance(value, dict) else value)


@pytest.mark.seed("AC1", "AC2")
@pytest.mark.parametrize(
    ("kind", "scd_type"),
    [
        pytest.param(kind, scd_type, marks=() if (number + scd_type) % 2 else pytest.mark.slow)
        for number, kind in enumerate(KINDS)
        for scd_type in (1, 2)
    ],
)
def test_values_are_alike_and_in_order_as_spark_has_them(engine: SparkEngine, kind: str, scd_type: int) -> None:
    chance, values, code = random.Random(f"{kind}{scd_type}"), KINDS[kind], codes_of(engine, kind)
    keys = [1, 2] if kind.startswith("map") else values[:2]
    sequences: list[Any] = [*(values if is_ordered(kind) else range(5)), None]
    of_key = code if keys == values[:2] else lambda value: value
    of_sequence = code if is_ordered(kind) else lambda value: value
    arrow, number = as_arrow(engine, kind), pa.int64()
    schema = pa.schema(
        [("k", number if keys == [1, 2] else arrow), ("by", arrow if is_ordered(kind) else number), ("v", arrow),
         ("op", pa.string())]
    )  # fmt: skip
    options = {"keys": ["k"], "sequence_by": "by", "columns": ["k", "v"], "stored_as_scd_type": scd_type}
    courses = [
        Course(engine.session, operator_of(Case(options, lambda files: [])), schema=schema, is_local=is_local)
        for is_local in (True, False)
    ]
    files = [
        [{"k": chance.choice(keys), "by": chance.choice(sequences), "v": chance.choice([*values, None]),
          "op": chance.choice("uuud")} for _ in range(chance.choice([0, 2, 5, 9]))]
        for _ in range(6)
    ]  # fmt: skip
    for course in courses:
        course.go({number: files[number - 1] for number in (1, 2, 3)})
        course.go({number: files[number - 1] for number in (4, 5, 6)})
    coded = [
        [{"a": of_key(row["k"]), "b": 0, "n": of_sequence(row["by"]), "op": row["op"], "v": code(row["v"])}
         for row in rows if has_all_parts(row["by"])]
        for rows in files
    ]  # fmt: skip
    wanted = newest(coded, ["a", "v"]) if scd_type == 1 else versions(coded, ["a", "v"], ["v"])
    for course in courses:
        for at, expected in enumerate(wanted, 1):
            found = [
                {"a": of_key(row.pop("k")), "v": code(row.pop("v")),
                 **{name: of_sequence(value) if name.startswith("valid") else value for name, value in row.items()}}
                for row in map(dict, course.out[at])
            ]  # fmt: skip
            assert plain(found) == plain(expected), (at, course.is_local)
    ours, sparks = (pa.concat_tables(course.kept[""]) for course in courses)
    assert [(column.name, column.type) for column in ours.schema] == [(each.name, each.type) for each in sparks.schema]
    assert shown(ours) == shown(sparks)


def has_all_parts(sequence: Any) -> bool:
    return sequence is not None and None not in (sequence.values() if isinstance(sequence, dict) else ())


@pytest.mark.seed("AC1", "AC2", "ER1")
@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("scd_type", [1, 2])
def test_an_erased_change_does_not_come_back_as_it_was_before(
    engine: SparkEngine, scd_type: int, is_local: bool
) -> None:
    """A change of the same key had been replaced by another one; an erasure leaves the key of the last one alone."""
    options = {"columns": ["a", "b", "x", "y"], "stored_as_scd_type": scd_type}
    course = Course(engine.session, operator_of(Case(options, lambda files: [])), is_local=is_local)
    row = {"a": "p", "b": 1, "n": 3, "at": None, "op": "u", "x": 1, "y": None}
    course.go({1: [row]})
    kept = course.kept[""][0]
    (first,) = kept.to_pylist()
    left = {name: first.get(name) for name in ("a", "b", "_by_text")} | {"_gone": True, "_sequence_id": 2}
    course.kept[""].append(pa.Table.from_pylist([left], kept.schema))
    course.go({3: [{**row, "n": 2 if scd_type == 1 else 4, "x": 2}]})
    assert [(found["x"], found["_gone"]) for found in course.out[3]] == [(2, False)]


def change(n: int, op: str, b: int = 1) -> dict[str, Any]:
    """Return a change of one key, or a truncate."""
    key = {"a": None, "b": None} if op == "t" else {"a": "p", "b": b}
    return {**key, "n": n, "at": NOON + dt.timedelta(minutes=n), "op": op, "x": n, "y": None}


@pytest.mark.seed("AC1")
@pytest.mark.parametrize("is_local", [True, False])
def test_a_truncate_is_remembered_also_if_it_came_before_a_delete_that_is_forgotten(
    engine: SparkEngine, is_local: bool
) -> None:
    options = {"columns": SHOWN, "apply_as_truncates": "op = 't'", "within": 1}
    files = [[change(30, "d")], [change(20, "t")], [], [], [change(10, "u")], [change(20, "u")]]
    for groups in ([[1, 2, 3, 4, 5, 6]], [[1, 2, 3], [4, 5, 6]]):
        course = Course(engine.session, operator_of(Case(options, lambda files: [])), is_local=is_local)
        for group in groups:
            course.go({number: files[number - 1] for number in group})
        assert [(number, row["n"]) for number in range(1, 7) for row in course.out[number]] == [(6, 20)]


@pytest.mark.seed("AC1")
def test_a_group_with_many_truncates_has_few_deletes_of_each_key() -> None:
    """Of each key and truncate there was one: twenty truncates in a group took a gigabyte of each task."""
    rules = rules_of(["x", "y"])
    shape = replace(rules.shape, is_history=False)
    known = pa.table({"a": ["p"] * 1000, "b": range(1000), "x": range(1000), "y": [0.5] * 1000, KEPT_BY: [1] * 1000,
                      GONE: [False] * 1000, SEQUENCE_ID: [1] * 1000})  # fmt: skip
    places = {BLOCK: 0, IN_BLOCK: 0, GONE: True, KEPT_FORGOTTEN: True}
    cuts = pa.Table.from_pylist([{KEPT_BY: n, SEQUENCE_ID: n, **places} for n in range(2, 502)])
    rows = (
        known.slice(0, 0)
        .append_column(BLOCK, pa.array([], pa.int64()))
        .append_column(IN_BLOCK, pa.array([], pa.int64()))
    )
    found = Newest.of(shape, rows, known, cuts, None)
    assert found.changes.new <= 2000
    assert found.kept()[SEQUENCE_ID].to_pylist() == [2] * 1000
    assert found.output().num_rows == 1000


PAST = ["a", "b", "x", "y"]


def rules_of(tracked: list[str]) -> ChangeRules:
    """Return the rules for histories, which need no Spark."""
    types = {"a": StringType(), "b": LongType(), "x": LongType(), "y": DoubleType()}
    columns = StructType([StructField(name, kind) for name, kind in types.items()])
    shape = ChangeShape(
        keys=("a", "b"), columns=columns, by_type=LongType(), is_float=False, is_history=True, forgets=False,
        tracked=tuple(tracked),
    )  # fmt: skip
    return ChangeRules(shape=shape)


def as_kept(files: dict[int, list[dict[str, Any]]]) -> pa.Table:
    """Return changes as the rules take them."""
    numbers = dict.fromkeys((VALID_FROM, SEQUENCE_ID, BLOCK, IN_BLOCK), pa.int64())
    types = {"a": pa.string(), "b": pa.int64(), "x": pa.int64(), "y": pa.float64(), KEPT_DELETES: pa.bool_()}
    rows = [
        {**row, VALID_FROM: row["n"], KEPT_DELETES: row["op"] == "d", KEPT_TEXT: str(row["n"]), SEQUENCE_ID: number,
         BLOCK: 0, IN_BLOCK: place}
        for number, mine in files.items() for place, row in enumerate(mine) if not is_bad(row)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, pa.schema([*types.items(), *numbers.items(), (KEPT_TEXT, pa.string())]))


NOTHING = pa.table({SEQUENCE_ID: pa.array([], pa.int64())})


@pytest.mark.seed("AC2")
@pytest.mark.parametrize("tracked", [["x", "y"], ["x"]])
@pytest.mark.parametrize("places", [2_000_000, 5])
def test_parts_of_histories_and_of_groups_give_what_the_whole_gives(
    monkeypatch: pytest.MonkeyPatch, tracked: list[str], places: int
) -> None:
    monkeypatch.setattr(changed_versions, "MOST_PLACES", places)
    for seed in range(40):
        chance = random.Random(seed)
        files = log(chance, 14, keys=chance.choice([2, 4]))
        known, out = NOTHING, defaultdict[int, list[dict[str, Any]]](list)
        for group in in_groups(chance, list(range(1, 15))):
            applied = rules_of(tracked).apply(as_kept({number: files[number - 1] for number in group}), known)
            known = pa.concat_tables([known, applied.kept], promote_options="default")
            assert applied.output is not None
            for row in applied.output.drop_columns([NET]).to_pylist():
                out[row.pop(SEQUENCE_ID)].append(row)
        wanted = versions(files, PAST, tracked)
        assert [plain(out[number]) for number in range(1, 15)] == [plain(rows) for rows in wanted], seed


@pytest.mark.seed("AC2")
def test_late_changes_of_a_long_history_are_compared_with_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty late changes of a key with a million took six gigabytes, when each id had all later versions."""
    row = {"a": "p", "b": 1, "op": "u", "y": None}
    known = rules_of(["x"]).apply(as_kept({1: [{**row, "n": n, "x": n} for n in range(0, 20_000, 2)]}), NOTHING).kept
    monkeypatch.setattr(changed_versions, "MOST_PLACES", 500)
    monkeypatch.delattr(ChangeRules, "_by_halves")
    late = {number: [{**row, "n": 200 * number + 1, "x": -1}] for number in range(2, 52)}
    for tracked in (["x"], ["x", "y"]):
        found = rules_of(tracked).apply(as_kept(late), known)
        assert (found.kept.num_rows, found.output and found.output.num_rows) == (100, 150)


def as_arrow(engine: SparkEngine, kind: str) -> pa.DataType:
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(engine.session.createDataFrame([], f"v {kind}").schema["v"].dataType, timezone="UTC")


def shown(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.to_pylist()))
