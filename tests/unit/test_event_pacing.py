"""Dagster's event log grows with time, not with the number of groups, and no number is lost."""

from __future__ import annotations

import logging
from dataclasses import fields, replace

import pytest

from drainmark.jobs.runtime.group.group_report import GroupReport
from drainmark.orchestration.dagster_assets.event_pacing import EventPace, LinePace, joined
from drainmark.orchestration.dagster_jobs.run_slot import RunSlot

GROUP = GroupReport(
    region="app/start", first_id=1, last_id=1, first_uri="1", last_uri="1", epoch=1, rows_in=3, rows_quarantined=1,
    bytes_in=10, rows_out={"sink": 2, "other": 0}, versions={"sink": 1}, process_seconds=0.1, drain_seconds=0.1,
    checkpoint_seconds=0.1, publish_seconds=0.1,
)  # fmt: skip


def group(number: int) -> GroupReport:
    uri = str(number)
    return replace(GROUP, first_id=number, last_id=number, first_uri=uri, last_uri=uri, versions={"sink": number})


def test_ten_thousand_fast_groups_leave_few_events_that_tell_of_all() -> None:
    now = 0.0
    pace = EventPace(clock=lambda: now)
    shown: list[GroupReport] = []
    for number in range(1, 10_001):
        now += 0.25
        shown += [report for report in [pace.take(group(number))] if report is not None]
    shown += [report for report in [pace.rest()] if report is not None]
    assert 100 + 9_900 * 0.25 / 5 - 2 <= len(shown) <= 100 + 9_900 * 0.25 / 5 + 2
    assert [(report.first_id, report.last_id) for report in shown[:100]] == [(n, n) for n in range(1, 101)]
    assert [report.first_id for report in shown[1:]] == [report.last_id + 1 for report in shown[:-1]]
    assert shown[-1].last_id == 10_000
    assert sum(report.triggers for report in shown) == 10_000
    assert sum(report.rows_in for report in shown) == 30_000
    assert sum(report.rows_out["sink"] for report in shown) == 20_000
    assert {report.rows_out["other"] for report in shown} == {0}
    assert all(report.versions["sink"] == report.last_id for report in shown)
    assert pace.rest() is None


IDENTITY = {"first_id", "last_id", "first_uri", "last_uri", "region", "epoch", "versions", "alignment"}
"""Fields of a report that are not measurements."""

AS_OF_THE_LAST = {"inflight_batches", "inflight_bytes", "lags"}
"""Measurements of a moment: the newest value counts."""


@pytest.mark.parametrize("name", sorted({field.name for field in fields(GroupReport)} - IDENTITY - AS_OF_THE_LAST))
def test_every_number_of_a_report_is_added(name: str) -> None:
    """A new measurement in a report must be added too, or listed above."""
    first, second = ({"sink": 3}, {"sink": 5, "late": 7}) if name == "rows_out" else (3, 5)
    total = {"sink": 8, "late": 7} if name == "rows_out" else 8
    assert getattr(joined(replace(GROUP, **{name: first}), replace(GROUP, **{name: second})), name) == total


@pytest.mark.parametrize("name", sorted(AS_OF_THE_LAST))
def test_what_is_in_flight_is_that_of_the_newest_group(name: str) -> None:
    assert getattr(joined(replace(GROUP, **{name: 3}), replace(GROUP, **{name: 5})), name) == 5


def test_slow_groups_have_events_of_their_own() -> None:
    now = 0.0
    pace = EventPace(own=0, clock=lambda: now)
    for number in range(1, 50):
        now += 5.0
        assert pace.take(group(number)) == group(number)


def test_lines_are_kept_at_first_and_then_a_few_a_while() -> None:
    now = 0.0
    pace = LinePace(clock=lambda: now)
    kept = 0
    for _ in range(60_000):
        now += 0.03
        kept += pace.may()
    assert 600 + 60_000 * 0.03 * 6 / 5 * 0.9 <= kept <= 600 + 60_000 * 0.03 * 6 / 5 * 1.1
    assert kept + pace.left_out == 60_000


def test_a_group_has_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        slot = RunSlot()
        slot.report("begin", {"first_id": 1, "last_id": 1})
        slot.report("group", GROUP.step)
    (line,) = caplog.messages
    assert line.startswith("group: first id 1, last id 1, rows in 3, seconds 0.2 (after ")
