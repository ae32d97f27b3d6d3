"""Any sequence of {add files, run, crash, reset --to, run} ends equal to the golden run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triggers import Row, add_file, as_text, content, home, opened, tables

import drainmark as dm
from drainmark.jobs.errors import DrainmarkError, Fenced
from drainmark.jobs.failpoints import FailPoint, InjectedFailure, arm
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import RowKind
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.runs.region_runs import region_owner, region_run
from drainmark.orchestration.testing.processing import drive
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.workplace import Opened, Workplace
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark

REGION = "machine/events"
TABLES = ["lake/by_user", "lake/newest", "lake/copied"]
QUIET = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
CRASHES = (
    FailPoint.ASSIGN_AFTER,
    FailPoint.PROCESS_STAGED,
    FailPoint.CHECKPOINT_BEFORE,
    FailPoint.CHECKPOINT_AFTER,
    FailPoint.PUBLISH_BEFORE,
    FailPoint.PUBLISH_AFTER,
    FailPoint.RESUME_BEFORE,
    FailPoint.CLAIM_AFTER,
)
REWIND_CRASHES = (
    FailPoint.REWIND_BEFORE,
    FailPoint.REWIND_AFTER,
    FailPoint.REWIND_TABLE_BEFORE,
    FailPoint.REWIND_TABLE_AFTER,
)


def declare(events: Any) -> None:
    values = {
        "rows": dm.count(), "total": dm.sum("n"), "mean": dm.mean("x"),
        "opening": dm.first("n"), "closing": dm.last("n"),
    }  # fmt: skip
    dm.sink(dm.aggregate(events, name="totals", keys=["user"], values=values), dm.DeltaUpsert("by_user", keys=["user"]))
    dm.sink(events, dm.DeltaUpsert("newest", keys=["user"]))
    dm.sink(events, dm.DeltaAppend("copied"))


def golden(files: int) -> dict[str, list[str]]:
    """Return the rows of the sinks after this many files, computed in plain Python."""
    copied: list[Row] = [{**row, "source_file": f"{n:04d}.csv"} for n in range(files) for row in content(n)]
    by_user: dict[Any, list[Row]] = defaultdict(list)
    for row in copied:
        by_user[row["user"]].append(row)
    totals = []
    for user, taken in by_user.items():
        known = [row["n"] for row in taken if row["n"] is not None]
        totals.append(
            {
                "user": user, "rows": len(taken), "total": sum(known) if known else None,
                "mean": sum(row["x"] for row in taken) / len(taken),
                "opening": taken[0]["n"], "closing": taken[-1]["n"],
            }
        )  # fmt: skip
    newest = [taken[-1] for taken in by_user.values()]
    found = {"lake/by_user": totals, "lake/newest": newest, "lake/copied": copied}
    return {name: sorted(map(as_text, rows)) for name, rows in found.items()}


@dataclass
class Machine:
    """A region under stress; after each step, its sinks have the rows of the committed files."""

    workplace: Workplace
    application: Opened
    inbox: Path
    files: int = 0
    ids_seen: set[tuple[int, str]] = field(default_factory=set)

    def add(self, count: int) -> None:
        for _ in range(count):
            add_file(self.inbox, self.files)
            self.files += 1

    def run(self, max_group: int, max_triggers: int | None = None) -> None:
        region = self.application.region()
        scan_region(self.workplace, region)
        drive(region_run(self.workplace, self.application, region, max_group=max_group, max_triggers=max_triggers))

    def crash(self, point: FailPoint, max_group: int, *, dead: bool) -> None:
        """Run with a point that fails at every passing; the owner records its end, or, if `dead`, records nothing."""
        scan_region(self.workplace, self.application.region())
        run = region_run(self.workplace, self.application, self.application.region(), max_group=max_group)
        error: BaseException | None = None
        arm_always(point)
        try:
            run.claim()
            list(run.groups())
        except Fenced:
            raise
        except (DrainmarkError, InjectedFailure) as raised:
            error = raised
        finally:
            arm("")
            if dead:
                run.owner.leave()
            else:
                run.hand_over(error)

    def reset(self, part: int, point: FailPoint | None) -> None:
        """Rewind to one of the ids in force, or to the initial state; repeat the rewind if it failed."""
        targets = [0, *(n for n, row in self.history.states.items() if row.kind is RowKind.STATE)]
        to = targets[part % len(targets)]
        if point is not None:
            arm_always(point)
        try:
            self._rewind(to)
        except InjectedFailure:
            pass
        finally:
            arm("")
        if self.history.committed_id != to:
            self._rewind(to)

    def _rewind(self, to: int) -> None:
        with owning(region_owner(self.workplace, REGION)) as owner:
            owner.rewind(to, horizon=10_000)

    @property
    def history(self) -> RegionHistory:
        return self.workplace.history(REGION)

    def check(self) -> None:
        """Assert: no id has two files, no file has two ids; if all is published, the sinks have the first files."""
        history = self.history
        for row in history.states.values():
            self.ids_seen.add((row.sequence_id, row.trigger_uri or ""))
        assert len({number for number, _ in self.ids_seen}) == len(self.ids_seen), "an id was given to two files"
        uris = [row.trigger_uri for row in history.states.values()]
        assert uris == sorted(set(uris)), "files are committed once each, in order"
        if not history.unpublished:
            self.check_sinks(len(uris))

    def check_sinks(self, files: int) -> None:
        if self.history.tables:
            assert tables(self.workplace, REGION, TABLES, ids=False) == golden(files)


def arm_always(point: FailPoint) -> None:
    arm(",".join(f"{point.value}:raise:{nth}" for nth in range(1, 60)))


GROUPS = st.integers(1, 4)
STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 3)),
    st.tuples(st.just("run"), GROUPS, st.none() | st.integers(1, 2)),
    st.tuples(st.just("crash"), st.sampled_from(CRASHES), GROUPS, st.booleans()),
    st.tuples(st.just("reset"), st.integers(0, 9), st.none() | st.sampled_from(REWIND_CRASHES)),
)
WORST = [
    ("run", 2, None), ("add", 2), ("crash", FailPoint.CLAIM_AFTER, 1, True), ("reset", 2, FailPoint.REWIND_TABLE_AFTER),
    ("crash", FailPoint.PUBLISH_BEFORE, 4, True), ("reset", 1, None),
]  # fmt: skip


def play(steps: list[tuple[Any, ...]], folder: Path, engine: SparkEngine) -> None:
    with home(folder / "home", engine) as workplace:
        inbox = folder / "inbox"
        application = opened("machine", inbox, declare, max_consecutive_reset_attempts=50)
        machine = Machine(workplace=workplace, application=application, inbox=inbox)
        machine.add(2)
        for verb, *arguments in steps:
            if verb == "crash":
                machine.crash(arguments[0], arguments[1], dead=arguments[2])
            elif verb == "reset" and not machine.history.epoch:
                continue
            else:
                getattr(machine, verb)(*arguments)
            machine.check()
        machine.run(max_group=3)
        machine.check()
        assert machine.history.unpublished == ()
        assert len(machine.history.states) == machine.files
        machine.check_sinks(machine.files)


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    arm("")


def test_the_worst_sequence_of_mishaps_ends_equal_to_the_golden_run(engine: SparkEngine, tmp_path: Path) -> None:
    play(WORST, tmp_path, engine)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@given(steps=st.lists(STEPS, min_size=3, max_size=15))
@settings(max_examples=30, deadline=None, database=None, suppress_health_check=QUIET)
def test_any_sequence_of_mishaps_ends_equal_to_the_golden_run(
    steps: list[tuple[Any, ...]], engine: SparkEngine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    play(steps, tmp_path_factory.mktemp("machine"), engine)
