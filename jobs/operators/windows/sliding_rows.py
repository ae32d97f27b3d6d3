"""`aggregate(window=sliding(rows=N), emit="row")`: for every row the values over the last N rows of its key.

Its state is these rows, no more than the next group's first windows need. Rows keep their place, and the requested
columns. The window of a row follows from (sequence id, position), and is the same in any grouping.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID
from drainmark.jobs.graph.operator import KeptState, Positions, StepResult
from drainmark.jobs.lazy import F
from drainmark.jobs.operators.windows.window import Rows
from drainmark.jobs.operators.windows.windowed_aggregate import KeyedValues
from drainmark.jobs.state.aggregations.aggregation import argument_columns, value_over

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.context import OperatorContext

_VALUE = "__value_of_"
_IS_NEW = "__is_new"
_AGE = "__age"


@dataclass(frozen=True, kw_only=True)
class SlidingRows(KeyedValues):
    """Values for every row, over the last rows of its key up to and including it."""

    kind: ClassVar[str] = "sliding aggregate of every row"
    summary: ClassVar[str] = "for every row the values over the last rows of its key"
    positions: ClassVar[Positions] = Positions.KEPT
    merges: ClassVar[bool] = False
    configurations: ClassVar[tuple[str, ...]] = ("row",)

    @property
    def rows(self) -> int:
        """Return the number of rows of a window."""
        return self.window.rows if isinstance(self.window, Rows) else 1

    @property
    def kept(self) -> tuple[KeptState, ...]:
        return (KeptState(keys=self.keys, depth=self.rows, looked_up_by=self.keys, retention=self.retention),)

    def step(self, frames: OperatorContext) -> StepResult:
        rows = self.placed(frames)
        keys, asked = self.key_columns(), [quoted_name(name) for name in self.emission.columns]
        arguments = [quoted_name(name) for name in argument_columns(self.values.values(), rows.columns, self.keys)]
        read = [quoted_name(name) for name in dict.fromkeys(name.strip("`") for name in (*arguments, *asked))]
        rows = frames.once(self, rows.select(*keys, *read, POSITION, SEQUENCE_ID))
        remembered = rows.select(*keys, *arguments, POSITION, SEQUENCE_ID)
        before = frames.kept(self, "", remembered.schema, changed=rows)
        history = frames.gathered(
            self,
            before.withColumn(_IS_NEW, F.lit(False)).unionByName(
                rows.withColumn(_IS_NEW, F.lit(True)), allowMissingColumns=True
            ),
        )
        made = frames.once(self, self._computed(history))
        return StepResult(
            made.select(
                *keys, *asked, *(F.col(f"`{_VALUE}{name}`").alias(name) for name in self.values), POSITION, SEQUENCE_ID
            ),
            {"": made.where(F.col(_AGE) <= self.rows).select(*keys, *arguments, POSITION, SEQUENCE_ID)},
        )

    def _computed(self, history: DataFrame) -> DataFrame:
        """Return the new rows with values and `_AGE`: 1 for the last row of a key and id, 2 for the one before."""
        from pyspark.sql import Window as Over

        place = F.struct(SEQUENCE_ID, POSITION)
        over = Over.partitionBy(*self.by_key()).orderBy(SEQUENCE_ID, POSITION).rowsBetween(1 - self.rows, 0)
        newest = Over.partitionBy(*self.by_key(), SEQUENCE_ID).orderBy(F.desc(POSITION))
        # `first` and `last` use `_position`: over rows of several ids it has to be the order of all rows
        placed = history.withColumn("__row_position", F.col(POSITION)).withColumn(POSITION, place)
        computed = placed.select(
            *(quoted_name(name) for name in history.columns if name != POSITION),
            *(value_over(aggregation, over).alias(f"{_VALUE}{name}") for name, aggregation in self.values.items()),
            F.row_number().over(newest).alias(_AGE),
            F.col("__row_position").alias(POSITION),
        )
        return computed.where(_IS_NEW).drop(_IS_NEW)
