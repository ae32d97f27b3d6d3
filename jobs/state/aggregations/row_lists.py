"""Bounded lists of values: the first of a stream, and those of the rows in which a column is largest or smallest."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from drainmark.jobs.errors import UsageError
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.lazy import F
from drainmark.jobs.state.aggregations.aggregation import Aggregation, Retractable, place
from drainmark.jobs.state.aggregations.retraction import counted_as, with_one_zero

if TYPE_CHECKING:
    from pyspark.sql import Column

_MOST = 100_000
"""The largest limit: Spark keeps so many values of a key while it reads a file's rows."""


def collect_list(column: str, *, limit: int) -> Aggregation:
    """Collect the first non-null values in an array, in the order of the stream: by sequence id, then by place in the
    file.

    Args:
        limit: number of values that are kept of a key, up to 100 000; later values are left out.

    Raises:
        UsageError: the limit is out of bounds.

    Example:
        items = dm.collect_list("item", limit=100)
        bought = dm.aggregate(orders, keys=["customer"], values={"items": items}, name="bought")
    """
    label = f"collect_list({column}, limit={limit})"
    return _bounded(
        label,
        limit,
        column,
        lambda: F.when(F.col(column).isNotNull(), _in_stream()),
        columns=(column,),
        instead=f'dm.bottom("{column}", {limit}, by=…), by a column that orders the rows',
    )


def top(column: str, n: int, *, by: str | None = None) -> Aggregation:
    """Collect a column's values from the `n` rows with the largest `by` in an array, the largest first.

    Of rows with equal `by`, the last ones are taken; over a change stream, where no row is the last one, those with the
    largest values.

    Args:
        column: the column of the values; nulls are among them if `by` is another column.
        n: number of values that are kept of a key, up to 100 000.
        by: a column that can be ordered, `column` by default; rows with null in it are left out. NaN is larger than
            all numbers.

    Raises:
        UsageError: `n` is out of bounds.

    Example:
        best = dm.aggregate(orders, keys=["item"], values={"dearest": dm.top("id", 3, by="amount")}, name="best")
    """
    return _extreme("top", column, n, by or column)


def bottom(column: str, n: int, *, by: str | None = None) -> Aggregation:
    """Collect a column's values from the `n` rows with the smallest `by` in an array, the smallest first.

    Of rows with equal `by`, the first ones are taken; over a change stream, those with the smallest values. Arguments
    and errors are those of `dm.top`.

    Example:
        cheap = dm.aggregate(orders, keys=["item"], values={"cheapest": dm.bottom("id", 3, by="amount")}, name="cheap")
    """
    return _extreme("bottom", column, n, by or column)


def _extreme(word: str, column: str, n: int, by: str) -> Aggregation:
    def order() -> Column:
        return F.when(F.col(by).isNotNull(), F.struct(F.col(by).alias("by"), _in_stream().alias("place")))

    label, largest = f"{word}({column}, {n}, by={by})", word == "top"
    return _bounded(
        label,
        n,
        column,
        order,
        columns=(column, by),
        largest=largest,
        over_changes=lambda kind: _left(column, kind, n, by, largest=largest),
    )


def _left(column: str, kind: str, n: int, by: str, *, largest: bool) -> Retractable:
    """Return the values of the first rows by `by` (the last, if `largest`) that are left of a change stream."""

    def finish(counts: Column) -> Column:
        ordered = F.slice(F.reverse(counts) if largest else counts, 1, n)
        repeated = F.transform(
            ordered, lambda each: F.array_repeat(each["value"]["of"], F.least(each["count"], F.lit(n)).cast("int"))
        )
        return F.slice(F.flatten(repeated), 1, n)

    def value() -> Column:
        return F.struct(F.col(by).alias("by"), with_one_zero(column, kind).alias("of"))

    return counted_as(value, lambda: F.col(by).isNotNull(), finish)


def _in_stream() -> Column:
    return F.struct(F.col(SEQUENCE_ID).alias("id"), place().alias("place"))


def _bounded(
    label: str,
    limit: int,
    column: str,
    order: Callable[[], Column],
    *,
    columns: tuple[str, ...],
    largest: bool = False,
    over_changes: Callable[[str], Retractable] | None = None,
    instead: str = "",
) -> Aggregation:
    """Return an aggregation that keeps the first rows by an order (the last, if `largest`), each with its order."""
    if not 1 <= limit <= _MOST:
        raise UsageError(
            f"{label}: {limit} is not from 1 to {_MOST}", remedy="keep so many rows in a table of their own"
        )
    picked, sign = (F.max_by, -1) if largest else (F.min_by, 1)

    def in_order(one: Column, other: Column) -> Column:
        return F.when(one["order"] < other["order"], -sign).when(one["order"] > other["order"], sign).otherwise(0)

    return Aggregation(
        partial=lambda: picked(F.struct(order().alias("order"), F.col(column).alias("value")), order(), limit),
        merge=lambda p: F.collect_list(p),
        tidy=lambda lists: F.slice(F.array_sort(F.flatten(lists), in_order), 1, limit),
        finish=lambda rows: F.coalesce(F.transform(rows, lambda row: row["value"]), F.array()),
        label=label,
        columns=tuple(dict.fromkeys(columns)),
        over_changes=over_changes,
        instead=instead,
    )
