"""Cutting slices: one after another, or for all starts at a tick; without Spark, disk or clock (V40, V43, E15, E28)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from drainmark.jobs.errors import Location
from drainmark.jobs.graph.annotations import Consistent
from drainmark.jobs.graph.code_digests import UserFunction
from drainmark.jobs.operators.sources.beacon import Beacon
from drainmark.jobs.operators.sources.contract import Replayable, SourceAccess
from drainmark.jobs.operators.sources.slices import Position, Slice, SliceLimit
from drainmark.jobs.operators.sources.source import SlicedSource
from drainmark.jobs.protocol.records.triggers import DROPPED, SLICES, NewTrigger, slices_of
from drainmark.jobs.runtime.input.slices import (
    LIMIT,
    NUMBER,
    SMALLEST_BYTES,
    cut_all,
    cut_loss,
    cut_period,
    dropped_ticks,
    next_limit,
    positions,
    slice_of,
)

MB = 1024 * 1024
REACH: Any = type("Nothing", (), {"region": "app/start"})()


@dataclass(frozen=True)
class Counter(Replayable):
    """A source of `has` bytes."""

    has: int

    kind = "counter"

    def problems(self, trigger: str | None) -> Iterator[tuple[str, str, str]]:
        yield from ()

    def fingerprint(self) -> Any:
        return {}

    def columns(self, access: SourceAccess) -> str:
        return "n bigint"

    def next_slice(self, after: Position | None, access: SourceAccess, cut: SliceLimit) -> Slice | None:
        begun = after["n"] if after else 0
        end = min(self.has, begun + (cut.max_bytes or (self.has if cut.is_periodic else 10)))
        return Slice(start=after, end={"n": end}, size_bytes=end - begun) if end > begun else None

    def label(self, piece: Slice, source: str, access: SourceAccess) -> str:
        return f"counter:{piece.end['n']}"


def source(name: str, reads: Replayable, trigger: str = "periodic") -> SlicedSource:
    function = UserFunction(function=lambda scanned: scanned, streams=("scanned",))
    return SlicedSource(
        name=name, location=Location("app.py", 1), reads=reads, function=function,
        consistent=Consistent(trigger=trigger),
    )  # fmt: skip


def taken(trigger: NewTrigger | None, name: str) -> tuple[Any, Any]:
    assert trigger is not None
    piece = slices_of(trigger.identity)[name]
    return piece["from"], piece["to"]


def test_slices_of_one_start_lie_one_behind_the_other() -> None:
    start = source("a", Counter(25), "operator-driven")
    found = list(cut_all(start, None, REACH, 100))
    assert [trigger.uri for trigger in found] == ["counter:10", "counter:20", "counter:25"]
    assert [taken(trigger, "a") for trigger in found] == [
        (None, {"n": 10}), ({"n": 10}, {"n": 20}), ({"n": 20}, {"n": 25})
    ]  # fmt: skip
    assert list(cut_all(start, found[-1].identity, REACH, 100)) == []
    more = replace(start, reads=Counter(26))
    assert [taken(trigger, "a") for trigger in cut_all(more, found[-1].identity, REACH, 100)] == [
        ({"n": 25}, {"n": 26})
    ]


@pytest.mark.seed("V70")
def test_a_period_takes_what_all_starts_have_as_one_trigger() -> None:
    """V40: every start tells its position; a start without new input takes part with an empty slice."""
    first = cut_period([source("a", Counter(5)), source("b", Counter(0))], None, REACH, limit=None)
    assert first is not None
    assert (taken(first, "a"), taken(first, "b")) == ((None, {"n": 5}), (None, None))
    assert slice_of(first.identity, "b") is None
    starts = [source("a", Counter(5)), source("b", Counter(3))]
    second = cut_period(starts, first.identity, REACH, limit=None, dropped=2)
    assert (taken(second, "a"), taken(second, "b")) == (({"n": 5}, {"n": 5}), (None, {"n": 3}))
    assert second is not None
    assert (second.uri, second.size_bytes, second.identity[DROPPED]) == ("period:app/start#2", 3, 2)
    assert cut_period(starts, second.identity, REACH, limit=None) is None


def test_a_start_that_was_taken_out_of_the_code_keeps_its_position() -> None:
    first = cut_period([source("a", Counter(5)), source("b", Counter(7))], None, REACH, limit=None)
    assert first is not None
    second = cut_period([source("a", Counter(6))], first.identity, REACH, limit=None)
    assert second is not None
    assert positions(second.identity) == {"a": {"n": 6}, "b": {"n": 7}}


def test_a_start_that_left_before_it_gave_anything_comes_back_as_a_new_one() -> None:
    both = [source("a", Counter(5)), source("b", Counter(0))]
    first = cut_period(both, None, REACH, limit=None)
    assert first is not None
    second = cut_period([source("a", Counter(6))], first.identity, REACH, limit=None)
    assert second is not None
    assert positions(second.identity) == {"a": {"n": 6}, "b": None}
    stored = json.loads(json.dumps(second.identity))
    stored[SLICES]["b"] = {"from": None, "to": {}, "bytes": 0}  # as earlier versions stored such a start
    for newest in (second.identity, stored):
        assert slice_of(newest, "b") is None
        third = cut_period([source("a", Counter(6)), source("b", Counter(3))], newest, REACH, limit=None)
        assert third is not None
        assert taken(third, "b") == (None, {"n": 3})


def test_a_backlog_is_cut_to_the_limit_shared_by_the_starts() -> None:
    cut = cut_period([source("a", Counter(500)), source("b", Counter(20))], None, REACH, limit=100)
    assert cut is not None
    assert (taken(cut, "a")[1], taken(cut, "b")[1]) == ({"n": 50}, {"n": 20})
    assert (cut.size_bytes, cut.identity[LIMIT]) == (70, 100)


def test_endless_starts_alone_are_no_backlog() -> None:
    """E28: a Beacon without a number of batches always has new input."""
    clock = source("clock", Beacon(rows=3))
    assert cut_period([clock], None, REACH, limit=None, with_endless=False) is None
    first = cut_period([clock], None, REACH, limit=None)
    assert taken(first, "clock") == (None, {"batch": 1, "n": 3})
    other = cut_period([clock, source("a", Counter(5))], None, REACH, limit=None, with_endless=False)
    assert taken(other, "clock")[1] == {"batch": 1, "n": 3}


@pytest.mark.parametrize(
    ("limit", "taken_bytes", "seconds", "expected"),
    [
        (32 * MB, 32 * MB, 0.5, 64 * MB),  # up to half a period: double the limit
        (32 * MB, 32 * MB, 1.5, 32 * MB),
        (32 * MB, 32 * MB, 2.5, 16 * MB),  # longer than a period: half the limit
        (32 * MB, 1 * MB, 0.1, 32 * MB),  # a small input does not predict the time of a large one
        (SMALLEST_BYTES, SMALLEST_BYTES, 9.0, SMALLEST_BYTES),
        (10, 10, 9.0, 10),
    ],
)
def test_the_limit_follows_the_rate(limit: int, taken_bytes: int, seconds: float, expected: int) -> None:
    assert next_limit(limit, taken=taken_bytes, seconds=seconds, period=2.0) == expected


@pytest.mark.seed("X7")
def test_ticks_during_a_state_are_counted() -> None:
    """E15, K7: such ticks request nothing; with a period of 0 there are none."""
    assert [dropped_ticks(seconds, 2.0) for seconds in (0.0, 1.9, 2.0, 7.0)] == [0, 0, 1, 3]
    assert dropped_ticks(7.0, 0.0) == 0


@pytest.mark.seed("E28")
@pytest.mark.parametrize(
    ("beacon", "trigger", "rules"),
    [
        (Beacon(rows=1, batches=2), "operator-driven", set()),
        (Beacon(rows=1), "operator-driven", {"BEACON_COUNT"}),
        (Beacon(rows=1), "periodic", set()),
        (Beacon(rows=1, batches=2), "periodic", {"BEACON_COUNT"}),
        (Beacon(rows=0, batches=2), "operator-driven", {"BEACON_ROWS"}),
    ],
)
def test_a_beacon_has_a_count_where_nobody_else_ends_it(beacon: Beacon, trigger: str, rules: set[str]) -> None:
    found = source("clock", beacon, trigger).violations(in_region=True)
    assert {violation.rule for violation in found} == rules


# --- losses (FM-K1) ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Losing(Counter):
    """A counter that has lost all numbers below `first`."""

    first: int = 0

    def past_loss(
        self, after: Position | None, access: SourceAccess, source: str, *, waiting: Slice | None
    ) -> Slice | None:
        begun = after["n"] if after else 0
        if begun >= self.first:
            return None
        return Slice(start=after, end={"n": self.first}, size_bytes=0, facts={"lost": [begun, self.first]})


@pytest.mark.parametrize("trigger", ["operator-driven", "periodic"])
def test_a_loss_is_a_trigger_of_its_own_behind_which_slices_go_on(trigger: str) -> None:
    starts = [source("a", Losing(has=30, first=12), trigger)]
    starts += [source("b", Counter(has=5), trigger)] if trigger == "periodic" else []
    before: dict[str, Position | None] = {"a": {"n": 4}, "b": {"n": 5}} if trigger == "periodic" else {"a": {"n": 4}}
    slices = {name: Slice(start=None, end=at or {}, size_bytes=1).to_json() for name, at in before.items()}
    newest = {SLICES: slices, NUMBER: 6, LIMIT: 9}
    loss = cut_loss(starts, newest, REACH)
    assert loss is not None
    assert slice_of(loss.identity, "a") == Slice(start={"n": 4}, end={"n": 12}, size_bytes=0, facts={"lost": [4, 12]})
    assert positions(loss.identity) == {**before, "a": {"n": 12}}
    assert (loss.size_bytes, loss.identity.get(NUMBER)) == (0, 7 if trigger == "periodic" else None)
    assert cut_loss(starts, loss.identity, REACH) is None
    again = cut_loss(starts, loss.identity, REACH, waiting=[{**newest, SLICES: {
        name: Slice(start=at, end={"n": 99}, size_bytes=1).to_json() for name, at in before.items()}}])  # fmt: skip
    assert again is not None
    assert slice_of(again.identity, "a") == slice_of(loss.identity, "a")


def test_all_that_waits_is_one_slice_to_a_source_that_looks_for_what_it_lost() -> None:
    """The first waiting slice might be readable, and the last not (FM-K1)."""
    asked: list[tuple[Position | None, Slice | None]] = []

    @dataclass(frozen=True)
    class Asked(Counter):
        def past_loss(
            self, after: Position | None, access: SourceAccess, source: str, *, waiting: Slice | None
        ) -> Slice | None:
            asked.append((after, waiting))
            return None

    waiting = [
        {SLICES: {"a": Slice(start={"n": at}, end={"n": at + 3}, size_bytes=3, facts={"of": at}).to_json()}}
        for at in (4, 7, 10)
    ]
    assert cut_loss([source("a", Asked(has=30))], waiting[-1], REACH, waiting=waiting) is None
    assert asked == [({"n": 4}, Slice(start={"n": 4}, end={"n": 13}, size_bytes=3, facts={"of": 4}))]
