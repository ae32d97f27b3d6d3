"""The remedies that `drainmark plan` gives for a table that cannot be continued."""

from __future__ import annotations

from dataclasses import replace

import pytest
from followed import chains

from drainmark.jobs.protocol.records.schema_compatibility import TableChange
from drainmark.jobs.regions.plan_diff import (
    OperatorChange,
    OperatorDifference,
    RegionDifference,
    StateChange,
    TableDifference,
)
from drainmark.orchestration.cli.plan import remedy_for


@pytest.mark.parametrize(
    ("operator", "why", "drops", "evolves"),
    [
        ("totals", "x is new", True, False),
        ("out_sink", "x is new, y is new", False, True),
        ("out_sink", "x is new, n is long, was integer", False, False),
        ("gone_sink", "n is gone", False, False),
    ],
)
def test_a_state_is_dropped_and_a_sink_gets_columns_or_another_table(
    operator: str, why: str, drops: bool, evolves: bool
) -> None:
    operators = [
        OperatorDifference(
            operator="totals", kind="aggregate", change=OperatorChange.KEPT, state=StateChange.INCOMPATIBLE
        ),
        OperatorDifference(operator="out_sink", kind="delta-append", change=OperatorChange.KEPT, state=None),
    ]
    table = TableDifference(table="lake/out", operator=operator, change=TableChange.INCOMPATIBLE, why=why)
    region = RegionDifference(region="app/start", committed_id=1, operators=tuple(operators), tables=(table,))
    said = remedy_for(table, region, "app.py")
    assert (f"--drop-state {operator}" in said, "evolve" in said) == (drops, evolves)
    assert "the code as it was" in said


def test_all_states_that_cannot_go_on_are_dropped_by_one_command_and_a_full_sink_is_emptied() -> None:
    """The drop of one of two states is refused because of the other."""
    states = {"totals": StateChange.INCOMPATIBLE, "kept": StateChange.GOES_ON, "last": StateChange.BEGINS_ANEW}
    operators = tuple(
        OperatorDifference(operator=name, kind="aggregate", change=OperatorChange.CHANGED, state=state)
        for name, state in states.items()
    )
    tables = [
        TableDifference(table=name, operator=by, change=TableChange.INCOMPATIBLE, why="x is new", is_full=by == "sink")
        for name, by in (("state/app/totals", "totals"), ("lake/out", "sink"))
    ]
    region = RegionDifference(region="app/start", committed_id=1, operators=operators, tables=tuple(tables))
    assert "drainmark plan app.py --drop-state totals --drop-state last" in remedy_for(tables[0], region, "app.py")
    assert "drainmark reset app/start --to-initial" in remedy_for(tables[1], region, "app.py")
    shown = replace(region, full=("lake/out",))
    words = [command for chain in chains(remedy_for(tables[0], shown, "app.py")) for command in chain]
    assert [command[0] for command in words] == ["reset", "plan"], "the state is not dropped while lake/out has rows"
