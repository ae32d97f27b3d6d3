"""The watermark of an operator: the newest event time of the ids before, less the lateness (H20).

It is kept as a state, so it is rewound with the rest, and is the same for any grouping: what judges the rows of an id
comes from ids before it, and a window is closed at the end of the first id that takes the watermark to its end. It only
rises: code with a larger lateness waits until event time has caught up, so that no closed window is opened again.

Operators that hold rows, or forget keys, after a while have a simpler clock, which also ticks at ids without rows and
can count triggers: `jobs.state.clock`, where it stands why that is not this one.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobs.graph.operator import SEQUENCE_ID, KeptState, Operator
from jobs.lazy import F
from jobs.operators.windowed import KeyedValues
from jobs.operators.windows import LATE, WINDOW_START, micros

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from jobs.runtime.frames import GroupFrames

PART = "watermark"
KEPT = KeptState(part=PART, evolves=True)
NEWEST, MARK, LATE_ROWS = "newest", "watermark", "late_rows"
"""Columns of the state: newest event time, the watermark, and how many rows were late, of all ids until then."""

BEFORE, AFTER = "__watermark_before", "__watermark_after"
ID = "__watermark_id"
_IS_NEW = "__is_new"
_MARK = "__watermark"
_SCHEMA = f"{NEWEST} timestamp, {MARK} timestamp, {LATE_ROWS} bigint, {SEQUENCE_ID} bigint"


@dataclass(frozen=True, kw_only=True)
class WatermarkedValues(KeyedValues):
    """Windows of event time that a watermark closes, `window_start` telling them apart; late rows go to `LATE`."""

    @property
    def kept(self) -> tuple[KeptState, ...]:
        return (KeptState(keys=(*self.keys, WINDOW_START), retention=self.retention), KEPT)

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("", LATE)

    @property
    def lateness(self) -> dt.timedelta:
        return self.emission.lateness or dt.timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """The watermark before and after each id of a group, in microseconds since 1970-01-01 UTC.

    Attributes:
        ids: a row an id that has rows: `ID`, `BEFORE`, `AFTER` (null as long as no row has event time), `newest`.
        known: the state before the group, one row or none.
    """

    ids: DataFrame
    known: DataFrame

    @classmethod
    def of(
        cls, operator: Operator, frames: GroupFrames, rows: DataFrame, moment: Column, lateness: dt.timedelta
    ) -> Watermark:
        """Return the watermark over rows, or over partials of them; `moment` may be an aggregate's input."""
        from pyspark.sql import Window as Over

        known = frames.kept(operator, PART, frames.session.createDataFrame([], _SCHEMA).schema)
        delay = micros(lateness)
        newest = rows.groupBy(SEQUENCE_ID).agg(F.max(moment).alias(NEWEST))
        newest = newest.select(
            SEQUENCE_ID, NEWEST, (F.col(NEWEST) - delay).alias(_MARK), F.lit(True).alias(_IS_NEW)
        )  # fmt: skip
        had = F.unix_micros(NEWEST)
        stood = F.coalesce(F.unix_micros(MARK), had - delay)  # claims of before kept no watermark
        before = known.select(SEQUENCE_ID, had.alias(NEWEST), stood.alias(_MARK), F.lit(False).alias(_IS_NEW))
        in_order = Over.partitionBy(F.lit(0)).orderBy(SEQUENCE_ID)
        until_here = in_order.rowsBetween(Over.unboundedPreceding, 0)
        ids = newest.unionByName(before).select(
            F.col(SEQUENCE_ID).alias(ID), _IS_NEW, F.max(NEWEST).over(until_here).alias(NEWEST),
            F.max(_MARK).over(in_order.rowsBetween(Over.unboundedPreceding, -1)).alias(BEFORE),
            F.max(_MARK).over(until_here).alias(AFTER),
        )  # fmt: skip
        return cls(ids=ids.where(_IS_NEW).drop(_IS_NEW), known=known)

    def judge(self, rows: DataFrame) -> DataFrame:
        """Return the rows with `BEFORE`, the watermark that judges their id."""
        judges = F.broadcast(self.ids.select(ID, BEFORE))
        return rows.join(judges, on=F.col(SEQUENCE_ID) == F.col(ID), how="inner").drop(ID)

    def closing(self, windows: DataFrame) -> DataFrame:
        """Return windows with `closers`, for `closed_at`."""
        rising = self.ids.where(F.col(AFTER).isNotNull()).select(F.struct(F.col(ID), F.col(AFTER)).alias("__step"))
        steps = rising.agg(F.sort_array(F.collect_list("__step")).alias("__closers"))
        return windows.crossJoin(F.broadcast(steps))

    @staticmethod
    def closed_at(end: Column) -> Column:
        """Return the id at the end of which the watermark has reached the end of a window, null where none has."""
        reached = F.filter("__closers", lambda step: step[AFTER] >= end)
        is_reached = F.try_element_at("__closers", F.lit(-1))[AFTER] >= end
        return F.when(is_reached, F.get(reached, F.lit(0))[ID])

    def changes(self, late: DataFrame) -> DataFrame:
        """Return the changes of the state.

        Args:
            late: a row an id, `LATE_ROWS`; ids without late rows may be missing.
        """
        from pyspark.sql import Window as Over

        counted = late.select(F.col(SEQUENCE_ID).alias("__late_id"), LATE_ROWS)
        earlier = self.known.agg(F.max(LATE_ROWS).alias("__late_before"))
        until_here = Over.partitionBy(F.lit(0)).orderBy(ID).rowsBetween(Over.unboundedPreceding, 0)
        rows = self.ids.join(counted, on=F.col(ID) == F.col("__late_id"), how="left").crossJoin(F.broadcast(earlier))
        total = F.sum(F.coalesce(F.col(LATE_ROWS), F.lit(0))).over(until_here)
        return rows.select(
            F.timestamp_micros(NEWEST).alias(NEWEST),
            F.timestamp_micros(AFTER).alias(MARK),
            (total + F.coalesce(F.col("__late_before"), F.lit(0))).cast("bigint").alias(LATE_ROWS),
            F.col(ID).alias(SEQUENCE_ID),
        )
