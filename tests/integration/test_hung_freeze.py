"""A group that hangs while its states are frozen is given up, and touches nothing of the next one. With Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness import rows
from integration.test_checkpoint_pending import REGION, TEXTS, Journal, finished, inbox, journal, opened
from waiting import SOON

import drainmark as dm
from drainmark.jobs.runtime.commit.operator_states import RegionStates
from drainmark.orchestration.workplace.workplace import Workplace

__all__ = ["inbox", "journal"]
pytestmark = pytest.mark.spark

Write = Callable[[str, str], Path]


class Numbered(dm.StateHandler):
    """An operator that numbers the lines."""

    n = 0

    def process(self, rows: pa.Table, context: Any) -> pa.Table:
        first, self.n = self.n, self.n + rows.num_rows
        return pa.table({"n": pa.array(range(first, self.n), pa.int64())})

    def checkpoint(self, checkpoint: dm.Checkpoint) -> None:
        checkpoint.write(self.n)

    def reset(self, checkpoint: dm.Checkpoint) -> None:
        self.n = checkpoint.read(int)

    def reset_to_initial_state(self) -> None:
        self.n = 0


def numbered(lines: dm.Stream) -> None:
    dm.sink(dm.operator(Numbered, output="n bigint", name="numbers", inputs=[lines]), dm.DeltaAppend("numbers"))


@pytest.mark.slow
@pytest.mark.seed("V36", "N15", "V167")
def test_a_group_that_hangs_while_it_is_frozen_takes_nothing_of_the_next_one(
    workplace: Workplace, write: Write, inbox: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch,
    *, ahead: list[float],
) -> None:  # fmt: skip
    """The group is given up and split. It wakes when the next group is drained, and must not touch its checkpoint."""
    workplace.settings = workplace.settings.model_copy(update={"state_store": str(inbox.parent / "states")})
    freeze, go = RegionStates.freeze, threading.Event()

    def told(states: RegionStates, staged: Any) -> Any:
        try:
            return freeze(states, staged)
        finally:
            journal.note("left", "freeze", staged.group.last_id)

    def freezing(at: int) -> None:
        if at == 2:
            ahead.append(3600.0)
            assert go.wait(SOON)
        elif not go.is_set():
            go.set()
            journal.await_line("left", "freeze", 2)

    monkeypatch.setattr(RegionStates, "freeze", told)
    journal.freezing = freezing
    application = opened(inbox, journal, {"counts": True}, numbered)
    driven = finished(workplace, application, max_group=2)
    assert driven.error is None
    assert ("left", "freeze", 2) in journal.lines
    assert 2 not in workplace.history(REGION).states
    write("9.txt", "a\n")
    assert finished(workplace, application, max_group=2).error is None, "what was stored is what is read"
    found = [row["n"] for row in rows(workplace, REGION, "numbers", ids=False)]
    assert sorted(found) == list(range(len(TEXTS) + 1))
