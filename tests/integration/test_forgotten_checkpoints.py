"""Checkpoints in a store of their own, after their state is dropped or its operator leaves the code (V163)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import drainmark as dm
from drainmark.orchestration.testing.running import Result
from drainmark.orchestration.verbs.plan import drop_states
from drainmark.orchestration.verbs.removals.garbage import collect_region

pytestmark = [pytest.mark.spark, pytest.mark.seed("V159", "V163")]

RunApp = Callable[..., Result]


class Numbered(dm.StateHandler):
    """An operator that numbers its rows."""

    def __init__(self) -> None:
        self.n = 0

    def process(self, rows: pa.Table, context: Any) -> pa.Table:
        first, self.n = self.n, self.n + rows.num_rows
        return pa.table({"n": pa.array(range(first, self.n), pa.int64())})

    def checkpoint(self, checkpoint: dm.Checkpoint) -> None:
        checkpoint.write(self.n)

    def reset(self, checkpoint: dm.Checkpoint) -> None:
        self.n = checkpoint.read(int)

    def reset_to_initial_state(self) -> None:
        self.n = 0


def numbering(horizon: int) -> Callable[[], None]:
    def numbered() -> None:
        @dm.consistent(trigger="operator-driven", rewind_horizon=horizon)
        @dm.source(dm.DirectoryScan(path="in", format="csv", schema="k string"))
        def lines(scanned: Any) -> Any:
            return scanned

        dm.sink(dm.operator(Numbered, output="n bigint", name="counter", inputs=[lines]), dm.DeltaAppend("numbers"))

    return numbered


def entries(folder: Path) -> int:
    return sum(1 for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def numbers(result: Result) -> list[int]:
    return [row["n"] for row in result.sink("numbers")]


@pytest.mark.slow
def test_a_state_that_was_dropped_is_kept_as_long_as_a_rewind_returns_to_it(run_app: RunApp, tmp_path: Path) -> None:
    store = tmp_path / "states"
    result = run_app(numbering(3), {"1.csv": "a\n", "2.csv": "a\n"}, settings={"state_store": str(store)})
    drop_states(result.workplace, result.opened, result.regions, ["counter"])
    result.add({"3.csv": "a\n"}).run()
    assert numbers(result) == [0, 1, 0]
    assert entries(store) == 2
    assert collect_region(result.workplace, result.region.name)["entries"] == []
    result.rewind(2)
    result.run()
    assert numbers(result) == [0, 1, 2], "the chunks of the old state are there"
    drop_states(result.workplace, result.opened, result.regions, ["counter"])
    result.max_group = 1
    result.add({f"{number}.csv": "a\n" for number in range(4, 9)}).run()
    assert numbers(result)[3:] == [0, 1, 2, 3, 4]
    planned = collect_region(result.workplace, result.region.name, dry_run=True)
    before = entries(store)
    assert len(planned["entries"]) == before - 1 > 0
    assert collect_region(result.workplace, result.region.name)["entries"] == planned["entries"]
    assert entries(store) == 1
    result.add({"9.csv": "a\n"}).run()
    assert numbers(result)[-1] == 5
