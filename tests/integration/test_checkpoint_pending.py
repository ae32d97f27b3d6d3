"""Non-blocking checkpoints: the flow resumes while a group is written, committed and published (N13–N24, X12, E15).

The handler of a state notes its calls in a journal, and waits when a test wants it to: no clock decides. The rows are
made without Spark.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pytest
from hand_runs import HandOfApplication, engine, gives, without_spark
from harness import multiset, rows
from waiting import SOON, eventually

import drainmark as dm
from drainmark import F
from drainmark.jobs.errors import DrainTimeout, Fenced, Halted, Interrupted, OperatorFailed, StoreUnavailable
from drainmark.jobs.failpoints import FailPoint, InjectedFailure, arm
from drainmark.jobs.operators.windows.running_aggregate import Aggregate
from drainmark.jobs.protocol.transitions import State
from drainmark.jobs.runtime import timeout
from drainmark.jobs.runtime.commit import operator_states
from drainmark.jobs.runtime.commit.commit_point import GroupCommits
from drainmark.jobs.runtime.commit.operator_states import RegionStates
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.jobs.runtime.input.inbox import Group
from drainmark.jobs.runtime.region_run import RegionRun
from drainmark.jobs.state.keyed_state import KeyedState
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.inspection.status import statuses
from drainmark.orchestration.runs.region_runs import region_owner, region_run
from drainmark.orchestration.verbs.interventions import resume
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application

__all__ = ["engine", "without_spark"]

REGION = "pending/lines"
TEXTS = ("a b\n", "b c\n", "a\n", "c d\n")
Write = Callable[[str, str], Path]


@dataclass
class Journal:
    """The calls of the handlers, in order, and the events that they wait for."""

    lines: list[tuple[str, str, int]] = field(default_factory=list)
    waits: dict[tuple[str, int], threading.Event] = field(default_factory=dict)
    raises: dict[tuple[str, int], Exception] = field(default_factory=dict)
    late: list[tuple[str, int]] = field(default_factory=list)
    freezing: Callable[[int], None] = lambda at: None
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def note(self, what: str, name: str, at: int) -> None:
        with self._changed:
            self.lines.append((what, name, at))
            self._changed.notify_all()

    def checkpoint(self, name: str, at: int) -> None:
        gate = self.waits.get((name, at))
        if gate is not None and not gate.wait(SOON):
            self.late.append((name, at))
        if (name, at) in self.raises:
            raise self.raises.pop((name, at))

    def await_line(self, what: str, name: str, at: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: (what, name, at) in self.lines, SOON), self.lines

    def place(self, what: str, name: str, at: int) -> int:
        return self.lines.index((what, name, at))


def opened(
    inbox: Path, journal: Journal, kinds: Mapping[str, bool], *more: Callable[[dm.Stream], object], **region: Any
) -> Opened:
    """Return an application that counts words once for each kind, each count in a table of its own.

    Args:
        more: declare more with the lines.
    """

    @gives("word string")
    def words(lines: Any) -> Any:
        if not isinstance(lines, list):
            return dm.select(lines, F.explode(F.split(F.trim("value"), " ")).alias("word"))
        for name in kinds:
            journal.note("processed", name, sum(line[0] == "prepared" for line in journal.lines))
        return [{"word": word} for row in lines for word in row["value"].split()]

    with dm.application("pending") as declared:

        @dm.consistent(trigger="operator-driven", **region)
        @dm.source(dm.DirectoryScan(path=str(inbox), pattern="*.txt", settle=0))
        def lines(scanned: Any) -> Any:
            return scanned

        of_lines = dm.functor(words, name="words", inputs=[lines])
        for name in kinds:
            counted = dm.aggregate(of_lines, keys=["word"], values={"n": dm.count()}, name=name)
            dm.sink(counted, dm.DeltaUpsert(f"{name}_now", keys=["word"]))
            dm.sink(counted, dm.DeltaAppend(f"{name}_all"))
        for each in more:
            each(lines)
    application = dm.build_application(declared)

    def seen(operator: Any) -> Any:
        if not isinstance(operator, Aggregate):
            return operator
        kind = type("Counted", (Aggregate,), {"non_blocking": kinds[operator.name]})
        return kind(**{column.name: getattr(operator, column.name) for column in fields(operator)})

    return open_application(replace(application, operators=tuple(map(seen, application.operators))))


@dataclass
class Driven:
    """A run in a thread of its own."""

    run: RegionRun
    reports: list[Any] = field(default_factory=list)
    told: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    error: BaseException | None = None
    thread: threading.Thread | None = None

    def drive(self) -> None:
        try:
            self.run.claim()
            self.reports.extend(self.run.groups())
        except BaseException as error:
            self.error = error
        self.run.hand_over(self.error)

    def join(self) -> None:
        assert self.thread is not None
        self.thread.join(SOON)
        assert not self.thread.is_alive()


def started(place: Workplace, application: Opened, **options: Any) -> Driven:
    region = application.region()
    scan_region(place, region)
    told: list[tuple[str, Mapping[str, Any]]] = []
    run = region_run(place, application, region, report=lambda step, numbers: told.append((step, numbers)), **options)
    driven = Driven(run=run, told=told)
    driven.thread = threading.Thread(target=driven.drive, daemon=True)
    driven.thread.start()
    return driven


def finished(place: Workplace, application: Opened, **options: Any) -> Driven:
    driven = started(place, application, **options)
    driven.join()
    return driven


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Journal]:
    """Yield the journal in which the state of each count notes its calls; a group is named by its last id."""
    journal = Journal()

    class Noted(KeyedState):
        @property
        def of(self) -> str:
            return self.table.rpartition("/")[2]

        def prepare(self, at: int, files: Any, changes: Any) -> Any:
            journal.note("prepared", self.of, at)
            journal.freezing(at)
            return super().prepare(at, files, changes)

        def checkpoint(self, frozen: Any, staging: Any, session: Any) -> Any:
            journal.note("begun", self.of, frozen.at)
            journal.checkpoint(self.of, frozen.at)
            written = super().checkpoint(frozen, staging, session)
            journal.note("written", self.of, frozen.at)
            return written

    monkeypatch.setattr(operator_states, "KeyedState", Noted)
    yield journal
    for gate in journal.waits.values():
        gate.set()


@pytest.fixture
def inbox(write: Write, tmp_path: Path) -> Path:
    for number, text in enumerate(TEXTS):
        write(f"{number}.txt", text)
    return tmp_path / "inbox"


def state(place: Workplace) -> str:
    return str(statuses(place, REGION)[0]["state"])


def golden(name: str, files: int = len(TEXTS)) -> dict[str, list[Any]]:
    """Return both tables of a count after these files, computed in plain Python."""
    now: dict[str, int] = {}
    changes = []
    for text in TEXTS[:files]:
        for word in text.split():
            now[word] = now.get(word, 0) + 1
        changes += [{"word": word, "n": now[word]} for word in set(text.split())]
    return {f"{name}_now": multiset([{"word": word, "n": n} for word, n in now.items()]),
            f"{name}_all": multiset(changes)}  # fmt: skip


def tables(place: Workplace, name: str) -> dict[str, list[Any]]:
    return {table: multiset(rows(place, REGION, table, ids=False)) for table in (f"{name}_now", f"{name}_all")}


# --- the flow goes on ---------------------------------------------------------------------------------------------


@pytest.mark.seed("N20", "N21", "T8", "V86", "X7")
def test_the_next_group_is_processed_while_the_last_one_is_pending(
    workplace: Workplace, inbox: Path, journal: Journal
) -> None:
    application = opened(inbox, journal, {"counts": True})
    gate = journal.waits["counts", 1] = threading.Event()
    driven = started(workplace, application, max_group=1)
    journal.await_line("begun", "counts", 1)
    journal.await_line("processed", "counts", 1)  # by the second group: one state is prepared
    assert state(workplace) == "CHECKPOINT_PENDING"
    assert not workplace.history(REGION).states, "what is pending is not committed"
    assert workplace.registry.pending_count(REGION) == len(TEXTS)
    assert [line for line in journal.lines if line[0] == "prepared"] == [("prepared", "counts", 1)], "depth one"
    gate.set()
    driven.join()
    assert driven.error is None
    assert not journal.late
    assert list(workplace.history(REGION).states) == [1, 2, 3, 4]
    assert tables(workplace, "counts") == golden("counts")
    assert state(workplace) == "STARTED"
    told = [numbers["state"] for step, numbers in driven.told if step == "state"]
    assert set(told) - {"DRAINING"} == {"PROCESSING", "CHECKPOINT_PENDING", "STARTED"}, "a short drain is not told"
    assert all(report.pending_seconds > report.publish_seconds > 0 for report in driven.reports)


@pytest.mark.slow
@pytest.mark.seed("N22")
def test_an_operator_that_sleeps_ten_seconds_does_not_stop_the_flow(
    workplace: Workplace, inbox: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    application = opened(inbox, journal, {"my_op": True})
    monkeypatch.setattr(journal, "checkpoint", lambda name, at: time.sleep(10.0) if at == 1 else None)
    driven = started(workplace, application, max_group=1)
    journal.await_line("processed", "my_op", 1)
    assert ("written", "my_op", 1) not in journal.lines, "tuples flow while it sleeps"
    assert state(workplace) == "CHECKPOINT_PENDING"
    driven.join()
    assert driven.error is None
    assert tables(workplace, "my_op") == golden("my_op")


@pytest.mark.seed("N13", "N18", "V119", "V73", "V96")
def test_a_region_of_both_kinds_resumes_when_the_blocking_one_has_written(
    workplace: Workplace, inbox: Path, journal: Journal
) -> None:
    application = opened(inbox, journal, {"free": True, "held": False})
    gate = journal.waits["free", 1] = threading.Event()
    driven = started(workplace, application, max_group=1)
    journal.await_line("processed", "free", 2)  # by the second group: two states are prepared
    assert ("written", "held", 1) in journal.lines
    assert ("written", "free", 1) not in journal.lines
    assert state(workplace) == "CHECKPOINT_PENDING"
    gate.set()
    driven.join()
    assert driven.error is None
    for last in range(1, len(TEXTS)):
        resumed = next(i for i, line in enumerate(journal.lines) if line[0] == "processed" and line[2] == 2 * last)
        assert journal.place("written", "held", last) < resumed
        assert journal.place("prepared", "free", last) < resumed
    assert tables(workplace, "free") == golden("free")
    assert tables(workplace, "held") == golden("held")


@pytest.mark.seed("N13", "N18", "V114", "N3")
def test_a_region_that_blocks_processes_nothing_meanwhile(workplace: Workplace, inbox: Path, journal: Journal) -> None:
    application = opened(inbox, journal, {"counts": True}, checkpoints="blocking")
    driven = finished(workplace, application, max_group=1)
    assert driven.error is None
    for last in range(1, len(TEXTS)):
        assert journal.place("written", "counts", last) < journal.place("processed", "counts", last)
    told = [numbers["state"] for step, numbers in driven.told if step == "state"]
    assert "CHECKPOINT_PENDING" not in told
    assert {report.pending_seconds for report in driven.reports} == {0.0}
    assert tables(workplace, "counts") == golden("counts")


@pytest.mark.seed("V114")
@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3])
def test_both_ways_leave_the_same_tables(
    workplace: Workplace, inbox: Path, journal: Journal, size: int, tmp_path: Path
) -> None:
    driven = finished(workplace, opened(inbox, journal, {"counts": True}), max_group=size)
    assert driven.reports[0].triggers == size
    assert tables(workplace, "counts") == golden("counts")
    ids = [(report.first_id, report.last_id) for report in driven.reports]
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ids))


@pytest.mark.slow
@pytest.mark.seed("N20", "N21")
def test_what_is_established_is_reported_while_the_next_group_is_processed(
    workplace: Workplace, inbox: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is reported however long the next group takes; that group drains when no checkpoint is pending any more."""
    application = opened(inbox, journal, {"counts": True})
    gate = threading.Event()
    stage = HandOfApplication.stage

    def held(hand: HandOfApplication, group: Group, *more: Any) -> Any:
        if group.first_id == 2:
            assert gate.wait(SOON)
        return stage(hand, group, *more)

    monkeypatch.setattr(HandOfApplication, "stage", held)
    region = application.region()
    scan_region(workplace, region)
    run = region_run(workplace, application, region, max_group=1)
    run.claim()
    groups = run.groups()
    first = next(groups)
    assert (first.first_id, first.last_id) == (1, 1)
    assert not gate.is_set()
    assert list(workplace.history(REGION).states) == [1]
    assert state(workplace) == "PROCESSING"
    gate.set()
    assert [report.last_id for report in groups] == [2, 3, 4]
    run.hand_over()
    assert tables(workplace, "counts") == golden("counts")


def test_a_run_takes_no_more_triggers_than_it_may(workplace: Workplace, inbox: Path, journal: Journal) -> None:
    """Pending triggers count, else a run of one trigger would take two (`runs="per_trigger"`)."""
    application = opened(inbox, journal, {"counts": True})
    driven = finished(workplace, application, max_group=1, max_triggers=1)
    assert [report.triggers for report in driven.reports] == [1]
    assert workplace.registry.region_info(REGION).next_id == 2
    assert workplace.registry.pending_count(REGION) == len(TEXTS) - 1


@pytest.mark.seed("E12")
def test_what_is_told_of_a_state_is_stored_by_then(workplace: Workplace, inbox: Path, journal: Journal) -> None:
    """Whoever hears of a group, a process beside the run as well, finds it committed and shown."""
    application, reader = opened(inbox, journal, {"counts": True}), Workplace(workplace.settings)
    scan_region(workplace, application.region())
    found = []

    def told(step: str, numbers: Mapping[str, Any]) -> None:
        if step == "group":
            found.append((numbers["last_id"], reader.history(REGION).committed_id))

    run = region_run(workplace, application, application.region(), report=told, max_group=1)
    run.claim()
    for report in run.groups():
        assert tables(reader, "counts")["counts_all"] == golden("counts", report.last_id)["counts_all"]
    run.hand_over()
    assert found == [(number, number) for number in range(1, len(TEXTS) + 1)]


# --- failures while pending (X12) ---------------------------------------------------------------------------------


@pytest.mark.seed("X12", "E16", "V102")
def test_what_fails_while_pending_drops_the_group_behind_it(
    workplace: Workplace, inbox: Path, journal: Journal
) -> None:
    application = opened(inbox, journal, {"counts": True})
    gate = journal.waits["counts", 2] = threading.Event()
    journal.raises["counts", 2] = RuntimeError("the disk says no")
    driven = started(workplace, application, max_group=2)
    journal.await_line("processed", "counts", 1)  # by the second group
    gate.set()
    driven.join()
    assert driven.error is None, "it is split and done again in the same run"
    failed = [numbers for step, numbers in driven.told if step == "failed"]
    assert [numbers["triggers"] for numbers in failed] == [2]
    assert "the disk says no" in failed[0]["error"]
    committed = list(workplace.history(REGION).states)
    assert len(committed) == len(TEXTS)
    assert min(committed) > 4, "both groups' ids are burnt"
    assert tables(workplace, "counts") == golden("counts")


@pytest.mark.seed("X12", "E14")
def test_a_group_of_one_that_fails_while_pending_ends_the_run_and_is_blamed(
    workplace: Workplace, inbox: Path, journal: Journal
) -> None:
    application = opened(inbox, journal, {"counts": True})
    journal.raises["counts", 2] = OperatorFailed("no")
    driven = finished(workplace, application, max_group=1)
    assert isinstance(driven.error, OperatorFailed)
    assert driven.error.facts["trigger"].endswith("1.txt")
    assert list(workplace.history(REGION).states) == [1]
    assert workplace.registry.pending_count(REGION) == len(TEXTS) - 1
    assert tables(workplace, "counts") == golden("counts", 1)
    again = finished(workplace, application)
    assert again.error is None
    assert tables(workplace, "counts") == golden("counts")
    assert workplace.history(REGION).last_outcome.value == "clean"


@pytest.mark.seed("X12", "V111")
def test_who_is_fenced_while_pending_commits_nothing(workplace: Workplace, inbox: Path, journal: Journal) -> None:
    application = opened(inbox, journal, {"counts": True})
    gate = journal.waits["counts", 1] = threading.Event()
    driven = started(workplace, application, max_group=1)
    journal.await_line("processed", "counts", 1)
    claimed = claimed_by_another(workplace)
    gate.set()
    driven.join()
    assert isinstance(driven.error, Fenced)
    assert not workplace.history(REGION).states
    assert workplace.history(REGION).epoch == claimed
    assert rows(workplace, REGION, "counts_all") == []


class NoLease:
    """The lease of an owner that believes the first owner is dead: only the fence is left (H25)."""

    def acquire(self, region: str, run_id: str) -> None: ...
    def release(self, *, clean: bool) -> None: ...


def claimed_by_another(place: Workplace) -> int:
    """Claim the region as another owner; return the epoch."""
    owner = region_owner(place, REGION)
    owner = RegionOwner.of(owner.ledger.identity, replace(owner.outside, lease=NoLease()), owner.report)
    owner.claim()
    return owner.epoch


@pytest.mark.seed("E15", "V36", "V97")
def test_the_drain_timer_runs_on_while_pending_and_what_is_late_is_never_committed(
    workplace: Workplace, inbox: Path, journal: Journal, ahead: list[float]
) -> None:
    application = opened(inbox, journal, {"counts": True})
    gate = journal.waits["counts", 2] = threading.Event()
    driven = started(workplace, application, max_group=1)
    journal.await_line("begun", "counts", 2)
    ahead.append(3600.0)
    driven.join()
    assert isinstance(driven.error, DrainTimeout)
    gate.set()
    journal.await_line("written", "counts", 2)
    time.sleep(0.5)  # the abandoned group would commit now, if it could
    assert list(workplace.history(REGION).states) == [1]
    assert finished(workplace, application).error is None
    assert tables(workplace, "counts") == golden("counts")


def test_an_interruption_while_pending_finishes_what_can_commit(
    workplace: Workplace, inbox: Path, journal: Journal
) -> None:
    application = opened(inbox, journal, {"counts": True})
    gate = journal.waits["counts", 1] = threading.Event()
    driven = started(workplace, application, max_group=1)
    journal.await_line("processed", "counts", 1)
    driven.run.interrupted.set()
    gate.set()
    driven.join()
    assert isinstance(driven.error, Interrupted)
    assert len(workplace.history(REGION).states) in (1, 2), "those under way; no other was begun"
    assert workplace.history(REGION).attempts == 0
    assert finished(workplace, application).error is None
    assert tables(workplace, "counts") == golden("counts")


@pytest.mark.slow
def test_an_interruption_while_pending_abandons_what_cannot(
    workplace: Workplace, inbox: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeout, "INTERRUPT_GRACE_SECONDS", 0.2)
    application = opened(inbox, journal, {"counts": True})
    gate = journal.waits["counts", 1] = threading.Event()
    driven = started(workplace, application, max_group=1)
    journal.await_line("processed", "counts", 1)
    driven.run.interrupted.set()
    driven.join()
    assert isinstance(driven.error, Interrupted)
    gate.set()
    journal.await_line("written", "counts", 1)
    again = finished(workplace, application, max_group=2)
    assert again.error is None
    assert workplace.history(REGION).attempts == 0
    assert tables(workplace, "counts") == golden("counts")


def test_a_group_that_is_committed_after_the_grace_of_a_signal_is_reported(
    workplace: Workplace, inbox: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that has begun is waited for; sources and those who read the reports learn that it is there."""
    monkeypatch.setattr(timeout, "INTERRUPT_GRACE_SECONDS", 0.2)
    committing, gate, publish = threading.Event(), threading.Event(), GroupCommits.publish

    def late(self: Any, row: Any) -> Any:
        committing.set()
        assert gate.wait(SOON)
        return publish(self, row)

    monkeypatch.setattr(GroupCommits, "publish", late)
    driven = started(workplace, opened(inbox, journal, {"counts": True}))
    assert committing.wait(SOON)
    driven.run.interrupted.set()
    time.sleep(0.5)
    gate.set()
    driven.join()
    assert isinstance(driven.error, Interrupted)
    assert len(workplace.history(REGION).states) == len(TEXTS)
    assert [report.last_id for report in driven.reports] == [len(TEXTS)]


def test_no_state_is_loaded_again_because_a_file_changed(
    workplace: Workplace, inbox: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, reset = list[int](), RegionStates.reset

    def counted(self: Any, history: Any) -> None:
        loads.append(history.committed_id)
        reset(self, history)

    monkeypatch.setattr(RegionStates, "reset", counted)
    application = opened(inbox, journal, {"counts": True})
    run = region_run(workplace, application, application.region(), max_group=1)
    scan_region(workplace, application.region())
    for number in (1, 2):
        (inbox / f"{number}.txt").write_text("b c a\n")
    driven = Driven(run=run)
    driven.drive()
    assert driven.error is None
    assert [report.last_id for report in driven.reports] == list(workplace.history(REGION).states)
    assert loads == [0]
    assert finished(workplace, application).error is None
    counts = {row["word"]: row["n"] for row in rows(workplace, REGION, "counts_now", ids=False)}
    assert counts == {"a": 3, "b": 3, "c": 3, "d": 1}


@pytest.mark.slow
def test_a_request_to_halt_waits_for_what_is_pending(workplace: Workplace, inbox: Path, journal: Journal) -> None:
    application = opened(inbox, journal, {"counts": True})
    gate = journal.waits["counts", 1] = threading.Event()
    driven = started(workplace, application, max_group=1)
    journal.await_line("processed", "counts", 1)
    workplace.registry.progress.request_halt(REGION, "enough")
    gate.set()
    driven.join()
    assert isinstance(driven.error, Halted)
    history = workplace.history(REGION)
    assert history.halt is not None
    assert 1 <= len(history.states) <= 2
    assert tables(workplace, "counts") == golden("counts", len(history.states))


def test_a_request_to_halt_ends_the_wait_of_a_throttle(workplace: Workplace, inbox: Path, journal: Journal) -> None:
    application = opened(inbox, journal, {"counts": True})
    gate = journal.waits["counts", 1] = threading.Event()
    driven = started(workplace, application, max_group=1)
    journal.await_line("processed", "counts", 1)
    driven.run.published.pace.rows_per_second = 0.001
    gate.set()
    eventually(lambda: len(driven.reports) == 2, "the throttle holds up neither a checkpoint nor the group behind it")
    assert driven.run.published.pace.left_seconds > SOON
    workplace.registry.progress.request_halt(REGION, "enough")
    driven.join()
    assert isinstance(driven.error, Halted)
    assert len(workplace.history(REGION).states) == 2


@pytest.mark.slow
@pytest.mark.seed("E18", "V167")
def test_a_request_to_halt_outlives_what_fails_beside_it(
    workplace: Workplace, write: Write, inbox: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is withdrawn when the halt is committed, by the run or else by `resume`."""

    def fails(*_: Any) -> None:
        raise StoreUnavailable("no answer", remedy="wait")

    application = opened(inbox, journal, {"counts": True})
    assert finished(workplace, application).error is None
    workplace.registry.progress.request_halt(REGION, "enough")
    arm(f"{FailPoint.NOTE_BEFORE.value}:raise")
    try:
        failed = finished(workplace, application)
    finally:
        arm("")
    assert isinstance(failed.error, InjectedFailure)
    assert workplace.history(REGION).halt is None
    with monkeypatch.context() as patch:
        patch.setattr(type(workplace.registry.progress), "clear_halt_request", fails)
        assert isinstance(finished(workplace, application).error, Halted)
    history = workplace.history(REGION)
    assert history.halt is not None
    assert history.halt.detail["reason"] == "enough"
    resume(workplace, REGION, "mended")
    write("9.txt", "a\n")
    assert finished(workplace, application).error is None
    assert len(workplace.history(REGION).states) == len(TEXTS) + 1


@pytest.mark.slow
def test_a_consumer_that_leaves_drops_what_is_staged(workplace: Workplace, inbox: Path, journal: Journal) -> None:
    application = opened(inbox, journal, {"counts": True})
    region = application.region()
    scan_region(workplace, region)
    run = region_run(workplace, application, region, max_group=1)
    run.claim()
    groups = run.groups()
    next(groups)
    groups.close()
    run.hand_over()
    assert list(workplace.history(REGION).states) == [1]
    assert not workplace.history(REGION).unpublished
    assert finished(workplace, application).error is None
    assert tables(workplace, "counts") == golden("counts")


@pytest.mark.slow
def test_a_group_that_fails_behind_a_pending_one_leaves_that_one_committed(
    workplace: Workplace, write: Write, inbox: Path, journal: Journal
) -> None:
    """The failure belongs only to the group in the flow: the group before it ends normally."""
    application = opened(inbox, journal, {"counts": True})
    gate = journal.waits["counts", 1] = threading.Event()
    driven = started(workplace, application, max_group=1)
    journal.await_line("begun", "counts", 1)
    (inbox / "2.txt").unlink()
    gate.set()
    driven.join()
    assert isinstance(driven.error, Halted), "a file is gone"
    assert list(workplace.history(REGION).states) == [1, 2]
    assert driven.run.owner.state is State.HALTED
    assert tables(workplace, "counts") == golden("counts", 2)
