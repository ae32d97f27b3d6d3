"""Sessions: windows of event time that end where a key has no row for a while.

The state is the sessions that are open. A row opens one or joins those that it is close to, and what it joins is one
session from then on; so the sessions of an id follow from those of the id before, and groups hold one trigger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from jobs.graph.operator import GONE, POSITION, SEQUENCE_ID, Result, Vectorises
from jobs.lazy import F
from jobs.operators.watermarks import AFTER, BEFORE, ID, LATE_ROWS, PART, Watermark, WatermarkedValues
from jobs.operators.windowed import types_of
from jobs.operators.windows import LATE, WINDOW_END, WINDOW_START, Session, micros
from jobs.state.aggregations import argument_columns, partial_columns, running_columns, state_columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from jobs.runtime.frames import GroupFrames

_KEPT = "__kept_"
_START, _END = "__start", "__end"
_IS_NEW = "__is_new"
_NUMBER = "__session"
_OLD_START = "__old_start"
_IS_CLOSED = "__is_closed"
_IS_TOUCHED = "__is_touched"


@dataclass(frozen=True, kw_only=True)
class SessionWindows(WatermarkedValues):
    """Values of each session of each key, `window_start` telling them apart; emitted when the watermark closes it."""

    kind: ClassVar[str] = "session windows"
    summary: ClassVar[str] = "rows of a key that are close in event time, closed by a watermark"
    vectorises: ClassVar[Vectorises] = Vectorises.NO
    configurations: ClassVar[tuple[str, ...]] = ("closed",)
    single_because: ClassVar[str] = "sessions merge from id to id"

    @property
    def bounds(self) -> Session:
        """Return the window; a refused one is never asked for it."""
        assert isinstance(self.window, Session)  # noqa: S101 - `_class_for` sees to it
        return self.window

    def step(self, frames: GroupFrames) -> Result:
        rows = frames.once(self, frames.input(self.inputs[0]))
        moment = self.bounds.moment()
        watermark = Watermark.of(self, frames, rows, moment, self.lateness)
        judged = watermark.judge(rows)
        is_late = moment.isNull() | F.coalesce(moment + micros(self.bounds.gap) <= F.col(BEFORE), F.lit(False))
        late = judged.where(is_late).drop(BEFORE)
        new = judged.where(~is_late).drop(BEFORE)
        columns = [*self.key_columns(), WINDOW_START, WINDOW_END, *self.state_names()]
        like = self._like(new, columns)
        types = types_of(like)
        parts = self._by_session(new, frames.kept(self, "", like))
        made = frames.once(self, self._merged(frames.gathered(self, parts), watermark, types))
        late_rows = late.groupBy(SEQUENCE_ID).agg(F.count(F.lit(1)).alias(LATE_ROWS))
        emitted = [*self.key_columns(), WINDOW_START, WINDOW_END, *self.finished_values(), SEQUENCE_ID]
        return Result(
            None,
            changes={
                "": made.select(*columns, GONE, SEQUENCE_ID),
                PART: watermark.changes(late_rows, self.lateness),
            },
            outputs={"": made.where(_IS_CLOSED).select(*emitted), LATE: late},
        )

    def _like(self, rows: DataFrame, columns: list[Column | str]) -> StructType:
        """Return the columns of the state."""
        never = F.lit(None).cast("timestamp")
        parts = rows.groupBy(*self.key_columns(), SEQUENCE_ID).agg(*partial_columns(self.values))
        timed = parts.withColumn(WINDOW_START, never).withColumn(WINDOW_END, never)
        return timed.select(*columns, F.lit(False).alias(GONE), SEQUENCE_ID).schema

    def _by_session(self, rows: DataFrame, before: DataFrame) -> DataFrame:
        """Return the parts of new rows, one a session, and the sessions before; `_NUMBER` says which become one."""
        from pyspark.sql import Window as Over

        moment, states = self.bounds.moment(), list(state_columns(self.values))
        arguments = argument_columns(self.values.values(), rows.columns, self.keys)
        tags = [name for name in (POSITION, SEQUENCE_ID) if name in rows.columns]
        new = rows.select(
            *self.key_columns(), *(f"`{name}`" for name in arguments), *tags,
            moment.alias(_START), (moment + micros(self.bounds.gap)).alias(_END), F.lit(True).alias(_IS_NEW),
        )  # fmt: skip
        old = before.select(
            *self.key_columns(), *(F.col(f"`{name}`").alias(f"{_KEPT}{name}") for name in states), SEQUENCE_ID,
            F.unix_micros(WINDOW_START).alias(_START), F.unix_micros(WINDOW_END).alias(_END),
            F.lit(False).alias(_IS_NEW),
        )  # fmt: skip
        in_order = Over.partitionBy(*self.by_key()).orderBy(_START, _IS_NEW, *reversed(tags))
        reached = F.max(_END).over(in_order.rowsBetween(Over.unboundedPreceding, -1))
        begins = F.when(F.col(_START) < reached, 0).otherwise(1)
        items = new.unionByName(old, allowMissingColumns=True).withColumn(_NUMBER, begins)
        until_here = in_order.rowsBetween(Over.unboundedPreceding, 0)
        items = items.withColumn(_NUMBER, F.sum(_NUMBER).over(until_here))
        group = [*self.key_columns(), _NUMBER, _IS_NEW, SEQUENCE_ID]
        found = (
            items.where(_IS_NEW)
            .groupBy(*group)
            .agg(*partial_columns(self.values), F.min(_START).alias(_START), F.max(_END).alias(_END))
        )
        known = items.where(~F.col(_IS_NEW)).select(
            *group, *(F.col(f"`{_KEPT}{name}`").alias(name) for name in states), _START, _END
        )
        return known.unionByName(found)

    def _merged(self, parts: DataFrame, watermark: Watermark, types: Mapping[str, str]) -> DataFrame:
        """Return the sessions that changed or are closed, and those that are now part of another."""
        from pyspark.sql import Window as Over

        session = Over.partitionBy(*self.by_key(), _NUMBER)
        whole = session.orderBy(SEQUENCE_ID, _START).rowsBetween(Over.unboundedPreceding, Over.unboundedFollowing)
        start, end = F.min(_START).over(session), F.max(_END).over(session)
        merged = parts.select(
            *self.key_columns(), _IS_NEW, F.col(_START).alias(_OLD_START),
            start.alias(_START), end.alias(_END),
            F.max(_IS_NEW).over(session).alias(_IS_TOUCHED),
            F.row_number().over(session.orderBy(SEQUENCE_ID, _START)).alias(_NUMBER),
            *running_columns(self.values, whole, types),
        ).crossJoin(F.broadcast(watermark.ids))  # fmt: skip
        closed = F.coalesce(F.col(_END) <= F.col(AFTER), F.lit(False))
        survivors = merged.where((F.col(_NUMBER) == 1) & (F.col(_IS_TOUCHED) | closed))
        absorbed = merged.where(~F.col(_IS_NEW) & (F.col(_OLD_START) != F.col(_START)))
        return self._shaped(survivors, F.col(_START), closed, closed).unionByName(
            self._shaped(absorbed, F.col(_OLD_START), F.lit(False), F.lit(True))
        )

    def _shaped(self, sessions: DataFrame, start: Column, is_closed: Column, is_gone: Column) -> DataFrame:
        return sessions.select(
            *self.key_columns(),
            F.timestamp_micros(start).alias(WINDOW_START), F.timestamp_micros(_END).alias(WINDOW_END),
            *self.state_names(), is_closed.alias(_IS_CLOSED), is_gone.alias(GONE), F.col(ID).alias(SEQUENCE_ID),
        )  # fmt: skip
