"""`aggregate`: a keyed running aggregate, optionally by tumbling windows of event time; its state is the result.

It emits one row a changed key and id. The state at id N is the last row a key with an id ≤ N, so what is staged for a
group is at once the state's changelog, the operator's output, and the history of an upsert sink (design.md §3.4).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.graph.annotations import duration_of
from drainmark.jobs.graph.declarations import Stream, StreamLike, caller, declare, location_of, port_to, stream_name
from drainmark.jobs.graph.operator import SEQUENCE_ID, names_of
from drainmark.jobs.lazy import F
from drainmark.jobs.operators.windows.window import (
    STARTS,
    WINDOW_START,
    Delta,
    Emission,
    Emit,
    EventTime,
    Marked,
    Rows,
    Session,
    Window,
)
from drainmark.jobs.operators.windows.windowed_aggregate import KeyedValues
from drainmark.jobs.state.aggregations import (
    Aggregation,
    approx_distinct,
    collect_set,
    count,
    first,
    last,
    max,  # noqa: A004 - the field's words, exported to authors as dm.max and so on
    mean,
    min,  # noqa: A004
    running_columns,
    state_columns,
    sum,  # noqa: A004
)
from drainmark.jobs.state.keyed_state import KeyedState

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from drainmark.jobs.graph.context import GroupFrames

__all__ = [
    "Aggregation",
    "aggregate",
    "approx_distinct",
    "collect_set",
    "count",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "sum",
]

_IS_NEW = "__is_new"


@dataclass(frozen=True, kw_only=True)
class Aggregate(KeyedValues):
    """Keyed state as typed columns: keys, values, hidden parts, `_sequence_id` of the last change.

    `is_history`: what downstream sees is the state, so an upsert sink with the same keys needs no history of its own.
    """

    kind: ClassVar[str] = "aggregate"
    summary: ClassVar[str] = "keyed running or tumbling aggregate"
    is_stateful: ClassVar[bool] = True
    state_class: ClassVar[type[KeyedState]] = KeyedState
    is_history: ClassVar[bool] = True

    @property
    def all_keys(self) -> tuple[str, ...]:
        """Return the keys of the state, the window's start included."""
        return (*self.keys, *self.window_columns)

    @property
    def depth(self) -> int:
        """Return how many rows of a key the state keeps."""
        return 1

    def seen(self, changes: DataFrame) -> DataFrame:
        """Return what downstream operators see of the changes of a group: the parts of values are hidden."""
        return changes.select(SEQUENCE_ID, *(f"`{name}`" for name in self.emitted))

    def apply(self, frames: GroupFrames) -> DataFrame:
        """Return the changes of a group: keys, values, parts, `_sequence_id`; one row a changed key and id.

        Partials are merged in id order, a key's older state being the first of them. New rows are told by a flag and
        not by their ids: ids in a plan make Spark compile it anew for every group.
        """
        rows = self.placed_where_order_counts(frames, frames.input(self.inputs[0]))
        made = frames.once_a_run(self.name, lambda: _Columns.of(self, self.partials(frames, rows)))
        partials = self._with_window(rows).groupBy(*made.by).agg(*made.partials)
        partials, before = frames.state(self, partials)
        history = partials.withColumn(_IS_NEW, made.new)
        if before is not None:
            history = frames.gathered(self, before.withColumn(_IS_NEW, made.old).unionByName(history))
        running = frames.once_a_run((self.name, _IS_NEW), lambda: self._running(frames.types_of(self, partials)))
        return history.select(*made.grouping, made.is_new, *running).where(made.is_new).select(*made.finished)

    def _with_window(self, rows: DataFrame) -> DataFrame:
        if not isinstance(self.window, EventTime):
            return rows
        return rows.withColumn(STARTS, self.window.start()).where(F.col(STARTS).isNotNull())

    def _running(self, types: Mapping[str, Any]) -> list[Column]:
        """Return the state columns: of each row, what is merged of it and of those of its key before it."""
        from pyspark.sql import Window as Over

        keys = [f"`{key}`" for key in self.all_keys]
        until_here = Over.partitionBy(*keys).orderBy(SEQUENCE_ID).rowsBetween(Over.unboundedPreceding, 0)
        return running_columns(self.values, until_here, types)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """An aggregate's expressions, made once a run: each costs several calls to the JVM, and a small group little more.

    Attributes:
        grouping: keys and `_sequence_id`.
        by: the same of the input's rows.
        finished: keys, values, hidden parts, `_sequence_id`.
    """

    grouping: list[Column]
    by: list[Column]
    partials: list[Column]
    finished: list[Column]
    new: Column
    old: Column
    is_new: Column

    @classmethod
    def of(cls, operator: Aggregate, partials: list[Column]) -> _Columns:
        keys, states = [F.col(f"`{key}`") for key in operator.all_keys], state_columns(operator.values)
        start = [F.col(STARTS).alias(WINDOW_START)] if isinstance(operator.window, EventTime) else []
        hidden = [F.col(f"`{column}`") for column in states if column not in operator.values]
        return cls(
            grouping=[*keys, F.col(SEQUENCE_ID)],
            by=[*operator.key_columns(), *start, F.col(SEQUENCE_ID)],
            partials=partials,
            finished=[*keys, *map(operator.finished, operator.values), *hidden, F.col(SEQUENCE_ID)],
            new=F.lit(True),
            old=F.lit(False),
            is_new=F.col(_IS_NEW),
        )


def aggregate(
    stream: StreamLike,
    *,
    keys: Sequence[str] = (),
    values: Mapping[str, Aggregation],
    window: Window | None = None,
    emit: str = "change",
    lateness: dt.timedelta | float | None = None,
    max_ahead: dt.timedelta | float | None = None,
    columns: Sequence[str] = (),
    name: str | None = None,
) -> Stream:
    """Declare a keyed aggregate: `dm.aggregate(words, keys=["word"], values={"count": dm.count()})`.

    With `lateness=` a window of event time is closed, and its state dropped, at the end of the id in which the
    watermark reaches its end. The watermark is the newest event time until then, of all keys, less the lateness; rows
    of an id are judged by ids before it. A row whose windows are all closed goes to the output `late`,
    `counts["late"]`, as it came, and so does one without event time; the state `<name>-watermark` counts them, whether
    or not that output is read.

    Args:
        keys: key columns; null is a key. They may be left out where there is a window.
        values: name of the value to its aggregation.
        window: `dm.tumbling(…)`, `dm.sliding(…)` or `dm.session(…)`.
        emit: `"change"`: a row a changed key, or window of a key, and id; `"closed"`: a row a window, at the id at
            which it is closed; `"row"`: of sliding windows, a row for every row of the input, over the window that
            ends with it.
        lateness: seconds, or a `datetime.timedelta`.
        max_ahead: with `lateness`, the most by which one id takes the watermark on (seconds, or a
            `datetime.timedelta`), so that one event time that is years ahead does not make all rows after it late. The
            first id with event times sets the watermark, wherever that is. After a pause of event time that is longer,
            the watermark catches up by so much an id. No bound by default.
        columns: of the input, handed on by `emit="row"`.
        name: identity of the state; `<stream>_by_<keys>` by default.
    """
    frame, key_names = caller(), names_of(keys)
    late, ahead = duration_of(lateness), duration_of(max_ahead)
    emission = Emission(emit=emit, lateness=late, columns=names_of(columns), max_ahead=ahead)
    made = _class_for(window, emission)
    operator = made(
        name=name or "_by_".join([stream_name(stream), "_".join([*key_names, *(["window"] if window else [])])]),
        inputs=(port_to(stream),),
        location=location_of(frame),
        keys=key_names,
        values=dict(values) if isinstance(values, Mapping) else {},
        window=window,
        emission=emission,
    )
    return declare(operator, frame)


def _class_for(window: Window | None, emission: Emission) -> type[KeyedValues]:
    """Return the operator that computes a window; where none does, one that says so."""
    from drainmark.jobs.operators.windows.event_windows import EventWindows
    from drainmark.jobs.operators.windows.numbered_windows import NumberedWindows
    from drainmark.jobs.operators.windows.session_windows import SessionWindows
    from drainmark.jobs.operators.windows.sliding import SlidingAggregate
    from drainmark.jobs.operators.windows.sliding_rows import SlidingRows
    from drainmark.jobs.operators.windows.trailing_windows import TrailingWindows

    if isinstance(window, Rows) and window.is_sliding:
        return SlidingRows if emission.emit == Emit.ROW else SlidingAggregate
    if isinstance(window, Delta) and window.is_sliding:
        return TrailingWindows
    if isinstance(window, Rows | Delta | Marked):
        return NumberedWindows
    if isinstance(window, Session):
        return SessionWindows
    if isinstance(window, EventTime) and (emission.lateness is not None or emission.emit == Emit.CLOSED):
        return EventWindows
    return Aggregate
