"""`aggregate(window=sliding(rows=N))`: values over the last N rows of a key, by sequence id and place in the file.

Its state is these rows: a group writes its new rows, and the state at id N is the last rows of each key with an id ≤ N.
The last row of a key and id carries the values; downstream operators see only these rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID
from drainmark.jobs.graph.operator import OutputState, Vectorises
from drainmark.jobs.lazy import F
from drainmark.jobs.operators.windows.running_aggregate import Aggregate
from drainmark.jobs.operators.windows.window import Rows
from drainmark.jobs.state.aggregations.aggregation import argument_columns, value_over

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.context import OperatorContext

MANY_ROWS = 1_000
"""For a longer window Spark would go through all rows again for each row of a group: such groups have one trigger."""

_ARGUMENT = "_of_"
_HAS_VALUES = "_has_values"
_IS_NEW = "__is_new"
_PLACE = "__place"


@dataclass(frozen=True, kw_only=True)
class SlidingAggregate(Aggregate):
    """State as typed columns: keys, values (of the last row of a key and id), the values' arguments, the tags."""

    kind: ClassVar[str] = "sliding aggregate"
    summary: ClassVar[str] = "keyed aggregate over the last rows of a key"
    merges: ClassVar[bool] = False
    single_because: ClassVar[str] = f"its window is longer than {MANY_ROWS} rows"

    @property
    def rows(self) -> int:
        """Return the number of rows of a window."""
        return self.window.rows if isinstance(self.window, Rows) else 1

    @property
    def output_state(self) -> OutputState:
        return replace(super().output_state, depth=self.rows, history_of=(), shown=_HAS_VALUES)

    def vectorisation(self) -> Vectorises:
        return Vectorises.NO if self.rows > MANY_ROWS else Vectorises.YES

    def fingerprint(self) -> Any:
        return {**super().fingerprint(), "window": None, "rows": self.rows}

    def apply(self, frames: OperatorContext) -> DataFrame:
        """Return the new rows of a group, no more than the window of each key and id needs."""
        rows, before = frames.state(self, self.newest(self.placed(frames)))
        history = rows.withColumn(_IS_NEW, F.lit(True))
        if before is not None:
            history = frames.gathered(self, before.withColumn(_IS_NEW, F.lit(False)).unionByName(history))
        return self.computed(history)

    def newest(self, rows: DataFrame) -> DataFrame:
        """Return the rows that are in the window at the end of their id: keys, the tags, the values' arguments."""
        from pyspark.sql import Window

        newest = Window.partitionBy(*self._key_columns(), SEQUENCE_ID).orderBy(F.desc(POSITION))
        numbered = rows.withColumn(_PLACE, F.row_number().over(newest)).where(F.col(_PLACE) <= self.rows)
        arguments = (F.col(quoted_name(name)).alias(f"{_ARGUMENT}{name}") for name in self._arguments(rows.columns))
        return numbered.select(*self._key_columns(), SEQUENCE_ID, POSITION, *arguments)

    def computed(self, history: DataFrame) -> DataFrame:
        """Compute the values at the last row of each key and id, and return the new rows.

        A window of at most `MANY_ROWS` rows is computed row by row. For a longer window the group has one id; the rows
        of each key are cut to the window, which is then computed once.
        """
        from pyspark.sql import Window

        arguments = [name.removeprefix(_ARGUMENT) for name in history.columns if name.startswith(_ARGUMENT)]
        rows = history.select(  # each argument only once: the whole window is shuffled and sorted
            *self._key_columns(),
            SEQUENCE_ID,
            _IS_NEW,
            *(F.col(f"`{_ARGUMENT}{name}`").alias(name) for name in arguments),
            F.struct(SEQUENCE_ID, POSITION).alias(POSITION),  # `first` and `last` need the order of all rows
        )
        by_key = Window.partitionBy(*self._key_columns())
        in_order = by_key.orderBy(POSITION)
        over = in_order.rowsBetween(1 - self.rows, 0)
        if self.rows > MANY_ROWS:
            size = F.count(F.lit(1)).over(by_key)
            placed = rows.withColumn(_PLACE, size - F.row_number().over(in_order))
            rows, over = placed.where(F.col(_PLACE) < self.rows), by_key
        is_last = F.coalesce(F.lead(SEQUENCE_ID).over(in_order) != F.col(SEQUENCE_ID), F.lit(True))
        values = {name: value_over(aggregation, over) for name, aggregation in self.values.items()}
        computed = rows.select(
            *self._key_columns(),
            *(F.when(is_last, value).alias(name) for name, value in values.items()),
            *(F.col(quoted_name(name)).alias(f"{_ARGUMENT}{name}") for name in arguments),
            F.col(f"{POSITION}.{POSITION}").alias(POSITION),
            is_last.alias(_HAS_VALUES),
            SEQUENCE_ID,
            _IS_NEW,
        )
        return computed.where(_IS_NEW).drop(_IS_NEW)

    def _key_columns(self) -> list[str]:
        return [quoted_name(key) for key in self.all_keys]

    def _arguments(self, columns: list[str]) -> list[str]:
        return argument_columns(self.values.values(), columns, self.all_keys)
