"""Additional reads of the operators of a group: states after the previous group, and lookup tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.graph.context import ABOVE, UPTO, Due, Fit
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.lazy import F
from drainmark.jobs.operators.joins.lookup import Lookup
from drainmark.jobs.runtime.analysis.blueprint import Blueprint
from drainmark.jobs.runtime.analysis.lookup_rows import is_awaited, no_rows, rows_at
from drainmark.jobs.runtime.input.attempt import Attempt
from drainmark.jobs.runtime.input.executors import OperatorExecutors
from drainmark.jobs.runtime.spark_failures import blaming
from drainmark.jobs.state.due_rows import DueRows, DueSpan
from drainmark.jobs.state.keyed_state import KeyedState
from drainmark.jobs.state.run_files import KEY_HASH, key_hash

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


@dataclass(slots=True, kw_only=True)
class SideReads:
    """Reads for one attempt at a group.

    Attributes:
        states: by name of their tables.
        rows_come_in: the number of rows of the group.
        lookups: the version that was read, by table.
    """

    attempt: Attempt
    executors: OperatorExecutors
    blueprint: Blueprint
    states: Mapping[str, KeyedState]
    rows_come_in: int
    lookups: dict[str, int] = field(default_factory=dict)

    def state_before(self, operator: Operator, partials: DataFrame) -> tuple[DataFrame, DataFrame | None]:
        """Return partials, and the rows of the state with the same keys."""
        state, session = self.states[self.blueprint.written_by[operator.name]], self.attempt.session
        executor = self.executors.of(operator)
        if state.is_read_whole(self.rows_come_in):
            return partials, state.before(session, partials, whole=True)
        if not self._looks_up(operator, state, partials):  # the keys select rows of the state: they are computed once
            partials = blaming(self.blueprint.region, operator, lambda: executor.once(partials))
            return partials, state.before(session, partials)
        keyed = partials.withColumn(KEY_HASH, key_hash(state.looked_up_by))
        rows = blaming(self.blueprint.region, operator, keyed.toArrow)
        found = state.look_up(rows)
        before = state.in_files.local(session, found.select(partials.columns)) if found is not None else None
        return executor.local(rows.drop_columns([KEY_HASH]), partials), before

    def kept_before(
        self, operator: Operator, part: str, changed: DataFrame | None, due: Due | None, fit: Fit
    ) -> DataFrame | None:
        """Return a kept state, or the rows of it that a group asks for."""
        state, session = self.states[self.blueprint.kept[operator.name, part]], self.attempt.session
        state.passed.forget()
        looks_up = changed is not None and self._looks_up(operator, state, changed)
        rows_due = self._due(operator, state, due) if looks_up and due is not None else None
        if changed is None or not looks_up or (due is not None and rows_due is None):
            if not state.is_in_memory:
                self.executors.note_whole(operator)
            is_whole = state.is_read_whole(self.rows_come_in) if fit is Fit.RAW else state.is_in_memory
            is_chosen = due is None and (fit is Fit.EXACT or not is_whole)
            return state.current(session, changed if is_chosen else None, is_raw=fit is Fit.RAW)
        by = state.looked_up_by
        own = changed.select(
            *(F.col(quoted_name(name)).try_cast(state.in_files.schema[name].dataType).alias(name) for name in by)
        )
        keys = own.select("*", key_hash(by))  # a run is sorted by the hash of keys in the state's types
        found = state.look_up(blaming(self.blueprint.region, operator, keys.toArrow), rows_due)
        return state.in_files.local(session, found) if found is not None else None

    def kept_rows(self, operator: Operator, part: str, keys: pa.Table) -> pa.Table | None:
        """Return the rows of a kept state with some keys, or the whole state if it is in memory; None for no rows."""
        state = self.states[self.blueprint.kept[operator.name, part]]
        state.passed.forget()
        return state.rows if state.is_in_memory else state.in_files.look_up(state.run_files, state.young, keys)

    def _due(self, operator: Operator, state: KeyedState, due: Due) -> DueRows | None:
        """Return the places of the rows of a state that a group makes due; None if they are too many to look up."""
        (span,) = blaming(self.blueprint.region, operator, due.span().toArrow).to_pylist()
        asked = DueSpan(due.column, None, span[UPTO])
        if not due.may_fall:
            asked = state.passed.ask(due.column, span.get(ABOVE), span[UPTO])
        return state.in_files.due(state.run_files, state.young, asked)

    def looks_up(self, operator: Operator, part: str) -> bool:
        """Say whether rows of a kept state are looked up, by keys that are computed before the rest of the step."""
        return self._is_looked_up(operator, self.states[self.blueprint.kept[operator.name, part]])

    def _looks_up(self, operator: Operator, state: KeyedState, asking: DataFrame) -> bool:
        return self._is_looked_up(operator, state) and set(state.looked_up_by) <= set(asking.columns)

    def _is_looked_up(self, operator: Operator, state: KeyedState) -> bool:
        """Say whether rows of the state are selected in this process, by the keys of a small group."""
        return self.executors.of(operator).are_few and not state.is_in_memory and state.can_look_up

    def lookup(self, operator: Lookup) -> DataFrame:
        session, outside = self.attempt.session, self.attempt.outside
        if is_awaited(operator, outside):
            return no_rows(session, operator)
        version = self.lookups[operator.table] = outside.lookups.version(operator.table)
        return rows_at(session, operator, outside, version)

    def state_types(self) -> dict[str, dict[str, Any]]:
        """Return the types of the columns of states, by operator."""
        return {
            operator.name: {field.name: field.dataType for field in self.states[name].in_files.schema.fields}
            for operator in self.blueprint.region.stateful
            if (name := self.blueprint.written_by.get(operator.name, "")) in self.states
        }


def large_states(blueprint: Blueprint, states: Mapping[str, KeyedState]) -> frozenset[str]:
    """Return the operators that get more rows of a state than one partition should hold."""
    owners = blueprint.states()
    large = (name for name, state in states.items() if not (state.is_in_memory or state.can_look_up))
    return frozenset(owners[name][0].name for name in large)
