"""The use that new code may make of state that older code kept, as far as the declarations tell (V154)."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import pytest

import drainmark as dm
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.protocol.records.schema_compatibility import misfit

MINUTE = dt.timedelta(minutes=1)
BY_TIME = {"duration": MINUTE, "event_time": "at"}


def kept_by(**how: Any) -> list[RegionTable]:
    """Return the tables of a delay's state."""
    with dm.application("kept"):
        return tables_of(dm.delay("events", **how))


def tables_of(stream: Any) -> list[RegionTable]:
    operator = stream.operator
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
    """Held rows are due at a time of the old clock, so with the new clock they would be held for ever."""
    reasons = [misfit(old, new) for old, new in zip(kept_by(**before), kept_by(**after), strict=True)]
    assert all("it is kept for" in reason for reason in reasons), reasons


@pytest.mark.parametrize(
    ("before", "after"),
    [({"ids": 2}, {"ids": 5}), ({"ids": 2}, {"ids": 1}), (BY_TIME, {**BY_TIME, "duration": 9 * MINUTE})],
)
def test_another_delay_by_the_same_clock_goes_on(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert [misfit(old, new) for old, new in zip(kept_by(**before), kept_by(**after), strict=True)] == ["", ""]


def aggregated(value: Any, **how: Any) -> list[RegionTable]:
    with dm.application("kept"):
        return tables_of(dm.aggregate("events", keys=["k"], values={"n": value}, name="agg", **how))


OPEN_WINDOWS = {
    "numbered": {"window": dm.tumbling(rows=3), "emit": "closed"},
    "until": {"window": dm.tumbling(until="done")},
    "event time": {"window": dm.tumbling("at", minutes=5), "lateness": 0},
    "overlapping": {"window": dm.sliding("at", minutes=5, every=MINUTE), "emit": "closed", "lateness": 0},
    "session": {"window": dm.session("at", gap=MINUTE), "emit": "closed", "lateness": 0},
}


@pytest.mark.seed("RT3")
@pytest.mark.parametrize("how", OPEN_WINDOWS.values(), ids=OPEN_WINDOWS)
def test_open_windows_do_not_go_on_with_another_value(how: dict[str, Any]) -> None:
    before, same, other = (aggregated(value, **how)[0] for value in (dm.sum("p"), dm.sum("p"), dm.max("p")))
    assert misfit(before, same) == ""
    assert misfit(before, other) == "n is max(p), was sum(p)"
    assert misfit(dataclasses.replace(before, retention={}), other) == ""  # a claim of 0.3.0 does not have the value


@pytest.mark.parametrize("name", ["event time", "overlapping", "session"])
def test_open_windows_go_on_with_another_pace_of_the_watermark(name: str) -> None:
    how = OPEN_WINDOWS[name]
    before = aggregated(dm.sum("p"), **how)
    for changed in ({"lateness": 60}, {"max_ahead": 60}, {"lateness": 60, "max_ahead": 600}):
        after = aggregated(dm.sum("p"), **{**how, **changed})
        assert [misfit(*pair) for pairs in (zip(before, after, strict=True), zip(after, before, strict=True))
                for pair in pairs] == [""] * 2 * len(before)  # fmt: skip


@pytest.mark.seed("RT3")
@pytest.mark.parametrize(
    "how", [{"window": dm.sliding(rows=3), "emit": "row"}, {"window": dm.sliding("km", delta=3)}], ids=str
)
def test_a_state_of_rows_serves_any_value(how: dict[str, Any]) -> None:
    before, after = (aggregated(value, **how)[0] for value in (dm.sum("p"), dm.max("p")))
    assert misfit(before, after) == ""


def joined(right_time: str) -> list[RegionTable]:
    with dm.application("kept"):
        return tables_of(
            dm.join("l", "r", on=["k"], left_window=MINUTE, left_time="at", right_time=right_time, name="joined")
        )


def marked(condition: str) -> list[RegionTable]:
    with dm.application("kept"):
        return tables_of(dm.punctor("events", condition))


@pytest.mark.seed("RT3")
def test_a_clock_and_a_condition_belong_to_what_is_kept() -> None:
    assert [misfit(*pair) for pair in zip(joined("t"), joined("t"), strict=True)] == ["", ""]
    assert any(misfit(*pair) for pair in zip(joined("t"), joined("u"), strict=True))
    assert misfit(marked("a > 1")[0], marked("a  >  1")[0]) == ""
    assert "the condition a > 2, was for the condition a > 1" in misfit(marked("a > 1")[0], marked("a > 2")[0])


def interval_joined(**changed: Any) -> list[RegionTable]:
    """Return the tables of a join's state."""
    arguments = {
        "on": ["k"], "within": (-MINUTE, 5 * MINUTE), "left_time": "a", "right_time": "b", "lateness": 0, **changed
    }  # fmt: skip
    with dm.application("kept"):
        return tables_of(dm.join("lefts", "rights", **arguments))


@pytest.mark.seed("NU1", "V154")
@pytest.mark.parametrize(
    ("changed", "refused"),
    [
        ({"lateness": 600}, ""), ({"max_ahead": 60}, ""),
        ({"within": (MINUTE, MINUTE)}, ""), ({"how": "inner"}, ""),
        ({"within": (-MINUTE, 6 * MINUTE)}, "left"), ({"within": (-2 * MINUTE, MINUTE)}, "right"),
        ({"how": "left"}, "left"), ({"how": "full"}, "left right"), ({"left_time": "c"}, "left right"),
        ({"on": ["k", "l"]}, "left right"),
    ],
    ids=str,
)  # fmt: skip
def test_a_join_goes_on_where_its_rows_were_kept_long_enough(changed: dict[str, Any], refused: str) -> None:
    """Code that did not need to know whether a row has met a partner did not keep it."""
    tables = zip(interval_joined(), interval_joined(**changed), strict=True)
    assert {before.name for before, after in tables if misfit(before, after)} == set(refused.split())


@pytest.mark.seed("NU1")
def test_a_join_by_windows_does_not_become_one_by_event_time_on_its_state() -> None:
    with dm.application("kept"):
        windows = {"left_window": MINUTE, "right_window": MINUTE, "left_time": "a", "right_time": "b"}
        before = {kept.part: kept.retention for kept in dm.join("lefts", "rights", on=["k"], **windows).operator.kept}
    after = {table.name: table.retention for table in interval_joined()}
    assert after["left"]["of"] != before["left"].of
    assert after["right"]["of"] != before["right"].of
