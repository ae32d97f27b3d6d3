"""Autonomous sources that feed a region: at most once, and the region does not wait (V46, V47, V53, V54, V91)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import oracles
import pytest

import drainmark as dm
from drainmark import F
from drainmark.jobs.errors import DeclarationError
from drainmark.jobs.graph.application import load_application
from drainmark.jobs.protocol.history import manifest_of
from drainmark.jobs.protocol.records.manifest import FeedTaken
from drainmark.jobs.regions.explain import as_text
from drainmark.jobs.regions.plan import compile_application
from drainmark.jobs.testing.bank import bank_files
from drainmark.orchestration.doctor.registry_repair import repair
from drainmark.orchestration.inspection.status import statuses
from drainmark.orchestration.testing.running import Result
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark

RunApp = Callable[..., Result]
SCHEMA = "k string, n bigint"


def taken(result: Result) -> dict[int, Mapping[str, FeedTaken]]:
    """Return the files and rows that each state in force took from the feeds, by id."""
    states = result.workplace.history(result.region.name).states
    manifests = {number: manifest_of(row) for number, row in states.items()}
    return {number: manifest.feeds for number, manifest in manifests.items() if manifest is not None}


def fed(*, bad: str = "quarantine", staged: bool = False) -> Callable[[], None]:
    """Declare a region that reads an autonomous source behind a functor, as data; if `staged`, in a second stage."""

    def feeding() -> None:
        @dm.consistent(trigger="operator-driven", alignment="unaligned" if staged else "aligned")
        @dm.source(dm.DirectoryScan(path="in", format="csv", schema=SCHEMA))
        def orders(scanned: Any) -> Any:
            return scanned.drop("source_file")

        @dm.source(dm.DirectoryScan(path="out", format="json", schema=SCHEMA, on_bad=bad))  # type: ignore[arg-type]
        def posts(scanned: Any) -> Any:
            return scanned

        @dm.functor
        def loud(posts: Any) -> Any:
            return dm.select(posts, F.upper("k").alias("k"), "n")

        @dm.functor(inputs=[dm.buffered(orders) if staged else orders, loud])
        def both(orders: Any, loud: Annotated[Any, dm.Autonomous]) -> Any:
            return orders.unionByName(loud)

        dm.sink(both, dm.DeltaAppend("both"))

    return feeding


def pairs(result: Result, table: str = "both") -> list[tuple[int, str, int]]:
    return [(row["_sequence_id"], row["k"], row["n"]) for row in result.sink(table, ids=True)]


@pytest.mark.slow
@pytest.mark.seed("DX1")
def test_executors_are_to_reach_the_folders_of_autonomous_sources_too(
    run_app: RunApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(SparkEngine, "require_inputs", lambda _, folders: asked.extend(folders))
    result = run_app(fed(), {"orders": {"1.csv": "a,1\n"}, "posts": {"1.json": '{"k":"x","n":8}\n'}})
    assert set(asked) == set(result.inbox.folders.values())
    assert len(set(asked)) == 2


def test_rows_that_came_belong_to_the_group_that_took_them_and_come_once(run_app: RunApp) -> None:
    """V46, V47, V53: each file of the region takes the rows that came since; nothing waits, nothing comes twice."""
    result = run_app(fed(), {"orders": {"1.csv": "a,1\n", "2.csv": "b,2\n"}, "posts": {"1.json": '{"k":"x","n":8}\n'}})
    assert sorted(pairs(result)) == [(1, "X", 8), (1, "a", 1), (2, "b", 2)]
    assert taken(result) == {1: {"posts": FeedTaken(files=1, rows=1)}, 2: {}}
    assert [found["region"] for found in statuses(result.workplace, None)] == ["feeding/orders"], (
        "a cursor is no region"
    )
    assert result.run().groups[2:] == []

    result.add({"posts": {"2.json": '{"k":"y","n":9}\n'}}).run()  # V91: the rows wait until a state is requested
    assert len(result.history) == 2
    result.add({"orders": {"3.csv": ""}}).run()
    assert sorted(pairs(result))[3:] == [(3, "Y", 9)]


def test_groups_hold_one_trigger_where_what_is_autonomous_is_read_as_data(run_app: RunApp) -> None:
    files = {f"{number}.csv": f"a,{number}\n" for number in range(2)}
    result = run_app(fed(), {"orders": files})
    assert [group.triggers for group in result.groups] == [1, 1]
    assert result.region.forced_single == ("both",)


@pytest.mark.parametrize("policy", ["quarantine", "halt"])
def test_what_cannot_be_read_is_left_out_and_counted(run_app: RunApp, policy: str) -> None:
    """V53: the region never halts for a row of an autonomous stream."""
    posts = {"1.json": '{"k":"x","n":8}\nno json\n{"k":"y","n":9}\n', "2.json": b"\xff\xfe\x00\n"}
    result = run_app(fed(bad=policy), {"orders": {"1.csv": "a,1\n"}, "posts": posts})
    assert sorted(pairs(result)) == [(1, "X", 8), (1, "Y", 9), (1, "a", 1)]
    assert taken(result)[1]["posts"] == FeedTaken(files=2, rows=2, bad=2)
    assert result.quarantine() == []


def test_a_feed_whose_folder_is_gone_holds_nothing_up(run_app: RunApp) -> None:
    result = run_app(fed())
    (result.inbox.root / "posts").rmdir()
    result.add({"orders": {"1.csv": "a,1\n"}}).run()
    assert pairs(result) == [(1, "a", 1)]
    assert taken(result)[1]["posts"].error is not None


def test_a_rewind_brings_back_the_region_and_no_feed(run_app: RunApp) -> None:
    """V47: a replay reads the rows that came since, not the rows of the withdrawn group."""
    result = run_app(fed(), {"orders": {"1.csv": "a,1\n"}, "posts": {"1.json": '{"k":"x","n":8}\n'}})
    result.rewind(to=0).add({"posts": {"2.json": '{"k":"y","n":9}\n'}}).run()
    assert sorted(row[1:] for row in pairs(result)) == [("Y", 9), ("a", 1)]


@pytest.mark.parametrize("staged", [pytest.param(False, marks=pytest.mark.slow), True])
def test_without_its_registry_a_feed_begins_with_what_comes_next(run_app: RunApp, staged: bool) -> None:
    """Files in the folder may have been read already. To keep at most once, they are left out, and rows are lost.

    A stage that finishes late records its reads in a row of its own.
    """
    result = run_app(fed(staged=staged), {"orders": {"1.csv": "a,1\n"}, "posts": {"1.json": '{"k":"x","n":8}\n'}})
    result.workplace.registry.close()
    for path in result.home.glob("registry.db*"):
        path.unlink()
    result.workplace._registry = None
    repair(result.workplace)
    result.add({"orders": {"2.csv": "b,2\n"}}).run()
    assert [row[1] for row in sorted(pairs(result))] == ["X", "a", "b"]


def test_a_feed_that_keeps_state_is_refused(run_app: RunApp) -> None:
    def keeping() -> None:
        fed()()
        posts = dm.aggregate("posts", name="sums", keys=["k"], values={"n": dm.sum("n")})
        joined = dm.functor(lambda orders, sums: orders.join(sums, "k"), name="joined", inputs=["orders", posts])
        dm.sink(joined, dm.DeltaAppend("joined"))

    with pytest.raises(DeclarationError) as refused:
        run_app(keeping, {"orders": {"1.csv": "a,1\n"}})
    assert [(found.rule, found.operator) for found in refused.value.violations] == [("NOT_RUNNABLE", "sums")]


# --- bank_alerts --------------------------------------------------------------------------------------------------


@pytest.mark.seed("V54")
def test_bank_alerts_equals_the_oracle(run_app: RunApp) -> None:
    """A payment is judged by the warnings that came before its file."""
    result = run_app("bank_alerts")
    turns = []
    for number, payments, posts in bank_files(3):
        result.add({"transactions": {f"{number}.csv": payments}, "warnings": {f"{number}.jsonl": posts}}).run()
        turns.append((payments, posts))
    assert_bank(result, turns)
    assert result.sink("bank_alerts"), "nobody was warned: the test shows nothing"


@pytest.mark.slow
def test_bank_alerts_books_every_payment_whatever_becomes_of_the_warnings(run_app: RunApp) -> None:
    result = run_app("bank_alerts")
    turns = []
    for number, payments, posts in bank_files(4, seed=3):
        files = {"transactions": {f"{number}.csv": payments}}
        if number != "0001":
            files["warnings"] = {f"{number}.jsonl": posts}
        result.add(files).run()
        turns.append((payments, posts if number != "0001" else ""))
    assert_bank(result, turns)


def assert_bank(result: Result, turns: Sequence[tuple[str, str]]) -> None:
    expected = oracles.bank_alerts(turns)
    for table, rows in expected.items():
        assert not oracles.differences(rows, result.sink(table, ids=True), ids=True), table


def test_the_graph_says_what_is_autonomous() -> None:
    text = as_text(compile_application(load_application("bank_alerts")))
    assert "warnings (autonomous control)" in text
    assert "one trigger each, because of alerts" in text
    assert "notes" not in text
