"""Any partition of the triggers into groups gives the same state and sinks for every id (H15)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from harness import rows, run_once
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import Window
from pyspark.sql.functions import udf
from pyspark.sql.types import DoubleType
from triggers import Declare, add_file, content, home, opened, tables

import drainmark as dm
from drainmark import F
from drainmark.jobs.failpoints import arm
from drainmark.jobs.runtime.analysis.blueprint import Blueprint
from drainmark.jobs.runtime.input.executors import InMemory
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.orchestration.workplace.workplace import Opened, Workplace
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark

FILES = 4
QUIET = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


@pytest.fixture(scope="module")
def inbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grouping") / "inbox"
    for number in range(FILES):
        add_file(folder, number)
    return folder


def blueprint_of(application: Opened, folder: Path, engine: SparkEngine) -> Blueprint:
    with home(folder, engine) as workplace:
        return region_run(workplace, application, application.region()).blueprint


def run_in(folder: Path, engine: SparkEngine, application: Opened, parts: list[int]) -> dict[str, list[str]]:
    """Process the files in groups of these sizes, a run for each, and return every table of the region."""
    region = application.region()
    with home(folder, engine) as workplace:
        for size in parts:
            reports = run_once(workplace, application, max_group=size, max_triggers=size)
            assert sum(report.triggers for report in reports) == size
        names = [table.name for table in workplace.history(region.name).tables]
        return tables(workplace, region.name, names)


@st.composite
def partitions(draw: st.DrawFn) -> list[int]:
    """Draw the sizes of consecutive groups of the files."""
    cuts = sorted(draw(st.sets(st.integers(1, FILES - 1), max_size=2)))
    return [after - before for before, after in zip([0, *cuts], [*cuts, FILES], strict=True)]


# --- functions that vectorise -------------------------------------------------------------------------------------


def well_behaved(events: Any) -> None:
    """Declare aggregates that depend on order and on floats, windows, both kinds of sinks, and keyed user functions."""

    @dm.functor
    def doubled(events: Any) -> Any:
        return events.withColumn("twice", F.col("x") * 2)

    @dm.functor
    def once_a_file(events: Any) -> Any:
        return events.dropDuplicates(["_sequence_id", "user"]).select("_sequence_id", "user")

    @dm.functor
    def ranked(events: Any) -> Any:
        latest = Window.partitionBy("user", "_sequence_id").orderBy(F.desc("_position"))
        numbered = events.withColumn("rank", F.row_number().over(latest))
        return dm.select(numbered.where("rank = 1"), "user", "n")

    @dm.functor
    def shares(events: Any) -> Any:
        totals = events.groupBy("_sequence_id").agg(F.count("*").alias("rows"))
        return dm.select(events.join(totals, "_sequence_id"), "user", "rows")

    by_user = dm.aggregate(
        doubled,
        name="by_user",
        keys=["user"],
        values={
            "rows": dm.count(), "total": dm.sum("twice"), "mean": dm.mean("x"), "opening": dm.first("n"),
            "closing": dm.last("n"), "known": dm.collect_set("n"),
        },
    )  # fmt: skip
    windows = dm.aggregate(
        events, name="windows", keys=["user"], values={"rows": dm.count()}, window=dm.tumbling("at", minutes=10)
    )
    dm.sink(by_user, dm.DeltaUpsert("by_user", keys=["user"]))
    dm.sink(windows, dm.DeltaUpsert("windows", keys=["user", "window_start"]))
    dm.sink(events, dm.DeltaUpsert("newest", keys=["user"]))
    dm.sink(doubled, dm.DeltaAppend("doubled"))
    for stream in (once_a_file, ranked, shares):
        dm.sink(stream, dm.DeltaAppend(stream.name))


@pytest.fixture(scope="module")
def golden(inbox: Path, engine: SparkEngine) -> dict[str, list[str]]:
    """Return the tables of groups of one."""
    application = opened("grouping", inbox, well_behaved)
    with home(inbox.parent / "golden", engine) as workplace:
        reports = run_once(workplace, application, max_group=1)
        assert [report.triggers for report in reports] == [1] * FILES
        names = [table.name for table in workplace.history("grouping/events").tables]
        return tables(workplace, "grouping/events", names)


def test_functions_keyed_by_the_sequence_id_vectorise(inbox: Path, engine: SparkEngine, tmp_path: Path) -> None:
    blueprint = blueprint_of(opened("grouping", inbox, well_behaved), tmp_path / "home", engine)
    assert blueprint.forced_single == {}


@pytest.mark.seed("V89", "V140")
def test_two_groups_of_files_give_the_same_state_and_sinks_for_every_id(
    inbox: Path, golden: dict[str, list[str]], engine: SparkEngine, tmp_path: Path
) -> None:
    """The second group goes on from the state that the first one left in the middle of the files."""
    assert run_in(tmp_path / "home", engine, opened("grouping", inbox, well_behaved), [1, FILES - 1]) == golden


@pytest.mark.slow
@given(parts=partitions())
@settings(max_examples=30, deadline=None, database=None, suppress_health_check=QUIET)
def test_any_grouping_gives_the_same_state_and_sinks_for_every_id(
    parts: list[int], inbox: Path, golden: dict[str, list[str]], engine: SparkEngine,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("grouped") / "home"
    assert run_in(folder, engine, opened("grouping", inbox, well_behaved), parts) == golden


# --- hostile functions --------------------------------------------------------------------------------------------


def no_duplicates(events: Any) -> Any:
    return events.dropDuplicates(["user"]).select("_sequence_id", "user")


def first_of_user(events: Any) -> Any:
    order = Window.partitionBy("user").orderBy("_sequence_id", "_position")
    return events.withColumn("rank", F.row_number().over(order)).where("rank = 1").select("_sequence_id", "user", "n")


def smallest(events: Any) -> Any:
    return events.orderBy("x", "n", "user").limit(1).select("_sequence_id", "x")


def above_all(events: Any) -> Any:
    return events.join(events.agg(F.max("x").alias("top"))).where("x = top").select("_sequence_id", "user", "x")


def by_subquery(events: Any) -> Any:
    return events.groupBy("user").agg(F.max("_sequence_id").alias("_sequence_id"), F.count("*").alias("rows"))


def distinct_users(events: Any) -> Any:
    return events.select("user").distinct().crossJoin(events.agg(F.max("_sequence_id").alias("_sequence_id")))


def chance(events: Any) -> Any:
    return events.select("_sequence_id", "user", F.rand().alias("chance"))


def without_id(events: Any) -> Any:
    return events.select("user", "n")


HOSTILE = {
    no_duplicates: "Deduplicate",
    first_of_user: "Window",
    smallest: "Limit",
    above_all: "mixes triggers",
    by_subquery: "Aggregate",
    distinct_users: "mixes triggers",
    chance: "rand",
    without_id: "lacks _sequence_id",
}


def all_hostile(events: Any) -> None:
    for function in HOSTILE:
        dm.sink(dm.functor(function, inputs=[events]), dm.DeltaAppend(f"{function.__name__}_rows"))
    drawn = dm.functor(chance, name="drawn", inputs=[events])
    dm.sink(drawn, dm.DeltaAppend("drawn_one"))
    dm.sink(drawn, dm.DeltaAppend("drawn_two"))


def test_every_hostile_function_forces_groups_of_one_by_name_and_reason(
    inbox: Path, engine: SparkEngine, tmp_path: Path
) -> None:
    forced = blueprint_of(opened("hostile", inbox, all_hostile), tmp_path / "home", engine).forced_single
    assert set(forced) == {*(function.__name__ for function in HOSTILE), "drawn"}
    for function, reason in HOSTILE.items():
        assert reason in forced[function.__name__], function.__name__


@pytest.mark.slow
@pytest.mark.seed("V197")
def test_hostile_functions_give_the_same_rows_for_any_grouping_asked_for(engine: SparkEngine, tmp_path: Path) -> None:
    """Two files share a user: in one group, each of the functions would give other rows."""
    for number in (0, 1):
        add_file(tmp_path / "inbox", number)
    application = opened("hostile", tmp_path / "inbox", all_hostile)
    one = run_in(tmp_path / "one", engine, application, [1, 1])
    with home(tmp_path / "many", engine) as workplace:
        reports = run_once(workplace, application, max_group=2)
        assert [report.triggers for report in reports] == [1, 1]
        many = tables(workplace, "hostile/events", list(one))
    by_chance = {f"lake/{name}" for name in ("chance_rows", "drawn_one", "drawn_two")}
    for name in set(one) - by_chance:
        assert one[name] == many[name], name
    for run in (one, many):
        assert run["lake/drawn_one"] == run["lake/drawn_two"]
        assert len(run["lake/drawn_one"]) == len(run["lake/chance_rows"])


def with_noise(noise: Any) -> Declare:
    """Declare three sinks of a function that gives other values for each call, in any process."""

    def declare(events: Any) -> None:
        @dm.functor
        def noisy(events: Any) -> Any:
            return dm.select(events, "user", noise().alias("noise"))

        @dm.functor
        def loud(noisy: Any) -> Any:
            return noisy.where("noise > 0.5")

        dm.sink(noisy, dm.DeltaAppend("all_noise"))
        dm.sink(loud, dm.DeltaAppend("loud_noise"))
        dm.sink(noisy, dm.DeltaUpsert("noise_of_user", keys=["user"]))

    return declare


def assert_one_noise(workplace: Workplace) -> None:
    """Assert that all sinks have the values of one call, and that every row of the files has a value."""
    found = {
        table: {(row["_sequence_id"], row["user"], row["noise"]) for row in rows(workplace, "noise/events", table)}
        for table in ("all_noise", "loud_noise", "noise_of_user")
    }
    assert len(found["all_noise"]) == sum(len(content(number)) for number in range(FILES))
    assert found["loud_noise"] == {row for row in found["all_noise"] if row[2] > 0.5}
    assert found["noise_of_user"] <= found["all_noise"]


@pytest.mark.seed("V197")
@pytest.mark.parametrize(
    ("small", "declared_so"),
    [
        pytest.param(True, False, id="small group", marks=pytest.mark.slow),  # as in the replays below
        pytest.param(False, True, id="large group"),
    ],
)
def test_two_sinks_of_a_function_that_is_not_deterministic_agree_with_each_other(
    small: bool, declared_so: bool, inbox: Path, engine: SparkEngine, tmp_path: Path
) -> None:
    noise = udf(lambda: random.SystemRandom().random(), DoubleType())
    noise = noise.asNondeterministic() if declared_so else noise
    settings_ = {} if small else {"small_group_bytes": 0}
    with home(tmp_path / "home", engine, **settings_) as workplace:
        run_once(workplace, opened("noise", inbox, with_noise(noise)))
        assert_one_noise(workplace)


@pytest.mark.seed("V6", "V197")
@pytest.mark.parametrize("point", ["process.staged", "publish.before_commit"])
def test_a_replay_that_computes_something_else_leaves_sinks_that_agree(
    point: str, inbox: Path, engine: SparkEngine, tmp_path: Path
) -> None:
    """A failure before the commit: the group is computed again. One between two tables: it is published unchanged."""
    noise = udf(lambda: random.SystemRandom().random(), DoubleType())
    application = opened("noise", inbox, with_noise(noise))
    with home(tmp_path / "home", engine) as workplace:
        arm(f"{point}:raise:{2 if point.startswith('publish') else 1}")
        try:
            reports = run_once(workplace, application, max_group=FILES)
        finally:
            arm("")
        assert min(workplace.history("noise/events").states) == (1 if point.startswith("publish") else FILES + 1)
        assert sum(report.triggers for report in reports) == (0 if point.startswith("publish") else FILES)
        assert_one_noise(workplace)


def test_a_lookup_with_several_readers_is_not_copied(
    inbox: Path, engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read at one version, so that all readers see the same rows."""
    levels = engine.session.createDataFrame([("ann", 1), ("bob", 2)], "user string, level int")
    levels.write.format("delta").save(str(tmp_path / "levels"))
    copied: list[list[str]] = []
    once = InMemory.once

    def joined(kind: str) -> Any:
        return lambda events, levels: events.join(levels, "user", kind)

    def recorded(executor: InMemory, frame: Any) -> Any:
        copied.append(frame.columns)
        return once(executor, frame)

    def declare(events: Any) -> None:
        read = [events, dm.lookup(str(tmp_path / "levels"))]
        for name, kind in (("known", "left_semi"), ("others", "left_anti")):
            dm.sink(dm.functor(joined(kind), name=name, inputs=read), dm.DeltaAppend(name))

    monkeypatch.setattr(InMemory, "once", recorded)
    with home(tmp_path / "home", engine) as workplace:
        run_once(workplace, opened("static", inbox, declare), max_group=FILES)
        found = [{row["user"] for row in rows(workplace, "static/events", name)} for name in ("known", "others")]
    users = {row["user"] for number in range(FILES) for row in content(number)}
    assert found == [users & {"ann", "bob"}, users - {"ann", "bob"}]
    assert ["user", "level"] not in copied


def test_a_stream_static_join_vectorises_and_a_static_stream_one_does_not(
    inbox: Path, engine: SparkEngine, tmp_path: Path
) -> None:
    engine.session.createDataFrame([("ann", 1), ("bob", 2)], "user string, level int").write.format("delta").save(
        str(tmp_path / "levels")
    )

    def declare(events: Any) -> None:
        levels = dm.lookup(str(tmp_path / "levels"))

        def joined(kind: str) -> Any:
            def join(events: Any, levels: Any) -> Any:
                return events.join(levels, "user", kind)

            return dm.functor(join, name=f"join_{kind}", inputs=[events, levels])

        for kind in ("inner", "left", "left_semi", "left_anti", "full"):
            dm.sink(joined(kind), dm.DeltaAppend(f"join_{kind}"))

    forced = blueprint_of(opened("static", inbox, declare), tmp_path / "home", engine).forced_single
    assert set(forced) == {"join_full"}
