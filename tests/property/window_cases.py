"""Every configuration of a windowed aggregate that tests use: its declaration and its oracle."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from window_oracles import Told, by_delta, by_mark, by_rows, by_session, by_time, last_rows, sliding, trailing

import drainmark as dm

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = "user string, n bigint, x double, at timestamp, ends boolean, km bigint, level double"
FIVE, TEN, TWENTY = (dt.timedelta(minutes=minutes) for minutes in (5, 10, 20))
NO_NUMBERS = (math.nan, math.inf, -math.inf)
Row = dict[str, Any]


def values() -> Mapping[str, dm.Aggregation]:
    return {
        "rows": dm.count(), "total": dm.sum("n"), "mean": dm.mean("x"), "oldest": dm.first("n"),
        "newest": dm.last("n"), "known": dm.collect_set("n"), "listed": dm.collect_list("n", limit=3),
        "largest": dm.top("n", 2, by="x"), "median": dm.percentile("x", 0.5),
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration: arguments of `dm.aggregate`, and an oracle of its output.

    Attributes:
        window_keys: columns that tell the windows of a key apart.
    """

    name: str
    window: Callable[[], Any]
    oracle: Callable[[Sequence[Sequence[Row]]], Told]
    keys: tuple[str, ...] = ("user",)
    window_keys: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    def declare(self, stream: Any) -> Any:
        return dm.aggregate(
            stream, name=self.name, keys=list(self.keys), values=values(), window=self.window(), **self.more
        )

    def operator(self) -> Any:
        """Return the library's own operator for the case."""
        with dm.application("bench"):
            return self.declare("events").operator

    @property
    def has_late(self) -> bool:
        return "lateness" in self.more


def _numbered() -> list[Case]:
    number = ("window_number",)
    cases = []
    for keys, emit in ((("user",), "change"), (("user",), "closed"), ((), "closed")):
        label, more = f"{emit}{'' if keys else '_keyless'}", {"emit": emit}
        cases += [
            Case(name=f"tumbling_rows_{label}", keys=keys, window_keys=number, more=more,
                 window=lambda: dm.tumbling(rows=3),
                 oracle=lambda files, keys=keys, emit=emit: by_rows(files, keys, emit, 3)),
            Case(name=f"tumbling_until_{label}", keys=keys, window_keys=number, more=more,
                 window=lambda: dm.tumbling(until="ends"),
                 oracle=lambda files, keys=keys, emit=emit: by_mark(files, keys, emit, "ends")),
            Case(name=f"tumbling_delta_{label}", keys=keys, window_keys=number, more=more,
                 window=lambda: dm.tumbling("km", delta=10),
                 oracle=lambda files, keys=keys, emit=emit: by_delta(files, keys, emit, "km", 10)),
        ]  # fmt: skip
    return [
        *cases,
        Case(name="tumbling_delta_of_time", window_keys=number, more={"emit": "closed"},
             window=lambda: dm.tumbling("at", delta=TWENTY),
             oracle=lambda files: by_delta(files, ["user"], "closed", "at", TWENTY)),
        Case(name="tumbling_delta_of_doubles", window_keys=number, more={"emit": "closed"},
             window=lambda: dm.tumbling("level", delta=9.5),
             oracle=lambda files: by_delta(files, ["user"], "closed", "level", 9.5)),
    ]  # fmt: skip


def _event() -> list[Case]:
    def case(name: str, every: dt.timedelta, keys: tuple[str, ...], trigger: int | None, **more: Any) -> Case:
        lateness = more.get("lateness")

        def window() -> Any:
            if every == TEN:
                return dm.tumbling("at", minutes=10, count_trigger=trigger)
            return dm.sliding("at", minutes=10, every=every)

        def oracle(files: Any) -> Told:
            late = None if lateness is None else dt.timedelta(seconds=lateness)
            return by_time(
                files, keys, more.get("emit", "change"), size=TEN, every=every, lateness=late, trigger=trigger,
                max_ahead=more.get("max_ahead"),
            )  # fmt: skip

        return Case(name=name, window=window, oracle=oracle, keys=keys, window_keys=("window_start",), more=more)

    users, four = ("user",), dt.timedelta(minutes=4)
    return [
        case("tumbling_time_change", TEN, users, None, lateness=600),
        case("tumbling_time_closed", TEN, users, None, emit="closed", lateness=0),
        case("tumbling_time_closed_keyless", TEN, (), None, emit="closed", lateness=600),
        case("tumbling_time_bounded", TEN, users, None, emit="closed", lateness=0, max_ahead=FIVE),
        case("tumbling_time_trigger", TEN, users, 2, emit="closed", lateness=900),
        case("hopping_time_running", FIVE, users, None),
        case("hopping_time_change", four, users, None, lateness=300),
        case("hopping_time_closed", FIVE, users, None, emit="closed", lateness=300),
    ]


def _sliding() -> list[Case]:
    columns = ["x", "at"]
    return [
        Case(name="sliding_rows_change", window=lambda: dm.sliding(rows=3),
             oracle=lambda files: sliding(files, ["user"], "change", last_rows(3))),
        Case(name="sliding_rows_change_keyless", keys=(), window=lambda: dm.sliding(rows=4),
             oracle=lambda files: sliding(files, [], "change", last_rows(4))),
        Case(name="sliding_rows_row", more={"emit": "row", "columns": columns}, window=lambda: dm.sliding(rows=4),
             oracle=lambda files: sliding(files, ["user"], "row", last_rows(4), columns)),
        Case(name="sliding_rows_row_keyless", keys=(), more={"emit": "row"}, window=lambda: dm.sliding(rows=2),
             oracle=lambda files: sliding(files, [], "row", last_rows(2))),
        Case(name="sliding_delta_change", window=lambda: dm.sliding("km", delta=10),
             oracle=lambda files: sliding(files, ["user"], "change", trailing("km", 10))),
        Case(name="sliding_delta_row", more={"emit": "row", "columns": columns},
             window=lambda: dm.sliding("km", delta=10),
             oracle=lambda files: sliding(files, ["user"], "row", trailing("km", 10), columns)),
        Case(name="sliding_delta_of_doubles", more={"emit": "row"}, window=lambda: dm.sliding("level", delta=9.5),
             oracle=lambda files: sliding(files, ["user"], "row", trailing("level", 9.5))),
        Case(name="sliding_time_row", more={"emit": "row"}, window=lambda: dm.sliding("at", minutes=10),
             oracle=lambda files: sliding(files, ["user"], "row", trailing("at", TEN))),
        Case(name="sliding_time_change_keyless", keys=(), window=lambda: dm.sliding("at", minutes=5),
             oracle=lambda files: sliding(files, [], "change", trailing("at", FIVE))),
    ]  # fmt: skip


def _sessions() -> list[Case]:
    def case(name: str, keys: tuple[str, ...], lateness: float, max_ahead: dt.timedelta | None = None) -> Case:
        late, more = dt.timedelta(seconds=lateness), {"emit": "closed", "lateness": lateness, "max_ahead": max_ahead}
        return Case(name=name, keys=keys, window_keys=("window_start",), more=more,
                    window=lambda: dm.session("at", gap=300),
                    oracle=lambda files: by_session(files, keys, gap=FIVE, lateness=late, max_ahead=max_ahead),
                    )  # fmt: skip

    return [case("session", ("user",), 600), case("session_strict", ("user",), 0), case("session_keyless", (), 900),
            case("session_bounded", ("user",), 0, FIVE)]  # fmt: skip


CASES: Mapping[str, list[Case]] = {
    "numbered": _numbered(), "event": _event(), "sliding": _sliding(), "sessions": _sessions()
}  # fmt: skip


def content(number: int) -> list[Row]:
    """Return the rows of file `number`: event time advances eight minutes a file; some rows are half an hour behind."""
    chance, levels = random.Random(f"windows {number}"), random.Random(f"levels {number}")
    now = NOON + number * dt.timedelta(minutes=8)
    return [
        {
            "user": chance.choice(["ann", "bob", None]),
            "n": chance.choice([*range(6), None]),
            "x": chance.randrange(1000) / 7,
            "at": chance.choice([None, *[now + chance.randrange(-10, 10) * dt.timedelta(minutes=1)] * 7,
                                 now - dt.timedelta(minutes=30)]),
            "ends": chance.choice([True, False, False, None]),
            "km": chance.choice([number * 4 + chance.randrange(6), number * 4 + chance.randrange(6), None]),
            "level": levels.choice([*[number * 4 + levels.randrange(12) / 2] * 6, None, *NO_NUMBERS]),
        }
        for _ in range(chance.choice([0, 3, 6, 9]))
    ]  # fmt: skip


def cell(value: Any) -> str:
    """Return a value in the form of a CSV cell."""
    if isinstance(value, dt.datetime):
        return f"{value:%Y-%m-%dT%H:%M:%SZ}"
    if value in (math.inf, -math.inf):
        return "Inf" if value > 0 else "-Inf"
    return "" if value is None else str(value).replace("nan", "NaN")
