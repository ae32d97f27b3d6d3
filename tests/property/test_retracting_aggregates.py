"""Aggregates over change streams against plain Python over the rows that are left, in any grouping (RA1, RA2)."""

from __future__ import annotations

import datetime as dt
import math
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from window_bench import Bench

import drainmark as dm
from drainmark import F
from drainmark.jobs.errors import Location
from drainmark.jobs.frames.tags import GONE, SEQUENCE_ID
from drainmark.jobs.graph.ports import Input
from drainmark.jobs.operators.windows.retracting_aggregate import RetractingAggregate
from drainmark.jobs.state.aggregations.aggregation import float_sums, partial_columns, subtracted
from drainmark.resources.spark.session import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.seed("RA1", "RA2")]

SCHEMA = (
    "k string, id bigint, n int, d decimal(20,4), x double, f float, name string, at timestamp, tiny decimal(38,30), "
    "_gone boolean"
)
SHARES = (0, 0.3, 0.5, 1)
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
Row = dict[str, Any]


@dataclass(frozen=True)
class Declared:
    """What `Bench` needs of a case."""

    values: dict[str, dm.Aggregation]
    keys: tuple[str, ...] = ("k",)
    window: Any = None

    def operator(self) -> RetractingAggregate:
        return RetractingAggregate(
            name="left", inputs=(Input(upstream="events"),), location=Location("app.py", 1), keys=self.keys,
            values=self.values, window=self.window, changes_of="events",
        )  # fmt: skip


def values() -> dict[str, dm.Aggregation]:
    return {
        "rows": dm.count(), "known": dm.count("x"), "n": dm.sum("n"), "d": dm.sum("d"), "x": dm.sum("x"),
        "f": dm.sum("f"), "mean": dm.mean("x"), "variance": dm.variance("x"), "stddev": dm.stddev("n"),
        "least": dm.min("x"), "most": dm.max("d"), "first_name": dm.min("name"), "names": dm.collect_set("name"),
        "different": dm.count_distinct("name"), "top": dm.top("name", 3, by="n"), "bottom": dm.bottom("x", 2),
        "percentiles": dm.percentile("x", SHARES),
    }  # fmt: skip


TAME = (None, 0.0, -0.0, 0.1, -2.5, 1e-9, 3e-13, 1e9 + 0.3, 12345.678, 1 / 3)
WILD = (*TAME, math.nan, math.inf, -math.inf, 1e300, -1e300, 5e-324, 1e-40, 2.0**70, 9e17)


def row_of(chance: random.Random, number: int, doubles: Sequence[float | None]) -> Row:
    at = NOON + dt.timedelta(minutes=chance.randrange(60))
    return {
        "k": chance.choice([None, "a", "b", "c"]), "id": number,
        "n": chance.choice([None, 2**31 - 1, -(2**31), *range(5)]),
        "d": chance.choice([None, Decimal("0.0001"), Decimal("-7.25"), Decimal("1234567890123456.7891")]),
        "x": chance.choice([*doubles, chance.uniform(-1, 1) * 10.0 ** chance.randrange(-12, 12)]),
        "f": chance.choice([None, 0.5, -1.25, 3.0]), "name": chance.choice([None, "u", "v", "w", "ü"]),
        "at": chance.choice([None, at, at]),
    }  # fmt: skip


def changes(seed: int, files: int, doubles: Sequence[float | None]) -> tuple[list[list[Row]], list[list[Row]]]:
    """Return the changes of each file, and the rows that are left after it."""
    chance = random.Random(seed)
    there: dict[int, Row] = {}
    logs, left, number = [], [], 0
    for _ in range(files):
        log = []
        leaving = [each for each in there if chance.random() < 0.45]
        for each in leaving:
            log.append({**there.pop(each), GONE: True})
            if chance.random() < 0.5:  # an update, perhaps of the key
                there[each] = row_of(chance, each, doubles)
                log.append({**there[each], GONE: False})
        for _ in range(chance.randrange(5)):
            number += 1
            there[number] = row_of(chance, number, doubles)
            log.append({**there[number], GONE: False})
        chance.shuffle(log)
        logs.append(log)
        left.append(list(there.values()))
    return logs, left


def by_key(rows: Iterable[Row], key: Callable[[Row], Any] = lambda row: row["k"]) -> dict[Any, list[Row]]:
    found = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return dict(found)


def told(rows: Sequence[Row]) -> Row:
    """Return the values of one key in plain Python."""

    def known(name: str) -> list[Any]:
        return sorted(row[name] for row in rows if row[name] is not None)

    numbers, xs = known("n"), known("x")
    spread = [float(statistics.variance(map(Fraction, each))) if len(each) > 1 else None for each in (xs, numbers)]
    ranked = sorted(((r["n"], r["name"] is not None, r["name"]) for r in rows if r["n"] is not None), reverse=True,
                    key=lambda each: (each[0], each[1], each[2] or ""))  # fmt: skip
    return {
        "rows": len(rows), "known": len(xs), "n": sum(numbers) if numbers else None,
        "d": sum(known("d")) if known("d") else None, "x": math.fsum(xs) if xs else None,
        "f": math.fsum(known("f")) if known("f") else None,
        "mean": float(sum(map(Fraction, xs)) / len(xs)) if xs else None, "variance": spread[0],
        "stddev": None if spread[1] is None else math.sqrt(spread[1]),
        "least": xs[0] if xs else None, "most": max(known("d"), default=None),
        "first_name": min(known("name"), default=None), "names": sorted(set(known("name"))),
        "different": len(set(known("name"))), "top": [name for _, _, name in ranked[:3]],
        "bottom": xs[:2],
        "percentiles": [xs[max(math.ceil(Decimal(str(share)) * len(xs)), 1) - 1] for share in SHARES] if xs else None,
    }  # fmt: skip


def plain(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in (SEQUENCE_ID, GONE)}


def differs(found: Row, wanted: Row) -> list[str]:
    """Return the values that differ; sums of doubles may differ in the last digits from the exact ones."""
    close = {"x": 1e-13, "f": 1e-13, "mean": 1e-13, "variance": 1e-9, "stddev": 1e-12}
    bad = []
    for name, value in wanted.items():
        got = found[name]
        if value is None or got is None or name not in close:
            bad += [name] if got != value else []
        elif not math.isclose(got, value, rel_tol=close[name], abs_tol=1e-22 if name in ("x", "mean") else 0.0):
            bad.append(name)
    return bad


def text(row: Row) -> str:
    """Return a row as a text in which NaN equals NaN, and 0.0 equals -0.0."""
    return repr({name: value + 0.0 if isinstance(value, float) else value for name, value in sorted(row.items())})


def sizes(chance: random.Random, files: int) -> list[int]:
    found: list[int] = []
    while sum(found) < files:
        found.append(min(chance.choice([1, 2, 3, 5]), files - sum(found)))
    return found


def checked(emitted: dict[int, list[Row]], left: Sequence[Sequence[Row]], key: Callable[[Row], Any]) -> None:
    """Check each change that is emitted: the old row is the one that was there, and the new one is that of the rows."""
    shown: dict[Any, Row] = {}
    for number, rows in enumerate(left):
        wanted = by_key(rows, key)
        for row in sorted(emitted.get(number, []), key=lambda row: not row[GONE]):
            if row[GONE]:
                assert text(shown.pop(key_of(row))) == text(plain(row)), number
            else:
                assert key_of(row) not in shown, "a new row without the old one before"
                shown[key_of(row)] = plain(row)
        assert shown.keys() == wanted.keys(), number
        for each, found in shown.items():
            assert not (bad := differs(found, told(wanted[each]))), (number, each, bad, found, told(wanted[each]))


def key_of(row: Row) -> Any:
    return (row["k"], row["window_start"]) if "window_start" in row else row["k"]


def run(engine: SparkEngine, declared: Declared, logs: Sequence[Sequence[Row]], parts: Sequence[int]) -> Any:
    return Bench(engine.session, declared, schema=SCHEMA).run(logs, parts).emitted


def same(found: dict[int, list[Row]], other: dict[int, list[Row]], files: int) -> None:
    for number in range(files):
        some, others = (Counter(map(text, rows.get(number, []))) for rows in (found, other))
        assert some == others, number


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_values_are_those_of_the_rows_that_are_left(engine: SparkEngine, seed: int) -> None:
    files, chance = 8 if seed else 5, random.Random(seed)
    logs, left = changes(seed, files, TAME)
    found = run(engine, Declared(values()), logs, sizes(chance, files))
    checked(found, left, lambda row: row["k"])
    same(found, run(engine, Declared(values()), logs, [files]), files)


def test_doubles_of_every_size_leave_without_a_trace(engine: SparkEngine) -> None:
    """NaN, infinities, and what rounds away beside it: the values are bit by bit those of the rows that are left."""
    doubles = {
        "sum": dm.sum("x"), "mean": dm.mean("x"), "variance": dm.variance("x"), "least": dm.min("x"),
        "most": dm.max("x"),
        "set": dm.collect_set("x"), "top": dm.top("x", 3),
    }  # fmt: skip
    files = 4
    logs, left = changes(5, files, WILD)
    came = [{**row, GONE: False, "k": f"{number} {row['k']}"} for number, rows in enumerate(left) for row in rows]
    anew = {row["k"]: without_key(row) for row in run(engine, Declared(doubles), [came], [1])[0]}
    assert any("nan" in each for each in anew.values())
    found, shown = run(engine, Declared(doubles), logs, [2, 2]), dict[str, str]()
    for number in range(files):
        for row in sorted(found.get(number, []), key=lambda row: not row[GONE]):
            if row[GONE]:
                assert shown.pop(str(row["k"])) == without_key(row), number
            else:
                shown[str(row["k"])] = without_key(row)
        assert shown == {key.partition(" ")[2]: each for key, each in anew.items() if key.startswith(f"{number} ")}


@pytest.mark.parametrize(("precision", "scale"), [(38, 0), (38, 28), (38, 29), (38, 30), (38, 38), (31, 31), (5, 5)])
def test_decimals_leave_without_a_trace_however_many_places_they_have(
    engine: SparkEngine, precision: int, scale: int
) -> None:
    chance, unit = random.Random(scale), Decimal(1).scaleb(-scale)
    numbers = [None, unit, -unit, 0 * unit, 9 * unit, Decimal(chance.randrange(10 ** min(precision - 1, 18))) * unit]
    there: dict[int, Row] = {}
    logs: list[list[Row]] = []
    left: list[dict[str, Decimal | None]] = []
    for file in range(5):
        log = []
        for place in range(6):
            row = {"k": chance.choice("ab"), "id": 6 * file + place, "d": chance.choice(numbers)}
            there[row["id"]] = row
            log.append({**row, GONE: False})
        leaving = [*there] if file == 3 else chance.sample([*there], 3)
        logs.append(log + [{**there.pop(number), GONE: True} for number in leaving])
        sums: dict[str, Decimal | None] = {}
        for row in there.values():
            so_far = sums.get(row["k"])
            sums[row["k"]] = so_far if row["d"] is None else row["d"] + (so_far or 0)
        left.append(sums)
    schema = f"k string, id bigint, d decimal({precision},{scale}), {GONE} boolean"
    declared = Declared({"d": dm.sum("d")})
    for parts in ([5], [1, 2, 2]):
        emitted = Bench(engine.session, declared, schema=schema).run(logs, parts).emitted
        shown: dict[str, Decimal | None] = {}
        for number, wanted in enumerate(left):
            for row in sorted(emitted.get(number, []), key=lambda row: not row[GONE]):
                if row[GONE]:
                    assert shown.pop(row["k"]) == row["d"]
                else:
                    shown[row["k"]] = row["d"]
            assert shown == wanted, number


def without_key(row: Row) -> str:
    return text({name: value for name, value in plain(row).items() if name != "k"})


@pytest.mark.parametrize("window", [dm.tumbling("at", minutes=20), dm.sliding("at", minutes=20, every=600)])
def test_a_window_that_stays_open_has_the_rows_that_are_left(engine: SparkEngine, window: Any) -> None:
    files, few = 4, ("rows", "n", "first_name", "names")
    logs, left = changes(7, files, TAME)
    declared = Declared({name: values()[name] for name in few}, window=window)
    found = run(engine, declared, logs, [1, 3])
    every = dt.timedelta(seconds=window.every.total_seconds())
    shown: dict[Any, Row] = {}
    for number in range(files):
        for row in sorted(found.get(number, []), key=lambda row: not row[GONE]):
            if row[GONE]:
                assert text(shown.pop((row["k"], row["window_start"]))) == text(plain(row))
            else:
                shown[row["k"], row["window_start"]] = plain(row)
        wanted = defaultdict(list)
        for row in left[number]:
            for start in () if row["at"] is None else starts(row["at"], every, window.size):
                wanted[row["k"], start].append(row)
        assert {key: {name: row[name] for name in few} for key, row in shown.items()} == {
            key: {name: value for name, value in told(rows).items() if name in few} for key, rows in wanted.items()
        }


def starts(at: dt.datetime, every: dt.timedelta, size: dt.timedelta) -> list[dt.datetime]:
    zero = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    last = at - (at - zero) % every
    return [last - step * every for step in range(size // every)]


OF_A = {"k": "a", "id": 1, "n": 5, "d": None, "x": 0.5, "f": None, "name": "u", "at": None, GONE: False}
WRONG = {
    "a row that had not come": ({}, [{**OF_A, GONE: True}]),
    "more rows than came": ({}, [OF_A, {**OF_A, GONE: True}, {**OF_A, GONE: True}]),
    "another value": ({"it": dm.min("name")}, [OF_A, OF_A, {**OF_A, "name": "v", GONE: True}]),
    "another number": ({"it": dm.sum("n")}, [OF_A, {**OF_A, "n": 4, GONE: True}]),
    "a smaller number than any double shows": (
        {"it": dm.sum("tiny")},
        [{**OF_A, "tiny": Decimal("1E-30")}, {**OF_A, "tiny": Decimal("2E-30"), GONE: True}],
    ),
    "another double": ({"it": dm.sum("x")}, [OF_A, {**OF_A, "x": 0.25, GONE: True}]),
    "a null instead": ({"it": dm.count("name")}, [OF_A, {**OF_A, "name": None, GONE: True}]),
    "a value instead of null": ({"it": dm.variance("f")}, [OF_A, OF_A, {**OF_A, "f": 1.0, GONE: True}]),
}


@pytest.mark.seed("RA3")
@pytest.mark.parametrize(("value", "rows"), WRONG.values(), ids=WRONG)
def test_what_had_not_come_cannot_be_taken_back(engine: SparkEngine, value: Any, rows: list[Row]) -> None:
    with pytest.raises(Exception, match=r"'left': rows were taken back that had not come.*\"k\":\"a\".*id 2.*'events'"):
        run(engine, Declared({"rows": dm.count(), **value}), [rows[:-1], rows[-1:]], [2])


@pytest.mark.seed("RT10")
def test_the_partial_of_some_rows_is_subtracted_from_a_state(engine: SparkEngine) -> None:
    """States over plain rows: what `is_invertible` says of them is so."""
    chance = random.Random(4)
    rows = [
        {**row_of(chance, number, (None, 0.5, -2.25, 1e9)), "k": "a", "some": number % 3 == 0} for number in range(40)
    ]
    given = {name: value for name, value in {**values(), "last": dm.last("n")}.items() if value.is_invertible}
    assert set(given) == {"rows", "known", "n", "d", "x", "f", "mean", "variance", "stddev"}
    frame = engine.session.createDataFrame(rows, f"{SCHEMA.rpartition(',')[0]}, some boolean")
    parts = partial_columns(given, float_sums(given, frame))
    whole, some, rest = (
        frame.where(chosen).groupBy("k").agg(*parts).alias(name)
        for chosen, name in (("true", "whole"), ("some", "some"), ("not some", "rest"))
    )
    left = subtracted(given, lambda name: F.col(f"whole.{name}"), lambda name: F.col(f"some.{name}"))
    (found,), (wanted,) = whole.join(some, "k").select(*left).collect(), rest.drop("k").collect()
    floats = float_sums(given, frame)
    for name, value in wanted.asDict().items():
        assert math.isclose(found[name], value, rel_tol=1e-12 if name in floats else 0.0) or (
            abs(found[name] - value) < 1e-20  # the rests of doubles, which round
        ), name
    with pytest.raises(ValueError, match="least"):
        subtracted({"least": dm.min("x")}, F.col, F.col)
