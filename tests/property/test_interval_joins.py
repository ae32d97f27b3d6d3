"""Joins by event time against plain Python: in any order of arrival, and in any grouping (NU1, V5, H20).

Random rows test the operator alone; whole runs, rewound and with states in files, are in `test_operator_library`.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from join_bench import JoinBench, operator_of
from join_oracle import MINUTE, NOON, Join, Row, Told, plain, told_by

import drainmark as dm
from drainmark.resources.spark.session import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.seed("NU1", "V5")]

QUIET = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
JOINS = {
    "inner, behind and ahead": Join(low=-5 * MINUTE, high=5 * MINUTE),
    "left, ahead": Join(how="left", low=dt.timedelta(0), high=10 * MINUTE),
    "right, long before": Join(how="right", low=-30 * MINUTE, high=-10 * MINUTE, lateness=dt.timedelta(0)),
    "full, same time": Join(how="full", low=dt.timedelta(0), high=dt.timedelta(0), lateness=20 * MINUTE),
    "full, behind and ahead": Join(how="full", low=-3 * MINUTE, high=12 * MINUTE, lateness=8 * MINUTE),
    "left, bounded": Join(how="left", lateness=dt.timedelta(0), max_ahead=4 * MINUTE),
}


def rows(*of: tuple[str, str | None, int | None]) -> list[Row]:
    """Return rows, given by side, user, and minute after noon."""
    return [
        {"side": side, "user": user, "x": 1.0, "n": number,
         "at": None if minute is None else NOON + minute * MINUTE}
        for number, (side, user, minute) in enumerate(of)
    ]  # fmt: skip


def drawn_by(chance: random.Random, files: int, users: tuple[str | None, ...] = ("ann", "bob", None)) -> list[Any]:
    """Return files whose times go on, out of order and sometimes far behind; a file may be empty, or repeat rows."""
    made = []
    for number in range(files):
        file = [
            {
                "side": chance.choice("lr"), "user": chance.choice(users),
                "x": chance.choice([0.0, -0.0, math.nan, math.nan, 1.5, None]), "n": chance.choice([None, 1, 2]),
                "at": chance.choice([None, *[NOON + MINUTE * (7 * number + chance.randint(-16, 9))] * 12]),
            }
            for _ in range(chance.choice([0, 3, 8, 12]))
        ]  # fmt: skip
        made.append(file + chance.sample(file, min(1, len(file))))
    return made


def assert_told(found: Told, told: Told, files: int, label: object = "") -> None:
    for number in range(files):
        assert plain(found.emitted[number]) == plain(told.emitted[number]), (label, number)
        for side in ("l", "r"):
            assert plain(found.late[side][number]) == plain(told.late[side][number]), (label, number, side)
    assert found.kept == told.kept, label


SAMPLE = JOINS["full, behind and ahead"]


def test_a_join_is_that_of_sql_over_the_whole_input(engine: SparkEngine) -> None:
    """Null, NaN, -0.0, repeated rows, late rows on both sides, rows without a partner."""
    files = drawn_by(random.Random(1), 7)
    assert_told(JoinBench(engine.session, SAMPLE).join(files, [4, 3]), told_by(SAMPLE, files), 7)


@pytest.mark.slow
@pytest.mark.parametrize("name", JOINS)
@pytest.mark.parametrize("seed", range(1, 4))
def test_a_join_is_the_same_in_any_grouping(name: str, seed: int, engine: SparkEngine) -> None:
    """Every state is also the same as in groups of one, and counts the late rows."""
    join, files = JOINS[name], drawn_by(random.Random(seed), 7)
    told = told_by(join, files)
    benches = [JoinBench(engine.session, join), JoinBench(engine.session, join), JoinBench(engine.session, join)]
    for bench, parts in zip(benches, ([1] * 7, [3, 4], [7]), strict=True):
        assert_told(bench.join(files, parts), told, 7, parts)
        assert bench.late_rows() == {side: sum(map(len, told.late[side].values())) for side in told.late}
    for number in range(1, 8):
        for bench in benches[1:]:
            for side, kept in benches[0].at(number).items():
                assert plain(bench.at(number)[side]) == plain(kept), (number, side)


def test_the_random_rows_go_everywhere() -> None:
    for name, join in JOINS.items():
        told = [told_by(join, drawn_by(random.Random(seed), 7)) for seed in range(1, 8)]
        assert any(sum(map(len, one.emitted.values())) > 5 for one in told), name
        assert all(any(any(one.late[side].values()) for one in told) for side in "lr"), name
        assert any(one.kept["l"] and one.kept["r"] for one in told), name
    first = told_by(JOINS["full, behind and ahead"], drawn_by(random.Random(1), 7))
    emitted = [row for found in first.emitted.values() for row in found]
    assert {row["lat"] is None for row in emitted} == {row["rat"] is None for row in emitted} == {True, False}


MOMENTS = st.none() | st.integers(0, 50).map(lambda minute: NOON + minute * MINUTE)
ROWS = st.fixed_dictionaries({
    "side": st.sampled_from("lr"), "user": st.sampled_from(["ann", None]), "n": st.none() | st.integers(1, 2),
    "x": st.sampled_from([0.0, -0.0, math.nan, None]), "at": MOMENTS,
})  # fmt: skip


@st.composite
def triggers(draw: st.DrawFn) -> tuple[list[list[Row]], list[int], Join]:
    """Draw a few files, the sizes of consecutive groups of them, and a join."""
    files = draw(st.lists(st.lists(ROWS, max_size=7), min_size=2, max_size=5))
    cuts = sorted(draw(st.sets(st.integers(1, len(files) - 1), max_size=2)))
    low, high = sorted(draw(st.tuples(st.integers(-15, 15), st.integers(-15, 15))))
    join = Join(how=draw(st.sampled_from(["inner", "left", "right", "full"])), low=low * MINUTE, high=high * MINUTE,
                lateness=draw(st.integers(0, 20)) * MINUTE,
                max_ahead=draw(st.none() | st.integers(1, 20).map(lambda minutes: minutes * MINUTE)))  # fmt: skip
    return files, [after - before for before, after in zip([0, *cuts], [*cuts, len(files)], strict=True)], join


@pytest.mark.slow
@given(drawn=triggers())
@settings(max_examples=60, deadline=None, database=None, suppress_health_check=QUIET)
def test_any_join_of_any_rows_in_any_grouping(drawn: tuple[Any, list[int], Join], engine: SparkEngine) -> None:
    files, parts, join = drawn
    assert_told(JoinBench(engine.session, join).join(files, parts), told_by(join, files), len(files))


@pytest.mark.slow
@pytest.mark.parametrize("parts", [[3], [1, 1, 1]], ids=str)
def test_the_order_of_arrival_changes_no_pair(engine: SparkEngine, parts: list[int]) -> None:
    """A payment that is read some files before its order meets it; with the windows of `kind=` it was lost.

    The default run compares rows that come out of order with SQL in another test.
    """
    join = Join(low=dt.timedelta(0), high=30 * MINUTE, lateness=60 * MINUTE)
    files = [rows(("r", "ann", 20)), rows(("r", "bob", 25), ("l", "bob", 25)), rows(("l", "ann", 3))]
    ways = [JoinBench(engine.session, join).join(order, parts) for order in (files, files[::-1])]
    pairs = [plain([row for found in way.emitted.values() for row in found]) for way in ways]
    assert pairs[0] == pairs[1]
    assert len(pairs[0]) == 2


@pytest.mark.slow
def test_a_lonely_row_is_told_once_when_no_partner_can_come(engine: SparkEngine) -> None:
    """It is told at the id that moves the other watermark beyond its interval, not just to its end; never if it met a
    partner, or is late."""
    join = Join(how="left", low=dt.timedelta(0), high=10 * MINUTE, lateness=dt.timedelta(0))
    files = [
        rows(("l", "ann", 0), ("l", "bob", 0), ("l", None, 0)),
        rows(("r", "eve", 10)),  # a partner of ann or bob at ten past may still come
        rows(("r", "ann", 10)),
        rows(("r", "eve", 11)),
        rows(("l", "dan", -1), ("l", "fay", 0)),  # one is late by a minute, one is in time, and its interval is over
        rows(("r", "eve", 60)),
    ]
    bench = JoinBench(engine.session, join)
    found = bench.join(files, [3, 3])
    told = {n: [(row["user"], row["rat"] is None) for row in found.emitted[n]] for n in range(6)}
    assert told == {0: [(None, True)], 1: [], 2: [("ann", False)], 3: [("bob", True)], 4: [("fay", True)], 5: []}
    assert [row["user"] for row in found.late["l"][4]] == ["dan"]
    assert found.kept["l"] == 0


def test_the_state_shrinks_and_a_side_that_stalls_lets_it_grow(engine: SparkEngine) -> None:
    join = Join(low=-2 * MINUTE, high=2 * MINUTE, lateness=dt.timedelta(0))
    bench = JoinBench(engine.session, join)
    both = [rows(("l", "ann", minute), ("r", "bob", minute)) for minute in range(0, 60, 10)]
    stalled = [rows(("l", "ann", minute)) for minute in range(60, 100, 10)]
    assert bench.join([*both, *stalled], [10]).kept == {"l": 5, "r": 0}
    assert bench.join([rows(("r", "bob", 100))], [1], first_id=11).kept["l"] == 0


def test_less_of_the_past_may_be_asked_for_in_the_middle(engine: SparkEngine) -> None:
    """Rows that the older code kept for longer leave by the new rule, and none is emitted twice."""
    wide, narrow = Join(how="full", high=60 * MINUTE, lateness=dt.timedelta(0)), Join(how="full", lateness=5 * MINUTE)
    bench = JoinBench(engine.session, wide)
    bench.join([rows(("l", "ann", 0), ("l", "bob", 0), ("r", "ann", 20)), rows(("r", "eve", 40))], [2])
    bench.operator = operator_of(narrow)
    found = bench.join([rows(("r", "eve", 41)), rows(("l", "ann", 90))], [2], first_id=3)
    assert [(row["user"], row["lat"]) for row in found.emitted[0]] == [("bob", NOON)]
    assert [row["user"] for row in found.emitted[1]] == ["eve", "eve"]


def test_a_key_that_has_many_rows_is_not_compared_with_all_of_them(engine: SparkEngine) -> None:
    """Rows meet within buckets of time: of a key's thousand and thousand rows, only a few thousand are compared."""
    join = Join(low=dt.timedelta(0), high=MINUTE)
    many = [rows(*((side, "ann", minute) for minute in range(1000) for side in "lr"))]
    bench = JoinBench(engine.session, join, small=False)
    output = bench._group(many, 1).of("")
    assert output.count() == 1999
    text = output._jdf.queryExecution().toString()
    assert "__bucket" in text
    assert "CartesianProduct" not in text
    keyed = [line for line in text.splitlines() if "Join" in line and "__bucket" in line]
    assert keyed, text


def test_joins_differ_in_what_their_code_says() -> None:
    one = operator_of(Join()).fingerprint()
    changed = [{"how": "left"}, {"low": -MINUTE}, {"high": MINUTE}, {"lateness": MINUTE}, {"max_ahead": MINUTE}]
    for change in changed:
        assert operator_of(dataclasses.replace(Join(), **change)).fingerprint() != one


def in_stages(join: Join) -> Any:
    """Return an application with a join between stages: both sides come through channels, and so do the pairs."""
    with dm.application("staged") as declared:
        schema = "side string, user string, n bigint, at timestamp"

        @dm.consistent(trigger="operator-driven", alignment="unaligned")
        @dm.source(dm.DirectoryScan(path="in", pattern="*.csv", format="csv", schema=schema, settle=0))
        def events(scanned: Any) -> Any:
            return scanned

        def side(letter: str) -> Any:
            columns = ("user", f"n as {letter}n", f"at as {letter}at")
            return dm.buffered(dm.functor(
                lambda events: dm.select(events.where(events["side"] == letter), *map(dm.F.expr, columns)),
                name=f"{letter}_rows", inputs=[events],
            ))  # fmt: skip

        met = join.declare(side("l"), side("r"))
        dm.sink(dm.functor(lambda met: met, name="pairs", inputs=[dm.buffered(met)]), dm.DeltaAppend("pairs"))
        for late in ("left", "right"):
            dm.sink(met[f"late_{late}"], dm.DeltaAppend(f"late_{late}"))
    return dm.build_application(declared)


def as_csv(file: list[Row]) -> str:
    def text(row: Row) -> str:
        at = "" if row["at"] is None else f"{row['at']:%Y-%m-%dT%H:%M:%SZ}"
        return f"{row['side']},{row['user'] or ''},{'' if row['n'] is None else row['n']},{at}\n"

    return "".join(map(text, file))


@pytest.mark.slow
@pytest.mark.seed("V85", "F6")
def test_a_join_between_stages_is_the_same_after_rewinds(run_app: Any) -> None:
    """After two rewinds into a group, each file has the result of plain Python: before, between and afterwards."""
    join = dataclasses.replace(SAMPLE, keys=("user",))
    files = drawn_by(random.Random(3), 5)
    inbox = [(f"{number}.csv", as_csv(file)) for number, file in enumerate(files)]
    result = run_app(in_stages(join), max_group=3)
    assert len(result.region.stages) == 3

    def assert_as_told(upto: int) -> None:
        told = told_by(join, files[:upto])
        ids = [number for _, number in sorted(result.workplace.history(result.region.name).newest_by_uri().items())]
        assert len(ids) == upto
        for sink, wanted in (("pairs", told.emitted), ("late_left", told.late["l"]), ("late_right", told.late["r"])):
            rows = result.sink(sink, ids=True)
            for number, sequence_id in enumerate(ids):
                found = [{name: value for name, value in row.items() if name != "source_file"} for row in rows
                         if row["_sequence_id"] == sequence_id]  # fmt: skip
                assert plain(found) == plain(wanted[number]), (sink, number)
            assert len(rows) == sum(len(wanted[number]) for number in range(upto)), sink

    result.add(dict(inbox[:3])).run()
    assert_as_told(3)
    result.rewind(1)
    assert_as_told(1)
    result.add(dict(inbox[3:])).run()
    assert_as_told(5)
    result.rewind("2.csv")
    assert_as_told(3)
    result.run()
    assert_as_told(5)


@pytest.mark.slow
def test_a_join_survives_failures_around_its_commits(engine: SparkEngine) -> None:
    """Pairs, lonely rows and late rows are those of the golden run, wherever it fails (NU1)."""
    chance = random.Random(3)
    files = {
        f"{number}-{kind}.csv": "".join(
            f"{chance.randrange(4)},{NOON + MINUTE * (5 * number + chance.randint(-6, 6)):%Y-%m-%dT%H:%M:%SZ}\n"
            for _ in range(5)
        )
        for number in range(4)
        for kind in ("payments", "orders")
    }
    app = Path(__file__).parents[1] / "recovery" / "apps" / "matched.py"
    points = ["checkpoint.after_commit", "publish.before_commit", "rewind_table.after_commit"]
    (proof,) = dm.testing.assert_exactly_once(app, files, fail_points=points, groupings=(1,), engine=engine)
    assert proof.failures
