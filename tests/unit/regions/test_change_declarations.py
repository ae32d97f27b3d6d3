"""Over a change stream each operator takes the changes or is refused by name, with a remedy that works (RA4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from change_stream import Marked, marked
from shapes import OPERATOR_DRIVEN, Beacon, app, connected, made

import drainmark as dm
from drainmark.jobs.errors import DeclarationError, Location, Violation
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.operators import catalogue
from drainmark.jobs.operators.changes.apply_changes import ApplyChanges
from drainmark.jobs.operators.union import Union
from drainmark.jobs.operators.windows.retracting_aggregate import RetractingAggregate
from drainmark.jobs.regions.change_streams import keepers
from drainmark.jobs.regions.merging import draft_of
from drainmark.jobs.regions.plan import compile_application
from drainmark.jobs.regions.rules.connections import changes

pytestmark = pytest.mark.seed("RA4")

TAKE = {
    "aggregate", "aggregate over changes", "database-upsert", "delta-upsert", "expect", "filter", "functor", "punctor",
    "split", "throttle", "union",
}  # fmt: skip
"""The kinds that read a change stream."""

GIVEN = {
    "keys": ("k",), "values": {"n": dm.count()}, "at": "every", "changes_of": "changes", "conditions": {"some": "true"},
    "condition_sql": "true",
}  # fmt: skip


def bare(cls: type[Operator]) -> Operator:
    """Return an operator of a kind that reads a change stream, without fields of its own that no rule asks for."""
    operator = object.__new__(cls)
    for field in dataclasses.fields(cls):
        if field.default is not dataclasses.MISSING:
            object.__setattr__(operator, field.name, field.default)
        if field.name in GIVEN:
            object.__setattr__(operator, field.name, GIVEN[field.name])
    for name, value in {"name": "it", "inputs": (connected("changes"),), "location": Location("any.py", 1)}.items():
        object.__setattr__(operator, name, value)
    return operator


READERS = [cls for cls in catalogue.kinds() if not cls.is_source and not cls.refused_because]


@pytest.mark.parametrize("cls", READERS, ids=lambda cls: cls.kind)
def test_a_kind_takes_changes_or_is_refused_by_name(cls: type[Operator]) -> None:
    start = made(Beacon, "start", consistent=OPERATOR_DRIVEN)
    draft = draft_of(app(start, made(Marked, "changes", "start", gone="g"), bare(cls)))
    found = list(changes(draft))
    assert [violation.operator for violation in found] == ([] if cls.kind in TAKE else ["it"])
    for violation in found:
        assert "'changes'" in violation.message
        assert cls.kind in violation.message
        assert "'start'" in violation.remedy


@pytest.mark.parametrize(
    "cls", [cls for cls in READERS if cls.kind in TAKE and not cls.is_sink], ids=lambda cls: cls.kind
)
def test_the_state_that_takes_rows_back_is_known_behind_every_operator(cls: type[Operator]) -> None:
    start = made(Beacon, "start", consistent=OPERATOR_DRIVEN)
    applied = made(ApplyChanges, "changes", "start", keys=("k",), sequence_by=("n",))
    plain = made(Beacon, "plain", consistent=OPERATOR_DRIVEN)
    last = dataclasses.replace(bare(Union), name="last", inputs=(connected("it"), connected("plain")))
    formed = draft_of(app(start, plain, applied, bare(cls), last)).application.operators
    known = keepers(formed)
    behind = "it" if "aggregate" in cls.kind else "changes"  # of its values it alone knows which it gave
    assert known == {"changes": ("changes",), "it": (behind,), "last": ("", behind)}


def refused(declare: Callable[[Any], Any]) -> list[Violation]:
    """Return the violations of what is declared over a change stream."""
    with dm.application("refused") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(
            dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema="k string, n int, at timestamp")
        )
        def events(scanned: Any) -> Any:
            return scanned

        dm.sink(declare(marked("events", "n < 0", name="changes")), dm.DeltaUpsert("out", keys=["k"]))
    try:
        compile_application(dm.build_application(declared))
    except DeclarationError as error:
        return list(error.violations)
    return []


def aggregated(changes: Any, **given: Any) -> Any:
    return dm.aggregate(changes, **{"keys": ["k"], "values": {"it": dm.count()}, "name": "totals", **given})


CUSTOM = dm.Aggregation(partial=lambda: dm.F.product("n"), merge=dm.F.product, label="product")
NOT_INVERTED = {
    "first": (dm.first("n"), 'dm.bottom("n", 1, by=…)'),
    "last": (dm.last("n"), 'dm.top("n", 1, by=…)'),
    "collect_list": (dm.collect_list("n", limit=9), 'dm.bottom("n", 9, by=…)'),
    "approx_distinct": (dm.approx_distinct("n"), 'dm.count_distinct("n")'),
    "Aggregation": (CUSTOM, "dm.functor"),
}
"""The aggregations that cannot take a row back, each with the part of the remedy that says what to declare."""

INVERTED = {
    "count": dm.count(), "sum": dm.sum("n"), "mean": dm.mean("n"), "min": dm.min("n"), "max": dm.max("n"),
    "top": dm.top("n", 1, by="at"), "bottom": dm.bottom("n", 9, by="at"), "percentile": dm.percentile("n", 0.5),
    "variance": dm.variance("n"), "stddev": dm.stddev("n"), "count_distinct": dm.count_distinct("n"),
    "collect_set": dm.collect_set("n"),
}  # fmt: skip


@pytest.mark.parametrize(("value", "instead"), NOT_INVERTED.values(), ids=NOT_INVERTED)
def test_a_value_that_cannot_take_a_row_back_is_refused_by_name(value: dm.Aggregation, instead: str) -> None:
    (found,) = refused(lambda changes: aggregated(changes, values={"it": value}))
    assert (found.rule, found.operator) == ("CHANGES", "totals")
    assert value.label in found.message
    assert "'it'" in found.message
    assert "'changes'" in found.message
    assert instead in found.remedy


@pytest.mark.parametrize("value", INVERTED.values(), ids=INVERTED)
def test_a_value_that_can_is_declared(value: dm.Aggregation) -> None:
    assert refused(lambda changes: aggregated(changes, values={"it": value})) == []


def test_every_aggregation_is_one_or_the_other() -> None:
    public = {name for name, made in catalogue.exports().items() if callable(made) and _makes_a_value(made)}
    assert public | {"Aggregation"} == {*INVERTED, *NOT_INVERTED}


def _makes_a_value(made: Any) -> bool:
    return getattr(made, "__annotations__", {}).get("return") == "Aggregation"


WINDOWS = {
    "closed": {"window": dm.tumbling("at", hours=1), "emit": "closed", "lateness": 0},
    "watermark": {"window": dm.tumbling("at", hours=1), "lateness": 0},
    "rows": {"window": dm.tumbling(rows=3)},
    "sliding rows": {"window": dm.sliding(rows=3)},
    "every row": {"window": dm.sliding(rows=3), "emit": "row"},
    "trailing": {"window": dm.sliding("at", minutes=5)},
    "session": {"window": dm.session("at", gap=9), "emit": "closed", "lateness": 0},
}


@pytest.mark.parametrize("given", WINDOWS.values(), ids=WINDOWS)
def test_a_window_that_closes_or_counts_rows_is_refused(given: dict[str, Any]) -> None:
    (found,) = refused(lambda changes: aggregated(changes, **given))
    assert (found.rule, found.operator) == ("CHANGES", "totals")
    assert "'events'" in found.remedy
    assert ("leave lateness= and emit= out" in found.remedy) == (given["window"] == dm.tumbling("at", hours=1))


@pytest.mark.parametrize("window", [dm.tumbling("at", hours=1), dm.sliding("at", hours=1, every=60)])
def test_a_window_that_stays_open_takes_changes(window: Any) -> None:
    assert refused(lambda changes: aggregated(changes, window=window)) == []


def test_a_lookup_beside_changes_is_refused() -> None:
    """The row that is gone would meet another version of the table than the row that came."""

    def joined(changes: Any) -> Any:
        known = dm.lookup("known")
        return dm.functor(lambda changes, known: changes.join(known, "k"), name="joined", inputs=[changes, known])

    (found,) = refused(joined)
    assert (found.rule, found.operator) == ("CHANGES", "joined")


def test_only_an_aggregate_that_reads_changes_has_their_form() -> None:
    with dm.application("both") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema="k string, n int"))
        def events(scanned: Any) -> Any:
            return scanned

        some = dm.filter(lambda changes: changes.n > 0, name="some", inputs=[marked("events", "n < 0", name="changes")])
        for stream, name in (("events", "plain"), (some, "left"), ("left", "of_left")):
            values = {"n": dm.count()}
            dm.sink(dm.aggregate(stream, keys=["k"], values=values, name=name), dm.DeltaUpsert(name, keys=["k"]))
    plan = compile_application(dm.build_application(declared))
    forms = {
        name: type(plan.application.operator(name)) is RetractingAggregate for name in ("plain", "left", "of_left")
    }
    assert forms == {"plain": False, "left": True, "of_left": True}
    of_left = plan.regions[0].operator("of_left")
    assert isinstance(of_left, RetractingAggregate)
    assert of_left.changes_of == "changes"
