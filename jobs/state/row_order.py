"""Rows in the order of their stream, and states that are made of such rows.

The order is (sequence id, position, ordinal). An ordinal tells rows of one position apart, as a function that explodes
gives them, and rows of several streams of a union. Rows that are equal in all three, as a join leaves them, go by what
they hold: it is the same order whatever the grouping. A held row is known by the id that it came with and its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from drainmark.jobs.errors import OperatorFailed
from drainmark.jobs.graph.operator import GONE, ORDINAL, POSITION, SEQUENCE_ID, TAGS, Input, Operator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.context import GroupFrames

FROM = "_from"
PLACE = "_place"
HELD = (FROM, PLACE)
"""The id that a held row came with, and its place among the rows of that id (of that key, where there are keys)."""

IS_NEW = "__is_new"
LEAVES = "__leaves"
_WITHOUT_ORDER = ("map<", "variant", "interval")
POSITION_TYPE = "struct<block: bigint, row: bigint>"


def quoted(names: Sequence[str]) -> list[str]:
    """Return column names as SQL takes them."""
    return [f"`{name}`" for name in names]


def payload_of(frame: DataFrame) -> list[str]:
    """Return the columns of a stream less its tags."""
    return [name for name in frame.columns if name not in TAGS]


def without_points(frame: DataFrame) -> DataFrame:
    """Return a frame of which no column has a point in its name: what gives rows to Python takes it for a struct's."""
    if not any("." in name for name in frame.columns):
        return frame
    return frame.toDF(*(f"_column_{place}" if "." in name else name for place, name in enumerate(frame.columns)))


def positioned(frame: DataFrame) -> DataFrame:
    """Return a stream with a position, null where it has none (behind an aggregate)."""
    return frame if POSITION in frame.columns else frame.selectExpr("*", f"cast(null as {POSITION_TYPE}) as {POSITION}")


def places_in(columns: Sequence[str]) -> list[str]:
    """Return what a stream with these columns orders the rows of an id by, as far as it is in the rows' tags."""
    return [tag for tag in (POSITION, ORDINAL) if tag in columns]


def tags_in(columns: Sequence[str]) -> list[str]:
    """Return the tags among columns."""
    return [tag for tag in TAGS if tag in columns]


def in_given_order(frame: DataFrame) -> DataFrame:
    """Return what a function made of rows one by one, with ordinals: those made of one row, in the order as made.

    Spark numbers the rows of a partition as they come, and all that is made of one row comes in one partition.
    """
    ordinal = "array(monotonically_increasing_id())"
    if ORDINAL in frame.columns:
        ordinal = f"concat(coalesce({ORDINAL}, array()), {ordinal})"
    return frame.selectExpr(*quoted([name for name in frame.columns if name != ORDINAL]), f"{ordinal} as {ORDINAL}")


def in_port_order(frame: DataFrame, port: int) -> DataFrame:
    """Return a stream of a union with ordinals: of rows in one place those of the first port come first."""
    own = f"concat(array({port}L), coalesce({ORDINAL}, array()))" if ORDINAL in frame.columns else f"array({port}L)"
    return frame.selectExpr(*quoted([name for name in frame.columns if name != ORDINAL]), f"{own} as {ORDINAL}")


def order_of(frames: GroupFrames, operator: Operator, port: Input, frame: DataFrame) -> list[str]:
    """Return what SQL orders a stream's rows by within an id: position, ordinal, then all that they hold."""

    def made() -> list[str]:
        names = {field.name: field.dataType.simpleString() for field in frame.schema.fields if field.name not in TAGS}
        ties = [
            f"to_json(struct(`{name}`))" if any(odd in kind for odd in _WITHOUT_ORDER) else f"`{name}`"
            for name, kind in names.items()
        ]
        return [*places_in(frame.columns), *ties]

    return frames.once_a_run((operator.name, "order of", port.stream), made)


def require_columns(operator: Operator, port: Input, frame: DataFrame, names: Sequence[str]) -> None:
    """Refuse columns that a stream does not have.

    Raises:
        OperatorFailed: which columns it has.
    """
    if lacking := [name for name in names if name not in frame.columns]:
        raise OperatorFailed(
            f"{operator.name!r}: {port.stream!r} has no column {', '.join(lacking)}",
            operator=operator.name,
            location=operator.location,
            remedy=f"name some of {', '.join(payload_of(frame))}",
        )


def placed(
    frames: GroupFrames, operator: Operator, port: Input, keys: Sequence[str] = (), *, extra: Sequence[str] = ()
) -> DataFrame:
    """Return a port's rows, computed once, each with its place from 1 among those of its keys and id.

    Args:
        extra: further columns, as SQL.
    """
    rows = positioned(frames.input(port))
    require_columns(operator, port, rows, keys)
    of = ", ".join([SEQUENCE_ID, *quoted(keys)])
    order = ", ".join(order_of(frames, operator, port, rows))
    ranked = f"cast(row_number() over (partition by {of} order by {order}) as bigint) as {PLACE}"
    return frames.once(operator, frames.gathered(operator, rows).selectExpr("*", ranked, *extra))


def ranked(
    frames: GroupFrames, operator: Operator, port: Input, keys: Sequence[str] = (), rows: DataFrame | None = None
) -> DataFrame:
    """Return a port's rows with positions that put the rows of an id, or of an id and key, into one order.

    Rows that share a position, as `explode` and joins leave them, and rows without one, as an aggregate gives them, are
    numbered anew, in the order of `order_of`: left to Spark, it would depend on the grouping. Rows that come as a
    source has read them are not touched, which costs nothing.

    Args:
        rows: what was made of the port's rows one by one; those rows by default.
    """
    rows = frames.input(port) if rows is None else rows
    if port.stream in frames.own_places:
        return rows
    of = ", ".join([SEQUENCE_ID, *quoted(keys)])
    order = ", ".join(order_of(frames, operator, port, rows))
    number = f"cast(row_number() over (partition by {of} order by {order}) as bigint)"
    others = quoted([name for name in rows.columns if name not in (POSITION, ORDINAL)])
    return frames.gathered(operator, rows).selectExpr(*others, f"struct(0L as block, {number} as row) as {POSITION}")


def held_changes(rows: DataFrame, keys: Sequence[str], payload: Sequence[str]) -> DataFrame:
    """Return the changes of a state of held rows: one when a row comes, and one when it leaves at a later id.

    Args:
        rows: `HELD`, keys, payload; `IS_NEW`; `LEAVES`, the id at whose end the row is held no more, null while it is.
        keys: columns that tell rows of one place apart.
        payload: what is kept of a row, and nothing of it once it has left.
    """
    came = f"if({IS_NEW} and not ({LEAVES} <=> {FROM}), struct({FROM} as id, false as gone), null)"
    went = f"if({LEAVES} > {FROM}, struct({LEAVES} as id, true as gone), null)"
    event = f"explode(filter(array({came}, {went}), event -> event is not null)) as __event"
    kept = [f"if(__event.gone, null, {name}) as {name}" for name in quoted(payload)]
    tail = (f"__event.gone as {GONE}", f"__event.id as {SEQUENCE_ID}")
    return rows.selectExpr("*", event).selectExpr(*quoted(keys), *HELD, *kept, *tail)


def same(names: Sequence[str], left: str, right: str) -> str:
    """Return the SQL condition that columns are equal, null being equal to null."""
    return " and ".join(f"{left}.`{name}` <=> {right}.`{name}`" for name in names) or "true"
