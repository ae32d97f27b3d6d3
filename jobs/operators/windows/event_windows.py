"""Windows of event time with a watermark: tumbling windows, and windows that overlap.

The state has the parts of every window that is not closed, so the lateness limits its size. A row belongs to the
windows of its event time that are still open; if none is open, the row is late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.graph.annotations import micros
from drainmark.jobs.graph.context import Due
from drainmark.jobs.graph.operator import StepResult
from drainmark.jobs.lazy import F
from drainmark.jobs.operators.windows.watermarks import BEFORE, LATE_ROWS, PART, Watermark, WatermarkedValues
from drainmark.jobs.operators.windows.window import LATE, STARTS, WINDOW_START, Emit, EventTime
from drainmark.jobs.operators.windows.windowed_aggregate import types_of
from drainmark.jobs.state.aggregations.aggregation import state_columns
from drainmark.jobs.state.placed_rows import IS_NEW, state_changes, with_state

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from drainmark.jobs.graph.context import OperatorContext

ROWS = "__window_rows"
_NEWEST = "__newest"
_HOME_ROWS = "__home_rows"
_HAD_ROWS = "__had_rows"
_IS_LATE = "__is_late"
_CLOSED_AT = "__closed_at"


@dataclass(frozen=True, kw_only=True)
class EventWindows(WatermarkedValues):
    """Values of each window of each key, identified by `window_start`, until the watermark closes the window."""

    kind: ClassVar[str] = "event-time windows"
    summary: ClassVar[str] = "tumbling or overlapping windows of event time, closed by a watermark"
    configurations: ClassVar[tuple[str, ...]] = (
        "tumbling, change", "tumbling, closed", "tumbling, count trigger", "overlapping, change", "overlapping, closed"
    )  # fmt: skip
    instead_over_changes: ClassVar[str] = "leave lateness= and emit= out: windows that stay open take changes"

    window: EventTime

    def step(self, frames: OperatorContext) -> StepResult:
        rows = frames.input(self.inputs[0])
        if frames.reads(self, LATE):  # then the rows are read twice
            rows = frames.once(self, rows)
        partials = frames.once(self, self._partials(frames, self.placed_where_order_counts(frames, rows)))
        watermark = self.watermark(frames, partials, F.col(_NEWEST))
        columns = [*self.key_columns(), WINDOW_START, ROWS, *self.state_names(), SEQUENCE_ID]
        like = partials.select(*columns).schema
        due = Due(WINDOW_START, lambda: watermark.span(self._last_closed))
        judged = watermark.judge(partials).withColumn(_IS_LATE, self._is_late(F.unix_micros(WINDOW_START)))
        new = judged.where(~F.col(_IS_LATE)).select(*columns)
        history = frames.gathered(self, with_state(frames.kept(self, "", like, partials, due), new))
        made = frames.once(self, self._computed(watermark.closing(history), types_of(like)))
        payload = [ROWS, *state_columns(self.values)]
        changes = state_changes(made, self.all_keys, payload, came=SEQUENCE_ID, gone=_CLOSED_AT, may_replace=True)
        late = judged.where(_IS_LATE).groupBy(SEQUENCE_ID).agg(F.sum(_HOME_ROWS).alias(LATE_ROWS))
        too_late = watermark.judge(rows).where(self._is_late(self.window.last_start())).drop(BEFORE)
        return StepResult(
            None,
            changes={"": changes, PART: watermark.changes(late)},
            outputs={"": self._emitted(made), LATE: too_late},
        )

    def _partials(self, frames: OperatorContext, rows: DataFrame) -> DataFrame:
        """Return the parts of each window, key and id; the home of a row is the last of its windows."""
        # a separate name, since the event time, or a value, may be a column `window_start` that other windows made
        timed = rows.withColumn(STARTS, self.window.start())
        is_home = F.unix_micros(STARTS).eqNullSafe(self.window.last_start())
        return timed.groupBy(*self.key_columns(), F.col(STARTS).alias(WINDOW_START), SEQUENCE_ID).agg(
            *self.partials(frames, rows),
            F.count(F.lit(1)).alias(ROWS),
            F.max(self.window.moment()).alias(_NEWEST),
            F.count_if(is_home).alias(_HOME_ROWS),
        )

    def _is_late(self, start: Column) -> Column:
        """Say whether the window that begins at `start` is closed before the id; True if there is no event time."""
        is_closed = start + self.window.size_micros <= F.col(BEFORE)
        return start.isNull() | F.coalesce(is_closed, F.lit(False))

    def _last_closed(self, mark: Column) -> Column:
        """Return the start of the last window that a watermark closes; many watermarks have the same one."""
        start = mark - self.window.size_micros
        return start - F.pmod(start, F.lit(micros(self.window.every)))

    def _computed(self, history: DataFrame, types: Mapping[str, str]) -> DataFrame:
        """Return the windows at the end of each id that changed them, with the id that closed each window."""
        in_order = self.of_key(WINDOW_START).orderBy(SEQUENCE_ID)
        end = F.unix_micros(WINDOW_START) + self.window.size_micros
        is_last = F.lead(SEQUENCE_ID).over(in_order).isNull()
        rows = F.sum(ROWS).over(self.until_here(WINDOW_START))
        running = history.select(
            *self.running(types),
            rows.alias(ROWS),
            (rows - F.col(ROWS)).alias(_HAD_ROWS),
            F.when(is_last, Watermark.closed_at(end)).alias(_CLOSED_AT),
        )
        return running.where(F.col(IS_NEW) | F.col(_CLOSED_AT).isNotNull())

    def _emitted(self, made: DataFrame) -> DataFrame:
        closed = F.col(_CLOSED_AT)
        if self.emission.emit != Emit.CLOSED:
            chosen = made.where(IS_NEW)
        elif self.window.count_trigger is None:
            chosen = made.where(closed.isNotNull()).withColumn(SEQUENCE_ID, closed)
        else:
            chosen = self._triggered(made, self.window.count_trigger)
        return chosen.select(*self.key_columns(), WINDOW_START, *self.finished_values(), SEQUENCE_ID)

    def _triggered(self, made: DataFrame, count: int) -> DataFrame:
        """Return closed windows, and windows that reach another multiple of `count` rows at the end of an id."""
        closed, number = F.col(_CLOSED_AT), F.col(SEQUENCE_ID)
        is_due = F.col(IS_NEW) & (F.floor(F.col(ROWS) / count) > F.floor(F.col(_HAD_ROWS) / count))
        early = F.when(is_due & ~closed.eqNullSafe(number), number)
        at = F.explode(F.array_compact(F.array(early, closed))).alias(SEQUENCE_ID)
        return made.select(*(quoted_name(name) for name in made.columns if name != SEQUENCE_ID), at)
