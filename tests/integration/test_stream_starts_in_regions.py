"""Counted streams at the start of regions: exactly once through every failure, acknowledged when the region has them.

The source forgets messages that it is told are done: a message that is acknowledged too early is lost (C2, C4, C5,
C23–C25, X8, X12, E21, N20, V105).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from waiting import SOON

import drainmark as dm
from drainmark.jobs.errors import OperatorFailed
from drainmark.jobs.failpoints import FailPoint, arm
from drainmark.orchestration.testing.running import Result

pytestmark = pytest.mark.spark

RunApp = Callable[..., Result]


class Broker:
    """A source of messages 1, 2, 3, …; acknowledged messages are gone."""

    def __init__(self) -> None:
        self.last = 0
        self.acknowledged: list[int] = []
        self.at_acknowledgement: list[Callable[[int], None]] = []
        self.reads: list[int] = []

    def after(self, position: int) -> Iterator[int | None]:
        self.reads.append(position)
        assert position >= max(self.acknowledged, default=0), "what was acknowledged is asked for again"
        while True:
            if position < self.last:
                position += 1
                yield position
            else:
                yield None

    def acknowledge(self, position: int) -> None:
        for look in self.at_acknowledgement:
            look(position)
        self.acknowledged.append(position)


class Messages(dm.counting.StreamStart):
    """A start that maps messages in a pool of threads, and gathers them by key in a window that waits for more."""

    broker: ClassVar[Broker]
    refused: ClassVar[set[int]] = set()

    def read(self, after: Any, context: Any) -> Iterator[Any]:
        for number in self.broker.after(after or 0):
            if number is None and context.wait(0.005):
                return
            yield None if number is None else (number, number)

    def flow(self, source: dm.counting.Stream) -> dm.counting.Stream:
        keyed = source.map_async(self.enriched, parallelism=4).partition(3, timeout=0.02, key=lambda n: n % 3)
        return source.filter(lambda n: n % 5 == 0).map(lambda n: table(-n)).union(keyed.buffer(2).map(table))

    def enriched(self, number: int) -> int:
        if number in self.refused:
            raise ValueError(f"{number} is refused")
        return number

    def acknowledge(self, position: int) -> None:
        self.broker.acknowledge(position)


def table(found: Any) -> pa.Table:
    return pa.table({"n": pa.array(list(found) if isinstance(found, tuple) else [found], pa.int64())})


def messages() -> None:
    @dm.consistent(trigger="operator-driven")
    @dm.source(dm.ThreadedStart(handler=Messages, schema="n bigint", rows=7, seconds=0.05))
    def received(scanned: Any) -> Any:
        return scanned

    dm.sink(received, dm.DeltaAppend("received"))


@pytest.fixture(autouse=True)
def broker() -> Iterator[Broker]:
    Messages.broker, Messages.refused = Broker(), set()
    yield Messages.broker
    arm("")


def wanted(last: int) -> list[int]:
    return sorted([*range(1, last + 1), *(-n for n in range(5, last + 1, 5))])


def sunk(result: Result) -> list[int]:
    return sorted(row["n"] for row in result.sink("received"))


@pytest.mark.seed("C2", "C24", "X8", "N20", "E21")
def test_a_message_is_acknowledged_when_the_sink_has_all_up_to_it(run_app: RunApp, broker: Broker) -> None:
    result = run_app(messages)
    assert result.status["committed_sequence_id"] == 0, "a test may wait for an id from the beginning"

    def look(position: int) -> None:
        assert set(wanted(position)) <= set(sunk(result)), f"{position} is acknowledged, and not all of it is there"

    broker.at_acknowledgement.append(look)
    broker.last = 40
    with dm.testing.staying(result) as run:
        run.wait_for(lambda: 40 in broker.acknowledged)
        broker.last = 60
        run.wait_for(lambda: 60 in broker.acknowledged)
    assert sunk(result) == wanted(60)
    assert broker.acknowledged == sorted(set(broker.acknowledged))


POINTS = [
    FailPoint.SEAL_BEFORE, FailPoint.SEAL_AFTER, FailPoint.PROCESS_STAGED, FailPoint.CHECKPOINT_BEFORE,
    FailPoint.CHECKPOINT_AFTER, FailPoint.PUBLISH_BEFORE,
]  # fmt: skip
SAMPLE = (FailPoint.SEAL_AFTER,)


@pytest.mark.seed("C3", "C25", "X8")
@pytest.mark.parametrize(
    "point",
    [pytest.param(point, marks=() if point in SAMPLE else pytest.mark.slow, id=point.value) for point in POINTS],
)
def test_messages_go_through_any_failure_exactly_once(run_app: RunApp, broker: Broker, point: FailPoint) -> None:
    result = run_app(messages)
    broker.last = 20
    with dm.testing.staying(result) as run:
        run.wait_for(lambda: 20 in broker.acknowledged)
        told = len(broker.acknowledged)
        arm(f"{point.value}:raise:1")
        broker.last = 45
        try:
            run.wait_for(lambda: 45 in broker.acknowledged)
        except AssertionError:
            raise
        except Exception:  # the run ended with the failure
            assert len(broker.acknowledged) == told, "of what failed nothing is acknowledged"
            run.is_seen = True
    arm("")
    if 45 not in broker.acknowledged:
        with dm.testing.staying(result) as run:
            run.wait_for(lambda: 45 in broker.acknowledged)
    assert sunk(result) == wanted(45)


@pytest.mark.seed("C2", "C5", "C25", "X8")
def test_a_message_that_fails_in_the_stream_holds_back_all_behind_it(run_app: RunApp, broker: Broker) -> None:
    result = run_app(messages)
    Messages.refused = {13}
    broker.last = 30
    with dm.testing.staying(result) as run:
        failure = run.ended()
    assert isinstance(failure, OperatorFailed)
    assert "13 is refused" in str(failure)
    assert max(broker.acknowledged, default=0) < 13
    Messages.refused = set()
    with dm.testing.staying(result) as run:
        run.wait_for(lambda: 30 in broker.acknowledged)
    assert sunk(result) == wanted(30)
    assert result.status["consecutive_reset_attempts"] == 0


def test_a_test_is_told_what_it_does_not_ask_for(run_app: RunApp, broker: Broker) -> None:
    """The test kit reports a run that ends by itself, and a condition that never becomes true."""
    result = run_app(messages)
    Messages.refused = {1}
    broker.last = 1
    over = threading.Event()
    with pytest.raises(OperatorFailed), dm.testing.staying(result) as run:  # noqa: PT012 - it raises when it is left
        run._thread.join(SOON)
        over.set()
    assert over.is_set()
    Messages.refused = set()
    with pytest.raises(AssertionError), dm.testing.staying(result) as run:  # noqa: PT012 - as above
        assert run.handler() is run.handler("received")
        run.wait_for(lambda: False, seconds=0.1)
