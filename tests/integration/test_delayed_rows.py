"""`dm.delay`: a row without event time is never held, even before any row had one; which triggers count."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import rows, run_once, settle

import drainmark as dm
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.testing.running import Result
from drainmark.orchestration.verbs.interventions import skip
from drainmark.orchestration.workplace.workplace import Workplace, open_application

pytestmark = pytest.mark.spark

RunApp = Callable[..., Result]
FILES = {
    "1.csv": "a,\nb,\n",
    "2.csv": "c,\n",
    "3.csv": "d,2026-01-01 10:00:00\ne,\n",
    "4.csv": "f,\ng,2026-01-01 10:04:00\n",
    "5.csv": "h,2026-01-01 10:05:00\n",
}
LEFT = {"a": 1, "b": 1, "c": 2, "e": 3, "f": 4, "d": 5}


def held() -> None:
    @dm.consistent(trigger="operator-driven")
    @dm.source(dm.DirectoryScan(path="in", format="csv", schema="k string, at timestamp"))
    def readings(scanned: Any) -> Any:
        return scanned.drop("source_file")

    dm.sink(dm.delay(readings, duration=dt.timedelta(minutes=5), event_time="at", name="later"), dm.DeltaAppend("late"))


def test_a_row_without_a_time_leaves_at_once(run_app: RunApp) -> None:
    result = run_app(held, {"readings": FILES}, max_group=5)
    assert {row["k"]: row["_sequence_id"] for row in result.sink("late", ids=True)} == LEFT
    assert len(result.sink("late")) == len(LEFT)


def test_a_trigger_that_was_quarantined_counts_and_one_that_was_skipped_does_not(
    workplace: Workplace, tmp_path: Path
) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    for name, content in {"1.csv": "a\n", "2.csv": "b\n", "3.csv.gz": "no gzip", "4.csv": "d\n"}.items():
        (inbox / name).write_text(content)
    settle(inbox)
    with dm.application("delayed") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(inbox), pattern="*.csv*", format="csv", schema="k string", settle=0))
        def read(scanned: Any) -> Any:
            return scanned.drop("source_file")

        dm.sink(dm.delay(read, ids=2, name="later"), dm.DeltaAppend("late"))
    application = open_application(dm.build_application(declared))
    run_once(workplace, application, max_triggers=1)
    scan_region(workplace, application.region())
    skip(workplace, "delayed/read", [str(inbox / "2.csv")], "not wanted")
    run_once(workplace, application)
    assert {row["k"]: row["_sequence_id"] for row in rows(workplace, "delayed/read", "late")} == {"a": 4}
