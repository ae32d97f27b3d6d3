"""What the operators of a group read beside their inputs: states as the group before left them, tables to look up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.operators.lookup import Lookup
from drainmark.jobs.operators.windows.running_aggregate import Aggregate
from drainmark.jobs.runtime.analysis.physical_plan import Blueprint, read_lookup
from drainmark.jobs.runtime.input.materialisation import Materialiser
from drainmark.jobs.runtime.outside import Outside
from drainmark.jobs.runtime.spark_failures import blaming
from drainmark.jobs.state.keyed_state import KeyedState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(slots=True, kw_only=True)
class SideReads:
    """Reads for one attempt at a group.

    Attributes:
        states: by name of their tables.
        rows_come_in: returns how many rows the group has.
        lookups: by table, the version that was read.
    """

    blueprint: Blueprint
    outside: Outside
    states: Mapping[str, KeyedState]
    materialiser: Materialiser
    rows_come_in: Callable[[], int]
    lookups: dict[str, int] = field(default_factory=dict)

    def state_before(self, operator: Aggregate, partials: DataFrame) -> tuple[DataFrame, DataFrame | None]:
        """Return partials, and the rows of the state that they meet."""
        state = self.states[self.blueprint.written_by[operator.name]]
        whole = state.is_read_whole(self.rows_come_in())
        if not whole:  # its keys choose the rows of the state, so they may not be computed twice
            partials = blaming(self.blueprint.region, operator, lambda: self.materialiser.once(partials))
        before = state.before(self.outside.engine.session, partials, whole=whole)
        return state.beside(partials), before

    def kept_before(self, operator: Operator, part: str, changed: DataFrame | None) -> DataFrame | None:
        state = self.states[self.blueprint.kept[operator.name, part]]
        return state.current(self.outside.engine.session, changed)

    def lookup(self, operator: Lookup) -> DataFrame:
        version = self.outside.lookups.version(operator.table)
        self.lookups[operator.table] = version
        return read_lookup(self.outside.engine.session, operator, self.outside, version)

    def in_files(self) -> set[str]:
        """Return the operators whose states are in files."""
        states = self.blueprint.states()
        return {states[name][0].name for name, state in self.states.items() if not state.is_small}

    def state_types(self) -> dict[str, dict[str, Any]]:
        """Return the types of the columns of states, by operator."""
        return {
            operator.name: {field.name: field.dataType for field in self.states[name].schema.fields}
            for operator in self.blueprint.region.stateful
            if (name := self.blueprint.written_by.get(operator.name, "")) in self.states
        }
