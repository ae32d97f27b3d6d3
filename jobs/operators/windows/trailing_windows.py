"""Sliding windows by a column: the rows of a key that are less than a difference, or a duration, behind the newest row.

The measure of a row is the largest value of the column up to and including it, so windows only move forward. A row is
in the windows of later rows until one is too far ahead. The state has the rows that are in the window of the last row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from drainmark.jobs.frames.names import quoted, quoted_name
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID
from drainmark.jobs.graph.operator import KeptState, StepResult
from drainmark.jobs.lazy import F
from drainmark.jobs.operators.windows.window import Delta, Emit
from drainmark.jobs.operators.windows.windowed_aggregate import (
    UNBOUNDED,
    KeyedValues,
    is_last_of_id,
    keys_as,
    keys_equal,
)
from drainmark.jobs.state.aggregations.aggregation import argument_columns, value_of
from drainmark.jobs.state.placed_rows import IS_NEW, state_changes, with_state

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from drainmark.jobs.graph.context import OperatorContext

ROW, MEASURE = "__row", "__measure"
"""Columns of a row in the state: its number among the rows of its key, and its measure."""

_AT = "__at_"
_BIN = "__bin"
_BINS = 3  # two hold the window; one more since a quotient may be rounded
_NOWHERE = -(2**62)
_IS_LAST = "__is_last"
_GONE_AT = "__gone_at"


@dataclass(frozen=True, kw_only=True)
class TrailingWindows(KeyedValues):
    """Values of a key, or of every row, over the rows that are close enough in a column."""

    kind: ClassVar[str] = "trailing windows"
    summary: ClassVar[str] = "sliding windows by the difference of a column, or by event time"
    merges: ClassVar[bool] = False
    configurations: ClassVar[tuple[str, ...]] = ("delta, change", "delta, row", "time, change", "time, row")

    window: Delta

    @property
    def kept(self) -> tuple[KeptState, ...]:
        return (KeptState(keys=(*self.keys, ROW), looked_up_by=self.keys, retention=self.retention),)

    def step(self, frames: OperatorContext) -> StepResult:
        from pyspark.sql.types import IntegralType

        rows = self.placed(frames)
        arguments = argument_columns(self.values.values(), rows.columns, self.keys)
        read = quoted(list(dict.fromkeys((*arguments, *self.emission.columns))))
        measure = self.window.measure().alias(MEASURE)
        rows = frames.once(self, rows.select(*self.key_columns(), *read, POSITION, SEQUENCE_ID, measure))
        payload = [MEASURE, *arguments, POSITION]
        like = rows.selectExpr(*quoted(self.keys), f"0L as {ROW}", *quoted(payload), SEQUENCE_ID).schema
        is_whole = isinstance(like[MEASURE].dataType, IntegralType)
        history = frames.gathered(self, with_state(frames.kept(self, "", like, changed=rows), rows))
        history = frames.once(self, self._placed_in_order(history, is_whole))
        changes = state_changes(history, [*self.keys, ROW], payload, came=SEQUENCE_ID, gone=_GONE_AT)
        return StepResult(self._values(frames, history, arguments, is_whole), {"": changes})

    def _placed_in_order(self, history: DataFrame, is_whole: bool) -> DataFrame:
        """Return the rows with number and measure, and the id at the end of which a row is in no further window."""
        by_key = self.of_key()
        in_order = by_key.orderBy(SEQUENCE_ID, POSITION)
        first = F.coalesce(F.min(ROW).over(by_key), F.lit(1).cast("bigint"))
        numbered = (
            history.withColumn("__number", first + F.row_number().over(in_order) - 1)
            .withColumn("__largest", F.max(MEASURE).over(in_order.rowsBetween(-UNBOUNDED, 0)))
            .withColumn(_IS_LAST, is_last_of_id(in_order))
            .drop(ROW, MEASURE)
            .withColumnsRenamed({"__number": ROW, "__largest": MEASURE})
        )
        step = F.struct(F.col(SEQUENCE_ID).alias("id"), F.col(MEASURE).alias("measure"))
        is_step = F.col(IS_NEW) & F.col(_IS_LAST) & F.col(MEASURE).isNotNull()
        whole = in_order.rowsBetween(-UNBOUNDED, UNBOUNDED)
        steps = F.collect_list(F.when(is_step, step)).over(whole)
        placed = numbered.withColumn("__steps", steps)
        passed = F.filter("__steps", lambda one: self._is_behind(F.col(MEASURE), one["measure"], is_whole))
        return placed.withColumn(_GONE_AT, F.get(passed, F.lit(0))["id"]).drop("__steps")

    def _is_behind(self, measure: Column, other: Column, is_whole: bool) -> Column:
        """Say whether a row is too far behind another; a row without a measure is behind all rows with one.

        A difference that overflows its type is wider than any window; a plain subtraction would be an error.
        """
        pair = (side.cast("bigint") if is_whole else side for side in (other, measure))
        return measure.isNull() | F.coalesce(F.try_subtract(*pair) >= self.window.width, other > measure)

    def _bin_of(self, is_whole: bool) -> Column:
        """Return the multiple of the width that a row has reached; on each side, all beyond 62 bits share a bin."""
        width = self.window.width
        by_whole = is_whole and isinstance(width, int)  # doubles would round large ones away from neighbours
        passed = F.expr(f"{MEASURE} div {width}L") if by_whole else F.floor(F.col(MEASURE) / F.lit(width))
        return F.least(F.greatest(passed, F.lit(_NOWHERE)), F.lit(-_NOWHERE)).cast("bigint")

    def _values(self, frames: OperatorContext, history: DataFrame, arguments: list[str], is_whole: bool) -> DataFrame:
        """Return the values of the rows that are emitted: each is joined with the rows of its window."""
        asked, floats = [quoted_name(name) for name in self.emission.columns], self.float_sums(frames, history)
        every_row = self.emission.emit == Emit.ROW
        wanted = history.where(IS_NEW) if every_row else history.where(F.col(IS_NEW) & F.col(_IS_LAST))
        bin_of = self._bin_of(is_whole)
        heads = wanted.select(
            *keys_as(self.keys, _AT),
            *(F.col(name).alias(f"{_AT}{name}") for name in (ROW, MEASURE)),
            F.struct(SEQUENCE_ID, POSITION, *asked).alias(_AT),
            F.explode(F.array(*(bin_of - back for back in range(_BINS)))).alias(f"{_AT}{_BIN}"),
        )
        rows = history.select(
            *self.key_columns(),
            *(quoted_name(name) for name in arguments),
            ROW,
            MEASURE,
            SEQUENCE_ID,
            bin_of.alias(_BIN),
            F.struct(SEQUENCE_ID, POSITION).alias(POSITION),  # `first` and `last` need the order of all rows
        )
        same = (F.col(_BIN) == F.col(f"{_AT}{_BIN}")) & keys_equal(self.keys, _AT)
        in_window = (F.col(ROW) <= F.col(f"{_AT}{ROW}")) & (
            F.col(f"{_AT}{MEASURE}").isNull() | ~self._is_behind(F.col(MEASURE), F.col(f"{_AT}{MEASURE}"), is_whole)
        )
        found = rows.join(heads, on=same & in_window, how="inner")
        values = found.groupBy(*self.key_columns(), f"{_AT}{ROW}").agg(
            F.first(_AT).alias(_AT),
            *(value_of(name, aggregation, floats).alias(name) for name, aggregation in self.values.items()),
        )
        picked = (*asked, quoted_name(POSITION)) if every_row else ()
        return values.select(
            *self.key_columns(),
            *(f"{_AT}.{name}" for name in picked),
            *(quoted_name(name) for name in self.values),
            f"{_AT}.{SEQUENCE_ID}",
        )
