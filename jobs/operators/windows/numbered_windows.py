"""Tumbling windows by the order of a key's rows: a number of rows, a difference of a column, or up to a mark.

A key has one window at a time, 1, 2, 3 …; its state has the parts of that window and its progress. The window of a row
follows from the earlier rows of its key, so one job numbers the rows of many ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from drainmark.jobs.frames.names import quoted_name, without_points
from drainmark.jobs.frames.row_order import place_ranks
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID
from drainmark.jobs.graph.operator import KeptState, StepResult
from drainmark.jobs.lazy import F
from drainmark.jobs.operators.windows.window import WINDOW_NUMBER, Delta, Emit, Marked, Rows, finite
from drainmark.jobs.operators.windows.windowed_aggregate import UNBOUNDED, KeyedValues, keys_as, keys_equal, types_of
from drainmark.jobs.state.aggregations.aggregation import argument_columns, place
from drainmark.jobs.state.placed_rows import IS_NEW, with_state

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    from drainmark.jobs.graph.context import OperatorContext

ROWS, BEGAN, ENDED = "__window_rows", "__window_began", "__window_ended"
"""Columns of the state's window: number of rows, measure of its first row, and whether a mark has ended it."""

_NUMBER = "__window_number"
"""The window number of a row before the grouping: a value may read a column `window_number` that other windows made."""

_BEFORE = "__before"
_NO_KEY = "__no_key"
_CLOSED_AT = "__closed_at"
_IS_LAST = "__is_last"


@dataclass(frozen=True, kw_only=True)
class NumberedWindows(KeyedValues):
    """Values of each window of each key, identified by `window_number`."""

    kind: ClassVar[str] = "numbered windows"
    summary: ClassVar[str] = "tumbling windows by number of rows, difference of a column, or mark"
    configurations: ClassVar[tuple[str, ...]] = (
        "rows, change", "rows, closed", "delta, change", "delta, closed", "until, change", "until, closed"
    )  # fmt: skip

    @property
    def kept(self) -> tuple[KeptState, ...]:
        return (KeptState(keys=self.keys, looked_up_by=self.keys, retention=self.retention),)

    def step(self, frames: OperatorContext) -> StepResult:
        keys, states = self.key_columns(), self.state_names()
        rows = frames.once(self, self._measured(self.placed(frames)))
        empty = rows.where("false").withColumn(_NUMBER, F.lit(0).cast("bigint"))
        columns = [*keys, WINDOW_NUMBER, ROWS, BEGAN, ENDED, *states, SEQUENCE_ID]
        like = self._partials(frames, empty).select(*columns).schema
        before = frames.kept(self, "", like, changed=rows)
        if isinstance(self.window, Delta):
            before = before.withColumn(BEGAN, finite(F.col(BEGAN)))  # 0.3.0 let windows begin with NaN
        partials = self._partials(frames, self._numbered(rows, before)).select(*columns)
        history = frames.gathered(self, with_state(before, partials))
        made = frames.once(self, self._computed(history, types_of(like)))
        if self.emission.emit == Emit.CLOSED:
            emitted, number = made.where(F.col(_CLOSED_AT).isNotNull()), F.col(_CLOSED_AT).alias(SEQUENCE_ID)
        else:
            emitted, number = made.where(IS_NEW), F.col(SEQUENCE_ID)
        return StepResult(
            emitted.select(*keys, WINDOW_NUMBER, *self.finished_values(), number),
            {"": made.where(F.col(IS_NEW) & F.col(_IS_LAST)).select(*columns)},
        )

    def _measured(self, rows: DataFrame) -> DataFrame:
        """Return the needed columns of the rows; `BEGAN` is the measure, `ENDED` whether the row ends a window."""
        arguments = argument_columns(self.values.values(), rows.columns, self.keys)
        measure = self.window.measure() if isinstance(self.window, Delta) else F.lit(None).cast("double")
        ends = (
            F.col(quoted_name(self.window.column)).cast("boolean") if isinstance(self.window, Marked) else F.lit(False)
        )
        return rows.select(
            *self.key_columns(),
            *(quoted_name(name) for name in arguments),
            POSITION,
            SEQUENCE_ID,
            measure.alias(BEGAN),
            F.coalesce(ends, F.lit(False)).alias(ENDED),
        )

    def _numbered(self, rows: DataFrame, before: DataFrame) -> DataFrame:
        """Return the rows with the number of their window."""
        cursor = before.select(
            *keys_as(self.keys, _BEFORE),
            *(F.col(name).alias(f"{_BEFORE}{name}") for name in (WINDOW_NUMBER, ROWS, BEGAN, ENDED)),
        )
        found = rows.join(cursor, on=keys_equal(self.keys, _BEFORE), how="left")
        number = F.coalesce(F.col(f"{_BEFORE}{WINDOW_NUMBER}"), F.lit(1).cast("bigint"))
        in_order = self.of_key().orderBy(SEQUENCE_ID, POSITION)
        if isinstance(self.window, Delta):
            return self._by_delta(found.withColumn(_NUMBER, number), self.window.width)
        if isinstance(self.window, Rows):
            held = F.coalesce(F.col(f"{_BEFORE}{ROWS}"), F.lit(0).cast("bigint"))
            passed = F.floor((held + F.row_number().over(in_order) - 1) / F.lit(self.window.rows)).cast("bigint")
        else:
            until_before = in_order.rowsBetween(-UNBOUNDED, -1)
            ended = F.coalesce(F.col(f"{_BEFORE}{ENDED}"), F.lit(False)).cast("bigint")
            passed = ended + F.coalesce(F.sum(F.col(ENDED).cast("bigint")).over(until_before), F.lit(0))
        return found.withColumn(_NUMBER, number + passed)

    def _by_delta(self, found: DataFrame, width: float) -> DataFrame:
        """Number the rows by a walk: a window begins at the end of the last one, which no SQL window can express."""
        walk = _Walk(width=width)
        given = without_points(found)
        names = dict(zip(found.columns, given.columns, strict=True))
        by = [F.col(quoted_name(names[key])) for key in self.keys] or [F.lit(0).alias(_NO_KEY)]
        # a lambda, since Spark counts the arguments of the function, and would count `self`
        walked = given.groupBy(*by).applyInArrow(lambda rows: walk(rows), given.schema)  # noqa: PLW0108
        return walked if given is found else walked.toDF(*found.columns)

    def _partials(self, frames: OperatorContext, rows: DataFrame) -> DataFrame:
        began = F.min_by(BEGAN, F.when(F.col(BEGAN).isNotNull(), place()))
        return rows.groupBy(*self.key_columns(), F.col(_NUMBER).alias(WINDOW_NUMBER), SEQUENCE_ID).agg(
            *self.partials(frames, rows),
            F.count(F.lit(1)).alias(ROWS),
            began.alias(BEGAN),
            F.max(ENDED).alias(ENDED),
        )

    def _computed(self, history: DataFrame, types: Mapping[str, str]) -> DataFrame:
        """Return the windows at the end of each id that changed them, with the id that closed each window."""
        until_here = self.until_here(WINDOW_NUMBER)
        in_order = self.of_key().orderBy(WINDOW_NUMBER, SEQUENCE_ID)
        running = history.select(
            *self.running(types),
            F.sum(ROWS).over(until_here).alias(ROWS),
            F.first(BEGAN, ignorenulls=True).over(until_here).alias(BEGAN),
            F.max(ENDED).over(until_here).alias(ENDED),
            F.lead(WINDOW_NUMBER).over(in_order).alias("__next_number"),
            F.lead(SEQUENCE_ID).over(in_order).alias("__next_id"),
        )
        is_last = F.coalesce(F.col("__next_id") != F.col(SEQUENCE_ID), F.lit(True))
        made = running.withColumn(_CLOSED_AT, self._closed_at()).withColumn(_IS_LAST, is_last)
        return made.where(F.col(IS_NEW) | F.col(_CLOSED_AT).isNotNull())

    def _closed_at(self) -> Column:
        """Return the id that closed a window, in the window's last row; null in all other rows."""
        if isinstance(self.window, Delta):
            return F.when(F.col("__next_number") > F.col(WINDOW_NUMBER), F.col("__next_id"))
        is_full = F.col(ROWS) == self.window.rows if isinstance(self.window, Rows) else F.col(ENDED)
        return F.when(F.col(IS_NEW) & is_full, F.col(SEQUENCE_ID))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walk:
    """A walk over the rows of a key, on a worker."""

    width: float

    def __call__(self, rows: pa.Table) -> pa.Table:
        import numpy as np
        import pyarrow as pa

        order = np.lexsort([*place_ranks(rows), rows[SEQUENCE_ID].to_numpy()]).tolist()
        measures = rows.column(BEGAN).to_pylist()
        number = rows.column(_NUMBER)[0].as_py()
        began = rows.column(f"{_BEFORE}{BEGAN}")[0].as_py()
        numbers = [0] * rows.num_rows
        for index in order:
            measure = measures[index]
            if measure is not None and began is None:
                began = measure
            elif measure is not None and measure - began >= self.width:
                number, began = number + 1, measure
            numbers[index] = number
        place = rows.column_names.index(_NUMBER)
        return rows.set_column(place, rows.schema.field(place), pa.array(numbers, pa.int64()))
