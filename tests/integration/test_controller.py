"""The product raises every row of the controller's table, and nothing outside it (AU3). A real region on Delta and
SQLite takes each possible way, with Spark where it has stages; the test compares its whole path along the table."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hand_runs import NoSpark, by_hand
from harness import state_shown
from pyspark.errors import PySparkRuntimeError
from waiting import AHEAD

import drainmark as dm
from drainmark.jobs.errors import AccountingError, DrainmarkError, Fenced
from drainmark.jobs.failpoints import InjectedFailure, arm
from drainmark.jobs.protocol import transitions
from drainmark.jobs.protocol.history import Outcome
from drainmark.jobs.protocol.transitions import TABLE, Event, State
from drainmark.jobs.runtime import timeout
from drainmark.jobs.runtime.region_run import RegionRun
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.runs.region_runs import region_owner, region_run
from drainmark.orchestration.verbs import interventions
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application

REGION = "moves/lines"
Row = tuple[State, Event]
S, P, D, C = State.STARTED, State.PROCESSING, State.DRAINING, State.CHECKPOINT_PENDING
R, U, H = State.RESETTING, State.UNHEALTHY, State.HALTED
E = Event
CLAIM = [(S, E.CLAIMED_CLEAN)]
AGAIN = [(U, E.CLAIMED_UNCLEAN), (R, E.RESET_DONE)]
IN_CHECKPOINT = [(S, E.TRIGGERED), (P, E.DRAIN_BEGUN), (D, E.DRAINED_BLOCKING)]
GROUP = [*IN_CHECKPOINT, (C, E.CHECKPOINTED)]
LEFT = [(R, E.HEALTH_LOST)]


class Recorder(dict[Row, State]):
    """The table, which notes each row that is asked for, including rows that it does not have."""

    def __init__(self, table: Mapping[Row, State], path: list[Row]) -> None:
        super().__init__(table)
        self.path = path

    def __getitem__(self, row: Row) -> State:
        self.path.append(row)
        return super().__getitem__(row)


@dataclass
class Scene:
    """A region in a home of its own, and the path of its controller.

    Attributes:
        processing: called by the operator with each group.
        on_state: called with the run and each state at the moment when the run reports it.
    """

    place: Workplace
    inbox: Path
    path: list[Row] = field(default_factory=list)
    processing: Callable[[], None] = lambda: None
    on_state: Callable[[RegionRun, str], None] = lambda run, state: None
    told: list[str] = field(default_factory=list)

    def opened(self, *, stages: bool = False, **region: Any) -> Opened:
        with dm.application("moves") as declared:

            @dm.consistent(trigger="operator-driven", **region)
            @dm.source(dm.DirectoryScan(path=str(self.inbox), pattern="*.txt", settle=0))
            def lines(scanned: Any) -> Any:
                return scanned

            def passing(lines: Any) -> Any:
                self.processing()
                return lines

            above = dm.buffered(lines, batches=4) if stages else lines
            passed = dm.functor(passing, name="passed", inputs=[above])
            dm.sink(passed, dm.DeltaAppend("copied"))
        return open_application(dm.build_application(declared))

    def run(self, files: int = 1, *, points: str = "", **region: Any) -> list[Row]:
        """Process this many further files in groups of one; return the path, also if the run fails."""
        application, first = self.opened(**region), len(self.path)
        for _ in range(files):
            (self.inbox / f"{len(list(self.inbox.iterdir()))}.txt").write_text("a\n")
        plan = application.region()
        scan_region(self.place, plan)

        def report(step: str, numbers: Mapping[str, Any]) -> None:
            if step == "state":
                self.told.append(numbers["state"])
                self.on_state(run, numbers["state"])

        run = region_run(self.place, application, plan, report=report, max_group=1)
        error: BaseException | None = None
        arm(points)
        try:
            run.claim()
            list(run.groups())
        except (DrainmarkError, InjectedFailure) as raised:
            error = raised
        finally:
            arm("")
        arm("release.before:raise" if "release.before" in points else "")
        try:
            with suppress(InjectedFailure):
                run.hand_over(error)
        finally:
            arm("")
        return self.path[first:]

    def verb(self, action: Callable[[], Any]) -> list[Row]:
        first = len(self.path)
        action()
        return self.path[first:]

    @property
    def state(self) -> str:
        return state_shown(self.place, self.opened().region())


@pytest.fixture
def scene(
    workplace: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Scene]:
    scene = Scene(workplace, tmp_path / "inbox")
    scene.inbox.mkdir()
    monkeypatch.setattr(transitions, "TABLE", Recorder(TABLE, scene.path))
    if in_stages.__name__ in request.node.name:
        yield scene
    else:
        workplace.use_engine(NoSpark())
        with by_hand({}):
            yield scene
    arm("")


def seconds(number: float) -> dt.timedelta:
    return dt.timedelta(seconds=number)


# --- the ways -----------------------------------------------------------------------------------------------
# Each returns its path in parts: the rows that were raised, and the rows that are expected.

Parts = list[tuple[list[Row], list[Row]]]


def undisturbed(scene: Scene) -> Parts:
    return [(scene.run(2), [*CLAIM, *GROUP, *GROUP]), (scene.run(0), CLAIM)]


def blocking(scene: Scene) -> Parts:
    group = [(S, E.TRIGGERED), (P, E.DRAIN_BEGUN), (D, E.CHECKPOINTED)]
    return [(scene.run(1, checkpoints="blocking"), [*CLAIM, *group])]


def failed(scene: Scene) -> Parts:
    at_drain = [(S, E.TRIGGERED), (P, E.DRAIN_BEGUN), (D, E.FAILED), *LEFT]
    return [
        (scene.run(1, points="assign.before:raise"), [*CLAIM, (S, E.FAILED), *LEFT]),
        (scene.run(0, points="process.before:raise"), [*AGAIN, (S, E.TRIGGERED), (P, E.FAILED), *LEFT]),
        (scene.run(0, points="process.staged:raise"), [*AGAIN, *at_drain]),
        (scene.run(0, points="checkpoint_pending.before:raise"), [*AGAIN, *IN_CHECKPOINT, (C, E.FAILED), *LEFT]),
        (scene.run(0, points="resume.before:raise"), [*AGAIN, *GROUP, (S, E.FAILED), (R, E.RESET_DONE)]),
        (scene.run(1), [*CLAIM, *GROUP]),
    ]


def halted(scene: Scene) -> Parts:
    fails = [(S, E.TRIGGERED), (P, E.FAILED)]
    once = {"points": "process.before:raise", "max_consecutive_reset_attempts": 1}
    found = [
        (scene.run(1, **once), [*CLAIM, *fails, *LEFT]),
        (scene.run(0, **once), [*AGAIN, *fails, (R, E.ATTEMPTS_EXHAUSTED)]),
    ]
    assert scene.state == "HALTED"
    found.append((scene.run(0), [(H, E.CLAIMED_CLEAN)]))
    resume = [(H, E.CLAIMED_CLEAN), (H, E.RESUMED)]
    found.append((scene.verb(lambda: interventions.resume(scene.place, REGION, "mended")), resume))
    assert scene.state == "STARTED"
    return [*found, (scene.run(0), [*CLAIM, *GROUP])]


def halted_by_an_operator(scene: Scene) -> Parts:
    found = [(scene.run(2), [*CLAIM, *GROUP, *GROUP])]
    place = scene.place
    found.append((scene.verb(lambda: interventions.halt(place, REGION, "lunch")), [*CLAIM, (S, E.HALT_ASKED)]))
    arm("release.before:raise")
    with pytest.raises(InjectedFailure), owning(region_owner(place, REGION)):
        pass
    arm("")
    scene.path.clear()
    back = [(H, E.REWIND_ASKED), (R, E.RESET_DONE), (S, E.HALT_ASKED)]
    found.append((scene.verb(lambda: rewind(place, 1)), [(H, E.CLAIMED_UNCLEAN), *back]))
    assert scene.state == "HALTED"
    resume = [(H, E.CLAIMED_CLEAN), (H, E.RESUMED)]
    found.append((scene.verb(lambda: interventions.resume(place, REGION, "fixed")), resume))
    found.append((scene.verb(lambda: rewind(place, 0)), [*CLAIM, (S, E.REWIND_ASKED), (R, E.RESET_DONE)]))
    found.append((scene.verb(lambda: interventions.resume(place, REGION, "anew")), [*CLAIM, (S, E.RESUMED)]))
    place.registry.progress.request_halt(REGION, "asked while a run is there")
    return [*found, (scene.run(0), [*CLAIM, (S, E.HALT_ASKED)])]


def rewind(place: Workplace, to: int) -> None:
    interventions.reset(place, plan_reset(place, REGION, RewindTarget(to=to)))


def out_of_attempts_at_a_clean_claim(scene: Scene) -> Parts:
    """The code that claims next has a smaller budget of attempts."""
    for _ in range(3):
        scene.run(1, points="process.before:raise")
    scene.on_state = lambda run, state: run.interrupted.set()
    scene.run(0)
    scene.on_state = lambda run, state: None
    halts = [*CLAIM, (S, E.ATTEMPTS_EXHAUSTED)]
    return [(scene.run(0, max_consecutive_reset_attempts=1), halts)]


def late(scene: Scene) -> Parts:
    def at(state: State, point: str) -> list[Row]:
        scene.on_state = lambda run, told: AHEAD.append(3600.0) if told == state else None
        return scene.run(1, points=f"{point}:hang", max_consecutive_reset_attempts=9)

    def hang() -> None:
        AHEAD.append(3600.0)
        threading.Event().wait()

    scene.processing = hang
    in_processing = scene.run(1, max_consecutive_reset_attempts=9)
    scene.processing = lambda: None
    in_drain = [(S, E.TRIGGERED), (P, E.DRAIN_BEGUN), (D, E.DRAIN_TIMED_OUT), *LEFT]
    return [
        (in_processing, [*CLAIM, (S, E.TRIGGERED), (P, E.DRAIN_TIMED_OUT), *LEFT]),
        (at(D, "process.staged"), [*AGAIN, *in_drain]),
        (at(C, "checkpoint_pending.before"), [*AGAIN, *IN_CHECKPOINT, (C, E.DRAIN_TIMED_OUT), *LEFT]),
    ]


def late_reset(scene: Scene) -> Parts:
    hangs = {"points": "roll_forward.before:hang", "reset_timeout": seconds(2)}
    return [
        (scene.run(1, **hangs), [*CLAIM, (S, E.RESET_TIMED_OUT), *LEFT]),
        (scene.run(0, **hangs), [(U, E.CLAIMED_UNCLEAN), (R, E.RESET_TIMED_OUT), *LEFT]),
    ]


def spark_lost(scene: Scene) -> Parts:
    def gone() -> None:
        raise PySparkRuntimeError(errorClass="NO_ACTIVE_SESSION", messageParameters={})

    scene.processing = gone
    lost = [(S, E.TRIGGERED), (P, E.HEALTH_LOST)]
    found = [(scene.run(1, max_consecutive_reset_attempts=1), [*CLAIM, *lost])]
    assert scene.state == "UNHEALTHY"
    exhausted = [*AGAIN, *lost, (U, E.ATTEMPTS_EXHAUSTED)]
    return [*found, (scene.run(0, max_consecutive_reset_attempts=1), exhausted)]


def interrupted(scene: Scene) -> Parts:
    def run(state: State, points: str) -> list[Row]:
        def stop(run: RegionRun, told: str) -> None:
            if told == state:
                run.interrupted.set()

        scene.on_state = stop
        return scene.run(1, points=points)

    found = [
        (run(P, "process.before:hang"), [*CLAIM, (S, E.TRIGGERED), (P, E.RELEASED)]),
        (run(D, "process.staged:hang"), [*CLAIM, (S, E.TRIGGERED), (P, E.DRAIN_BEGUN), (D, E.RELEASED)]),
        (run(C, "checkpoint_pending.before:hang"), [*CLAIM, *IN_CHECKPOINT, (C, E.RELEASED)]),
    ]
    assert scene.state == "STARTED"
    scene.run(0, points="process.before:raise")
    return [*found, (run(R, "roll_forward.before:hang"), [(U, E.CLAIMED_UNCLEAN), (R, E.RELEASED)])]


def crashed(scene: Scene) -> Parts:
    """A killed owner raised no event: the next claim raises it, and so does each status reading, from any state."""
    first = scene.run(1, points="release.before:raise")
    assert scene.state == "UNHEALTHY"
    seen: list[tuple[str, str, str]] = []
    stale = Workplace(scene.place.settings.model_copy(update={"lease_seconds": -1.0}))

    def look(run: RegionRun, told: str) -> None:
        seen.append((told, scene.state, state_shown(stale, scene.opened().region())))

    scene.on_state = look
    recovered = scene.run(1, points="process.staged:hang=1")
    stale.registry.close()
    assert [told for told, _, _ in seen] == [R, S, P, D, C, S]
    assert all(told == shown and without_a_heart == "UNHEALTHY" for told, shown, without_a_heart in seen)
    without_looks = [row for row in recovered if row[1] is not E.HEALTH_LOST]
    looked = [each for each in (R, S, P, D, C, S) for _ in ("status", "metrics", "check")]
    assert [state for state, event in recovered if event is E.HEALTH_LOST] == [S, *looked]
    return [(first, [*CLAIM, *GROUP]), (without_looks, [*AGAIN, *GROUP])]


def in_stages(scene: Scene) -> Parts:
    """A second group begins while the first one drains."""
    path = scene.run(3, stages=True)
    assert path.count((C, E.CHECKPOINTED)) == path.count((D, E.DRAINED_BLOCKING)) >= 1
    assert scene.state == "STARTED"
    return [(path[:4], [*CLAIM, (S, E.TRIGGERED), (P, E.DRAIN_BEGUN), (D, E.TRIGGERED)])]


SHOWN: dict[Callable[[Scene], Parts], set[Row]] = {
    undisturbed: {*CLAIM, *GROUP},
    blocking: {(D, E.CHECKPOINTED)},
    failed: {(S, E.FAILED), (P, E.FAILED), (D, E.FAILED), (C, E.FAILED), *LEFT, *AGAIN},
    halted: {(R, E.ATTEMPTS_EXHAUSTED), (H, E.CLAIMED_CLEAN), (H, E.RESUMED)},
    halted_by_an_operator: {
        (S, E.HALT_ASKED), (S, E.REWIND_ASKED), (S, E.RESUMED), (H, E.CLAIMED_UNCLEAN), (H, E.REWIND_ASKED)
    },
    out_of_attempts_at_a_clean_claim: {(S, E.ATTEMPTS_EXHAUSTED)},
    late: {(P, E.DRAIN_TIMED_OUT), (D, E.DRAIN_TIMED_OUT), (C, E.DRAIN_TIMED_OUT)},
    late_reset: {(S, E.RESET_TIMED_OUT), (R, E.RESET_TIMED_OUT)},
    spark_lost: {(P, E.HEALTH_LOST), (U, E.ATTEMPTS_EXHAUSTED)},
    interrupted: {(P, E.RELEASED), (D, E.RELEASED), (C, E.RELEASED), (R, E.RELEASED)},
    crashed: {(S, E.HEALTH_LOST), (D, E.HEALTH_LOST), (C, E.HEALTH_LOST)},
    in_stages: {(D, E.TRIGGERED)},
}  # fmt: skip
"""The ways, and the rows of the table that each of them shows."""

SELDOM = (halted_by_an_operator, out_of_attempts_at_a_clean_claim, late, crashed)
"""Ways that are not in the default run; there, a region halts, fails, is late and ends without a word in other ways."""


@pytest.mark.spark
@pytest.mark.seed("AU3", "E9", "E11", "V66")
@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=pytest.mark.slow if way in SELDOM else (), id=way.__name__) for way in SHOWN],
)
def test_the_controller_goes_along_its_table(
    scene: Scene, way: Callable[[Scene], Parts], monkeypatch: pytest.MonkeyPatch, ahead: list[float]
) -> None:
    if way is interrupted:
        monkeypatch.setattr(timeout, "INTERRUPT_GRACE_SECONDS", 0.0)
    gone = []
    for number, (path, expected) in enumerate(way(scene)):
        assert path == expected, number
        gone += path
    assert SHOWN[way] <= set(gone) | set(scene.path)
    assert set(scene.path) <= set(TABLE), "an unlisted move raises, and was not hidden by what it raised in"


@pytest.mark.seed("AU3")
def test_every_row_of_the_table_is_shown_by_a_way() -> None:
    assert set().union(*SHOWN.values()) == set(TABLE)


@pytest.mark.seed("H7")
def test_a_run_that_fails_after_the_take_over_ends_fenced(scene: Scene) -> None:
    """The take-over caused the error of the run: its staged files were collected, for example."""
    application = scene.opened()
    run = region_run(scene.place, application, application.region(), max_group=1)
    run.claim()
    run.owner.outside.lease.release(clean=True)
    other = region_owner(scene.place, application.region().name)
    other.claim()
    gone = AccountingError("staged file _staged/1-a/0.parquet of lake/t is gone", remedy="look", path="0.parquet")
    with pytest.raises(Fenced) as caught:
        run.hand_over(gone)
    assert caught.value.__cause__ is gone
    history = scene.place.history(application.region().name)
    assert (history.epoch, history.last_error) == (other.epoch, None)
    other.release(Outcome.CLEAN)
