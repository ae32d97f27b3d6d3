"""Starts with threads of their own: rows they submit, states they request, resets (V126–V138, N20, N29, E21)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from waiting import SOON, eventually

import drainmark as dm
from drainmark.jobs.errors import OperatorFailed
from drainmark.jobs.errors.operator_code import PermitViolation
from drainmark.jobs.failpoints import FailPoint, arm
from drainmark.jobs.runtime.region_run import RegionRun
from drainmark.jobs.state.handlers.permits import Consistency
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.orchestration.testing.running import Result

pytestmark = pytest.mark.spark

RunApp = Callable[..., Result]


def numbers(*found: int) -> pa.Table:
    return pa.table({"n": pa.array(found, pa.int64())})


class Told(dm.StartHandler):
    """A start that counts; its thread does the steps that the test gives it, one at a time."""

    made: ClassVar[list[Told]] = []

    def __init__(self) -> None:
        self.n = 0
        self.calls: list[Any] = []
        self.steps: list[Callable[[Any], Any]] = []
        self.done: list[Any] = []
        self.go = threading.Semaphore(0)
        self.made.append(self)

    def tell(self, step: Callable[[Any], Any]) -> int:
        """Give the thread a step; return its number."""
        self.steps.append(step)
        self.go.release()
        return len(self.steps) - 1

    def run(self, context: Any) -> None:
        self.calls.append("run")
        while not context.wait(0.0):
            if self.go.acquire(timeout=0.02):
                self.done.append(self.steps[len(self.done)](context))

    def submit(self, context: Any, count: int = 1) -> None:
        """Submit the next numbers, all under one permit."""
        with context.permit(), self.lock:
            context.submit(numbers(*range(self.n, self.n + count)))
            self.n += count

    def drain(self) -> None:
        self.calls.append("drain")

    def checkpoint(self, checkpoint: dm.Checkpoint) -> None:
        self.calls.append(("checkpoint", checkpoint.sequence_id))
        checkpoint.write(self.n)

    def region_checkpointed(self, sequence_id: int) -> None:
        self.calls.append(("region checkpointed", sequence_id, self.context.committed_cut))  # type: ignore[attr-defined]

    def reset(self, checkpoint: dm.Checkpoint) -> None:
        self.n = checkpoint.read(int)
        self.calls.append(("reset", self.n))

    def reset_to_initial_state(self) -> None:
        self.n = 0
        self.calls.append("initial")

    def retire_checkpoint(self, sequence_id: int) -> None:
        self.calls.append(("retire", sequence_id))


class Frozen(Told):
    """A start with a checkpoint that is written while its thread goes on."""

    non_blocking = True

    def prepare_for_non_blocking_checkpoint(self, sequence_id: int) -> None:
        self.calls.append(("prepare", sequence_id))
        self.frozen = self.n

    def checkpoint(self, checkpoint: dm.Checkpoint) -> None:
        self.calls.append(("checkpoint", checkpoint.sequence_id))
        checkpoint.write(self.frozen)

    def reset(self, checkpoint: dm.Checkpoint) -> None:
        super().reset(checkpoint)

    def reset_to_initial_state(self) -> None:
        super().reset_to_initial_state()


def blocking(context: Any) -> Any:
    with context.permit():
        return context.make_consistent()


def non_blocking(context: Any) -> Any:
    with context.permit():
        return context.make_consistent_non_blocking()


def counting(kind: type = Told, declare: Callable[[Any], Any] = lambda stream: stream, **parameters: Any) -> Any:
    horizon = parameters.pop("rewind_horizon", 10_000)

    def counted() -> None:
        @dm.consistent(trigger="operator-driven", rewind_horizon=horizon)
        @dm.source(dm.ThreadedStart(handler=kind, schema="n bigint", **{"seconds": 600.0, **parameters}))
        def ticks(scanned: Any) -> Any:
            return scanned

        dm.sink(declare(ticks), dm.DeltaAppend("counted_ticks"))

    return counted


@dataclass
class Stay:
    """A run that lingers: it scans, and processes the triggers that it finds, until it is told to end."""

    result: Result
    run: RegionRun
    thread: threading.Thread
    is_over: threading.Event
    scans: threading.Event
    scanning: threading.Lock
    failed: list[BaseException]

    @property
    def handler(self) -> Any:
        return Told.made[-1]

    def await_(self, step: int) -> Any:
        """Return the result of a step of the handler."""
        eventually(lambda: len(self.handler.done) > step or self.failed)
        assert len(self.handler.done) > step, self.failed
        return self.handler.done[step]

    def pause_scans(self) -> None:
        """Return when no scan is under way: what comes later is found by one scan, together."""
        with self.scanning:
            self.scans.clear()

    def end(self) -> None:
        self.is_over.set()
        self.thread.join(SOON)
        assert not self.thread.is_alive()


@pytest.fixture
def stay() -> Iterator[Callable[..., Stay]]:
    """Yield a function that starts lingering runs; end them afterwards."""
    stays: list[Stay] = []
    Told.made.clear()

    def begin(result: Result) -> Stay:
        place, opened, region = result.workplace, result.opened, result.region
        run = region_run(place, opened, region)
        run.hosted.takes_starts = True
        scans, failed = threading.Event(), []  # type: threading.Event, list[BaseException]
        scans.set()
        is_over, scanning = threading.Event(), threading.Lock()

        def work() -> None:
            error: BaseException | None = None
            try:
                run.claim()
                while not is_over.wait(0.02):
                    with scanning:
                        if scans.is_set():
                            scan_region(place, region)
                    for _ in run.groups():
                        pass
            except BaseException as raised:
                error = raised
                failed.append(raised)
            finally:
                run.hand_over(error)

        thread = threading.Thread(target=work, daemon=True)
        made = Stay(result, run, thread, is_over, scans, scanning, failed)
        stays.append(made)
        before = len(Told.made)
        thread.start()
        eventually(lambda: failed or (len(Told.made) > before and "run" in made.handler.calls))
        return made

    yield begin
    arm("")
    for made in stays:
        made.end()


Starts = Callable[[Result], Stay]


def sunk(result: Result) -> list[int]:
    return sorted(row["n"] for row in result.sink("counted_ticks"))


@pytest.mark.seed("V12", "V71")
def test_a_start_asks_for_a_state_and_waits_for_it(run_app: RunApp, stay: Starts) -> None:
    """E21: True means that the sink has the rows; N20: the start learns the id before its thread goes on."""
    result = run_app(counting())
    at = stay(result)
    handler = at.handler
    handler.tell(lambda context: handler.submit(context, 3))
    assert at.await_(handler.tell(blocking)) is True
    assert sunk(result) == [0, 1, 2]
    assert ("region checkpointed", 1, 1) in handler.calls
    assert at.await_(handler.tell(blocking)) is True, "a state without rows is one, too"
    assert result.status["committed_sequence_id"] == 2
    illegal: list[Callable[[Any], Any]] = [
        lambda context: context.make_consistent(),  # without a permit
        lambda context: context.submit(numbers(1)),
        non_blocking,  # the two are not mixed
    ]
    for step in illegal:
        asked = handler.tell(lambda context, step=step: refusal(lambda: step(context)))
        assert isinstance(at.await_(asked), PermitViolation)


def refusal(action: Callable[[], Any]) -> Exception | None:
    try:
        action()
    except PermitViolation as error:
        return error
    return None


@pytest.mark.seed("V62", "V76", "V78", "V99")
def test_a_reset_ends_the_waiting_and_nothing_is_lost_or_twice_there(run_app: RunApp, stay: Starts) -> None:
    """E21: False; V105, V134: cut rows are replayed, others are made again from the state of the newest cut."""
    result = run_app(counting(rows=2))
    at = stay(result)
    handler = at.handler
    assert at.await_(handler.tell(blocking)) is True
    at.pause_scans()
    handler.tell(lambda context: handler.submit(context, 2))  # a cut by its own number of rows
    buffer = result.workplace.access(result.region.name).buffer("ticks")
    eventually((buffer / "state-000000000002").exists)
    handler.tell(handler.submit)
    asked = handler.tell(blocking)
    eventually((buffer / "state-000000000003").exists)
    arm(f"{FailPoint.PROCESS_STAGED.value}:raise:1")
    at.scans.set()
    assert at.await_(asked) is False
    assert handler.calls[-1] == ("reset", 3) or ("reset", 3) in handler.calls
    handler.tell(handler.submit)
    assert at.await_(handler.tell(blocking)) is True
    at.end()
    assert not at.failed
    assert sunk(result) == [0, 1, 2, 3]


@pytest.mark.seed("V9")
def test_what_was_not_cut_is_made_again_by_the_next_run(run_app: RunApp, stay: Starts) -> None:
    """The state belongs to the rows of a cut: both are durable, or neither."""
    result = run_app(counting())
    first = stay(result)
    handler = first.handler
    handler.tell(lambda context: handler.submit(context, 2))
    assert first.await_(handler.tell(blocking)) is True
    first.await_(handler.tell(lambda context: handler.submit(context, 5)))
    first.end()
    second = stay(result)
    assert (second.handler is not handler, second.handler.n) == (True, 2)
    again = second.handler
    again.tell(lambda context: again.submit(context, 3))
    assert second.await_(again.tell(blocking)) is True
    second.end()
    assert sunk(result) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("point", [FailPoint.SEAL_BEFORE, FailPoint.SEAL_AFTER])
def test_a_cut_that_fails_ends_the_run_and_counts_once(run_app: RunApp, stay: Starts, point: FailPoint) -> None:
    result = run_app(counting())
    first = stay(result)
    handler = first.handler
    first.await_(handler.tell(blocking))
    arm(f"{point.value}:raise:1")
    handler.tell(lambda context: handler.submit(context, 2))
    handler.tell(blocking)
    eventually(lambda: first.failed)
    arm("")
    second = stay(result)
    again = second.handler
    assert again.n == (2 if point is FailPoint.SEAL_AFTER else 0)
    again.tell(lambda context: again.submit(context, 4 - again.n))
    assert second.await_(again.tell(blocking)) is True
    second.end()
    assert sunk(result) == [0, 1, 2, 3]


def test_the_flow_goes_on_while_a_state_is_pending(run_app: RunApp, stay: Starts) -> None:
    """E21: CHECKPOINT_PENDING comes before the region has the state; purging waits for `region_checkpointed` (N20)."""
    result = run_app(counting(Frozen))
    at = stay(result)
    handler = at.handler
    at.pause_scans()
    handler.tell(handler.submit)
    assert at.await_(handler.tell(non_blocking)) is Consistency.CHECKPOINT_PENDING
    eventually(lambda: ("checkpoint", 1) in handler.calls)
    assert not [call for call in handler.calls if call[0] == "region checkpointed"]
    assert handler.calls == ["run", "drain", ("prepare", 1), ("checkpoint", 1)]
    at.scans.set()
    eventually(lambda: ("region checkpointed", 1, 1) in handler.calls)


@pytest.mark.seed("V75")
def test_a_thread_that_fails_fails_the_run(run_app: RunApp, stay: Starts) -> None:
    result = run_app(counting())
    at = stay(result)

    def broken(context: Any) -> None:
        raise ValueError("the meter is gone")

    at.handler.tell(broken)
    eventually(lambda: at.failed)
    assert isinstance(at.failed[0], OperatorFailed)
    assert "the meter is gone" in str(at.failed[0])
    assert result.history == []
    assert stay(result).run.owner.history.attempts == 1


class Needs(Told):
    """A start that is not made without an argument."""

    def __init__(self, meter: str) -> None:
        super().__init__()


def test_a_class_that_makes_no_start_is_blamed(run_app: RunApp, stay: Starts) -> None:
    at = stay(run_app(counting(Needs)))
    assert isinstance(at.failed[0], OperatorFailed)
    assert "start 'ticks' failed in __init__(): TypeError" in str(at.failed[0])
    assert "'meter'" in str(at.failed[0])


class Deaf(Told):
    """A start that fails when it hears of a state."""

    def region_checkpointed(self, sequence_id: int) -> None:
        raise ValueError("cannot acknowledge")


def test_a_start_that_fails_when_it_hears_of_a_state_fails_the_run_and_not_the_state(
    run_app: RunApp, stay: Starts
) -> None:
    result = run_app(counting(Deaf))
    at = stay(result)
    handler = at.handler
    handler.tell(handler.submit)
    handler.tell(blocking)
    eventually(lambda: at.failed)
    assert "cannot acknowledge" in str(at.failed[0])
    assert sunk(result) == [0]


def test_an_operator_that_is_no_start_may_not_ask(run_app: RunApp, stay: Starts) -> None:
    class Asks(dm.StateHandler):
        def process(self, rows: pa.Table, context: Any) -> pa.Table:
            assert isinstance(refusal(context.make_consistent), PermitViolation)
            return rows.select(["n"])

    result = run_app(counting(declare=lambda ticks: dm.operator(Asks, output="n bigint", inputs=[ticks])))
    at = stay(result)
    at.handler.tell(at.handler.submit)
    assert at.await_(at.handler.tell(blocking)) is True
    assert sunk(result) == [0]


class Heard(dm.StateHandler):
    """An operator that notes its calls in the list of the start."""

    label: ClassVar[str] = "blocking"

    def note(self, call: str) -> None:
        Told.made[-1].calls.append(f"{self.label} {call}")

    def process(self, rows: pa.Table, context: Any) -> pa.Table:
        self.note("process")
        return rows.select(["n"])

    def drain(self) -> None:
        self.note("drain")

    def checkpoint(self, checkpoint: dm.Checkpoint) -> None:
        self.note("checkpoint")

    def region_checkpointed(self, sequence_id: int) -> None:
        self.note("region checkpointed")

    def retire_checkpoint(self, sequence_id: int) -> None:
        self.note(f"retire {sequence_id}")

    def reset(self, checkpoint: dm.Checkpoint) -> None: ...
    def reset_to_initial_state(self) -> None: ...


class HeardFrozen(Heard):
    label = "frozen"
    non_blocking = True

    def prepare_for_non_blocking_checkpoint(self, sequence_id: int) -> None:
        self.note("prepare")

    def checkpoint(self, checkpoint: dm.Checkpoint) -> None:
        time.sleep(0.2)  # the region waits for this checkpoint
        self.note("checkpoint")

    def reset(self, checkpoint: dm.Checkpoint) -> None: ...
    def reset_to_initial_state(self) -> None: ...


OF_START = ["run", "drain", ("checkpoint", 1)]
OF_BLOCKING = ["blocking process", "blocking drain", "blocking checkpoint"]
OF_FROZEN = ["frozen process", "frozen drain", "frozen prepare", "frozen checkpoint"]


@pytest.mark.seed("N10", "N20", "V62", "V73", "V87")
@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param([Heard], id="blocking", marks=pytest.mark.slow),
        pytest.param([HeardFrozen], id="frozen", marks=pytest.mark.slow),
        pytest.param([Heard, HeardFrozen], id="mixed"),
    ],
)
def test_starts_hear_last_that_the_region_is_checkpointed(
    run_app: RunApp, stay: Starts, kinds: list[type[Heard]]
) -> None:
    """The exact order of every callback of one state; only the start hears that the region is checkpointed."""

    def chain(stream: Any) -> Any:
        for kind in kinds:
            stream = dm.operator(kind, output="n bigint", name=kind.label, inputs=[stream])
        return stream

    result = run_app(counting(declare=chain))
    at = stay(result)
    at.handler.tell(at.handler.submit)
    assert at.await_(at.handler.tell(blocking)) is True
    wanted = [*OF_START]
    for kind in kinds:
        wanted += OF_BLOCKING if kind is Heard else OF_FROZEN
    assert at.handler.calls == [*wanted, ("region checkpointed", 1, 1)]


@pytest.mark.seed("V146", "N29")
def test_what_is_committed_is_purged_when_the_region_is_checkpointed_and_the_numbers_go_on(
    run_app: RunApp, stay: Starts
) -> None:
    result = run_app(counting(purge="checkpointed"))
    at = stay(result)
    handler = at.handler
    buffer = result.workplace.access(result.region.name).buffer("ticks")
    for cut in (1, 2):
        handler.tell(handler.submit)
        assert at.await_(handler.tell(blocking)) is True
        eventually(lambda: not list(buffer.glob("segment-*")))
        assert handler.calls[-1] == ("region checkpointed", cut, cut)
    at.end()
    second = stay(result)
    assert second.handler.n == 2
    assert sunk(result) == [0, 1]


@pytest.mark.seed("N12", "E17")
def test_no_checkpoint_that_a_rewind_or_a_reset_needs_is_retired(run_app: RunApp, stay: Starts) -> None:
    """Operators hear ids, starts hear their own cuts: after a rewind the numbers of the two differ."""
    horizon = 2
    result = run_app(
        counting(
            declare=lambda stream: dm.operator(Heard, output="n bigint", name="heard", inputs=[stream]),
            rewind_horizon=horizon,
        )
    )
    at = stay(result)
    for _ in range(3):
        at.handler.tell(at.handler.submit)
        assert at.await_(at.handler.tell(blocking)) is True
    at.end()
    result.rewind(1)
    at = stay(result)
    eventually(lambda: result.status["committed_sequence_id"] == 6)
    at.handler.tell(at.handler.submit)
    assert at.await_(at.handler.tell(blocking)) is True
    history = at.run.owner.history
    assert (history.oldest_target(horizon), history.committed_id) == (5, 7), "cuts 2 to 4 have the ids 5 to 7 now"
    at.run.hosted.retire(history, horizon, None)
    assert [call for call in at.handler.calls if "retire" in call] == ["blocking retire 4", ("retire", 2)]
    history.check_rewind(5, horizon)
