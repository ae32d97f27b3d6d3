"""Writes to tables outside a region: a write that hangs delays no group and puts no old value over a new one (V48)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from waiting import SOON, eventually

from drainmark.jobs.protocol.records.manifest import Sent
from drainmark.jobs.runtime.autonomous.tables import WAITING, Outlets
from drainmark.resources.delta.autonomous_tables import AutonomousTable
from drainmark.resources.storage.folder import folder_at

pytestmark = pytest.mark.seed("V48")

SCHEMA = json.dumps({
    "type": "struct",
    "fields": [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (("k", "string"), ("n", "long"), ("_sequence_id", "long"))
    ],
})  # fmt: skip


@pytest.fixture
def go() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


class Hanging:
    """Outlets whose first write waits; each write stores its number under the same key."""

    def __init__(self, folder: Path, go: threading.Event) -> None:
        self.outlets, self.go, self.held = Outlets(), go, threading.Event()
        self.table = AutonomousTable(folder_at(folder), "app")
        self.written: list[int] = []

    def write(self, number: int) -> Sent:
        if not self.held.is_set():
            self.held.set()
            assert self.go.wait(SOON)
        self.table.upsert(pa.table({"k": ["a"], "n": [number], "_sequence_id": [number]}), ["k"], SCHEMA)
        self.written.append(number)
        return Sent(rows=1)

    def group(self, number: int) -> Future[Sent]:
        done: Future[Sent] = Future()
        self.outlets.hand_over(self.outlets.begin(), "lake/t", partial(self.write, number), done)
        return done


@pytest.fixture
def hanging(tmp_path: Path, go: threading.Event) -> Hanging:
    return Hanging(tmp_path / "t", go)


def threads() -> int:
    return sum(thread.name == "send lake/t" for thread in threading.enumerate())


def test_what_waits_for_a_table_that_hangs_is_written_in_the_order_of_groups(hanging: Hanging) -> None:
    first = hanging.group(1)
    assert hanging.held.wait(SOON)
    waiting = [hanging.group(number) for number in range(2, 2 + WAITING)]
    late = hanging.group(99)
    assert "wait for the table" in (late.result(0).error or ""), "it is said at once"
    assert threads() == 1
    assert not first.done()
    hanging.go.set()
    assert [done.result(SOON) for done in (first, *waiting)] == [Sent(rows=1)] * (1 + WAITING)
    assert hanging.written == list(range(1, 2 + WAITING))
    assert hanging.table.read().to_pylist() == [{"k": "a", "n": 1 + WAITING, "_sequence_id": 1 + WAITING}]
    eventually(lambda: not threads())
    assert hanging.group(100).result(SOON) == Sent(rows=1)


def test_what_an_attempt_computes_behind_the_next_one_is_not_written(hanging: Hanging) -> None:
    hanging.go.set()
    before, late = hanging.outlets.begin(), Future[Sent]()
    assert hanging.group(2).result(SOON) == Sent(rows=1)
    hanging.outlets.hand_over(before, "lake/t", partial(hanging.write, 1), late)
    assert "given up" in (late.result(0).error or "")
    assert hanging.written == [2]


def test_the_end_of_a_run_waits_a_while_and_drops_what_waits_then(hanging: Hanging) -> None:
    hanging.group(1)
    assert hanging.held.wait(SOON)
    hanging.group(2)
    hanging.outlets.close(0.05)
    hanging.go.set()
    eventually(lambda: not threads())
    assert hanging.written == [1]


def test_the_end_of_a_run_lets_what_waits_be_written(hanging: Hanging) -> None:
    hanging.group(1)
    hanging.group(2)
    threading.Timer(0.1, hanging.go.set).start()
    hanging.outlets.close(SOON)
    assert hanging.written == [1, 2]


def test_what_a_write_raises_goes_no_further(hanging: Hanging) -> None:
    def broken() -> Sent:
        raise BaseException("a panic")

    done: Future[Sent] = Future()
    hanging.outlets.hand_over(hanging.outlets.begin(), "lake/t", broken, done)
    assert "a panic" in (done.result(SOON).error or "")
