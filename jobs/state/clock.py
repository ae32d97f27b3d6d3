"""The time at the end of each id of a group: the number of triggers, or the newest event time.

Ids are no clock: a failed attempt leaves a gap. Event time at id i comes from the rows up to i and never goes back.

`operators.windows.watermarks` has the same event time for windows. It is a separate mechanism for three reasons. Here
every id has a time, also an id without rows, because a held row, or a key to forget, may be due at such an id. Only ids
with rows look at a window, so the watermark has no time for the others, which would take a join in every group. The
watermark keeps the newest time, a timestamp, with the number of late rows; the value here is a number, since it may
count triggers. And released versions wrote both forms to tables. Both share only one line, the running maximum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.graph.context import UPTO
from drainmark.jobs.graph.operator import KeptState, Operator, Retention

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.context import OperatorContext

NOW = "__now"
BEFORE = "__before"
ID = "__id"
BEGINS = "__begins_group"

PART = "clock"
_TIME = "_now"
"""The column of the state."""


def moment(column: str | None) -> str:
    """Return the SQL of a row's event time in microseconds since 1970-01-01 UTC; null without a column."""
    return f"unix_micros(cast({quoted_name(column)} as timestamp))" if column else "cast(null as bigint)"


def clock_state(part: str = PART, of: str = "") -> KeptState:
    """Return the state of a clock: one row with its time; `of` names the time, if no other state names it already."""
    return KeptState(part=part, retention=Retention(of=of) if of else None)


def of_triggers(frames: OperatorContext, operator: Operator) -> tuple[DataFrame, DataFrame]:
    """Return the number of triggers so far at each id, and the state's changes.

    Returns:
        `ID`, `BEFORE` (0 at first) and `NOW`, bigint; `BEGINS`, true at the group's first id; and the part's changes.
    """
    start = _start(frames, operator, PART)
    ids = frames.ids().selectExpr(ID, f"cast(row_number() over (order by {ID}) as bigint) as _step")
    clock = ids.crossJoin(start).selectExpr(
        ID,
        f"coalesce(_start, 0L) + _step - 1 as {BEFORE}",
        f"coalesce(_start, 0L) + _step as {NOW}",
        f"_step = 1 as {BEGINS}",
    )
    return clock, _changes(clock)


def of_events(
    frames: OperatorContext, operator: Operator, rows: DataFrame, micros: str, part: str = PART
) -> tuple[DataFrame, DataFrame]:
    """Return the newest event time up to each id, and the state's changes.

    Args:
        rows: have the column `_sequence_id`.
        micros: SQL of a row's event time in microseconds.

    Returns:
        as `of_triggers`; the times are null as long as there is no event time.
    """
    newest = rows.selectExpr(SEQUENCE_ID, f"{micros} as _micros").groupBy(SEQUENCE_ID).agg({"_micros": "max"})
    newest = newest.toDF("_newest_id", "_newest")
    ids = frames.ids().join(newest, on=_equal_ids(frames, operator), how="left")
    clock = (
        ids.crossJoin(_start(frames, operator, part))
        .selectExpr(ID, "_start", f"greatest(_start, max(_newest) over (order by {ID})) as {NOW}")
        .selectExpr(
            ID,
            f"coalesce(lag({NOW}) over (order by {ID}), _start) as {BEFORE}",
            NOW,
            f"lag({ID}) over (order by {ID}) is null as {BEGINS}",
        )
    )
    return clock, _changes(clock)


def _equal_ids(frames: OperatorContext, operator: Operator) -> object:
    from drainmark.jobs.lazy import F

    return frames.once_a_run((operator.name, "clock"), lambda: F.expr(f"{ID} = _newest_id"))


def _start(frames: OperatorContext, operator: Operator, part: str) -> DataFrame:
    from pyspark.sql.types import LongType, StructField, StructType

    kept = frames.kept(operator, part, StructType([StructField(_TIME, LongType())]))
    return kept.agg({_TIME: "max"}).toDF("_start")


def _changes(clock: DataFrame) -> DataFrame:
    return clock.where(f"not ({NOW} <=> {BEFORE})").selectExpr(f"{NOW} as {_TIME}", f"{ID} as {SEQUENCE_ID}")


def span(clock: DataFrame, while_: int) -> DataFrame:
    """Return the upper bound (inclusive) of the times of due rows: `while_` before the group's last time; see `Due`.

    The lower bound is not known: the code may keep rows for a shorter time than the code that kept these rows.
    """
    return clock.selectExpr(f"max({NOW}) - {while_}L as {UPTO}")


def reaches(due: str) -> str:
    """Return the SQL condition for the first id of the clock, from the row's own id on, at which a time is reached.

    If the code keeps rows for a shorter time than the code that kept a row, the row's time may have been reached before
    the group. Such a row leaves at the group's first id.

    Args:
        due: the time, a bigint of the row; `_from` is the row's own id.
    """
    is_first = f"{ID} = _from or {BEFORE} is null or {BEFORE} < {due} or ({BEGINS} and _from < {ID})"
    return f"{NOW} >= {due} and {ID} >= _from and ({is_first})"
