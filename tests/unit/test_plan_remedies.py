"""The remedies that `drainmark plan` gives for a table that cannot be continued."""

from __future__ import annotations

import pytest

from drainmark.jobs.protocol.records.schema_compatibility import TableChange
from drainmark.jobs.regions.plan_diff import OperatorChange, OperatorDifference, StateChange, TableDifference
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
        OperatorDifference(operator="totals", kind="aggregate", change=OperatorChange.KEPT, state=StateChange.GOES_ON),
        OperatorDifference(operator="out_sink", kind="delta-append", change=OperatorChange.KEPT, state=None),
    ]
    table = TableDifference(table="lake/out", operator=operator, change=TableChange.INCOMPATIBLE, why=why)
    said = remedy_for(table, operators, "app.py")
    assert (f"--drop-state {operator}" in said, "evolve" in said) == (drops, evolves)
    assert "the code as it was" in said
