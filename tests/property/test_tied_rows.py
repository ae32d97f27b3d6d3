"""Rows that share a position, or have none, have the same order in any grouping (E8)."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import random
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from harness import run_once
from triggers import add_file, home, opened, tables
from triggers import content as triggers_content
from window_bench import Bench
from window_cases import CASES, Case, content

import drainmark as dm
from drainmark import F
from drainmark.jobs.frames.tags import POSITION
from drainmark.jobs.graph.context import OperatorContext
from drainmark.jobs.graph.ports import Input
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.resources.spark.session import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FILES = 6
NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
TIED = [case for cases in CASES.values() for case in cases if case.name in (
    "tumbling_rows_closed", "tumbling_until_closed", "tumbling_delta_closed_keyless", "tumbling_time_change", "session",
    "sliding_rows_change", "sliding_rows_row", "sliding_delta_row", "sliding_time_change_keyless",
)]  # fmt: skip
SAMPLE = ("sliding_rows_row",)
"""In the default run."""


def plain(found: Any) -> list[str]:
    return [repr(sorted(str({**row, POSITION: None}) for row in found[number])) for number in range(FILES)]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case.name in SAMPLE else pytest.mark.slow, id=case.name) for case in TIED],
)
def test_a_window_does_not_depend_on_how_rows_that_share_a_position_come(engine: SparkEngine, case: Case) -> None:
    """Each file alone or in a group, in any order: each run is of its own, from shuffled rows."""
    files = [content(number) for number in range(FILES)]
    runs = [
        Bench(engine.session, case, tied=random.Random(seed)).run(files, parts)
        for seed, parts in enumerate(([FILES], [1, FILES - 1]))
    ]
    assert plain(runs[0].emitted) == plain(runs[1].emitted)
    assert any(runs[0].emitted.values())


@dataclasses.dataclass(frozen=True)
class Last:
    n: int | None = None


@dataclasses.dataclass
class Numbered(dm.StateHandler):
    n: int = 0

    def process(self, rows: pa.Table, context: Any) -> pa.Table:
        first, self.n = self.n, self.n + rows.num_rows
        return pa.table({"user": rows["user"], "m": rows["m"], "place": pa.array(range(first, self.n), pa.int64())})


def declare(events: Any) -> None:
    """Declare rows that share a position, and rows of an aggregate, which have none; then users of their order."""
    twice = dm.functor(
        lambda events: dm.select(events, "user", "n").selectExpr(
            "_sequence_id", "_position", "user", "explode(array(n, -n)) as m"
        ), name="twice", inputs=[events],
    )  # fmt: skip
    rows = dm.aggregate(events, keys=["user"], values={"m": dm.count()}, name="rows")
    shown = dm.functor(lambda rows: dm.select(rows, "user", "m"), name="shown", inputs=[rows])
    both = dm.union(twice, shown, name="both")

    def last(state: Any, both: pd.DataFrame) -> Any:
        m = both["m"].iloc[-1]
        return Last(n=None if pd.isna(m) else int(m)), pd.DataFrame({
            "user": both["user"].iloc[:1], "before": [state.n if state else -9], "first": [both["m"].iloc[0]],
        })  # fmt: skip

    def as_it_is(both: Any) -> Any:
        return {"user": both["user"], "m": both["m"]}

    found = {
        "custom": dm.custom(last, keys=["user"], state=Last, output="user string, before bigint, first bigint",
                            inputs=[both], name="last"),
        "handler": dm.operator(Numbered, output="user string, m bigint, place bigint", name="numbered", inputs=[both]),
        "mapped": dm.functor(
            lambda mapped: dm.select(mapped, "user", "m", F.col("_position.row").alias("place")), name="placed",
            inputs=[dm.parallel_map(as_it_is, output="user string, m bigint", name="mapped", inputs=[both])],
        ),
        "ends": dm.aggregate(both, keys=["user"], values={"first": dm.first("m"), "last": dm.last("m")}, name="ends"),
        "sums": dm.aggregate(
            both, keys=[], values={"m": dm.sum("m"), "last": dm.last("user")}, window=dm.sliding(rows=3), name="sums"
        ),
    }  # fmt: skip
    for name, stream in found.items():
        dm.sink(stream, dm.DeltaAppend(name))


@pytest.mark.slow
def test_what_goes_by_the_order_of_rows_takes_rows_that_share_a_place_or_have_none(
    tmp_path: Path, engine: SparkEngine
) -> None:
    few = 4
    for number in range(few):
        add_file(tmp_path / "inbox", number)
    application = opened("tied", tmp_path / "inbox", declare)
    names = [f"lake/{name}" for name in ("custom", "handler", "mapped", "ends", "sums")]
    found = []
    for size, small in ((1, 8 << 20), (few, 0)):
        with home(tmp_path / f"home{size}", engine, small_group_bytes=small) as place:
            reports = run_once(place, application, max_group=size)
            assert max(report.triggers for report in reports) == size
            found.append(tables(place, "tied/events", names))
    for name in names:
        assert found[0][name] == found[1][name], name
        assert found[0][name], name


def ordered(events: Any, cut: bool) -> None:
    """Declare rows that two functions in turn make of one line, operators that pass them, and users of their order."""
    steps = dm.functor(
        lambda events: dm.select(events, "user", F.explode(F.array(*(F.lit(step) for step in "zaqb"))).alias("step")),
        name="steps", inputs=[events],
    )  # fmt: skip
    some = dm.filter(lambda steps: F.col("step") != "q", name="some", inputs=[steps])
    halves = dm.functor(
        lambda some: dm.select(some, "user", "step").withColumn("half", F.explode(F.array(F.lit("y"), F.lit("x")))),
        name="halves", inputs=[some],
    )  # fmt: skip
    firsts = dm.deduplicate(halves, keys=["user", "half", "step"], name="firsts")
    named = dm.functor(lambda firsts: dm.select(firsts, "user", F.concat("step", "half").alias("m")), name="named",
                       inputs=[firsts])  # fmt: skip
    late = dm.functor(
        lambda events: dm.select(events, "user", F.explode(F.array(F.lit("o"), F.lit("c"))).alias("m")), name="late",
        inputs=[events],
    )  # fmt: skip
    both = dm.union(named, late, name="both")

    def last(state: Any, both: pd.DataFrame) -> Any:
        return None, pd.DataFrame({"user": both["user"].iloc[:1], "m": [",".join(both["m"])]})

    both = dm.buffered(both) if cut else both
    dm.sink(both, dm.DeltaUpsert("upserted", keys=["user"]))
    dm.sink(
        dm.aggregate(both, keys=["user"], values={"first": dm.first("m"), "last": dm.last("m")}, name="ends"),
        dm.DeltaAppend("ends"),
    )
    dm.sink(dm.deduplicate(both, keys=["user"], name="one"), dm.DeltaAppend("one"))
    dm.sink(dm.custom(last, keys=["user"], state=Last, output="user string, m string", inputs=[both], name="custom_of"),
            dm.DeltaAppend("custom"))  # fmt: skip


ORDERED = ("upserted", "ends", "one", "custom")


def expected_of(number_of_files: int) -> dict[str, dict[Any, list[str]]]:
    """Return the rows of `both` by id and user, in order: a user's halves only the first time, and `oc` each time."""
    seen: set[Any] = set()
    found: dict[Any, list[str]] = {}
    for number in range(number_of_files):
        for row in triggers_content(number):
            own = found.setdefault((number + 1, row["user"]), [])
            own += [] if row["user"] in seen else [step + half for step in "zab" for half in "yx"]
            seen.add(row["user"])
            own += ["o", "c"]
    return {"both": found}


WAYS = {"one": (1, 8 << 20, False), "all": (3, 0, False), "cut": (3, 0, True)}
"""Files in a group, bytes of a small group, and whether there are stages."""


@pytest.mark.seed("RT6")
@pytest.mark.parametrize("ways", [["all"], pytest.param(list(WAYS), marks=pytest.mark.slow)], ids=["sample", "all"])
def test_rows_made_of_one_line_are_ordered_as_the_function_gave_them(
    tmp_path: Path, engine: SparkEngine, ways: list[str]
) -> None:
    """The ways: groups of one in memory, one group through files, and stages; plain Python gives the order."""
    few = 3
    for number in range(few):
        add_file(tmp_path / "inbox", number)
    names = [f"lake/{name}" for name in ORDERED]
    found = []
    for label in ways:
        size, small, cut = WAYS[label]
        application = opened("made", tmp_path / "inbox", lambda events, cut=cut: ordered(events, cut))
        with home(tmp_path / label, engine, small_group_bytes=small) as place:
            run_once(place, application, max_group=size)
            found.append(tables(place, "made/events", names))
            upserted, ends, one, custom = (place.store("made/events").table(name).read().to_pylist() for name in names)
    assert all(each == found[0] for each in found)
    assert all(found[0].values())
    wanted = expected_of(few)["both"]
    assert {(row["_sequence_id"], row["user"]): row["m"].split(",") for row in custom} == wanted
    assert {row["user"]: row["m"] for row in upserted} == {user: "c" for _, user in wanted}
    found_ends = {(row["_sequence_id"], row["user"]): (row["first"], row["last"]) for row in ends}
    assert found_ends == dict.fromkeys(wanted, ("zy", "c"))
    firsts = {key: own[0] for key, own in wanted.items() if own[0] == "zy"}
    assert {(row["_sequence_id"], row["user"]): row["m"] for row in one} == firsts


def odd_rows(chance: random.Random) -> list[dict[str, Any]]:
    """Return rows of many keys, which share a place; the rows of a key differ in few columns, some in none."""
    moments = [NOON + dt.timedelta(microseconds=number) for number in (9, 10, 999, 1000)]
    values: dict[str, list[Any]] = {
        "n": [None, 9, 10, 450, 1000, -1, -2],
        "x": [None, 0.0, -0.0, math.nan, 9.5, 10.0, -math.inf],
        "t": [None, *moments],
        "text": [None, "", "a", "B", "\u00e4"],
        "part": [None, {"interval": None, "t": None}, {"interval": 9, "t": None}, {"interval": 10, "t": moments[0]}],
        "m": [None, [], [("a", moments[0])], [("a", moments[1])]],
    }
    found = []
    for key in range(60):
        row = {"k": f"k{key}", **{name: chance.choice(some) for name, some in values.items()}}
        for _ in range(4):
            found.append(row)
            row = {**row, **{name: chance.choice(values[name]) for name in chance.choices([*values], k=2)}}
    return found


def order_in_python(row: dict[str, Any]) -> list[Any]:
    """Return what orders rows by their columns; null is least, NaN is the greatest, and -0.0 comes before 0.0.

    Maps are ordered by their text in JSON, with microseconds.
    """
    x, part, m = row["x"], row["part"], row["m"]
    fields = "" if m is None else ",".join(f'"{name}":"{at:%Y-%m-%dT%H:%M:%S.%f}Z"' for name, at in m)
    inner = [part is not None, *((part["interval"] is not None, part["interval"] or 0) if part else ())]
    inner += [str(part["t"] or "")] if part else []
    number = (-math.inf, 0) if x is None else (math.inf, 1) if math.isnan(x) else (x, 0)
    return [
        (row["n"] is not None, row["n"] or 0), (x is not None, number), (row["t"] is not None, row["t"] or NOON),
        (row["text"] is not None, (row["text"] or "").encode()), inner, "null" if m is None else f"{{{fields}}}",
        math.copysign(1, x) if x == 0 else 0,
    ]  # fmt: skip


@pytest.mark.parametrize("seed", [1, 2])
def test_the_last_of_rows_in_one_place_is_the_greatest_by_its_columns(engine: SparkEngine, seed: int) -> None:
    """For upsert sinks and for control ports, however tasks share the rows."""
    chance = random.Random(seed)
    moment = pa.timestamp("us", "UTC")
    kinds = pa.schema([
        ("k", pa.string()), ("n", pa.int64()), ("x", pa.float64()), ("t", moment), ("text", pa.string()),
        ("part", pa.struct([("interval", pa.int64()), ("t", moment)])), ("m", pa.map_(pa.string(), moment)),
    ])  # fmt: skip
    rows = pa.Table.from_pylist(odd_rows(chance), kinds).to_pylist()
    of_keys: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        of_keys.setdefault(row["k"], []).append(row)
    wanted = {key: repr(max(own, key=order_in_python)) for key, own in of_keys.items()}
    port = Input(upstream="odd", control_keys=("k",))
    sink = dm.DeltaUpsert("last", keys=["k"]).operator(name="sink", inputs=(port,))
    for parts in (1, 3):
        chance.shuffle(rows)
        shared = engine.session.createDataFrame(pa.Table.from_pylist(rows, kinds)).repartition(parts)
        tags = ("1L as _sequence_id", "struct(0L as block, 0L as row) as _position")
        frames = OperatorContext(
            session=engine.session, params=dm.Params(), first_id=1, last_id=1, scanned_frames={},
            streams={"odd": shared.selectExpr("*", *tags)}, read_state=lambda operator, partials: (partials, None),
            read_lookup=lambda operator: None, read_statement=lambda name: "",
        )  # fmt: skip
        for last in (sink.apply(frames), frames.on_control(sink, port)):
            found = last.select(*kinds.names).toArrow().cast(kinds).to_pylist()
            assert {row["k"]: repr(row) for row in found} == wanted


def test_only_streams_whose_rows_may_share_a_place_are_numbered_anew(tmp_path: Path, engine: SparkEngine) -> None:
    """Plans show which streams come from a source row by row; these cost no further pass."""

    def mixed(events: Any) -> None:
        few = dm.functor(
            lambda events: events.where("n > 1").withColumn("m", F.col("n") * 2), name="few", inputs=[events]
        )
        some = dm.filter(lambda few: F.col("m") > 2, name="some", inputs=[few])
        dm.sort(some, by=["m"], name="sorted")
        dm.functor(lambda few: few.selectExpr("*", "explode(array(1, 2)) as e"), name="exploded", inputs=[few])
        dm.functor(lambda few: few.selectExpr("_sequence_id", "m", "struct(0L as block, 0L as row) as _position"),
                   name="moved", inputs=[few])  # fmt: skip
        dm.union(some, few, name="both")

    add_file(tmp_path / "inbox", 1)
    application = opened("places", tmp_path / "inbox", mixed)
    with home(tmp_path / "home", engine) as place:
        blueprint = region_run(place, application, application.region()).blueprint
    assert blueprint.own_places == {"events", "few", "some", "sorted"}
