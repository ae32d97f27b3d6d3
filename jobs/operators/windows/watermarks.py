"""The watermark of an operator: the newest event time of the earlier ids, minus the lateness.

It is kept as a state, so it is rewound with the other states, and it is the same for any grouping: the watermark for
the rows of an id comes from earlier ids, and a window is closed at the end of the first id that moves the watermark to
the window's end. It only rises: if new code has a larger lateness, the watermark waits until event time has caught up,
so no closed window opens again. With a bound (`max_ahead`) one id moves it by at most that much.

Operators that hold rows for a while, or forget keys after a while, have a simpler clock, which also ticks at ids
without rows and can count triggers: `jobs.state.clock`. Its docstring says why there are two.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.graph.annotations import micros
from drainmark.jobs.graph.context import ABOVE, UPTO
from drainmark.jobs.graph.operator import KeptState, Operator
from drainmark.jobs.lazy import F
from drainmark.jobs.operators.windows.window import LATE, WINDOW_START
from drainmark.jobs.operators.windows.windowed_aggregate import UNBOUNDED, KeyedValues
from drainmark.jobs.state.placed_rows import FROM, IS_NEW, LEAVES, with_state

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from drainmark.jobs.graph.context import OperatorContext

PART = "watermark"
KEPT = KeptState(part=PART, evolves=True)
NEWEST, MARK, LATE_ROWS = "newest", "watermark", "late_rows"
"""Columns of the state: newest event time, watermark, and number of late rows, up to and including an id."""

BEFORE, AFTER = "__watermark_before", "__watermark_after"
ID = "__watermark_id"
_MARK = "__watermark"
_IDS = "__ids"
_STOOD = "__watermark_stood"
_CLOSERS = "__closers"
_SCHEMA = f"{NEWEST} timestamp, {MARK} timestamp, {LATE_ROWS} bigint, {SEQUENCE_ID} bigint"


@dataclass(frozen=True, kw_only=True)
class WatermarkedValues(KeyedValues):
    """Windows of event time that a watermark closes, identified by `window_start`; late rows go to `LATE`."""

    @property
    def looked_up_by(self) -> tuple[str, ...]:
        """Return the columns by which a group looks up the windows that its rows may be in."""
        return (*self.keys, WINDOW_START)

    @property
    def kept(self) -> tuple[KeptState, ...]:
        keys = (*self.keys, WINDOW_START)
        return (KeptState(keys=keys, looked_up_by=self.looked_up_by, retention=self.retention), KEPT)

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("", LATE)

    @property
    def lateness(self) -> dt.timedelta:
        return self.emission.lateness or dt.timedelta(0)

    def watermark(self, frames: OperatorContext, rows: DataFrame, moment: Column) -> Watermark:
        """Return the watermark over rows, or over partials of them, with the declared lateness and bound."""
        return Watermark.of(self, frames, rows, moment, self.lateness, max_ahead=self.emission.max_ahead)

    def notes(self, read: Collection[str]) -> Iterator[str]:
        yield from unread_late_rows(self, (LATE,), read)


def unread_late_rows(operator: Operator, outputs: Collection[str], read: Collection[str]) -> Iterator[str]:
    """Yield a note if no operator reads the late rows of an operator: only their number is kept."""
    if unread := [f"{operator.name}[{output}]" for output in outputs if output not in read]:
        yield f"nothing reads {' or '.join(unread)}: rows that come too late are counted, and kept nowhere"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """The watermark before and after each id of a group, in microseconds since 1970-01-01 UTC.

    Attributes:
        ids: one row for each id with rows: `ID`, `BEFORE`, `AFTER` (null as long as no row has event time), `newest`.
        known: the state before the group, one row or none.
    """

    ids: DataFrame
    known: DataFrame

    @classmethod
    def of(
        cls,
        operator: Operator,
        frames: OperatorContext,
        rows: DataFrame,
        moment: Column,
        lateness: dt.timedelta,
        *,
        max_ahead: dt.timedelta | None = None,
        part: str = PART,
    ) -> Watermark:
        """Return the watermark over rows, or over partials of them; `moment` may be an aggregate's input.

        Args:
            max_ahead: the most by which one id can move it; None for no limit.
            part: part of the state, if the operator has several watermarks.
        """
        from pyspark.sql import Window as Over

        known = frames.kept(operator, part, frames.session.createDataFrame([], _SCHEMA).schema)
        delay = micros(lateness)
        newest = rows.groupBy(SEQUENCE_ID).agg(F.max(moment).alias(NEWEST))
        newest = newest.select(SEQUENCE_ID, NEWEST, (F.col(NEWEST) - delay).alias(_MARK))
        had = F.unix_micros(NEWEST)
        stood = F.coalesce(F.unix_micros(MARK), had - delay)  # older versions kept no watermark
        before = known.select(SEQUENCE_ID, had.alias(NEWEST), stood.alias(_MARK))
        in_order = Over.partitionBy(F.lit(0)).orderBy(SEQUENCE_ID)
        until_here = in_order.rowsBetween(-UNBOUNDED, 0)
        every = with_state(before, newest)
        if max_ahead is not None:
            every = _bounded(every, micros(max_ahead))
        ids = every.select(
            F.col(SEQUENCE_ID).alias(ID),
            IS_NEW,
            F.max(NEWEST).over(until_here).alias(NEWEST),
            F.max(_MARK).over(in_order.rowsBetween(-UNBOUNDED, -1)).alias(BEFORE),
            F.max(_MARK).over(until_here).alias(AFTER),
        )
        return cls(ids=ids.where(IS_NEW).drop(IS_NEW), known=known)

    def judge(self, rows: DataFrame) -> DataFrame:
        """Return the rows with `BEFORE`, the watermark before their id."""
        judges = F.broadcast(self.ids.select(ID, BEFORE))
        return rows.join(judges, on=F.col(SEQUENCE_ID) == F.col(ID), how="inner").drop(ID)

    def closing(self, windows: DataFrame) -> DataFrame:
        """Return windows with `_CLOSERS`, the ids and their watermarks, for `closed_at`."""
        rising = self.ids.where(F.col(AFTER).isNotNull()).select(F.struct(F.col(ID), F.col(AFTER)).alias("__step"))
        steps = rising.agg(F.sort_array(F.collect_list("__step")).alias(_CLOSERS))
        return windows.crossJoin(F.broadcast(steps))

    def span(self, moved: Callable[[Column], Column]) -> DataFrame:
        """Return the times that the watermark passes in the group: one row, `ABOVE` and `UPTO`; see `Due`.

        Args:
            moved: converts a time of the watermark into a time of the state's rows, both in microseconds.
        """
        stood = self.known.agg(moved(F.max(F.unix_micros(MARK))).alias(ABOVE))
        return self.reached(moved).crossJoin(stood)

    def reached(self, moved: Callable[[Column], Column]) -> DataFrame:
        """Return the time that the watermark reaches in the group: one row, `UPTO`; arguments as for `span`."""
        return self.ids.agg(moved(F.max(AFTER)).alias(UPTO))

    @staticmethod
    def closed_at(end: Column) -> Column:
        """Return the first id at the end of which the watermark has reached the end of a window, null if none."""
        reached = F.filter(_CLOSERS, lambda step: step[AFTER] >= end)
        return F.when(_is_reached(end), F.get(reached, F.lit(0))[ID])

    def leaving(self, held: DataFrame, end: Column) -> DataFrame:
        """Return held rows with `LEAVES`: the first id at the end of which the row is there and the watermark has
        reached the row's end, null if there is none.

        Args:
            held: has `FROM` and `IS_NEW`.
            end: in microseconds. If new code keeps rows for a shorter time, the watermark may have reached the end of
                an older row before the group: that row leaves at the group's first id that has a watermark.
        """
        stood = self.known.agg(F.max(F.unix_micros(MARK)).alias(_STOOD))
        came = F.col(FROM)
        leaves = F.when(F.col(IS_NEW) & (F.col(_STOOD) >= end), came).when(
            _is_reached(end), F.greatest(came, self.closed_at(end))
        )
        found = self.closing(held.crossJoin(F.broadcast(stood)))
        return found.withColumn(LEAVES, leaves).drop(_CLOSERS, _STOOD)

    def changes(self, late: DataFrame) -> DataFrame:
        """Return the changes of the state.

        Args:
            late: one row for each id, `LATE_ROWS`; ids without late rows may be missing.
        """
        from pyspark.sql import Window as Over

        counted = late.select(F.col(SEQUENCE_ID).alias("__late_id"), LATE_ROWS)
        earlier = self.known.agg(F.max(LATE_ROWS).alias("__late_before"))
        until_here = Over.partitionBy(F.lit(0)).orderBy(ID).rowsBetween(-UNBOUNDED, 0)
        rows = self.ids.join(counted, on=F.col(ID) == F.col("__late_id"), how="left").crossJoin(F.broadcast(earlier))
        total = F.sum(F.coalesce(F.col(LATE_ROWS), F.lit(0))).over(until_here)
        return rows.select(
            F.timestamp_micros(NEWEST).alias(NEWEST),
            F.timestamp_micros(AFTER).alias(MARK),
            (total + F.coalesce(F.col("__late_before"), F.lit(0))).cast("bigint").alias(LATE_ROWS),
            F.col(ID).alias(SEQUENCE_ID),
        )


def _bounded(ids: DataFrame, most: int) -> DataFrame:
    """Return the ids with watermarks that are at most `most` microseconds above the watermark before.

    Each depends on the one before, which no SQL window can express: the ids of a group are folded as an array. The
    first id with a watermark sets it; an id without event time leaves it unchanged.
    """
    every = ids.agg(F.sort_array(F.collect_list(F.struct(SEQUENCE_ID, NEWEST, _MARK, IS_NEW))).alias(_IDS))

    def with_next(marks: Column, each: Column) -> Column:
        stands, asked = F.try_element_at(marks, F.lit(-1)), each[_MARK]
        reached = F.when(asked - most > stands, stands + most).otherwise(asked)
        return F.concat(marks, F.array(F.greatest(stands, reached)))

    marks = F.aggregate(_IDS, F.array().cast("array<bigint>"), with_next)
    found = every.select(_IDS, marks.alias(_MARK)).select(F.explode(F.arrays_zip(_IDS, _MARK)).alias("__id"))
    told = (F.col(f"__id.{_IDS}.{name}") for name in (SEQUENCE_ID, NEWEST, IS_NEW))
    return found.select(*told, f"__id.{_MARK}")


def _is_reached(end: Column) -> Column:
    return F.try_element_at(_CLOSERS, F.lit(-1))[AFTER] >= end
