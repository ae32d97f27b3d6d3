"""Periodic regions: one state over all starts in each period; folders in them, and lost input that is found again.

Tests of the period set the clock (E2, E15); in others the period is 0: one state of all pending input (K8).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import Mock

import pytest
from waiting import SOON

import drainmark as dm
from drainmark.jobs.errors import Halted, InputChanged, RegistryLost, RewindRefused, UsageError
from drainmark.jobs.graph.application import Application, application, build_application
from drainmark.jobs.operators.sources.files.directory_source import queue_of
from drainmark.jobs.protocol.records.triggers import TriggerStatus
from drainmark.jobs.runtime.input.inbox import GroupInbox
from drainmark.orchestration.dagster_assets.checks import QUARANTINE_RATIO, judgements
from drainmark.orchestration.discovery import state_inputs
from drainmark.orchestration.discovery.region_scan import Tick, pace, scan_region, seconds_to_tick
from drainmark.orchestration.doctor.registry_repair import repair
from drainmark.orchestration.inspection.metrics import as_json, region_metrics
from drainmark.orchestration.runs.interruption import Interruption
from drainmark.orchestration.runs.run_loop import RunOptions, Watch, run_application
from drainmark.orchestration.testing.running import Result
from drainmark.orchestration.tracing.trace import Tracer
from drainmark.orchestration.verbs.inputs.quarantine import plan_redrive, quarantined_files, quarantined_rows
from drainmark.orchestration.verbs.interventions import reset
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.workplace import Workplace, open_application
from drainmark.resources.checkpoints import as_of
from drainmark.resources.registry.triggers import Triggers

pytestmark = pytest.mark.spark

RunApp = Callable[..., Result]
ROW = "k string, n bigint"
Buffered = Annotated[Any, dm.Buffered]
LEFT = {"1.csv": "a,1\nb,2\n", "2.csv": "a,3\n"}
RIGHT = {"1.csv": "a,10\n"}


def two_folders(**parameters: Any) -> Application:
    consistent = dm.consistent(**{"trigger": "periodic", "period": 0, **parameters})
    with application("two_folders") as declared:

        @consistent
        @dm.source(dm.DirectoryScan(path="left", pattern="*.csv", format="csv", schema=ROW, settle=0))
        def left(scanned: Any) -> Any:
            return scanned

        @consistent
        @dm.source(dm.DirectoryScan(path="right", pattern="*.csv", format="csv", schema=ROW, settle=0))
        def right(scanned: Any) -> Any:
            return scanned

        @dm.functor
        def both(left: Any, right: Any) -> Any:
            return dm.select(left, "k", "n", "source_file").unionByName(dm.select(right, "k", "n", "source_file"))

        dm.sink(both, dm.DeltaAppend("all_rows"))
        totals = dm.aggregate(both, keys=["k"], values={"total": dm.sum("n")}, name="totals_by_k")
        dm.sink(totals, dm.DeltaUpsert("totals", keys=["k"]))
    return build_application(declared)


def totals(result: Result, at: int | None = None) -> dict[str, int]:
    return {row["k"]: row["total"] for row in result.sink("totals", at)}


def two_stages(**parameters: Any) -> Application:
    """Return an application of two starts, each a stage of its own."""
    consistent = dm.consistent(**{"trigger": "periodic", "period": 0, **parameters})
    with application("two_stages") as declared:

        @consistent
        @dm.source(dm.DirectoryScan(path="left", pattern="*.csv", format="csv", schema=ROW, settle=0))
        def left(scanned: Any) -> Any:
            return scanned

        @consistent
        @dm.source(dm.DirectoryScan(path="right", pattern="*.json", format="json", schema=ROW, settle=0))
        def right(scanned: Any) -> Any:
            return scanned

        @dm.functor
        def both(left: Buffered, right: Buffered) -> Any:
            return dm.select(left, "k", "n").unionByName(dm.select(right, "k", "n"))

        dm.sink(both, dm.DeltaAppend("all_rows"))
    return build_application(declared)


@pytest.mark.seed("V7")
def test_a_state_is_one_slice_over_all_starts(run_app: RunApp) -> None:
    """V40, K8: the input of all starts is one id; the next id has the input since then; no new input, no state."""
    result = run_app(two_folders(), {"left": LEFT, "right": RIGHT})
    (state,) = result.history
    assert (state["trigger"], state["trigger_kind"], state["rows_in"]) == ("period:two_folders/left#1", "period", 4)
    assert state["dropped_ticks"] == 0
    assert totals(result) == {"a": 14, "b": 2}
    files = {Path(row["source_file"]).name for row in result.sink("all_rows")}
    assert files == {"1.csv", "2.csv"}
    result.run()
    assert len(result.history) == 1
    result.add({"right": {"2.csv": "b,5\n"}}).run()
    assert [state["rows_in"] for state in result.history] == [4, 1]
    assert totals(result) == {"a": 14, "b": 7}
    assert totals(result, at=1) == {"a": 14, "b": 2}
    assert result.status["dropped_ticks"] == 0


def test_a_rewind_replays_slices_as_they_were_cut(run_app: RunApp) -> None:
    result = run_app(two_folders(), {"left": LEFT})
    result.add({"right": RIGHT}).run()
    before = result.sink("all_rows"), totals(result)
    result.rewind(1)
    assert totals(result) == {"a": 4, "b": 2}
    result.run()
    assert (result.sink("all_rows"), totals(result)) == before
    assert [state["trigger"][-2:] for state in result.history] == ["#1", "#2"]


@pytest.mark.slow
def test_bad_rows_of_a_slice_are_quarantined_under_its_id(run_app: RunApp) -> None:
    result = run_app(two_folders(), {"left": {"1.csv": "a,1\n"}})
    result.add({"left": {"2.csv": "a,2\nb,x\n"}, "right": {"3.csv": "c,3\nd,y\ne,5\n"}}).run()
    bad = result.quarantine()
    assert [(row["_sequence_id"], row["raw"]) for row in bad] == [(2, "b,x"), (2, "d,y")]
    assert [(state["rows_in"], state["rows_quarantined"]) for state in result.history] == [(1, 0), (5, 2)]


def test_the_quarantine_is_read_once_for_all_files_that_are_mended_at_once(
    run_app: RunApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{number}.csv" for number in range(2, 7)]
    result = run_app(two_folders(), {"left": {"1.csv": "a,1\n", **dict.fromkeys(names, "c,y\n")}})
    read = Mock(side_effect=as_of.read_at)
    monkeypatch.setattr(as_of, "read_at", read)
    for name in names:
        (result.inbox.folders["left"] / name).write_text("c,2\n")
    assert totals(result.run()) == {"a": 1, "c": 10}
    assert read.call_count == 1


def test_a_file_of_a_slice_that_was_quarantined_whole_is_taken_when_it_is_mended(run_app: RunApp) -> None:
    """No row of it was read, so that is no change of a committed file; the good file of its slice was read."""
    result = run_app(two_folders(), {"left": {"1.csv": "a,1\nb,x\n", "2.csv": "c,y\n"}})
    place, region = result.workplace, result.region.name
    mended = result.inbox.folders["left"] / "2.csv"
    (listed,) = quarantined_files(place, region)
    assert (listed["is_whole"], listed["rows_in"], listed["rows_quarantined"]) == (False, 3, 2)
    (bad,) = quarantined_rows(place, region, "2.csv")
    assert (bad["source_file"], bad["position"]) == (str(mended), None)
    assert quarantined_rows(place, region, "1.csv")[0]["raw"] == "b,x"
    assert len(quarantined_rows(place, region, listed["file"])) == 2
    for name in ("2.csv", listed["file"]):
        with pytest.raises(UsageError, match="no trigger of its own") as refused:
            plan_redrive(place, region, name)
        assert "the next scan" in str(refused.value.remedy)
    mended.write_text("c,2\n")
    assert totals(result.run()) == {"a": 1, "c": 2}
    with pytest.raises(RewindRefused, match="accept-loss"):
        result.rewind(0)
    mended.write_text("c,20\n")
    with pytest.raises(InputChanged):
        result.run()


@pytest.mark.slow
def test_files_are_known_again_after_the_registry_is_lost(run_app: RunApp) -> None:
    """H27: the lists that the states name tell which files were taken; a scan finds the others."""
    result = run_app(two_folders(), {"left": LEFT, "right": RIGHT})
    result.add({"left": {"9.csv": "z,9\n"}}).run()
    place, region = result.workplace, result.region
    for file in place.home.glob("registry.db*"):
        file.unlink()
    place.registry.close()
    place._registry = None
    with pytest.raises(RegistryLost):
        result.run()
    repair(place)
    assert {t.status for t in place.registry.by_order(queue_of(region.name, "left"), [1, 2, 3])} == {
        TriggerStatus.COMMITTED
    }
    assert result.run().history[-1]["sequence_id"] == 2, "nothing is read twice"
    result.add({"right": {"7.csv": "z,1\n"}}).run()
    assert totals(result) == {"a": 14, "b": 2, "z": 10}


def test_a_committed_file_that_changes_halts_as_anywhere(run_app: RunApp) -> None:
    """I4: for the scan, the files of a slice are committed files."""
    result = run_app(two_folders(), {"left": LEFT})
    changed = result.inbox.folders["left"] / "1.csv"
    changed.write_text("a,100\n")
    with pytest.raises(InputChanged):
        result.run()


def test_a_file_that_changes_between_scan_and_read_halts_the_region(run_app: RunApp) -> None:
    result = run_app(two_folders(), {"left": LEFT})
    result.add({"right": RIGHT})
    scan_region(result.workplace, result.region)
    (result.inbox.folders["right"] / "1.csv").unlink()
    with pytest.raises(Halted) as caught:
        result.run()
    assert caught.value.facts["trigger"] == "period:two_folders/left#2"
    assert "1.csv" in caught.value.message


def skipping() -> Application:
    with application("skipping") as declared:
        consistent = dm.consistent(trigger="periodic", period=0)
        for name in ("left", "right"):
            scan = dm.DirectoryScan(
                path=name, pattern="*.csv", format="csv", schema=ROW, settle=0, on_missing="skip"
            )  # fmt: skip

            def read(scanned: Any) -> Any:
                return scanned

            read.__name__ = name
            consistent(dm.source(scan)(read))

        @dm.functor
        def both(left: Any, right: Any) -> Any:
            return dm.select(left, "k", "n").unionByName(dm.select(right, "k", "n"))

        dm.sink(both, dm.DeltaAppend("all_rows"))
    return build_application(declared)


def test_files_that_are_gone_are_skipped_where_the_source_says_so(run_app: RunApp) -> None:
    """I5: the slice is read without them, the history names them, and a replay of the slice gives the same rows."""
    result = run_app(skipping(), {"left": LEFT})
    result.add({"left": {"3.csv": "a,3\n", "4.csv": "a,4\n", "5.csv": "a,5\n", "6.csv": "a,6\n"}, "right": RIGHT})
    scan_region(result.workplace, result.region)
    for name in ("left/3.csv", "left/5.csv", "right/1.csv"):
        folder, _, file = name.partition("/")
        (result.inbox.folders[folder] / file).unlink()
    result.run()
    first, second = result.history
    assert (first["rows_in"], second["rows_in"]) == (3, 2)
    assert {name for name in ("3.csv", "4.csv", "5.csv", "right/1.csv") if name in second["reason"]} == {
        "3.csv", "5.csv", "right/1.csv"
    }  # fmt: skip
    assert result.status["consecutive_reset_attempts"] == 0
    assert next(each for each in judgements(result.workplace, result.region) if each.name == QUARANTINE_RATIO).passed
    assert sorted(row["n"] for row in result.sink("all_rows")) == [1, 2, 3, 4, 6]
    result.add({"right": {"2.csv": "z,9\n"}}).run()
    assert sorted(row["n"] for row in result.sink("all_rows")) == [1, 2, 3, 4, 6, 9]


@pytest.mark.slow
def test_a_file_that_goes_while_it_is_read_is_skipped_without_an_attempt(
    run_app: RunApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run_app(skipping(), {"left": LEFT})
    result.add({"left": {"3.csv": "a,3\n"}, "right": RIGHT})
    gone = result.inbox.folders["left"] / "3.csv"
    checked = GroupInbox.check

    def check(inbox: GroupInbox) -> None:
        gone.unlink(missing_ok=True)
        checked(inbox)

    monkeypatch.setattr(GroupInbox, "check", check)
    result.run()
    assert sorted(row["n"] for row in result.sink("all_rows")) == [1, 2, 3, 10]
    assert "3.csv" in result.history[1]["reason"]
    assert result.status["consecutive_reset_attempts"] == 0


def test_another_file_under_a_scanned_name_halts_also_where_missing_ones_are_skipped(run_app: RunApp) -> None:
    result = run_app(skipping(), {"left": LEFT})
    result.add({"right": RIGHT})
    scan_region(result.workplace, result.region)
    (result.inbox.folders["right"] / "1.csv").write_text("other,1\n")
    with pytest.raises(InputChanged):
        result.run()


@pytest.mark.seed("I6")
def test_a_rewind_behind_files_that_are_gone_names_the_slice(run_app: RunApp) -> None:
    result = run_app(two_folders(), {"left": LEFT})
    (result.inbox.folders["left"] / "2.csv").unlink()
    with pytest.raises(RewindRefused) as caught:
        result.rewind(0)
    assert caught.value.facts["gone"] == ("period:two_folders/left#1",)


def test_a_rewind_reads_a_slice_again_without_the_files_that_are_gone(
    run_app: RunApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start skips missing files: the loss of one is no reason to lose the others of its slice."""
    result = run_app(skipping(), {"left": LEFT})
    found = result.opened, result.region
    monkeypatch.setattr(state_inputs, "load_region", lambda *_: found)  # this application is in no file
    (result.inbox.folders["left"] / "2.csv").unlink()
    plan = plan_reset(result.workplace, result.region.name, RewindTarget(to=0))
    reset(result.workplace, plan, accept_loss=True)
    result.run()
    assert sorted(row["n"] for row in result.sink("all_rows")) == [1, 2]


@pytest.mark.slow
def test_trace_finds_the_slice_of_a_file(run_app: RunApp) -> None:
    result = run_app(two_folders(), {"left": LEFT})
    result.add({"right": {"other.csv": "a,1\n"}}).run()
    traced = Tracer.of(result.workplace, result.region.name).file("other.csv")
    assert (traced["trigger"], traced["sequence_id"]) == ("period:two_folders/left#2", 2)


def test_a_region_does_not_change_from_files_to_periods(run_app: RunApp) -> None:
    def numbers() -> None:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.Beacon(rows=1, batches=2))
        def clock(scanned: Any) -> Any:
            return scanned

        dm.sink(clock, dm.DeltaAppend("ticks"))

    result = run_app(numbers)
    result.run()

    def periodic() -> None:
        @dm.consistent(trigger="periodic", period=1.0)
        @dm.source(dm.Beacon(rows=1))
        def clock(scanned: Any) -> Any:
            return scanned

        dm.sink(clock, dm.DeltaAppend("ticks"))

    with application("numbers") as declared:
        periodic()
    region = open_application(build_application(declared)).region()
    with pytest.raises(UsageError):
        scan_region(result.workplace, region)


@pytest.mark.slow
@pytest.mark.seed("V111", "X2")
def test_a_start_that_is_done_takes_away_nothing_of_another(run_app: RunApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages of starts work at one group side by side: each reads through links of its own."""
    fill, remove, is_done = GroupInbox.fill, GroupInbox.remove, threading.Event()

    def filled(inbox: GroupInbox, **how: Any) -> None:
        fill(inbox, **how)
        if inbox.folder.name == "right":
            assert is_done.wait(SOON)

    def removed(inbox: GroupInbox) -> None:
        remove(inbox)
        is_done.set()

    monkeypatch.setattr(GroupInbox, "fill", filled)
    monkeypatch.setattr(GroupInbox, "remove", removed)
    result = run_app(two_stages(), {"left": LEFT, "right": {"1.json": '{"k": "a", "n": 10}\n'}})
    assert len(result.region.stages) == 3
    assert sorted((row["k"], row["n"]) for row in result.sink("all_rows")) == [("a", 1), ("a", 3), ("a", 10), ("b", 2)]


# --- when ---------------------------------------------------------------------------------------------------------


@pytest.mark.seed("E2")
def test_the_period_counts_from_the_end_of_the_last_state_or_reset(run_app: RunApp) -> None:
    """E2; a tick while a slice is pending asks for nothing (E15)."""
    result = run_app(two_folders(period=10.0))
    place, region = result.workplace, result.region
    assert seconds_to_tick(region, place.history(region.name), 0.0) == 0.0, "the first one waits for nothing"
    result.add({"left": {"1.csv": "a,1\n"}}).run()
    ended = place.history(region.name).totals.last_commit
    assert ended is not None
    result.add({"left": {"2.csv": "a,2\n"}})
    early = scan_region(place, region, tick=Tick.DUE, now=lambda: ended + 9.0)
    assert (early.new, place.registry.pending_count(region.name)) == ((), 0)
    assert scan_region(place, region, tick=Tick.DUE, now=lambda: ended + 10.0).new_count == 1
    result.add({"left": {"3.csv": "a,3\n"}})
    assert scan_region(place, region, tick=Tick.DUE, now=lambda: ended + 99.0).new_count == 0
    result.run()
    result.rewind(1)
    history = place.history(region.name)
    assert history.totals.last_reset is not None
    assert seconds_to_tick(region, history, history.totals.last_reset + 4.0) == pytest.approx(6.0, abs=0.1)


@pytest.mark.seed("V111")
def test_two_scans_at_once_leave_no_file_out(run_app: RunApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes cut a slice at the same tick: the second one has a file more, and its slice is not recorded."""
    result = run_app(two_folders())
    place, region, add = result.workplace, result.region, Triggers.add
    cut: list[dict[str, Any]] = []

    def delayed(self: Triggers, name: str, triggers: Any, **how: Any) -> int:
        if name != region.name:
            return add(self, name, triggers, **how)
        cut.append({"triggers": triggers, **how})
        return 0

    def second(self: Triggers, name: str, triggers: Any, **how: Any) -> int:
        if name == region.name:
            add(self, name, **cut.pop())
        return add(self, name, triggers, **how)

    result.add({"left": {"1.csv": "a,1\n"}})
    monkeypatch.setattr(Triggers, "add", delayed)
    scan_region(place, region)
    result.add({"left": {"2.csv": "a,2\n"}})
    monkeypatch.setattr(Triggers, "add", second)
    scan_region(place, region)
    monkeypatch.undo()
    result.run()
    assert sorted(row["n"] for row in result.sink("all_rows")) == [1, 2]


@pytest.mark.slow
def test_a_slow_state_counts_the_ticks_that_it_made_pass(run_app: RunApp) -> None:
    """K7: ticks are not queued; history and status show the number of dropped ticks."""
    result = run_app(two_folders(period=0.001), {"left": {"1.csv": "a,1\n"}})
    result.add({"left": {"2.csv": "a,2\n"}}).run()
    first, second = result.history
    assert first["dropped_ticks"] == 0
    assert second["dropped_ticks"] >= (first["process_seconds"] + first["drain_seconds"]) / 0.001 - 1
    assert result.status["dropped_ticks"] == second["dropped_ticks"]
    place, region = result.workplace, result.region
    counted = as_json(region.name, region_metrics(place, region.name))
    assert counted["drainmark_dropped_ticks_total"] == second["dropped_ticks"]
    newest = place.registry.triggers.newest(region.name)
    assert newest is not None
    limit, _ = pace(place, region, place.history(region.name), newest.identity)
    assert limit is not None
    assert limit < newest.identity["limit"], "a state that took longer than a period gets less to do"


def test_run_takes_a_backlog_in_slices_until_nothing_is_new(run_app: RunApp, tmp_path: Path) -> None:
    result = run_app(two_folders(period=600.0), None, settings={"slice_bytes": 16})
    result.add({"left": {f"{n}.csv": "a,1\nb,1\n" for n in range(4)}})
    with Interruption() as interruption:
        (loop,) = run_application(
            result.workplace, result.opened, result.regions, options=RunOptions(), watch=Watch(), run_id="r",
            interruption=interruption,
        )  # fmt: skip
    assert loop.summary()["triggers"] >= 2
    assert totals(result) == {"a": 4, "b": 4}
    assert result.status["pending_triggers"] == 0


@pytest.mark.seed("V150")
def test_an_endless_beacon_gives_one_state_a_run(run_app: RunApp) -> None:
    """E28: a run cannot wait for its end."""

    def ticking() -> None:
        @dm.consistent(trigger="periodic", period=600.0)
        @dm.source(dm.Beacon(rows=3))
        def clock(scanned: Any) -> Any:
            return scanned

        dm.sink(clock, dm.DeltaAppend("ticks"))

    result = run_app(ticking)
    for expected in (3, 6):
        with Interruption() as interruption:
            run_application(
                result.workplace, result.opened, result.regions, options=RunOptions(), watch=Watch(), run_id="r",
                interruption=interruption,
            )  # fmt: skip
        assert sorted(row["n"] for row in result.sink("ticks")) == list(range(expected))


def test_a_list_that_was_kept_is_kept_once(workplace: Workplace) -> None:
    """A crash between the list and its trigger leaves an unnamed list; the next cut writes the same list again."""
    access = workplace.access("app/start")
    text = json.dumps({"uri": "a"})
    name = access.keep_list("left", 3, text)
    assert access.keep_list("left", 3, text) == name
    assert access.keep_list("left", 3, text + " ") != name
    assert access.kept_list(name) == text
