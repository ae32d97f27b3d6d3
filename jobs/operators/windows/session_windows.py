"""Sessions: windows of event time that end when a key has no row for a while.

The state has the open sessions. Close rows of one key and id are combined first; a walk then decides which of them
open a session, join one or merge several (`session_merging`). The values of each session at each id are merged from its
parts in the order of their ids. So one job goes through many ids, and every id has its own state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from drainmark.jobs.frames.names import quoted, quoted_name, without_points
from drainmark.jobs.frames.tags import GONE, POSITION, SEQUENCE_ID
from drainmark.jobs.graph.annotations import micros
from drainmark.jobs.graph.context import Due
from drainmark.jobs.graph.operator import StepResult
from drainmark.jobs.lazy import F
from drainmark.jobs.operators.windows.session_merging import (
    BORN,
    DIED,
    END,
    ID,
    IS_FIRST,
    IS_NEW,
    LEFT,
    LINEAGE,
    START,
    walk,
)
from drainmark.jobs.operators.windows.watermarks import AFTER, BEFORE, LATE_ROWS, PART, Watermark, WatermarkedValues
from drainmark.jobs.operators.windows.window import LATE, WINDOW_END, WINDOW_START, Session
from drainmark.jobs.operators.windows.windowed_aggregate import UNBOUNDED, types_of
from drainmark.jobs.state.aggregations.aggregation import argument_columns, running_columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from drainmark.jobs.graph.context import OperatorContext

_BOUNDS = (f"timestamp_micros({START}) as {WINDOW_START}", f"timestamp_micros({END}) as {WINDOW_END}")
"""SQL of the bounds of a session, as its state has them."""

_NUMBER = "__number"
_MARK = "__mark"
_NEXT_ID = "__next_id"
_IS_CLOSED = "__is_closed"
_TAKES_PART = "__takes_part"


@dataclass(frozen=True, kw_only=True)
class SessionWindows(WatermarkedValues):
    """Values of each session of each key, identified by `window_start`; emitted when the watermark closes it."""

    kind: ClassVar[str] = "session windows"
    summary: ClassVar[str] = "rows of a key that are close in event time, closed by a watermark"
    configurations: ClassVar[tuple[str, ...]] = ("closed",)

    window: Session

    @property
    def looked_up_by(self) -> tuple[str, ...]:
        return self.keys  # a row may be in any session of its key

    def step(self, frames: OperatorContext) -> StepResult:
        rows = frames.once(self, frames.input(self.inputs[0]))
        moment = self.window.moment()
        watermark = self.watermark(frames, rows, moment)
        judged = watermark.judge(rows)
        is_late = moment.isNull() | F.coalesce(moment + micros(self.window.gap) <= F.col(BEFORE), F.lit(False))
        late = judged.where(is_late).drop(BEFORE)
        new = self._put_together(frames, self.placed(frames, judged.where(~is_late)))
        columns = [*quoted(self.all_keys), *self.state_names()]
        like = new.selectExpr(*quoted(self.keys), *_BOUNDS, *self.state_names(), f"{ID} as {SEQUENCE_ID}").schema
        due = Due(WINDOW_END, lambda: watermark.span(lambda mark: mark))
        items = new.unionByName(self._items_of(frames.kept(self, "", like, rows, due)))
        parts = self._walked(frames, self._in_order(frames.gathered(self, items), watermark))
        made = frames.once(self, self._computed(parts, watermark, types_of(like)))
        late_rows = late.groupBy(SEQUENCE_ID).agg(F.count(F.lit(1)).alias(LATE_ROWS))
        emitted = [*quoted(self.all_keys), *self.finished_values(), SEQUENCE_ID]
        return StepResult(
            None,
            changes={"": made.select(*columns, GONE, SEQUENCE_ID), PART: watermark.changes(late_rows)},
            outputs={"": made.where(_IS_CLOSED).select(*emitted), LATE: late},
        )

    def _put_together(self, frames: OperatorContext, rows: DataFrame) -> DataFrame:
        """Return the parts of rows of a key and id that are in one session in any case, with bounds and `BEFORE`."""
        moment = self.window.moment()
        columns = (name for name in rows.columns if name != BEFORE)
        arguments = argument_columns(self.values.values(), columns, self.keys)
        timed = rows.select(
            *self.key_columns(),
            *(quoted_name(name) for name in arguments),
            POSITION,
            BEFORE,
            F.col(SEQUENCE_ID).alias(ID),
            F.struct(SEQUENCE_ID, POSITION).alias(SEQUENCE_ID),  # orders `first` and `last`, also between parts
            moment.alias(START),
            (moment + micros(self.window.gap)).alias(END),
        )
        in_order = self.of_key(ID).orderBy(START)
        begins = F.coalesce(F.col(START) >= F.lag(END).over(in_order), F.lit(True))
        numbered = timed.withColumn(_NUMBER, begins.cast("bigint"))
        numbered = numbered.withColumn(_NUMBER, F.sum(_NUMBER).over(in_order.rowsBetween(-UNBOUNDED, 0)))
        return (
            numbered.groupBy(*self.key_columns(), ID, _NUMBER)
            .agg(
                *self.partials(frames, rows),
                F.min(START).alias(START),
                F.max(END).alias(END),
                F.max(BEFORE).alias(BEFORE),
                F.lit(True).alias(IS_NEW),
            )
            .drop(_NUMBER)
        )

    def _items_of(self, sessions: DataFrame) -> DataFrame:
        """Return the sessions that were open before the group in the shape of new parts."""
        return sessions.selectExpr(
            *quoted(self.keys),
            f"{SEQUENCE_ID} as {ID}",
            *self.state_names(),
            f"unix_micros({WINDOW_START}) as {START}",
            f"unix_micros({WINDOW_END}) as {END}",
            f"cast(null as bigint) as {BEFORE}",
            f"false as {IS_NEW}",
        )

    def _in_order(self, items: DataFrame, watermark: Watermark) -> DataFrame:
        """Return the items of the keys that the group changes, sorted for the walk."""
        by_key = self.of_key()
        mark = watermark.ids.agg(F.max(AFTER).alias(_MARK))
        closes = F.coalesce(F.min(END).over(by_key) <= F.col(_MARK), F.lit(False))
        taking_part = (
            items.crossJoin(F.broadcast(mark))
            .withColumn(_TAKES_PART, F.max(IS_NEW).over(by_key) | closes)
            .where(_TAKES_PART)
            .drop(_TAKES_PART, _MARK)
        )
        first = F.row_number().over(by_key.orderBy(ID, START)) == 1
        return taking_part.withColumn(IS_FIRST, first).sortWithinPartitions(*self.key_columns(), ID, START)

    def _walked(self, frames: OperatorContext, items: DataFrame) -> DataFrame:
        """Return the items after the walk; this process walks if group and state are small, and starts no worker."""
        from pyspark.sql.types import LongType, StructField, StructType

        more = [StructField(name, LongType()) for name in (LINEAGE, BORN, DIED, LEFT)]
        schema = StructType([*items.schema.fields, *more])
        if not frames.is_local(self):
            given = without_points(items)
            walked = StructType([*given.schema.fields, *more])
            found = given.mapInArrow(lambda batches: walk(batches), walked)  # noqa: PLW0108 - as in numbered windows
            return found if given is items else found.toDF(*schema.names)
        import pyarrow as pa

        batches = [*walk(iter(frames.collect(self, items).to_batches()))]
        return frames.local(self, pa.Table.from_batches(batches) if batches else None, schema)

    def _computed(self, parts: DataFrame, watermark: Watermark, types: Mapping[str, str]) -> DataFrame:
        """Return the sessions at the end of each id that changed them, the closed ones, and those that are gone because
        they are part of another session, or begin earlier."""
        of_lineage = self.of_key(LINEAGE).orderBy(ID, START)
        until_here = of_lineage.rowsBetween(-UNBOUNDED, 0)
        running = parts.select(
            *self.key_columns(),
            LINEAGE,
            ID,
            IS_NEW,
            BORN,
            DIED,
            LEFT,
            F.lead(ID).over(of_lineage).alias(_NEXT_ID),
            F.coalesce(F.col(LEFT), F.min(START).over(until_here)).alias(START),
            F.max(END).over(until_here).alias(END),
            *running_columns(self.values, until_here, types),
        )
        number, next_id, has_lineage = F.col(ID), F.col(_NEXT_ID), F.col(LINEAGE).isNotNull()
        is_end = has_lineage & next_id.isNull() & F.col(DIED).isNull()
        closed = F.when(is_end, Watermark.closed_at(F.col(END)))
        is_alive = (number >= F.col(BORN)) & (F.col(DIED).isNull() | (number < F.col(DIED)))
        is_told = has_lineage & F.col(IS_NEW) & is_alive & (next_id.isNull() | (next_id != number))
        changes = F.array_compact(
            F.array(
                F.when(is_told & ~closed.eqNullSafe(number), self._change(number, is_gone=False)),
                F.when(closed.isNotNull(), self._change(closed, is_gone=True, is_closed=True)),
                F.when(~has_lineage, self._change(F.col(BORN), is_gone=True)),
            )
        )
        found = watermark.closing(running).select("*", F.explode(changes).alias("__change"))
        return found.selectExpr(*quoted(self.keys), *_BOUNDS, *self.state_names(), "__change.*")

    @staticmethod
    def _change(number: Column, *, is_gone: bool, is_closed: bool = False) -> Column:
        return F.struct(F.lit(is_gone).alias(GONE), F.lit(is_closed).alias(_IS_CLOSED), number.alias(SEQUENCE_ID))
