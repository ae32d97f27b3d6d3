"""Rows in the order of their stream, and states that are made of such rows.

The order is (sequence id, position, ordinal). The ordinal orders rows of one position, which a function that explodes
makes, and rows of several streams of a union. Rows that are equal in all three, which a join makes, are ordered by
their values. So the order is the same for any grouping. A held row has an identity: the id it came with, and its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from drainmark.jobs.frames.names import quoted
from drainmark.jobs.frames.row_order import order_within_id, payload_of, position_at, positioned
from drainmark.jobs.frames.tags import GONE, ORDINAL, POSITION, SEQUENCE_ID
from drainmark.jobs.graph.blame import failed
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.graph.ports import Input

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.context import OperatorContext

FROM = "_from"
PLACE = "_place"
HELD = (FROM, PLACE)
"""The id that a held row came with, and its place among the rows of that id (of that key, if there are keys)."""

IS_NEW = "__is_new"
LEAVES = "__leaves"


def order_of(frames: OperatorContext, operator: Operator, port: Input, frame: DataFrame) -> list[str]:
    """Return what orders a stream's rows within an id, see `order_within_id`, in all groups of a run."""
    return frames.once_a_run((operator.name, "order of", port.stream), lambda: order_within_id(frame))


def require_columns(operator: Operator, port: Input, frame: DataFrame, names: Sequence[str]) -> None:
    """Refuse columns that a stream does not have.

    Raises:
        OperatorFailed: a column is missing; the remedy names the columns of the stream.
    """
    if lacking := [name for name in names if name not in frame.columns]:
        message = f"{port.stream!r} has no column {', '.join(lacking)}"
        raise failed(operator, message, f"name some of {', '.join(payload_of(frame))}")


def placed(
    frames: OperatorContext,
    operator: Operator,
    port: Input,
    keys: Sequence[str] = (),
    *,
    extra: Sequence[str] = (),
    made: Callable[[DataFrame], DataFrame] = lambda rows: rows,
) -> DataFrame:
    """Return a port's rows, computed once, each with its place (from 1) among the rows of its keys and id.

    Args:
        extra: further columns, as SQL.
        made: adds columns before the rows of an id come together in one partition.
    """
    rows = positioned(frames.input(port))
    require_columns(operator, port, rows, keys)
    of = ", ".join([SEQUENCE_ID, *quoted(keys)])
    order = ", ".join(order_of(frames, operator, port, rows))
    ranked = f"cast(row_number() over (partition by {of} order by {order}) as bigint) as {PLACE}"
    return frames.once(operator, frames.gathered(operator, made(rows)).selectExpr("*", ranked, *extra))


def ranked(
    frames: OperatorContext, operator: Operator, port: Input, keys: Sequence[str] = (), rows: DataFrame | None = None
) -> DataFrame:
    """Return a port's rows with positions that put the rows of an id, or of an id and key, into one order.

    Rows that share a position (from `explode` and joins), and rows without one (from an aggregate), are numbered anew
    in the order of `order_of`; in Spark's own order the result would depend on the grouping. Rows as a source has read
    them are not touched, which costs nothing.

    Args:
        rows: rows that were made one by one from the port's rows; the port's rows by default.
    """
    rows = frames.input(port) if rows is None else rows
    if port.stream in frames.own_places:
        return rows
    of = ", ".join([SEQUENCE_ID, *quoted(keys)])
    order = ", ".join(order_of(frames, operator, port, rows))
    others = quoted([name for name in rows.columns if name not in (POSITION, ORDINAL)])
    place = position_at(f"row_number() over (partition by {of} order by {order})")
    return frames.gathered(operator, rows).selectExpr(*others, place)


def keys_of_all(
    frames: OperatorContext, operator: Operator, sides: Iterable[DataFrame], keys: Sequence[str]
) -> DataFrame | None:
    """Return the keys of a group's rows of several streams, to look up the state of one of them. None if the key types
    of the streams differ, see `are_of_one_type`."""
    of_sides = [rows.selectExpr(*quoted(keys)) for rows in sides]
    is_one_type = are_of_one_type(frames, operator, of_sides, keys)
    return reduce(lambda some, more: some.unionByName(more), of_sides) if is_one_type else None


def are_of_one_type(
    frames: OperatorContext, operator: Operator, sides: Sequence[DataFrame], keys: Sequence[str]
) -> bool:
    """Say whether the keys have the same types in all streams; else one value may equal several of another stream."""

    def compared() -> bool:
        types = [[rows.schema[key].dataType for key in keys] for rows in sides]
        return all(each == types[0] for each in types)

    return frames.once_a_run((operator.name, "one type"), compared)


def with_state(before: DataFrame | None, new: DataFrame) -> DataFrame:
    """Return the rows of a state before a group (None: there are none) and the group's new ones, with `IS_NEW`."""
    marked = new.selectExpr("*", f"true as {IS_NEW}")
    if before is None:
        return marked
    return before.selectExpr("*", f"false as {IS_NEW}").unionByName(marked, allowMissingColumns=True)


def state_changes(
    rows: DataFrame, keys: Sequence[str], payload: Sequence[str], *, came: str, gone: str, may_replace: bool = False
) -> DataFrame:
    """Return the changes of a state: new rows come to it at one id, and rows are gone from it at another one.

    Args:
        rows: keys, payload, `IS_NEW`.
        keys: columns by which the state is kept.
        payload: its other columns; null in the change with which a row is gone.
        came: SQL of the id at which a new row comes.
        gone: SQL of the id at the end of which a row is gone, null while it stays. If both are the same id, the row
            does not come.
        may_replace: a new row may have the keys of a row of the state: then that is gone, too.
    """
    comes = f"if({IS_NEW} and not ({gone} <=> {came}), {came}, null)"
    goes = gone if may_replace else f"if({gone} > {came}, {gone}, null)"
    change = f"struct(false as {GONE}, {comes} as {SEQUENCE_ID}), struct(true as {GONE}, {goes} as {SEQUENCE_ID})"
    events = f"inline(filter(array({change}), event -> event.{SEQUENCE_ID} is not null))"
    kept = [f"if({GONE}, null, {name}) as {name}" for name in quoted(payload)]
    return rows.selectExpr(*quoted([*keys, *payload]), events).selectExpr(*quoted(keys), *kept, GONE, SEQUENCE_ID)


def held_changes(rows: DataFrame, keys: Sequence[str], payload: Sequence[str]) -> DataFrame:
    """Return the changes of a state of held rows: one when a row comes, and one when it leaves at a later id.

    Args:
        rows: `HELD`, keys, payload; `IS_NEW`; `LEAVES`, the id at the end of which a row leaves, null while it is held.
        keys: columns that distinguish rows of one place.
        payload: columns that are kept of a row; null in the change with which it leaves.
    """
    came = f"if({IS_NEW} and not ({LEAVES} <=> {FROM}), struct({FROM} as id, false as gone), null)"
    went = f"if({LEAVES} > {FROM}, struct({LEAVES} as id, true as gone), null)"
    event = f"explode(filter(array({came}, {went}), event -> event is not null)) as __event"
    kept = [f"if(__event.gone, null, {name}) as {name}" for name in quoted(payload)]
    tail = (f"__event.gone as {GONE}", f"__event.id as {SEQUENCE_ID}")
    return rows.selectExpr("*", event).selectExpr(*quoted(keys), *HELD, *kept, *tail)
