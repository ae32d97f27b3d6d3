"""What a run holds does not grow with the groups that it has done (H30)."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import LONG_AGO

from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow
from drainmark.jobs.runtime.maintenance import housekeeping
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.orchestration.workplace.workplace import Workplace, open_application
from drainmark.resources.checkpoints import checkpoint_table

APP = Path(__file__).parents[1] / "recovery" / "apps" / "two_regions.py"
REGION = "two_regions/orders"
GROUPS = 60


def held(workplace: Workplace) -> dict[str, int]:
    """Count what leaks would be made of: rows of the checkpoint table, and what Spark keeps in memory."""
    gc.collect()
    rows = sum(isinstance(each, CheckpointRow) for each in gc.get_objects())
    return {"rows": rows, "persisted": workplace.engine.session._jsc.sc().getPersistentRDDs().size()}


@pytest.fixture
def short_tiers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Maintenance after every five groups, which compacts what there is."""
    original = checkpoint_table.CheckpointTable.compact
    monkeypatch.setattr(housekeeping, "EVERY_GROUPS", 5)
    monkeypatch.setattr(checkpoint_table.CheckpointTable, "compact", lambda self: original(self, files_at_least=5))
    return


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.seed("H30")
def test_what_is_held_after_many_groups_is_what_was_held_after_few(
    workplace: Workplace, tmp_path: Path, short_tiers: None
) -> None:
    for number in range(GROUPS):
        path = tmp_path / "orders" / f"{number:03d}.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"ann,tea,{number}\nbob,salt,1\n")
        os.utime(path, (LONG_AGO, LONG_AGO))
    opened = open_application(str(APP), inputs=[f"orders={tmp_path / 'orders'}", f"payments={tmp_path / 'orders'}"])
    scan_region(workplace, opened.region(REGION))
    run = region_run(workplace, opened, opened.region(REGION), max_group=1)
    run.claim()
    found = [held(workplace) for number, _ in enumerate(run.groups(), 1) if number % 10 == 1]
    run.hand_over()
    assert len(found) == GROUPS // 10
    assert found[-1]["rows"] <= found[1]["rows"] + 10, found
    assert found[-1]["persisted"] <= found[1]["persisted"], found
    assert workplace.history(REGION).committed_id >= GROUPS
