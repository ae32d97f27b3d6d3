"""Autonomous operators behind a region see its rows at least once; the region does not wait if they fail (V48)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import drainmark as dm
from drainmark import F
from drainmark.jobs.errors import DeclarationError, UsageError
from drainmark.jobs.failpoints import arm
from drainmark.jobs.protocol.history import manifest_of
from drainmark.jobs.protocol.records.manifest import Sent
from drainmark.jobs.regions.explain import as_text
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.dagster_assets.assets import table_assets
from drainmark.orchestration.inspection.tables import tables_of_home
from drainmark.orchestration.testing.running import Result
from drainmark.resources.delta import delta_tables, file_lists
from drainmark.resources.delta.autonomous_tables import AutonomousTable
from drainmark.resources.storage.folder import LocalFolder

pytestmark = pytest.mark.spark

RunApp = Callable[..., Result]
SCHEMA = "k string, n bigint"
FILES = {"1.csv": "a,1\nb,2\n", "2.csv": "a,3\n", "3.csv": "c,4\n"}


@pytest.fixture(autouse=True)
def _disarmed() -> Any:
    yield
    arm("")


def followed(*, fails: bool = False) -> Callable[[], None]:
    """Declare a region whose rows and totals go also to autonomous tables."""

    def following() -> None:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="in", format="csv", schema=SCHEMA))
        def orders(scanned: Any) -> Any:
            return scanned.drop("source_file")

        totals = dm.aggregate(orders, name="totals", keys=["k"], values={"n": dm.sum("n")})

        @dm.autonomous
        @dm.functor
        def loud(orders: Any) -> Any:
            if fails:
                raise ValueError("the follower fails")
            return orders.select("_sequence_id", F.upper("k").alias("k"), "n")

        @dm.autonomous
        @dm.filter
        def large(totals: Any) -> Any:
            return F.col("n") > 1

        dm.sink(orders, dm.DeltaAppend("orders"))
        dm.sink(totals, dm.DeltaUpsert("totals", keys=["k"]))
        dm.sink(loud, dm.DeltaAppend("loud"))
        dm.sink(large, dm.DeltaUpsert("large", keys=["k"]))

    return following


def outside(result: Result, table: str) -> list[tuple[Any, ...]]:
    found = result.workplace.store(result.region.name).autonomous(f"lake/{table}")
    rows = found.read().to_pylist() if found.exists() else []
    return sorted((row["k"], row["n"]) for row in rows)


def sent(result: Result) -> list[dict[str, Sent]]:
    states = result.workplace.history(result.region.name).states.values()
    return [dict(manifest.sent) for manifest in map(manifest_of, states) if manifest is not None]


@pytest.mark.seed("V14", "LC6")
@pytest.mark.parametrize(
    "settings",
    [pytest.param({}, id="by Arrow"), pytest.param({"small_group_bytes": 0}, id="by Spark", marks=pytest.mark.slow)],
)
def test_what_follows_sees_every_row(run_app: RunApp, settings: dict[str, Any]) -> None:
    result = run_app(followed(), {"orders": FILES}, max_group=2, settings=settings)
    assert outside(result, "loud") == [("A", 1), ("A", 3), ("B", 2), ("C", 4)], sent(result)
    assert outside(result, "large") == [("a", 4), ("b", 2), ("c", 4)]
    read = dm.read("following", "loud", home=str(result.home))
    assert sorted(zip(read["k"].to_pylist(), read["n"].to_pylist(), strict=True)) == outside(result, "loud")
    with pytest.raises(UsageError):
        dm.read("following", "loud", at=1, home=str(result.home))
    listed = {entry["table"]: entry for entry in tables_of_home(result.workplace)}
    assert (listed["lake/loud"]["role"], listed["lake/loud"]["rows"]) == ("outside", 4)
    assert invoke(["show", "loud", "--home", str(result.home)]) == 0
    assert [group.triggers for group in result.groups] == [2, 1]
    assert sent(result)[0]["lake/loud"] == Sent(rows=3)
    for table, folders in {"loud": ("/rows/", "/rewritten"), "large": ("/merged/",)}.items():
        files = file_lists.live_paths(delta_tables.open_table(LocalFolder(result.home / "lake" / table)))
        by_tasks = {any(folder in path for folder in folders) for path in files}
        assert by_tasks == {bool(settings)}, "tasks write the rows of large groups"
        assert table != "loud" or len(files) == 2, "a file a group, however many tasks wrote it"
    assert not list((result.home / "lake" / "large").glob("_staged/*/rows/*.parquet")), "they are merged"
    assert {table.name for table in result.workplace.history(result.region.name).tables}.isdisjoint(
        {"lake/loud", "lake/large"}
    )


def test_tasks_write_rows_without_the_table_which_is_asked_for_in_its_turn(
    run_app: RunApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a table hung while rows are computed, the rows would be given up. A table without rows is not created."""
    make, threads = AutonomousTable.create, list[str]()

    def watched(table: AutonomousTable, schema_json: str) -> None:
        threads.append(threading.current_thread().name)
        make(table, schema_json)

    monkeypatch.setattr(AutonomousTable, "create", watched)
    result = run_app(followed(), {"orders": {"0.csv": ""}}, settings={"small_group_bytes": 0})
    assert (sent(result)[0]["lake/loud"], threads) == (Sent(rows=0), [])
    assert not result.workplace.store(result.region.name).autonomous("lake/loud").exists()
    result.add({"orders": {"1.csv": "a,1\n"}}).run()
    assert outside(result, "loud") == [("A", 1)]
    assert threads
    assert "send" not in threads


@pytest.mark.seed("V1", "V3")
def test_rows_that_left_before_a_failure_come_again_and_none_is_missing(run_app: RunApp) -> None:
    """V48: at least once outside the region, exactly once inside."""
    result = run_app(followed())
    result.add({"orders": FILES})
    arm("process.staged:raise:1")
    result.run()
    assert result.sink("orders") == [{"k": "a", "n": 1}, {"k": "b", "n": 2}, {"k": "a", "n": 3}, {"k": "c", "n": 4}]
    seen = Counter(outside(result, "loud"))
    assert set(seen) == {("A", 1), ("A", 3), ("B", 2), ("C", 4)}
    assert max(seen.values()) == 2
    assert outside(result, "large") == [("a", 4), ("b", 2), ("c", 4)]


def test_a_rewind_leaves_what_is_outside_and_the_replay_adds_to_it(run_app: RunApp) -> None:
    result = run_app(followed(), {"orders": FILES})
    result.rewind(to=1)
    assert len(outside(result, "loud")) == 4
    result.run()
    assert len(outside(result, "loud")) == 6
    assert len(result.sink("orders")) == 4


def test_what_fails_outside_fails_no_group_and_is_counted(run_app: RunApp) -> None:
    result = run_app(followed(fails=True), {"orders": FILES}, max_group=1)
    assert len(result.sink("orders")) == 4
    assert outside(result, "loud") == []
    assert outside(result, "large") == [("a", 4), ("b", 2), ("c", 4)]
    assert all("the follower fails" in str(found["lake/loud"].error) for found in sent(result))
    assert result.status["consecutive_reset_attempts"] == 0


def test_a_table_that_cannot_be_written_fails_no_group(run_app: RunApp) -> None:
    result = run_app(followed())
    blocked = result.home / "lake" / "loud"
    blocked.parent.mkdir(parents=True)
    blocked.write_text("no table")
    result.add({"orders": FILES}).run()
    assert len(result.sink("orders")) == 4
    assert all(found["lake/loud"].error for found in sent(result))


def test_a_lost_reply_outside_sends_nothing_twice(run_app: RunApp) -> None:
    result = run_app(followed())
    result.add({"orders": FILES})
    arm("send.after_commit:lost_reply:1")
    result.run()
    assert outside(result, "loud") == [("A", 1), ("A", 3), ("B", 2), ("C", 4)]


def test_a_function_that_mixes_files_forces_no_small_groups_outside(run_app: RunApp) -> None:
    def mixing() -> None:
        followed()()
        counted = dm.functor(lambda orders: orders.groupBy("k").agg(F.count("n").alias("n")), name="counted",
                             inputs=["orders"])  # fmt: skip
        dm.sink(dm.autonomous(counted), dm.DeltaAppend("counted"))

    result = run_app(mixing, {"orders": FILES})
    assert [group.triggers for group in result.groups] == [3]
    assert outside(result, "counted") == [("a", 2), ("b", 1), ("c", 1)]


def test_what_keeps_state_outside_is_refused(run_app: RunApp) -> None:
    def keeping() -> None:
        followed()()
        sums = dm.aggregate("loud", name="sums", keys=["k"], values={"n": dm.sum("n")})
        dm.sink(sums, dm.DeltaUpsert("sums", keys=["k"]))

    with pytest.raises(DeclarationError) as refused:
        run_app(keeping, {"orders": FILES})
    assert [(found.rule, found.operator) for found in refused.value.violations] == [("NOT_RUNNABLE", "sums")]


def test_it_is_said_what_is_promised(run_app: RunApp) -> None:
    result = run_app(followed())
    text = as_text(result.opened.plan)
    assert "loud (at-least-once)" in text
    assert "large (at-least-once)" in text
    described = {asset.table: asset.description for asset in table_assets(result.region)}
    assert "at least once" in described["lake/loud"].lower()
