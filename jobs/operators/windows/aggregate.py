"""`dm.aggregate`: values by key, over all rows or over windows; which operator computes them depends on the window."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from drainmark.jobs.graph.annotations import duration_of
from drainmark.jobs.graph.declarations import Stream, StreamLike, declare, default_name, port_to
from drainmark.jobs.graph.operator import names_of
from drainmark.jobs.operators.windows.event_windows import EventWindows
from drainmark.jobs.operators.windows.numbered_windows import NumberedWindows
from drainmark.jobs.operators.windows.running_aggregate import Aggregate
from drainmark.jobs.operators.windows.session_windows import SessionWindows
from drainmark.jobs.operators.windows.sliding import SlidingAggregate, SlidingRows
from drainmark.jobs.operators.windows.trailing_windows import TrailingWindows
from drainmark.jobs.operators.windows.window import (
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
from drainmark.jobs.state.aggregations.aggregation import Aggregation
from drainmark.jobs.state.aggregations.common_values import (
    approx_distinct,
    collect_set,
    count,
    count_distinct,
    first,
    last,
    max,  # noqa: A004 - the field's words, exported to authors as dm.max and so on
    mean,
    min,  # noqa: A004
    sum,  # noqa: A004
)
from drainmark.jobs.state.aggregations.moments import stddev, variance
from drainmark.jobs.state.aggregations.quantiles import percentile
from drainmark.jobs.state.aggregations.row_lists import bottom, collect_list, top

__all__ = [
    "Aggregation",
    "aggregate",
    "approx_distinct",
    "bottom",
    "collect_list",
    "collect_set",
    "count",
    "count_distinct",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "percentile",
    "stddev",
    "sum",
    "top",
    "variance",
]


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
    watermark reaches the end of the window. The watermark is the newest event time so far, of all keys, minus the
    lateness. For the rows of an id it is computed from earlier ids. If all windows of a row are closed, or the row has
    no event time, it goes unchanged to the output `late`, `counts["late"]`. The state `<name>-watermark` counts these
    rows, even if no operator reads that output.

    Over a change stream the values are those of the rows that are left, exactly; the result is a change stream, too.
    The values `first`, `last`, `collect_list`, `approx_distinct` and your own, and windows that close, number or slide
    by rows, are refused there.

    Args:
        keys: key columns; null is a key. With a window they may be left out.
        values: by the name of the value, its aggregation, such as `dm.sum("amount")`. It may read a field of a struct,
            `dm.sum("price.net")`; a column whose name has a point is written between backticks.
        window: `dm.tumbling(…)`, `dm.sliding(…)` or `dm.session(…)`.
        emit: `"change"`: one row for each id and changed key, or window of a key; `"closed"`: one row for each window,
            at the id at which it is closed; `"row"`: for sliding windows, one row for each row of the input, over the
            window that ends with it.
        lateness: seconds, or a `datetime.timedelta`.
        max_ahead: with `lateness`, the most by which one id can move the watermark (seconds, or a
            `datetime.timedelta`), so that one event time that is years ahead does not make all rows after it late. The
            first id with event times sets the watermark without this limit. After a longer pause of event time the
            watermark catches up by this much with each id. No limit by default.
        columns: columns of the input that `emit="row"` passes on.
        name: identity of the state; `<stream>_by_<keys>` by default.

    Raises:
        OperatorFailed: the column of the window is no time or, with a number as `delta=`, no number; raised when a run
            starts, before its claim.

    Example:
        by_customer = dm.aggregate(
            orders,
            keys=["customer"],
            values={"orders": dm.count(), "paid": dm.sum("amount"), "p95": dm.percentile("amount", 0.95)},
        )
        dm.sink(by_customer, dm.DeltaUpsert("customers", keys=["customer"]))
    """
    key_names = names_of(keys)
    late, ahead = duration_of(lateness), duration_of(max_ahead)
    emission = Emission(emit=emit, lateness=late, columns=names_of(columns), max_ahead=ahead)
    made = _class_for(window, emission)
    operator = made(
        name=name or "_by_".join([default_name(stream), "_".join([*key_names, *(["window"] if window else [])])]),
        inputs=(port_to(stream),),
        keys=key_names,
        values=dict(values) if isinstance(values, Mapping) else {},
        window=window,
        emission=emission,
    )
    return declare(operator)


def _class_for(window: Window | None, emission: Emission) -> type[KeyedValues]:
    """Return the operator class that computes a window; if none does, a class with a rule that refuses the window."""
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
