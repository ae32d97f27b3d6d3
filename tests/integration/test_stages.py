"""A region cut into stages leaves the tables of the same region uncut, however its states are established and
however it fails on the way (V85, F1–F6, F27–F29, K1–K10, K22, K23, X1, X2)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from staged_app import FILES, REGION, TABLES, Gate, refusing, staged
from waiting import SOON

import drainmark as dm
from drainmark.jobs.errors import DrainmarkError, DrainTimeout, InFlightLost, Interrupted, RewindRefused
from drainmark.jobs.failpoints import ChannelPoint, InjectedFailure, arm, unreached
from drainmark.jobs.protocol.records.checkpoint_row import PLAIN_FORMAT, STAGES_FORMAT, RowKind
from drainmark.orchestration.dagster_assets.checks import QUARANTINE_RATIO, judgements
from drainmark.orchestration.dagster_jobs.sensors import needs_recovery
from drainmark.orchestration.runs.interruption import Interruption
from drainmark.orchestration.runs.region_runs import region_owner, region_run
from drainmark.orchestration.runs.run_loop import RunOptions, Watch, run_application
from drainmark.orchestration.testing.applications import open_on
from drainmark.orchestration.testing.comparing import Tables
from drainmark.orchestration.testing.crash.invariants import unfinished
from drainmark.orchestration.testing.processing import drive, scan
from drainmark.orchestration.testing.running import Result
from drainmark.orchestration.verbs.inputs.backfill import Wanted, plan_queue
from drainmark.orchestration.verbs.inputs.quarantine import quarantined_files
from drainmark.orchestration.verbs.interventions import skip
from drainmark.orchestration.verbs.removals.garbage import collect_region

pytestmark = pytest.mark.spark
slow = pytest.mark.slow

RunApp = Callable[..., Result]
EVERY = len(FILES)


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Return every table at every state, of the uncut region, in groups of one."""
    result = dm.testing.run_app(staged(cut=False), FILES, max_group=1, home=tmp_path_factory.mktemp("golden") / "home")
    assert not result.region.channels
    return tables(result)


def tables(result: Result) -> Tables:
    """Return all sinks; a handler's state holds ids, which differ if some were burnt."""
    found = Tables.of(result.workplace, result.region.name).rows
    return Tables({key: rows for key, rows in found.items() if not key[0].startswith("state/")})


def assert_golden(result: Result, golden: Tables) -> None:
    found = list(tables(result).unequal_to(golden, sorted(FILES)))
    assert not found, "\n".join(found)
    assert result.status["inflight_batches"] == 0
    assert [stage["behind"] for stage in result.status["stages"]] == [0] * len(result.region.stages)


def kinds(result: Result) -> Counter[str]:
    return Counter(row.kind.value for row in rows_of(result))


def rows_of(result: Result) -> Any:
    return result.workplace.store(REGION).checkpoint.rows()


class Background:
    """A run in a thread of its own; its reports are kept."""

    def __init__(self, result: Result, max_group: int = 1) -> None:
        self.steps: list[tuple[str, dict[str, Any]]] = []
        self.error: BaseException | None = None
        self._result = result
        scan(result.workplace, result.opened, result.region)
        self.run = region_run(
            result.workplace, result.opened, result.region, max_group=max_group,
            report=lambda step, numbers: self.steps.append((step, dict(numbers))),
        )  # fmt: skip
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            drive(self.run)
        except BaseException as error:
            self.error = error

    def await_committed(self, number: int) -> None:
        waiting = threading.Event()
        for _ in range(int(SOON / 0.05)):
            if self._result.workplace.history(self._result.region.name).committed_id >= number:
                return
            assert self._thread.is_alive(), self.error
            waiting.wait(0.05)
        raise AssertionError(f"{number} was never committed: {self.steps}")

    def await_passed(self, point: str) -> None:
        """Wait until an armed fail point has been passed."""
        waiting = threading.Event()
        for _ in range(int(SOON / 0.01)):
            if point not in unreached():
                return
            assert self._thread.is_alive(), self.error
            waiting.wait(0.01)
        raise AssertionError(f"{point} was never passed: {self.steps}")

    def await_step(self, *names: str) -> None:
        waiting = threading.Event()
        for _ in range(int(SOON / 0.05)):
            if any(step in names for step, _ in self.steps):
                return
            waiting.wait(0.05)
        raise AssertionError(f"none of {names}: {self.steps}")

    def join(self) -> None:
        self._thread.join(SOON)
        assert not self._thread.is_alive()


# --- any way to establish states gives the same tables ------------------------------------------------------------


@pytest.mark.seed("V22", "V85", "F1", "F27", "X1")
@pytest.mark.parametrize(
    ("alignment", "channels"),
    [
        ("unaligned", "durable"),
        pytest.param("aligned", "memory", marks=slow),
        pytest.param("aligned", "durable", marks=slow),
        pytest.param("unaligned", "memory", marks=slow),
    ],
)
def test_a_region_that_is_cut_leaves_the_tables_of_one_that_is_not(
    run_app: RunApp, golden: Tables, alignment: str, channels: str
) -> None:
    result = run_app(staged(alignment=alignment, channels=channels), FILES, max_group=2)
    assert [stage.name for stage in result.region.stages] == ["lines", "counts", "changed", "long"]
    assert_golden(result, golden)
    assert sum(report.triggers for report in result.groups) == EVERY
    assert result.status["alignment"] == alignment
    assert not files_below(result.home / "channels" / REGION), "what is done with is deleted as the run goes on"


@slow
def test_aligned_states_are_rows_as_they_always_were(run_app: RunApp) -> None:
    result = run_app(staged(), FILES, max_group=3)
    assert RowKind.PROGRESS.value not in kinds(result)
    states = [row for row in rows_of(result) if row.kind is RowKind.STATE]
    assert {row.format_version for row in states} == {PLAIN_FORMAT}
    assert not any("stages" in (row.detail.get("manifest") or {}) for row in states)


@slow
def test_groups_in_files_leave_the_same_tables(run_app: RunApp, golden: Tables) -> None:
    """No group is small: rows stay with Spark, and channels hold them in files."""
    settings = {"small_group_bytes": 0}
    assert_golden(run_app(staged(alignment="unaligned"), FILES, max_group=3, settings=settings), golden)


@slow
def test_a_channel_of_one_batch_holds_the_others_back(run_app: RunApp, golden: Tables) -> None:
    assert_golden(run_app(staged(batches=1, alignment="unaligned"), FILES, max_group=1), golden)


@slow
@pytest.mark.seed("K5", "K8")
@pytest.mark.parametrize("checkpoints", ["non-blocking", "blocking"])
def test_with_an_interval_of_nothing_there_is_one_commit_at_the_end(
    run_app: RunApp, golden: Tables, checkpoints: str
) -> None:
    result = run_app(staged(checkpoint_interval=0, checkpoints=checkpoints), FILES, max_group=1)
    assert_golden(result, golden)
    assert [(group.first_id, group.last_id) for group in result.groups] == [(1, EVERY)]


@slow
@pytest.mark.seed("K7")
def test_intervals_that_end_during_a_commit_are_dropped_and_counted(run_app: RunApp, golden: Tables) -> None:
    result = run_app(staged(checkpoint_interval=0.001), FILES, max_group=1)
    assert_golden(result, golden)
    manifests = [row.detail.get("manifest") or {} for row in rows_of(result) if row.kind is RowKind.STATE]
    dropped = [manifest.get("dropped_intervals", 0) for manifest in manifests]
    assert sum(dropped) > 0
    assert sum(group.dropped_intervals for group in result.groups) == sum(dropped)
    assert result.workplace.history(REGION).totals.counts["dropped_intervals"] == sum(dropped)


# --- unaligned ----------------------------------------------------------------------------------------------------


@pytest.mark.seed("V198", "F2", "F19", "F20", "F21")
@pytest.mark.parametrize("channels", ["memory", pytest.param("durable", marks=slow)])
def test_a_state_is_established_while_a_stage_hangs_and_what_is_in_flight_outlives_the_run(
    run_app: RunApp, golden: Tables, channels: str
) -> None:
    gate = Gate(held_from=2)
    result = run_app(staged(gate, alignment="unaligned", channels=channels)).add(FILES)
    begun = Background(result)
    begun.await_committed(4)
    status = result.status
    stages = {stage["name"]: stage for stage in status["stages"]}
    assert stages["lines"]["through"] >= 4
    assert stages["changed"]["through"] <= 1
    assert stages["changed"]["behind"] >= 3
    assert status["inflight_batches"] >= 3
    assert status["inflight_bytes"] > 0
    newest = [row for row in rows_of(result) if row.kind is RowKind.STATE][-1]
    assert newest.format_version == STAGES_FORMAT
    with pytest.raises(RewindRefused):
        result.sink("numbered_words", at=4)
    result.sink("count_changes", at=stages["counts"]["through"])
    end_abruptly(begun, gate)

    for path in result.inbox.folders["lines"].glob("[0-3].txt"):
        path.write_text("nobody may read this again\n")
    run_rest(result, gate)
    assert_golden(result, golden)


def end_abruptly(begun: Background, gate: Gate) -> None:
    """End a run as if it was killed, but keep the lease: nothing that it has in work is committed any more."""
    begun.run.grace._until = 0.0
    begun.run.interrupted.set()
    begun.join()
    assert isinstance(begun.error, Interrupted)
    gate.hold_from(None)


def run_rest(result: Result, gate: Gate) -> None:
    gate.hold_from(None)
    drive(region_run(result.workplace, result.opened, result.region, max_group=2))


@pytest.mark.seed("F6", "F28", "K23")
@slow  # by default after a kill: tests/recovery/test_staged_matrix.py
@pytest.mark.parametrize("to", [0, 1, 2, 4])
def test_a_rewind_while_a_stage_stands_behind_is_exact(run_app: RunApp, golden: Tables, to: int) -> None:
    gate = Gate(held_from=2)
    result = run_app(staged(gate, alignment="unaligned")).add(FILES)
    begun = Background(result, max_group=3)  # 1..3, 4..6: id 2 is inside a group
    begun.await_committed(6)
    end_abruptly(begun, gate)
    result.rewind(to)
    history = result.workplace.history(REGION)
    assert all(batch.last_id <= to for batch in history.flow.batches)
    assert bool(history.flow.batches) == (to > 0)
    scan(result.workplace, result.opened, result.region)
    run_rest(result, gate)
    assert_golden(result, golden)


@pytest.mark.seed("K6")
def test_what_a_stage_refuses_late_is_counted_where_it_belongs(run_app: RunApp) -> None:
    """The states are committed before the next stage has read them; its quarantined rows still belong to them."""
    gate = Gate(held_from=1)
    result = run_app(refusing(gate)).add(FILES)
    begun = Background(result)
    begun.await_committed(EVERY)
    assert [entry["rows_quarantined"] for entry in result.history] == [0] * EVERY
    gate.hold_from(None)
    begun.join()
    assert begun.error is None
    wanted = [sum(line.startswith("be") for line in text.splitlines()) for text in FILES.values()]
    assert [entry["rows_quarantined"] for entry in result.history] == wanted
    listed = {entry["sequence_id"]: entry["rows_quarantined"] for entry in quarantined_files(result.workplace, REGION)}
    assert listed == {number: count for number, count in enumerate(wanted, 1) if count}
    (ratio,) = (found for found in judgements(result.workplace, result.region) if found.name == QUARANTINE_RATIO)
    assert ratio.metadata["drainmark/rows_quarantined"] == sum(wanted)


@slow
@pytest.mark.seed("F1", "K23")
def test_what_is_in_flight_is_work_though_nothing_is_pending(run_app: RunApp) -> None:
    gate = Gate(held_from=2)
    result = run_app(staged(gate, alignment="unaligned")).add(dict(list(FILES.items())[:2]))
    begun = Background(result)
    begun.await_committed(2)
    end_abruptly(begun, gate)
    assert (result.status["pending_triggers"], result.status["inflight_batches"] > 0) == (0, True)
    assert needs_recovery(result.workplace.history(REGION)), "a sensor starts a run"
    with Interruption() as interruption:
        run_application(
            result.workplace, result.opened, result.regions, options=RunOptions(), watch=Watch(), run_id="r",
            interruption=interruption,
        )  # fmt: skip
    assert list(unfinished(result.workplace, REGION)) == []
    assert not needs_recovery(result.workplace.history(REGION))


@slow
@pytest.mark.seed("F5")
def test_new_states_are_established_while_what_was_in_flight_is_replayed(run_app: RunApp, golden: Tables) -> None:
    gate = Gate(held_from=2)
    first = dict(list(FILES.items())[:3])
    result = run_app(staged(gate, alignment="unaligned")).add(first)
    begun = Background(result)
    begun.await_committed(3)
    end_abruptly(begun, gate)
    gate.hold_from(2)
    result.add({name: text for name, text in FILES.items() if name not in first})
    again = Background(result)
    again.await_committed(EVERY)  # the stage is still at 1
    gate.hold_from(None)
    again.join()
    assert again.error is None
    assert_golden(result, golden)


@slow
@pytest.mark.seed("F28", "K8")
def test_a_skip_while_a_stage_stands_behind_holds_nobody_up(run_app: RunApp) -> None:
    gate = Gate(held_from=2)
    result = run_app(staged(gate, alignment="unaligned")).add(FILES)
    begun = Background(result)
    begun.await_committed(EVERY)
    end_abruptly(begun, gate)
    result.add({"6.txt": "nobody can read this\n"})
    scan(result.workplace, result.opened, result.region)
    assert skip(result.workplace, REGION, ["6.txt"], "for the test")["sequence_id"] > EVERY
    result.opened = open_on(staged(gate), result.inbox.folders)  # aligned: the file waits for all stages
    result.regions = result.opened.plan.regions
    again = Background(result)
    again.join()
    assert again.error is None
    assert result.status["inflight_batches"] == 0
    assert len(result.sink("numbered_words")) == sum(len(text.split()) for text in FILES.values()) + len(
        result.sink("count_changes")
    )


@pytest.mark.seed("E30")
def test_an_aligned_drain_that_lasts_is_ended_unaligned(run_app: RunApp, golden: Tables) -> None:
    gate = Gate(held_from=2)
    result = run_app(staged(gate, alignment="aligned", alignment_timeout=0.05)).add(FILES)
    begun = Background(result)
    begun.await_committed(3)
    assert result.status["inflight_batches"] > 0
    gate.hold_from(None)
    begun.join()
    assert begun.error is None
    assert_golden(result, golden)


@pytest.mark.seed("V85", "F22")
def test_an_aligned_state_waits_for_every_stage(run_app: RunApp, golden: Tables) -> None:
    gate = Gate(held_from=2)
    result = run_app(staged(gate)).add(FILES)
    begun = Background(result)
    gate.await_id(2)
    assert result.workplace.history(REGION).committed_id <= 1
    gate.hold_from(None)
    begun.join()
    assert begun.error is None
    assert_golden(result, golden)


@slow
def test_what_is_in_flight_is_refused_by_code_that_is_cut_otherwise(run_app: RunApp) -> None:
    gate = Gate(held_from=2)
    result = run_app(staged(gate, alignment="unaligned")).add(FILES)
    begun = Background(result)
    begun.await_committed(4)
    end_abruptly(begun, gate)
    result.opened = open_uncut(result, gate)
    plan = result.opened.region()
    links = result.workplace.history(REGION).flow.links
    assert set(links) == {channel.name for channel in result.region.channels}
    assert {"word", "_sequence_id"} <= set(next(link for link in links.values() if link.stage_to == "counts").columns)
    with pytest.raises(InFlightLost) as refused:
        drive(region_run(result.workplace, result.opened, plan))
    assert f"--to {min(stage['through'] for stage in result.status['stages'])}" in refused.value.remedy
    result.rewind(min(stage["through"] for stage in result.status["stages"]))
    drive(region_run(result.workplace, result.opened, plan))
    assert result.status["stages"] == []


def open_uncut(result: Result, gate: Gate) -> Any:
    return open_on(staged(gate, cut=False), result.inbox.folders)


REPLACING = """
import pathlib
import time

import drainmark as dm

HELD = pathlib.Path("{held}")


@dm.consistent(trigger="operator-driven", alignment="unaligned")
@dm.source(dm.DirectoryScan(path="in", pattern="*.csv", format="csv", schema="n bigint", settle=0))
def numbers(scanned):
    return scanned


@dm.parallel_map(output="n bigint", buffered=True)
def late(numbers):
    while HELD.exists():
        time.sleep(0.01)
    return {{"n": numbers["n"]}}


dm.sink(numbers, dm.DeltaAppend("numbers"))
dm.sink(late, dm.DeltaAppend("late"))
"""


@slow
def test_a_file_that_replaces_its_own_waits_for_the_stages_that_have_not_done_that(
    run_app: RunApp, tmp_path: Path
) -> None:
    """Otherwise the rows that they bring later would stay beside the rows of the new id."""
    held, app = tmp_path / "held", tmp_path / "replacing.py"
    held.touch()
    app.write_text(REPLACING.format(held=held))
    result = run_app(app).add({"a.csv": "1\n", "b.csv": "2\n"})
    begun = Background(result)
    begun.await_committed(2)
    assert result.status["inflight_batches"] > 0
    wanted = Wanted(pattern=str(result.inbox.folders["numbers"] / "a.csv"), again=True)
    assert plan_queue(result.workplace, result.region.name, wanted).carry_out(result.workplace)["replaced"] == 1
    result.add({"c.csv": "3\n"})
    scan(result.workplace, result.opened, result.region)
    threading.Event().wait(0.5)  # the replacement could begin now
    held.unlink()
    begun.join()
    assert begun.error is None
    result.run()
    for table in ("numbers", "late"):
        found = sorted((row["n"], row["_sequence_id"]) for row in result.sink(table, ids=True))
        assert [n for n, _ in found] == [1, 2, 3], table
        assert found[0][1] > 2, "the file has its new id"


# --- local recovery -----------------------------------------------------------------------------------------------


@pytest.mark.seed("K10", "K11", "K22", "X2")
@slow  # by default: test_stages_callbacks.py
@pytest.mark.parametrize("alignment", ["aligned", "unaligned"])
def test_a_stage_that_fails_begins_its_group_again_by_itself(run_app: RunApp, golden: Tables, alignment: str) -> None:
    gate = Gate(raises={3: [ValueError("once"), SystemExit(0)]})
    result = run_app(staged(gate, alignment=alignment)).add(FILES)
    begun = Background(result)
    begun.join()
    assert begun.error is None
    assert [numbers["stage"] for step, numbers in begun.steps if step == "restart"] == ["changed", "changed"]
    assert not any(step == "failed" for step, _ in begun.steps)
    assert_golden(result, golden)
    restarts = {stage["name"]: stage["restarts"] for stage in result.status["stages"]}
    assert restarts == {"lines": 0, "counts": 0, "changed": 2, "long": 0}
    assert kinds(result)[RowKind.CLAIM.value] == 1


@slow
@pytest.mark.seed("V36", "K10", "X2")
def test_a_stage_that_takes_too_long_has_the_region_reset(run_app: RunApp, golden: Tables, ahead: list[float]) -> None:
    """The stage does not restart its group by itself: the thread that was given up still works on its states."""
    gate = Gate(held_from=3)
    result = run_app(staged(gate, alignment="unaligned")).add(FILES)
    begun = Background(result)
    gate.await_id(3)
    ahead.append(3600.0)
    begun.await_step("failed", "restart")
    gate.hold_from(None)
    begun.join()
    assert isinstance(begun.error, DrainTimeout)
    assert not any(step == "restart" for step, _ in begun.steps)
    run_rest(result, gate)
    assert_golden(result, golden)


@slow
@pytest.mark.seed("H10", "X12")
def test_a_group_that_cannot_begin_is_judged_when_the_commit_under_way_has_ended(
    run_app: RunApp, golden: Tables
) -> None:
    names = list(FILES)
    result = run_app(staged(alignment="unaligned")).add({name: FILES[name] for name in names[:2]})
    arm("checkpoint_pending.before:hang=4:1,assign.before:raise:2")
    begun = Background(result, max_group=2)
    begun.await_passed("checkpoint_pending.before")  # the commit is under way, although stages may be slow
    result.add({name: FILES[name] for name in names[2:]})
    scan(result.workplace, result.opened, result.region)
    begun.join()
    assert begun.error is None
    assert not unreached()
    steps = [step for step, _ in begun.steps if step in ("group", "failed")]
    assert steps[:2] == ["group", "failed"]
    assert steps.count("failed") == 1
    assert_golden(result, golden)


@slow
@pytest.mark.seed("K10", "E14")
def test_a_stage_that_fails_on_and_on_has_the_region_reset(run_app: RunApp, golden: Tables) -> None:
    gate = Gate(raises={3: [ValueError("for ever")] * 3})
    result = run_app(staged(gate, max_consecutive_reset_attempts=2)).add(FILES)
    begun = Background(result, max_group=EVERY)
    begun.join()
    assert begun.error is None
    assert len([step for step, _ in begun.steps if step == "restart"]) == 2
    assert [numbers["decision"] for step, numbers in begun.steps if step == "failed"] == ["SplitGroup"]
    assert_golden(result, golden)


# --- steps of channels --------------------------------------------------------------------------------------------


@slow  # by default the processes are killed there: tests/recovery/test_golden_matrix.py
@pytest.mark.parametrize("point", list(ChannelPoint), ids=str)
def test_a_failure_at_a_step_of_a_channel_is_survived(run_app: RunApp, golden: Tables, point: ChannelPoint) -> None:
    result = run_app(staged(alignment="unaligned", channels="durable"), max_group=2).add(FILES)
    arm(f"{point.value}:raise:2")
    try:
        result.run()
    except (InjectedFailure, DrainmarkError):
        result.run()
    assert not unreached()
    assert_golden(result, golden)


# --- kept files ---------------------------------------------------------------------------------------------------


@slow
def test_gc_deletes_what_is_in_no_channel_any_more(run_app: RunApp, golden: Tables) -> None:
    gate = Gate(held_from=2)
    result = run_app(staged(gate, alignment="unaligned")).add(FILES)
    begun = Background(result)
    begun.await_committed(4)
    end_abruptly(begun, gate)
    folder = result.home / "channels" / REGION
    named = {file.path for batch in result.workplace.history(REGION).flow.batches for file in batch.files}
    collect_region(result.workplace, REGION)
    assert named <= files_below(folder)
    run_rest(result, gate)
    assert_golden(result, golden)
    collect_region(result.workplace, REGION)
    assert not files_below(folder)


@slow
@pytest.mark.seed("H8", "H29")
def test_images_outlive_the_cut_that_wrote_them(run_app: RunApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows do not name a stage's attempts. A claim after a crash must not take the staged files for orphans."""
    monkeypatch.setattr("drainmark.jobs.state.keyed_state._IMAGE_MINIMUM_ROWS", 1)
    result = run_app(staged(), FILES, max_group=1)
    history = result.workplace.history(REGION)
    images = [image for table in history.images if (image := history.image_of(table)) is not None and image.files]
    assert images
    crashed = region_owner(result.workplace, REGION)
    crashed.claim()
    crashed.leave()
    uncut = open_uncut(result, Gate())
    drive(region_run(result.workplace, uncut, uncut.region()))
    assert not result.workplace.history(REGION).flow.through
    store = result.workplace.store(REGION)
    assert all(store.table(image.table).files.holds(image.files) for image in images)


def files_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet")}


@slow
def test_every_table_has_its_rows_once(run_app: RunApp) -> None:
    result = run_app(staged(alignment="unaligned"), FILES, max_group=2)
    for table in TABLES:
        assert result.sink(table), table
    lines = [line for text in FILES.values() for line in text.splitlines()]
    found = Counter(row["word"] for row in result.sink("numbered_words"))
    assert sum(n for word, n in found.items() if "=" not in word) == sum(len(line.split()) for line in lines)
