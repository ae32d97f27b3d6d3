"""`aggregate(window=sliding(rows=N))`: values over the last N rows of a key, by sequence id and place in the file.

The state is these rows: a group writes its new rows, no more than the next group's first windows need, and the state at
id N is the last rows of each key with an id ≤ N. The window of a row follows from (sequence id, position), and is the
same in any grouping.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.frames.names import quoted, quoted_name
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID
from drainmark.jobs.graph.operator import KeptState, OutputState, Positions, StepResult, Vectorises
from drainmark.jobs.lazy import F
from drainmark.jobs.operators.windows.window import Rows
from drainmark.jobs.operators.windows.windowed_aggregate import KeyedValues, is_last_of_id
from drainmark.jobs.state.aggregations.aggregation import argument_columns, value_over
from drainmark.jobs.state.placed_rows import IS_NEW, with_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, WindowSpec

    from drainmark.jobs.graph.context import OperatorContext

MANY_ROWS = 1_000
"""For a longer window Spark would go through all rows again for each row of a group: such groups have one trigger."""

_ARGUMENT = "_of_"
_HAS_VALUES = "_has_values"
_VALUE = "__value_of_"
_AGE = "__age"
_ROW_POSITION = "__row_position"


@dataclass(frozen=True, kw_only=True)
class _LastRows(KeyedValues):
    """Values over the last rows of a key, computed anew from these rows."""

    merges: ClassVar[bool] = False

    window: Rows

    def arguments(self, rows: DataFrame) -> list[str]:
        return argument_columns(self.values.values(), rows.columns, self.keys)

    def with_age(self, rows: DataFrame) -> DataFrame:
        """Return rows with `_AGE`: 1 for the last row of a key and id, 2 for the one before, and so on."""
        newest = self.of_key(SEQUENCE_ID).orderBy(F.desc(POSITION))
        return rows.withColumn(_AGE, F.row_number().over(newest))

    def in_order(self) -> WindowSpec:
        return self.of_key().orderBy(SEQUENCE_ID, POSITION)

    def up_to_row(self) -> WindowSpec:
        """Return Spark's window over the rows of the window that ends with a row."""
        return self.in_order().rowsBetween(1 - self.window.rows, 0)


@dataclass(frozen=True, kw_only=True)
class SlidingAggregate(_LastRows):
    """Values of a key at the end of each id, which are in the state: in the last row of the key and id, the only row
    that downstream operators see. State as typed columns: keys, values, the values' arguments, the tags."""

    kind: ClassVar[str] = "sliding aggregate"
    summary: ClassVar[str] = "keyed aggregate over the last rows of a key"
    single_because: ClassVar[str] = f"its window is longer than {MANY_ROWS} rows"

    @property
    def output_state(self) -> OutputState:
        return OutputState(
            keys=self.keys,
            looked_up_by=self.keys,
            depth=self.window.rows,
            retention=self.retention,
            columns=self.emitted,
            shown=_HAS_VALUES,
        )

    def vectorisation(self) -> Vectorises:
        return Vectorises.NO if self.window.rows > MANY_ROWS else Vectorises.YES

    def fingerprint(self) -> Any:
        return {**super().fingerprint(), "window": None, "rows": self.window.rows}

    def apply(self, frames: OperatorContext) -> DataFrame:
        """Return the new rows of a group that are in the window at the end of their id, the last one with values."""
        rows = self.placed(frames)
        arguments = [f"{quoted_name(name)} as {quoted_name(_ARGUMENT + name)}" for name in self.arguments(rows)]
        newest = self.with_age(rows).where(F.col(_AGE) <= self.window.rows)
        return self._computed(
            self.history(frames, newest.selectExpr(*quoted(self.keys), SEQUENCE_ID, POSITION, *arguments))
        )

    def _computed(self, history: DataFrame) -> DataFrame:
        """Compute the values at the last row of each key and id, and return the new rows.

        A window of at most `MANY_ROWS` rows is computed row by row. For a longer window the group has one id; the rows
        of each key are cut to the window, which is then computed once.
        """
        arguments = [name.removeprefix(_ARGUMENT) for name in history.columns if name.startswith(_ARGUMENT)]
        rows = history.select(  # each argument only once: the whole window is shuffled and sorted
            *self.key_columns(),
            SEQUENCE_ID,
            IS_NEW,
            *(F.col(quoted_name(_ARGUMENT + name)).alias(name) for name in arguments),
            F.struct(SEQUENCE_ID, POSITION).alias(POSITION),  # `first` and `last` need the order of all rows
        )
        over = self.up_to_row()
        if self.window.rows > MANY_ROWS:
            by_key = self.of_key()
            older = F.count(F.lit(1)).over(by_key) - F.row_number().over(self.in_order())
            rows, over = rows.withColumn(_AGE, older + 1).where(F.col(_AGE) <= self.window.rows), by_key
        is_last = is_last_of_id(self.in_order())
        computed = rows.select(
            *self.key_columns(),
            *(F.when(is_last, value_over(value, over)).alias(name) for name, value in self.values.items()),
            *(F.col(quoted_name(name)).alias(_ARGUMENT + name) for name in arguments),
            F.col(f"{POSITION}.{POSITION}").alias(POSITION),
            is_last.alias(_HAS_VALUES),
            SEQUENCE_ID,
            IS_NEW,
        )
        return computed.where(IS_NEW).drop(IS_NEW)


@dataclass(frozen=True, kw_only=True)
class SlidingRows(_LastRows):
    """Values for every row, over the last rows of its key up to and including it; the state has no values."""

    kind: ClassVar[str] = "sliding aggregate of every row"
    summary: ClassVar[str] = "for every row the values over the last rows of its key"
    positions: ClassVar[Positions] = Positions.KEPT
    configurations: ClassVar[tuple[str, ...]] = ("row",)

    @property
    def kept(self) -> tuple[KeptState, ...]:
        return (KeptState(keys=self.keys, depth=self.window.rows, looked_up_by=self.keys, retention=self.retention),)

    def step(self, frames: OperatorContext) -> StepResult:
        rows = self.placed(frames)
        keys, asked, arguments = quoted(self.keys), quoted(self.emission.columns), quoted(self.arguments(rows))
        read = dict.fromkeys((*arguments, *asked))
        rows = frames.once(self, rows.select(*keys, *read, POSITION, SEQUENCE_ID))
        remembered = [*keys, *arguments, POSITION, SEQUENCE_ID]
        before = frames.kept(self, "", rows.select(*remembered).schema, changed=rows)
        made = frames.once(self, self._computed(frames.gathered(self, with_state(before, rows))))
        values = [f"{quoted_name(_VALUE + name)} as {quoted_name(name)}" for name in self.values]
        output = made.selectExpr(*keys, *asked, *values, POSITION, SEQUENCE_ID)
        return StepResult(output, {"": made.where(F.col(_AGE) <= self.window.rows).select(*remembered)})

    def _computed(self, history: DataFrame) -> DataFrame:
        """Return the new rows with values and `_AGE`."""
        # `first` and `last` use `_position`: over rows of several ids it has to be the order of all rows
        whole = F.struct(SEQUENCE_ID, POSITION)
        placed = self.with_age(history).withColumn(_ROW_POSITION, F.col(POSITION)).withColumn(POSITION, whole)
        computed = placed.select(
            *quoted([name for name in placed.columns if name not in (POSITION, _ROW_POSITION)]),
            *(value_over(value, self.up_to_row()).alias(_VALUE + name) for name, value in self.values.items()),
            F.col(_ROW_POSITION).alias(POSITION),
        )
        return computed.where(IS_NEW).drop(IS_NEW)
