"""Columns that an operator compares, as event time or as numbers, must have such a type, or the run does not claim.

Spark reads the text 12:34 as a time of the current day, so a replay after midnight would give other rows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import settle

import drainmark as dm
from drainmark.jobs.errors import OperatorFailed
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.orchestration.workplace.workplace import Workplace, open_application

pytestmark = pytest.mark.spark

MINUTE = dt.timedelta(minutes=1)
SCHEMA = "user string, n bigint, text string, at timestamp, local timestamp_ntz, day date"
Declare = Callable[[Any, str], Any]


def windowed(window: Callable[[str], Any], **more: Any) -> Declare:
    return lambda events, column: dm.aggregate(
        events, keys=["user"], values={"n": dm.count()}, window=window(column), name="measured", **more
    )


def joined(**more: Any) -> Declare:
    def declare(events: Any, column: str) -> Any:
        other = dm.functor(lambda events: dm.select(events, "user", "at"), name="other", inputs=[events])
        own = dm.functor(lambda events: events.drop("at"), name="own", inputs=[events])
        return dm.join(own, other, on=["user"], left_time=column, right_time="at", name="measured", **more)

    return declare


BY_TIME: dict[str, Declare] = {
    "tumbling": windowed(lambda column: dm.tumbling(column, minutes=5)),
    "closed": windowed(lambda column: dm.tumbling(column, minutes=5), lateness=0),
    "session": windowed(lambda column: dm.session(column, gap=60), emit="closed", lateness=0),
    "sliding": windowed(lambda column: dm.sliding(column, minutes=5)),
    "delta": windowed(lambda column: dm.tumbling(column, delta=MINUTE)),
    "deduplicate": lambda events, column: dm.deduplicate(
        events, keys=["user"], within=MINUTE, event_time=column, name="measured"
    ),
    "delay": lambda events, column: dm.delay(events, duration=MINUTE, event_time=column, name="measured"),
    "join": joined(left_window=MINUTE, right_window=MINUTE),
    "interval join": joined(within=(-MINUTE, MINUTE), lateness=0),
}
BY_NUMBER: dict[str, Declare] = {
    "sliding": windowed(lambda column: dm.sliding(column, delta=5)),
    "tumbling": windowed(lambda column: dm.tumbling(column, delta=5)),
}


def analyse(place: Workplace, folder: Path, *declared: tuple[Declare, str]) -> None:
    """Do the steps of a run before its claim."""
    (folder / "inbox").mkdir()
    (folder / "inbox" / "1.csv").write_text("ann,1,12:34:56,2026-03-01T08:00:00Z,2026-03-01T08:00:00,2026-03-01\n")
    settle(folder / "inbox")
    with dm.application("measured") as application:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(folder / "inbox"), format="csv", schema=SCHEMA, settle=0))
        def events(scanned: Any) -> Any:
            return scanned.drop("source_file")

        for number, (declare, column) in enumerate(declared):
            dm.sink(declare(events, column), dm.DeltaAppend(f"out_{number}"))
    opened = open_application(dm.build_application(application))
    scan_region(place, opened.region())
    region_run(place, opened, opened.region())


@pytest.mark.parametrize(
    ("declare", "column", "kind"),
    [
        *(pytest.param(declare, "text", "string", id=f"{name} by text") for name, declare in BY_TIME.items()),
        pytest.param(BY_TIME["tumbling"], "n", "long", id="tumbling by number"),
        *(pytest.param(declare, "text", "string", id=f"{name} delta of text") for name, declare in BY_NUMBER.items()),
        pytest.param(BY_NUMBER["tumbling"], "at", "timestamp", id="number as delta of times"),
    ],
)
def test_a_column_of_another_type_is_refused_before_anything_is_claimed(
    workplace: Workplace, tmp_path: Path, declare: Declare, column: str, kind: str
) -> None:
    with pytest.raises(OperatorFailed) as failed:
        analyse(workplace, tmp_path, (declare, column))
    assert failed.value.operator == "measured"
    assert failed.value.location
    assert f"`{column}`" in str(failed.value)
    assert kind in str(failed.value)
    assert f"withColumn('{column}'" in (failed.value.remedy or "")
    assert not workplace.known_regions()


@pytest.mark.parametrize("column", ["local", "DAY"])
def test_dates_and_times_without_a_zone_are_event_times_and_names_may_differ_in_case(
    workplace: Workplace, tmp_path: Path, column: str
) -> None:
    analyse(workplace, tmp_path, (BY_TIME["tumbling"], column))
