"""`aggregate`: a keyed running aggregate, perhaps by windows of event time (no watermark); its state is the result.

It emits one row for each changed key and id. The state at id N is the last row of each key with an id ≤ N. So the rows
that a group writes are at once the state's changelog, the operator's output, and the history of an upsert sink.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.graph.operator import Operator, OutputState
from drainmark.jobs.lazy import F
from drainmark.jobs.operators.windows.retracting_aggregate import RetractingAggregate
from drainmark.jobs.operators.windows.windowed_aggregate import KeyedValues, types_of
from drainmark.jobs.state.aggregations.aggregation import (
    running_columns,
    state_columns,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from drainmark.jobs.graph.context import OperatorContext


_IS_NEW = "__is_new"


@dataclass(frozen=True, kw_only=True)
class Aggregate(KeyedValues):
    """Keyed state as typed columns: keys, values, hidden parts, `_sequence_id` of the last change.

    Downstream operators see the state, so an upsert sink with the same keys needs no history of its own.
    """

    kind: ClassVar[str] = "aggregate"
    summary: ClassVar[str] = "keyed running or tumbling aggregate"

    def over_changes(self, origin: str) -> Operator:
        if type(self) is not Aggregate:
            return self
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return RetractingAggregate(**given, changes_of=origin)

    @property
    def output_state(self) -> OutputState:
        keys = self.all_keys
        return OutputState(
            keys=keys, looked_up_by=keys, history_of=keys, retention=self.retention, columns=self.emitted
        )

    def apply(self, frames: OperatorContext) -> DataFrame:
        """Return the changes of a group: keys, values, parts, `_sequence_id`; one row for each changed key and id.

        Partials are merged in id order; the older state of a key is the first of them. A flag marks new rows, since ids
        in a plan would make Spark compile it again for every group.
        """
        rows = self.placed_where_order_counts(frames, frames.input(self.inputs[0]))
        made = frames.once_a_run(self.name, lambda: _Expressions.of(self, self.partials(frames, rows)))
        partials = self.with_window(rows).groupBy(*made.by).agg(*made.partials)
        partials, before = frames.state(self, partials)
        history = partials.withColumn(_IS_NEW, made.new)
        if before is not None:
            history = frames.gathered(self, before.withColumn(_IS_NEW, made.old).unionByName(history))
        types = frames.known_types.get(self.name)  # of its table; without one, those of the rows
        running = frames.once_a_run(
            (self.name, _IS_NEW), lambda: self._running(types_of(partials.schema) if types is None else types)
        )
        return history.select(*made.grouping, made.is_new, *running).where(made.is_new).select(*made.finished)

    def _running(self, types: Mapping[str, Any]) -> list[Column]:
        """Return the state columns: for each row, the merge of it and of all earlier rows of its key."""
        from pyspark.sql import Window as Over

        keys = [quoted_name(key) for key in self.all_keys]
        until_here = Over.partitionBy(*keys).orderBy(SEQUENCE_ID).rowsBetween(Over.unboundedPreceding, 0)
        return running_columns(self.values, until_here, types)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expressions:
    """An aggregate's expressions, made once a run: each costs several calls to the JVM, a small group little more.

    Attributes:
        grouping: keys and `_sequence_id`.
        by: the same for the input's rows.
        finished: keys, values, hidden parts, `_sequence_id`.
    """

    grouping: list[Column]
    by: list[Column]
    partials: list[Column]
    finished: list[Column]
    new: Column
    old: Column
    is_new: Column

    @classmethod
    def of(cls, operator: Aggregate, partials: list[Column]) -> _Expressions:
        keys, states = [F.col(quoted_name(key)) for key in operator.all_keys], state_columns(operator.values)
        hidden = [F.col(quoted_name(column)) for column in states if column not in operator.values]
        return cls(
            grouping=[*keys, F.col(SEQUENCE_ID)],
            by=[*operator.key_columns(), *operator.window_start(), F.col(SEQUENCE_ID)],
            partials=partials,
            finished=[*keys, *map(operator.finished, operator.values), *hidden, F.col(SEQUENCE_ID)],
            new=F.lit(True),
            old=F.lit(False),
            is_new=F.col(_IS_NEW),
        )
