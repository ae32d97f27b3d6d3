"""What new code may ask of the state that older code kept, as far as the declaration says it (V154)."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

import drainmark as dm
from jobs.protocol.manifest import RegionTable, TableRole
from jobs.protocol.table_changes import misfit

MINUTE = dt.timedelta(minutes=1)
BY_TIME = {"duration": MINUTE, "event_time": "at"}


def kept_by(**how: Any) -> list[RegionTable]:
    """The tables of a delay's state."""
    with dm.application("kept"):
        operator = dm.delay("events", **how).operator
    return [
        RegionTable(name=kept.part, role=TableRole.CHANGES, operator=operator.name, schema_json="{}", keys=kept.keys,
                    retention=kept.retention.to_json() if kept.retention else {})
        for kept in operator.kept
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after"),
    [({"ids": 2}, BY_TIME), (BY_TIME, {"ids": 2}), (BY_TIME, {**BY_TIME, "event_time": "sold_at"})],
)
def test_held_rows_do_not_go_on_by_another_clock(before: dict[str, Any], after: dict[str, Any]) -> None:
    """They are due at a time of the clock that there was when they came, and would be held for ever."""
    reasons = [misfit(old, new) for old, new in zip(kept_by(**before), kept_by(**after), strict=True)]
    assert all("it is kept for" in reason for reason in reasons), reasons


@pytest.mark.parametrize(
    ("before", "after"),
    [({"ids": 2}, {"ids": 5}), ({"ids": 2}, {"ids": 1}), (BY_TIME, {**BY_TIME, "duration": 9 * MINUTE})],
)
def test_another_delay_by_the_same_clock_goes_on(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert [misfit(old, new) for old, new in zip(kept_by(**before), kept_by(**after), strict=True)] == ["", ""]
