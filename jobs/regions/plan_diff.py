"""The declared code against the last run: operators and tables that are kept, new, dropped or changed. Pure.

Facts that older claims did not record are `unknown`, never guessed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.manifest import RegionTable
from drainmark.jobs.protocol.records.schema_compatibility import TableChange, change_of, is_state, misfit
from drainmark.jobs.regions.plan import RegionPlan


class OperatorChange(StrEnum):
    """The change of an operator since the last run; operators are identified by name."""

    KEPT = "kept"
    NEW = "new"
    CHANGED = "changed"  # another fingerprint: it computes something else
    DROPPED = "dropped"
    UNKNOWN = "unknown"  # it is declared; no record says whether it ran


class StateChange(StrEnum):
    """The effect of the next run on an operator's state."""

    NEW = "new"  # it begins empty
    GOES_ON = "goes on"
    WIDENED = "widened"  # it goes on with further columns
    BEGINS_ANEW = "begins anew"  # dropped on request
    INCOMPATIBLE = "incompatible"  # no run starts until it is dropped, or the code is as before
    LEFT = "left behind"  # its operator is not declared any more


_STATES = {
    TableChange.NEW: StateChange.NEW,
    TableChange.KEPT: StateChange.GOES_ON,
    TableChange.WIDENED: StateChange.WIDENED,
    TableChange.INCOMPATIBLE: StateChange.INCOMPATIBLE,
    TableChange.DROPPED: StateChange.LEFT,
}

_SAID = (TableChange.DROPPED, TableChange.KEPT, TableChange.NEW, TableChange.WIDENED, TableChange.INCOMPATIBLE)
"""If the state of an operator is in several tables, the change that comes last here is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorDifference:
    """One operator; `kind` is None if it is not declared, `state` is None if it has no state."""

    operator: str
    kind: str | None
    change: OperatorChange
    state: StateChange | None

    def to_json(self) -> dict[str, Any]:
        return {"operator": self.operator, "kind": self.kind, "change": self.change, "state": self.state}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDifference:
    """One table.

    Attributes:
        why: the reason why it is incompatible; of a table that the code writes no more, who would miss it; else "".
        is_full: it could go on if it had no rows.
    """

    table: str
    operator: str
    change: TableChange
    why: str = ""
    is_full: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"table": self.table, "operator": self.operator, "change": self.change, "why": self.why or None}


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionDifference:
    """One region.

    Attributes:
        committed_id: the last committed id; None if the region never ran.
        operators: declared operators in topological order, then the dropped ones.
        tables: likewise.
        refused: the error, as JSON, with which the next run would be refused all the same; None if it would not.
        full: tables that must be empty before the states that cannot go on may begin anew.
    """

    region: str
    committed_id: int | None
    operators: tuple[OperatorDifference, ...]
    tables: tuple[TableDifference, ...]
    refused: Mapping[str, Any] | None = None
    full: tuple[str, ...] = ()

    @property
    def is_compatible(self) -> bool:
        """Say whether the next run can go on from here."""
        return self.refused is None and all(table.change is not TableChange.INCOMPATIBLE for table in self.tables)

    def to_json(self) -> dict[str, Any]:
        """Return the fields, every key always present."""
        return {
            "region": self.region,
            "change": "new" if self.committed_id is None else "kept",
            "committed_sequence_id": self.committed_id,
            "is_compatible": self.is_compatible,
            "operators": [operator.to_json() for operator in self.operators],
            "tables": [table.to_json() for table in self.tables],
            "refused": dict(self.refused) if self.refused is not None else None,
        }


def difference(
    plan: RegionPlan,
    tables: Sequence[RegionTable],
    history: RegionHistory,
    *,
    dropped: Collection[str] = (),
    unfit: Mapping[str, str] = MappingProxyType({}),
    full: Mapping[str, str] = MappingProxyType({}),
) -> RegionDifference:
    """Compare a declared region with its checkpoint table.

    Args:
        tables: tables of the declared region, from its analysed plans; they have a dropped state under its new name.
        dropped: operators that begin with an empty state.
        unfit: by the name of a table that cannot go on, although its columns could, the reason.
        full: the same of tables that could go on if they had no rows.
    """
    before = history.tables_by_name
    after = {table.name: table for table in tables}
    states_of = {*_state_tables(before.values()), *_state_tables(tables)}
    begun_anew = {operator.name for operator in plan.run_order} & {*history.generations, *dropped}
    left = [
        table.name
        for table in history.tables
        if table.name not in after and not (table.name in states_of and table.operator in begun_anew)
    ]
    found = []
    for name, table in after.items():
        known = before.get(name)
        if known is not None and name not in states_of:
            known = replace(known, keys=table.keys)  # a sink's keys may change while its table has no rows; see `full`
        found.append(_declared(known, table, unfit.get(name, ""), full.get(name, "")))
    found += [
        TableDifference(table=name, operator=before[name].operator, change=TableChange.DROPPED) for name in sorted(left)
    ]
    of_states = [entry for entry in found if entry.table in states_of]
    of_states.sort(key=lambda entry: _SAID.index(entry.change))
    states = {entry.operator: _STATES[entry.change] for entry in of_states}
    states |= dict.fromkeys(dropped, StateChange.BEGINS_ANEW)
    return RegionDifference(
        region=plan.name,
        committed_id=history.committed_id if history.epoch else None,
        operators=_operators(plan, history, states),
        tables=tuple(found),
    )


def _declared(before: RegionTable | None, after: RegionTable, unfit: str, full: str) -> TableDifference:
    change, why = change_of(before, after), misfit(before, after) if before is not None else ""
    if (unfit or full) and not why:
        change, why = TableChange.INCOMPATIBLE, unfit or full
    return TableDifference(table=after.name, operator=after.operator, change=change, why=why, is_full=bool(full))


def _state_tables(tables: Collection[RegionTable]) -> set[str]:
    return {table.name for table in tables if is_state(table, tables)}


def _operators(
    plan: RegionPlan, history: RegionHistory, states: Mapping[str, StateChange]
) -> tuple[OperatorDifference, ...]:
    ran = history.operators
    found = [
        OperatorDifference(
            operator=operator.name,
            kind=operator.kind,
            change=_operator_change(plan, history, operator.name),
            state=states.get(operator.name) if operator.keeps_state else None,
        )
        for operator in plan.run_order
    ]
    declared = {operator.name for operator in plan.run_order}
    gone = ran if ran is not None else {table.operator: "" for table in history.tables}
    return (
        *found,
        *(
            OperatorDifference(operator=name, kind=None, change=OperatorChange.DROPPED, state=states.get(name))
            for name in sorted(gone)
            if name not in declared
        ),
    )


def _operator_change(plan: RegionPlan, history: RegionHistory, name: str) -> OperatorChange:
    if not history.epoch:
        return OperatorChange.NEW
    if history.operators is None:
        same = history.last_claim is not None and history.last_claim.graph_fingerprint == plan.fingerprint
        return OperatorChange.KEPT if same else OperatorChange.UNKNOWN
    ran = history.operators.get(name)
    if ran is None:
        return OperatorChange.NEW
    return OperatorChange.KEPT if ran == plan.fingerprints[name] else OperatorChange.CHANGED
