"""`aggregate`: a keyed running aggregate, perhaps by windows of event time (no watermark); its state is the result.

It emits one row for each changed key and id. The state at id N is the last row of each key with an id ≤ N. So the rows
that a group writes are at once the state's changelog, the operator's output, and the history of an upsert sink.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.graph.operator import Operator, OutputState
from drainmark.jobs.lazy import F
from drainmark.jobs.operators.windows.retracting_aggregate import RetractingAggregate
from drainmark.jobs.operators.windows.windowed_aggregate import KeyedValues, types_of
from drainmark.jobs.state.aggregations.aggregation import state_columns
from drainmark.jobs.state.placed_rows import IS_NEW

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from drainmark.jobs.graph.context import OperatorContext


@dataclass(frozen=True, kw_only=True)
class Aggregate(KeyedValues):
    """Keyed state as typed columns: keys, values, hidden parts, `_sequence_id` of the last change.

    Downstream operators see the state, so an upsert sink with the same keys needs no history of its own.
    """

    kind: ClassVar[str] = "aggregate"
    summary: ClassVar[str] = "keyed running or tumbling aggregate"

    def over_changes(self, origin: str) -> Operator:
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
        in a plan would make Spark compile it again for every group. Expressions are made once a run: each costs several
        calls to the JVM, a small group little more.
        """
        rows = self.placed_where_order_counts(frames, frames.input(self.inputs[0]))
        by, partials = frames.once_a_run(self.name, lambda: (self.grouping(), self.partials(frames, rows)))
        history = self.history(frames, self.with_window(rows).groupBy(*by).agg(*partials))

        def merged() -> tuple[list[Column], Column, list[Column]]:
            types = frames.known_types.get(self.name)  # of its table; without one, those of the rows
            return self.running(types_of(history.schema) if types is None else types), F.col(IS_NEW), self._finished()

        running, is_new, finished = frames.once_a_run((self.name, IS_NEW), merged)
        return history.select(*running).where(is_new).select(*finished)

    def _finished(self) -> list[Column]:
        """Return keys, values, hidden parts, `_sequence_id`."""
        hidden = [name for name in state_columns(self.values) if name not in self.values]
        keys, parts = ([F.col(quoted_name(name)) for name in names] for names in (self.all_keys, hidden))
        return [*keys, *self.finished_values(), *parts, F.col(SEQUENCE_ID)]
