"""Wrong combinations in a windowed aggregate are refused with rule and remedy; valid combinations compile."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest

import drainmark as dm
from drainmark.jobs.errors import DeclarationError, UsageError, Violation
from drainmark.jobs.graph.operator import Vectorises
from drainmark.jobs.regions.explain import as_text
from drainmark.jobs.regions.plan import ApplicationPlan, compile_application

ROWS = {"n": dm.count()}


def compiled(**arguments: Any) -> ApplicationPlan:
    with dm.application("windows") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema="user string, at timestamp"))
        def events(scanned: Any) -> Any:
            return scanned

        found = dm.aggregate(events, **{"keys": ["user"], "values": ROWS, "name": "found", **arguments})
        dm.sink(found, dm.DeltaAppend("found_out"))
    return compile_application(dm.build_application(declared))


def refused(**arguments: Any) -> tuple[Violation, ...]:
    with pytest.raises(DeclarationError) as raised:
        compiled(**arguments)
    return raised.value.violations


TEN = dm.tumbling("at", minutes=10)
REFUSED: dict[str, list[dict[str, Any]]] = {
    "WINDOW_CLOCK": [{"window": dm.tumbling(minutes=5)}, {"window": dm.sliding(minutes=5, every=60)},
                     {"window": dm.session(gap=60), "emit": "closed", "lateness": 0}],
    "WINDOW_SIZE": [
        {"window": dm.tumbling(rows=0)}, {"window": dm.sliding(rows=True)}, {"window": dm.tumbling("at", minutes=-1)},
        {"window": dm.sliding("at", minutes=5, every=600)}, {"window": dm.sliding("at", minutes=5, every=0)},
        {"window": dm.session("at", gap=0), "emit": "closed", "lateness": 0}, {"window": dm.tumbling("n", delta=0)},
        {"window": dm.sliding("at", delta=dt.timedelta(0))},
        {"window": dm.tumbling("at", minutes=1, count_trigger=0), "emit": "closed", "lateness": 0},
    ],
    "WINDOW_EMIT": [
        {"window": TEN, "emit": "often"}, {"window": TEN, "emit": "row"}, {"emit": "closed"}, {"emit": "row"},
        {"window": dm.sliding(rows=3), "emit": "closed"}, {"window": dm.sliding("at", minutes=3), "emit": "closed"},
        {"window": dm.session("at", gap=60), "lateness": 0},
        {"window": dm.tumbling("at", minutes=1, count_trigger=5), "lateness": 0},
    ],
    "WINDOW_LATENESS": [
        {"window": TEN, "emit": "closed"}, {"window": dm.session("at", gap=60), "emit": "closed"},
        {"window": TEN, "lateness": -1}, {"window": dm.tumbling(rows=3), "lateness": 0}, {"lateness": 0},
        {"window": dm.sliding("at", minutes=3), "lateness": 60},
        {"window": TEN, "max_ahead": 5}, {"max_ahead": 5}, {"window": TEN, "lateness": 0, "max_ahead": 0},
        {"window": dm.session("at", gap=60), "emit": "closed", "lateness": 0, "max_ahead": dt.timedelta.max},
    ],
    "WINDOW_COLUMNS": [
        {"window": dm.tumbling(rows=3), "columns": ["at"]},
        {"window": dm.sliding(rows=3), "emit": "row", "columns": ["n"]},
    ],
    "AGGREGATE_NAMES": [
        {"window": dm.tumbling(rows=3), "values": {"window_number": dm.count()}},
        {"window": TEN, "values": {"window_start": dm.count()}}, {"values": {"_n": dm.count()}},
    ],
    "AGGREGATE_KEYS": [
        {"keys": []}, {"keys": ["user", "window_start"], "window": TEN},
        {"keys": ["window_number"], "window": dm.tumbling(rows=3)},
    ],
    "AGGREGATE_VALUES": [{"window": TEN, "values": {}}],
}  # fmt: skip


@pytest.mark.seed("K15")
@pytest.mark.parametrize(
    ("rule", "arguments"),
    [(rule, one) for rule, several in REFUSED.items() for one in several],
    ids=lambda one: one if isinstance(one, str) else "-".join(one),
)
def test_what_makes_no_sense_is_refused_by_its_rule_alone(rule: str, arguments: dict[str, Any]) -> None:
    """K15 does not apply: no window uses the local clock, and a window of minutes without a column is refused."""
    violations = refused(**arguments)
    assert {violation.rule for violation in violations} == {rule}
    for violation in violations:
        assert violation.operator == "found"
        assert violation.remedy
        assert violation.location


@pytest.mark.parametrize(
    "make",
    [
        dm.tumbling, dm.sliding, lambda: dm.tumbling("n"), lambda: dm.tumbling(delta=3),
        lambda: dm.tumbling(rows=3, until="ends"), lambda: dm.sliding("at", rows=3, minutes=5),
        lambda: dm.tumbling("n", rows=3), lambda: dm.sliding("n", rows=3), lambda: dm.tumbling("n", until="ends"),
        lambda: dm.sliding(rows=3, every=60), lambda: dm.tumbling(rows=3, count_trigger=3),
    ],
)  # fmt: skip
def test_a_window_is_of_one_kind(make: Callable[[], Any]) -> None:
    with pytest.raises(UsageError) as raised:
        make()
    assert raised.value.remedy


LEGAL: list[tuple[dict[str, Any], Vectorises]] = [
    ({"window": dm.tumbling(rows=3)}, Vectorises.YES),
    ({"window": dm.tumbling(until="ends"), "keys": [], "emit": "closed"}, Vectorises.YES),
    ({"window": dm.tumbling("n", delta=0.5)}, Vectorises.YES),
    ({"window": TEN, "lateness": 0}, Vectorises.YES),
    ({"window": dm.sliding("at", minutes=5, every=dt.timedelta(minutes=1))}, Vectorises.YES),
    ({"window": dm.sliding("at", minutes=5), "emit": "row", "columns": ["at"]}, Vectorises.YES),
    ({"window": dm.sliding(rows=2000), "emit": "row"}, Vectorises.YES),
    ({"window": dm.sliding(rows=2000)}, Vectorises.NO),
    ({"window": dm.session("at", gap=dt.timedelta(minutes=5)), "emit": "closed", "lateness": 60}, Vectorises.YES),
]


@pytest.mark.parametrize(("arguments", "vectorises"), LEGAL, ids=str)
def test_what_goes_together_compiles(arguments: dict[str, Any], vectorises: Vectorises) -> None:
    region = compiled(**arguments).regions[0]
    assert region.vectorisation["found"] is vectorises


def test_the_graph_says_why_long_sliding_windows_hold_one_trigger() -> None:
    plan = compiled(window=dm.sliding(rows=2000))
    assert "one trigger each, because of found (its window is longer than 1000 rows)" in as_text(plan)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"window": dm.tumbling(rows=3)}, {"window": dm.tumbling(rows=4)}),
        ({"window": dm.tumbling(rows=3)}, {"window": dm.tumbling(rows=3), "emit": "closed"}),
        ({"window": TEN, "lateness": 0}, {"window": TEN, "lateness": 1}),
        ({"window": TEN, "lateness": 0}, {"window": TEN, "lateness": 0, "max_ahead": 1}),
        ({"window": dm.tumbling("n", delta=3)}, {"window": dm.sliding("n", delta=3)}),
        ({"window": dm.tumbling(until="a")}, {"window": dm.tumbling(until="b")}),
    ],
    ids=str,
)
def test_another_window_is_another_fingerprint(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert compiled(**one).fingerprint == compiled(**one).fingerprint != compiled(**other).fingerprint
