"""The order in which the operators of stages are called (T8): each as in a region of one stage; earlier stages run
ahead, and a stage that fails is reset alone."""

from __future__ import annotations

import datetime as dt
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from waiting import SOON

import drainmark as dm
from drainmark.jobs.errors import ResetTimeout
from drainmark.jobs.graph.application import Application
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.orchestration.testing.processing import drive, scan
from drainmark.orchestration.testing.running import Result

pytestmark = pytest.mark.spark
slow = pytest.mark.slow

RunApp = Callable[..., Result]
FILES = {f"{number}.txt": f"line {number}\n" for number in range(1, 6)}
IDS = range(1, len(FILES) + 1)

OPERATORS = {"first": False, "second": True, "third": False, "fourth": True}
"""Operators in the order of the stream, and whether they are non-blocking. The start's stage has the first, the next
stage the second; the third and the fourth share a stage, which is of both kinds."""


@dataclass
class Journal:
    """The calls of operators, in order, as (call, operator, id), and the events to wait for or errors to raise."""

    lines: list[tuple[str, str, int]] = field(default_factory=list)
    waits: dict[tuple[str, int], threading.Event] = field(default_factory=dict)
    raises: dict[tuple[str, int], Exception] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def note(self, what: str, operator: str, number: int) -> None:
        with self._changed:
            self.lines.append((what, operator, number))
            self._changed.notify_all()

    def processing(self, operator: str, number: int) -> None:
        self.note("process", operator, number)
        self._wait(operator, number)
        if error := self.raises.pop((operator, number), None):
            raise error

    def resetting(self, operator: str, number: int) -> None:
        self.note("reset", operator, number)
        self._wait(f"reset {operator}", number)

    def _wait(self, at: str, number: int) -> None:
        gate = self.waits.get((at, number))
        assert gate is None or gate.wait(SOON)

    def await_line(self, *line: Any) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: line in self.lines, SOON), self.lines

    def place(self, *line: Any) -> int:
        assert self.lines.count(line) == 1, (line, self.lines)
        return self.lines.index(line)

    def resets(self) -> Counter[str]:
        return Counter(operator for what, operator, _ in self.lines if what == "reset")


def recorded(journal: Journal, operator: str, *, is_non_blocking: bool) -> type[dm.StateHandler]:
    """Return an operator that passes lines on, counts them, and notes all its calls in the journal."""

    class Recorded(dm.StateHandler):
        non_blocking = is_non_blocking
        total = frozen = at = 0

        def process(self, rows: pa.Table, context: Any) -> pa.Table:
            self.at = context.sequence_id
            journal.processing(operator, self.at)
            self.total += rows.num_rows
            return rows.select(["value"])

        def drain(self) -> None:
            journal.note("drain", operator, self.at)

        def prepare_for_non_blocking_checkpoint(self, sequence_id: int) -> None:
            journal.note("prepare", operator, sequence_id)
            self.frozen = self.total

        def checkpoint(self, checkpoint: dm.Checkpoint) -> None:
            journal.note("checkpoint", operator, checkpoint.sequence_id)
            checkpoint.write(self.frozen if is_non_blocking else self.total)

        def reset(self, checkpoint: dm.Checkpoint) -> None:
            journal.resetting(operator, checkpoint.sequence_id)
            self.total = checkpoint.read(int)

        def reset_to_initial_state(self) -> None:
            journal.note("reset", operator, 0)
            self.total = 0

    return Recorded


def called(journal: Journal, **region: Any) -> Application:
    with dm.application("called") as declared:

        @dm.consistent(trigger="operator-driven", **region)
        @dm.source(dm.DirectoryScan(path="in", pattern="*.txt", format="text", settle=0))
        def lines(scanned: Any) -> Any:
            return scanned

        stream: Any = lines
        for name, is_non_blocking in OPERATORS.items():
            reads = dm.buffered(stream) if name in ("second", "third") else stream
            kind = recorded(journal, name, is_non_blocking=is_non_blocking)
            stream = dm.operator(kind, output="value string", name=name, inputs=[reads])
        dm.sink(stream, dm.DeltaAppend("called_lines"))
    return dm.build_application(declared)


def work(result: Result) -> None:
    """Scan and drive, without a trial of the operators: the trial would call them, too."""
    scan(result.workplace, result.opened, result.region)
    drive(region_run(result.workplace, result.opened, result.region, max_group=1))


def assert_whole(result: Result) -> None:
    found = sorted((row["_sequence_id"], row["value"]) for row in result.sink("called_lines", ids=True))
    assert found == [(number, f"line {number}") for number in IDS]


@pytest.mark.seed("T8", "N13", "N14", "N19", "V107")
@pytest.mark.parametrize("alignment", [pytest.param("aligned", marks=slow), "unaligned"])
def test_each_operator_is_called_in_its_order(run_app: RunApp, alignment: str) -> None:
    journal = Journal()
    result = run_app(called(journal, alignment=alignment)).add(FILES)
    assert [stage.name for stage in result.region.stages] == ["lines", "second", "third"]
    work(result)
    assert_whole(result)
    assert not journal.resets(), "a new operator is at the beginning"
    for name, is_non_blocking in OPERATORS.items():
        steps = ("process", "drain", *(["prepare"] if is_non_blocking else []), "checkpoint")
        for number in IDS:
            places = [journal.place(step, name, number) for step in steps]
            assert places == sorted(places), (name, number)
        for number in IDS[:-1]:  # the state of an id is taken before the next id's rows
            taken = journal.place("prepare" if is_non_blocking else "checkpoint", name, number)
            assert taken < journal.place("process", name, number + 1)
    for number in IDS:
        assert [journal.place("process", name, number) for name in OPERATORS] == sorted(
            journal.place("process", name, number) for name in OPERATORS
        ), "no id comes to a stage before it has left the one before"


@pytest.mark.seed("T8", "N21", "V115", "K1", "K4")
def test_what_is_ahead_is_checkpointed_while_a_stage_is_at_an_earlier_id(run_app: RunApp) -> None:
    journal = Journal()
    held = journal.waits["second", 2] = threading.Event()
    result = run_app(called(journal, alignment="unaligned")).add(FILES)
    errors: list[BaseException] = []

    def background() -> None:
        try:
            work(result)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=background, daemon=True)
    thread.start()
    try:
        journal.await_line("checkpoint", "first", 4)
        journal.await_line("checkpoint", "fourth", 1)
    finally:
        held.set()
    thread.join(SOON)
    assert not thread.is_alive()
    assert not errors
    assert journal.place("checkpoint", "first", 4) < journal.place("drain", "second", 2)
    assert_whole(result)


@pytest.mark.seed("T8", "K10", "K22", "X2", "N11")
@pytest.mark.parametrize("alignment", [pytest.param("aligned", marks=slow), "unaligned"])
def test_a_stage_that_fails_is_reset_alone(run_app: RunApp, alignment: str) -> None:
    journal = Journal(raises={("third", 3): ValueError("once")})
    result = run_app(called(journal, alignment=alignment)).add(FILES)
    work(result)
    assert_whole(result)
    assert journal.resets() == Counter({"third": 1, "fourth": 1})
    mine = [line for line in journal.lines if line[1] == "third" and line[2] in (2, 3)]
    assert mine == [
        ("process", "third", 2), ("drain", "third", 2), ("checkpoint", "third", 2),
        ("process", "third", 3), ("reset", "third", 2),
        ("process", "third", 3), ("drain", "third", 3), ("checkpoint", "third", 3),
    ]  # fmt: skip


@slow
@pytest.mark.seed("V37", "K22")
def test_an_operator_whose_reset_does_not_end_ends_the_run(run_app: RunApp) -> None:
    """The run ends although a thread waits for the stage, or for its end; another attempt with a new operator works."""
    let = threading.Event()
    journal = Journal(raises={("third", 3): ValueError("once")}, waits={("reset third", 2): let})
    result = run_app(called(journal, alignment="unaligned", reset_timeout=dt.timedelta(seconds=2))).add(FILES)
    with pytest.raises(ResetTimeout, match="third"):
        work(result)
    let.set()
    work(result)
    assert_whole(result)
