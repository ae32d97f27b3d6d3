"""Sinks that get another column from their stream, by policy (I19): wider tables, null in old rows, normal rewinds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hand_runs import engine, gives, without_spark
from harness import run_once, write

import drainmark as dm
from drainmark.jobs.errors import DeclarationError, SchemaMismatch
from drainmark.jobs.failpoints import InjectedFailure, arm
from drainmark.jobs.regions.plan import compile_application
from drainmark.orchestration.verbs.interventions import reset
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.checkpoints.as_of import RegionReader, read_at

__all__ = ["engine", "without_spark"]

REGION = "growing/lines"


def narrow(rows: Any) -> Any:
    return rows


@gives("k string, label string, n bigint")
def wide(rows: Any) -> Any:
    """Return the rows with another column in the middle."""
    return [{"k": row["k"], "label": row["k"].upper(), "n": row["n"]} for row in rows]


@gives("k string, n string")
def retyped(rows: Any) -> Any:
    return [{"k": row["k"], "n": str(row["n"])} for row in rows]


@gives("k string")
def dropped(rows: Any) -> Any:
    return [{"k": row["k"]} for row in rows]


def declare(inbox: Path, shape: Callable[[Any], Any], policy: Any = "evolve", aggregate: bool = False) -> Opened:
    with dm.application("growing") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(inbox), format="csv", schema="k string, n bigint", settle=0))
        def lines(scanned: Any) -> Any:
            return scanned

        shaped = dm.functor(shape, name="shaped", inputs=[lines])
        dm.sink(shaped, dm.DeltaAppend("rows", on_schema_change=policy))
        dm.sink(shaped, dm.DeltaUpsert("newest", ["k"], on_schema_change=policy))
        if aggregate:
            values = {"total": dm.sum("n"), **({"most": dm.max("n")} if shape is wide else {})}
            totals = dm.aggregate(shaped, keys=["k"], values=values, name="totals")
            dm.sink(totals, dm.DeltaUpsert("totals", ["k"], on_schema_change=policy))
    return open_application(dm.build_application(declared))


def seen(workplace: Workplace, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """Return rows as a reader of Delta that is not ours finds them."""
    found = DeltaTable(str(workplace.home / "lake" / table)).to_pyarrow_table(columns=list(columns)).to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


COLUMNS = ("k", "n", "label", "_sequence_id")


@pytest.mark.seed("I19")
def test_a_further_column_is_added_and_everything_goes_on(workplace: Workplace, inbox: Path) -> None:
    write(inbox, "a,1\nb,2\n")
    run_once(workplace, declare(inbox, narrow))
    write(inbox, "a,3\n", "c,4\n")
    run_once(workplace, declare(inbox, wide))

    def shown_by_us(table: str) -> list[tuple[Any, ...]]:
        found = RegionReader(workplace.settings, "growing").visible(table).select(list(COLUMNS)).to_pylist()
        return sorted((tuple(row.values()) for row in found), key=repr)

    old, new = [("a", 1, None, 1), ("b", 2, None, 1)], [("a", 3, "A", 2), ("c", 4, "C", 3)]
    assert seen(workplace, "rows", *COLUMNS) == sorted([*old, *new], key=repr)
    assert seen(workplace, "newest", *COLUMNS) == [new[0], old[1], new[1]]
    shown = read_at("growing", "newest", at=1, home=str(workplace.home)).select(["k", "n", "label"])
    assert shown.to_pylist() == [{"k": "a", "n": 1, "label": None}, {"k": "b", "n": 2, "label": None}]

    store = workplace.store(REGION)
    rows = store.table("lake/rows")
    assert rows.upkeep.compact(rows.txn_version() or 0, store.staging("lake/rows", 9, "c"), files_at_least=2)
    assert seen(workplace, "rows", *COLUMNS) == sorted([*old, *new], key=repr)

    reset(workplace, plan_reset(workplace, REGION, RewindTarget(to=1)))
    assert shown_by_us("rows") == shown_by_us("newest") == old
    run_once(workplace, declare(inbox, wide))
    assert [row[:3] for row in shown_by_us("newest")] == [new[0][:3], old[1][:3], new[1][:3]]


@pytest.mark.seed("I19", "H3")
def test_what_was_committed_before_the_change_is_published_after_it(workplace: Workplace, inbox: Path) -> None:
    """The group of the older code is rolled forward into tables that have the new column by then."""
    write(inbox, "a,1\nb,2\n")
    arm("publish.before_commit:raise:1,publish.before_commit:raise:2")
    with pytest.raises(InjectedFailure):
        run_once(workplace, declare(inbox, narrow))
    arm("")
    write(inbox, "a,3\n")
    run_once(workplace, declare(inbox, wide))
    assert seen(workplace, "rows", *COLUMNS) == [("a", 1, None, 1), ("a", 3, "A", 2), ("b", 2, None, 1)]
    assert seen(workplace, "newest", *COLUMNS) == [("a", 3, "A", 2), ("b", 2, None, 1)]


@pytest.mark.seed("I19")
@pytest.mark.parametrize(
    ("point", "passing"),
    [
        pytest.param("claim.before_commit", 3, marks=pytest.mark.slow),
        pytest.param("claim.before_commit", 2, marks=pytest.mark.slow),
        pytest.param("claim.after_commit", 2, marks=pytest.mark.slow),
        pytest.param("claim.after_commit", 3, marks=pytest.mark.slow),
    ],
)
def test_a_claim_that_fails_while_it_widens_is_made_again(
    workplace: Workplace, inbox: Path, point: str, passing: int
) -> None:
    """The first time that the point is reached is the claim's own commit; then comes one table after the other."""
    write(inbox, "a,1\n")
    run_once(workplace, declare(inbox, narrow))
    write(inbox, "a,3\n")
    arm(f"{point}:raise:{passing}")
    if point == "claim.before_commit":
        with pytest.raises(InjectedFailure):
            run_once(workplace, declare(inbox, wide))
        arm("")
    run_once(workplace, declare(inbox, wide))
    assert seen(workplace, "newest", *COLUMNS) == [("a", 3, "A", 2)]
    assert seen(workplace, "rows", *COLUMNS) == [("a", 1, None, 1), ("a", 3, "A", 2)]


@pytest.mark.seed("I19", "H17")
@pytest.mark.parametrize(("shape", "column"), [(retyped, "n"), (dropped, "n")])
def test_columns_that_go_or_change_their_type_are_refused_by_name(
    workplace: Workplace, inbox: Path, shape: Callable[[Any], Any], column: str
) -> None:
    write(inbox, "a,1\n")
    run_once(workplace, declare(inbox, narrow))
    claims = workplace.history(REGION).epoch
    with pytest.raises(SchemaMismatch) as refused:
        run_once(workplace, declare(inbox, shape))
    assert refused.value.facts["columns"] == (column,)
    assert workplace.history(REGION).epoch == claims


@pytest.mark.seed("I19", "H17")
def test_a_further_column_fails_unless_the_policy_says_otherwise(workplace: Workplace, inbox: Path) -> None:
    write(inbox, "a,1\n")
    run_once(workplace, declare(inbox, narrow, "fail"))
    with pytest.raises(SchemaMismatch) as refused:
        run_once(workplace, declare(inbox, wide, "fail"))
    assert "evolve" in (refused.value.remedy or "")
    run_once(workplace, declare(inbox, wide))
    assert seen(workplace, "rows", *COLUMNS) == [("a", 1, None, 1)]


@pytest.mark.seed("I19")
def test_the_state_of_an_aggregate_keeps_its_columns(workplace: Workplace, inbox: Path) -> None:
    write(inbox, "a,1\n")
    run_once(workplace, declare(inbox, narrow, aggregate=True))
    with pytest.raises(SchemaMismatch) as refused:
        run_once(workplace, declare(inbox, wide, aggregate=True))
    assert "state" in (refused.value.remedy or "")


def test_policies_that_make_no_sense_are_refused(inbox: Path) -> None:
    for policy, adopt, rule in (("drop", False, "ON_SCHEMA_CHANGE"), ("evolve", True, "ADOPTED_EVOLVES")):
        with dm.application("bad") as declared:

            @dm.consistent(trigger="operator-driven")
            @dm.source(dm.DirectoryScan(path=str(inbox)))
            def lines(scanned: Any) -> Any:
                return scanned

            dm.sink(lines, dm.DeltaAppend("t", adopt=adopt, on_schema_change=policy))  # type: ignore[arg-type]
        with pytest.raises(DeclarationError) as refused:
            compile_application(dm.build_application(declared))
        assert [violation.rule for violation in refused.value.violations] == [rule]
