"""The common aggregations: counts, sums, extremes, the first and the last value, different values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.lazy import F
from drainmark.jobs.state.aggregations.aggregation import Aggregation, place
from drainmark.jobs.state.aggregations.retraction import count_left, counted, mean_left, sum_left, values_of

if TYPE_CHECKING:
    from pyspark.sql import Column


def count(column: str | None = None) -> Aggregation:
    """Count rows, or non-null values of a column; bigint.

    Example:
        values = {"rows": dm.count(), "priced": dm.count("amount")}
        counted = dm.aggregate(orders, keys=["item"], values=values, name="counted")
    """
    return Aggregation(
        partial=lambda: F.count(F.lit(1) if column is None else F.col(column)),
        merge=lambda p: F.sum(p),
        label=f"count({column or ''})",
        is_invertible=True,
        columns=() if column is None else (column,),
        over_changes=lambda kind: count_left(column),
    )


def sum(column: str) -> Aggregation:  # noqa: A001 - the field's word; users write dm.sum
    """Add up a column, in the type of Spark's sum. A sum of floats is the same for any order of rows.

    Example:
        sums = dm.aggregate(orders, keys=["item"], values={"sold": dm.sum("amount")}, name="sums")
    """
    return Aggregation(
        partial=lambda: F.sum(F.col(column)),
        merge=lambda p: F.sum(p),
        label=f"sum({column})",
        is_invertible=True,
        columns=(column,),
        addends={"": lambda: F.col(column)},
        over_changes=lambda kind: sum_left(column, kind),
    )


def min(column: str) -> Aggregation:  # noqa: A001
    """Find the smallest value of a column.

    Example:
        smallest = dm.aggregate(orders, keys=["item"], values={"least": dm.min("amount")}, name="smallest")
    """
    return Aggregation(
        partial=lambda: F.min(F.col(column)),
        merge=lambda p: F.min(p),
        label=f"min({column})",
        columns=(column,),
        over_changes=lambda kind: counted(column, kind, lambda counts: F.get(values_of(counts), F.lit(0))),
    )


def max(column: str) -> Aggregation:  # noqa: A001
    """Find the largest value of a column.

    Example:
        largest = dm.aggregate(orders, keys=["item"], values={"most": dm.max("amount")}, name="largest")
    """
    return Aggregation(
        partial=lambda: F.max(F.col(column)),
        merge=lambda p: F.max(p),
        label=f"max({column})",
        columns=(column,),
        over_changes=lambda kind: counted(column, kind, lambda counts: F.get(values_of(counts), F.size(counts) - 1)),
    )


def mean(column: str) -> Aggregation:
    """Compute the arithmetic mean of the non-null values; double.

    Example:
        means = dm.aggregate(orders, keys=["item"], values={"mean": dm.mean("amount")}, name="means")
    """
    return Aggregation(
        partial={"sum": lambda: F.sum(F.col(column).cast("double")), "count": lambda: F.count(F.col(column))},
        merge={"sum": lambda p: F.sum(p), "count": lambda p: F.sum(p)},
        finish=lambda parts: F.when(parts["count"] > 0, parts["sum"] / parts["count"]),
        label=f"mean({column})",
        is_invertible=True,
        columns=(column,),
        addends={"sum": lambda: F.col(column).cast("double")},
        over_changes=lambda kind: mean_left(column),
    )


def first(column: str) -> Aggregation:
    """Take the value of the first row by (sequence id, position in the file); in an id, rows without position go first.

    Example:
        beginnings = dm.aggregate(orders, keys=["customer"], values={"first_item": dm.first("item")}, name="beginnings")
    """
    return _extreme(column, "first")


def last(column: str) -> Aggregation:
    """Take the value of the last row by (sequence id, position in the file); in an id, rows without position go first.

    Example:
        latest = dm.aggregate(orders, keys=["customer"], values={"last_item": dm.last("item")}, name="latest")
    """
    return _extreme(column, "last")


def _extreme(column: str, which: str) -> Aggregation:
    def pick(value: Any, by: Any) -> Any:
        return F.min_by(value, by) if which == "first" else F.max_by(value, by)

    return Aggregation(
        partial=lambda: pick(F.struct(F.col(SEQUENCE_ID).alias("id"), F.col(column).alias("value")), place()),
        merge=lambda p: pick(p, p["id"]),
        finish=lambda p: p["value"],
        label=f"{which}({column})",
        columns=(column,),
        instead=f'dm.{"bottom" if which == "first" else "top"}("{column}", 1, by=…), by a column that orders the rows',
    )


def collect_set(column: str) -> Aggregation:
    """Collect the distinct non-null values in a sorted array.

    Example:
        baskets = dm.aggregate(orders, keys=["customer"], values={"items": dm.collect_set("item")}, name="baskets")
    """
    return _of_set(column, "collect_set", F.sort_array, values_of)


def count_distinct(column: str) -> Aggregation:
    """Count the distinct non-null values; bigint. The state has them all; `dm.approx_distinct` has a bounded one.

    Example:
        variety = dm.aggregate(orders, keys=["customer"], values={"items": dm.count_distinct("item")}, name="variety")
    """

    def size(values: Column) -> Column:
        return F.size(values).cast("bigint")

    return _of_set(column, "count_distinct", size, size)


def _of_set(
    column: str, word: str, finish: Callable[[Column], Column], of_counts: Callable[[Column], Column]
) -> Aggregation:
    return Aggregation(
        partial=lambda: F.collect_set(F.col(column)),
        merge=lambda p: F.collect_list(p),
        tidy=lambda lists: F.array_distinct(F.flatten(lists)),
        finish=finish,
        label=f"{word}({column})",
        columns=(column,),
        over_changes=lambda kind: counted(column, kind, of_counts),
    )


def approx_distinct(column: str) -> Aggregation:
    """Estimate the number of distinct values with a HyperLogLog sketch; bigint, the same for the same values.

    A sketch that was filled row by row keeps a second estimate, which depends on the order; a union drops it. So the
    estimate is always taken from a union of the sketch with itself.

    Example:
        reach = dm.aggregate(orders, keys=["item"], values={"customers": dm.approx_distinct("customer")}, name="reach")
    """
    return Aggregation(
        partial=lambda: F.hll_sketch_agg(F.col(column)),
        merge=lambda p: F.hll_union_agg(p),
        finish=lambda sketch: F.hll_sketch_estimate(F.hll_union(sketch, sketch)),
        label=f"approx_distinct({column})",
        columns=(column,),
        instead=f'dm.count_distinct("{column}"), which counts them exactly',
    )
