"""Values over change streams: a row that is gone is taken back, so that the value is that of the rows that are left.

Numbers are kept as counts and sums, which are subtracted exactly. Sums of doubles are sums of pieces, as in
`exact_sums`, of more places; the few doubles that do not fit these places are counted. *Counted values* are all
different values of a key, each with the number of its rows: so a smallest value that leaves gives way to the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from drainmark.jobs.frames.tags import GONE
from drainmark.jobs.lazy import F
from drainmark.jobs.state.aggregations.aggregation import Retractable, StateColumn
from drainmark.jobs.state.aggregations.exact_sums import TOO_LARGE, piece

if TYPE_CHECKING:
    from pyspark.sql import Column

_WHOLE = ("byte", "short", "integer", "long")
_PLACES = range(72, -145, -24)
"""Places of the pieces of doubles: from 2^96 down to 2^-144, which only doubles below 2^-92 (2e-28) do not fit."""
COUNTS = "counts"


def sign() -> Column:
    """Return 1 for a row that comes, -1 for one that is gone; bigint."""
    return F.when(F.col(GONE), F.lit(-1)).otherwise(F.lit(1)).cast("bigint")


def count_left(column: str | None) -> Retractable:
    """Return the count of the rows, or of the non-null values, that are left."""
    return Retractable(
        parts={"count": _count(lambda: F.lit(True) if column is None else F.col(column).isNotNull())},
        finish=lambda parts: parts["count"],
        rows=lambda parts: parts["count"],
        is_short=lambda parts: parts["count"] < 0,
    )


def sum_left(column: str, kind: str) -> Retractable:
    """Return the sum of the values that are left, in the type of Spark's sum; null if there are none.

    A running sum of integers may leave 64 bits on its way to a sum that does not: so it is a decimal.

    Args:
        kind: the type's name; of decimals with precision and scale, as in SQL. The zero has the type of the values: any
            other would take digits behind the point from sums with more than 28 of them.
    """
    if kind not in _WHOLE and not kind.startswith("decimal"):
        return mean_left(column, lambda total, count: total)

    own = "decimal(20, 0)" if kind in _WHOLE else kind

    def zero() -> Column:
        return F.lit(0).cast(own)

    def signed() -> Column:
        number = F.coalesce(F.col(column).cast(own), zero())
        return F.sum(F.when(F.col(GONE), -number).otherwise(number))

    def finish(parts: Mapping[str, Column]) -> Column:
        return F.when(parts["count"] > 0, parts["sum"].cast("bigint") if kind in _WHOLE else parts["sum"])

    return Retractable(
        parts={"count": count_part(column), "sum": _added(signed)},
        finish=finish,
        rows=lambda parts: parts["count"],
        is_short=lambda parts: (parts["count"] < 0) | ((parts["count"] == 0) & (parts["sum"] != zero())),
    )


def mean_left(
    column: str, finish: Callable[[Column, Column], Column] = lambda total, count: total / count
) -> Retractable:
    """Return a value from the sum of the doubles that are left, and from their count; null if there are none."""

    def number() -> Column:
        return F.col(column).cast("double")

    def fits() -> Column:
        return (F.abs(number()) < F.lit(TOO_LARGE)) & (piece(number(), len(_PLACES), _PLACES) == 0)

    sums = signed_sums("sum", len(_PLACES), lambda at: piece(number(), at, _PLACES), fits)

    def total(parts: Mapping[str, Column]) -> Column:
        fitting = parts["sum0"]
        for name in list(sums)[1:]:
            fitting = fitting + parts[name]
        return F.aggregate(parts[COUNTS], fitting, lambda so_far, each: so_far + each["value"] * each["count"])

    return Retractable(
        parts={"count": count_part(column), **sums, COUNTS: unfitting(number, fits)},
        finish=lambda parts: F.when(parts["count"] > 0, finish(total(parts), parts["count"])),
        rows=lambda parts: parts["count"],
        is_short=lambda parts: is_short_of(parts, list(sums)),
    )


def counted(column: str, kind: str, finish: Callable[[Column], Column]) -> Retractable:
    """Return a value from the counted non-null values of a column: an array of structs of value and count, sorted."""
    return counted_as(lambda: with_one_zero(column, kind), lambda: F.col(column).isNotNull(), finish)


def counted_as(
    value: Callable[[], Column], is_counted: Callable[[], Column], finish: Callable[[Column], Column]
) -> Retractable:
    """Return a value from the counted values of an expression, over the rows of which a condition holds."""
    return Retractable(
        parts={COUNTS: _tally(value, is_counted)},
        finish=lambda parts: finish(parts[COUNTS]),
        rows=lambda parts: F.aggregate(parts[COUNTS], _none(), lambda so_far, each: so_far + each["count"]),
        is_short=lambda parts: F.exists(parts[COUNTS], lambda each: each["count"] < 0),
    )


def with_one_zero(column: str, kind: str) -> Column:
    """Return a column with one zero for 0.0 and -0.0, which are equal: else the one that came first would be kept."""
    return (F.col(column) + F.lit(0.0)).cast(kind) if kind in ("float", "double") else F.col(column)


def values_of(counts: Column) -> Column:
    """Return the different values of counted values, in order."""
    return F.transform(counts, lambda each: each["value"])


# --- parts ------------------------------------------------------------------------------------------------------------


def signed_sums(
    word: str, number: int, addend: Callable[[int], Column], is_added: Callable[[], Column]
) -> dict[str, StateColumn]:
    """Return so many parts that add up doubles, which must add up without rounding, of the rows with a condition."""

    def added(at: int) -> Column:
        signed = F.when(F.col(GONE), -addend(at)).otherwise(addend(at))
        return F.sum(F.when(is_added(), signed).otherwise(F.lit(0.0)))

    return {f"{word}{at}": _added(partial(added, at)) for at in range(number)}


def unfitting(number: Callable[[], Column], fits: Callable[[], Column]) -> StateColumn:
    """Return the part that counts the doubles without a place in the sums, NaN and infinities among them."""
    return _tally(number, lambda: number().isNotNull() & ~fits())


def is_short_of(parts: Mapping[str, Column], sums: Sequence[str]) -> Column:
    """Say whether doubles were taken back that had not come."""
    has_rest = F.exists(F.array(*(parts[name] for name in sums)), lambda each: each != 0)
    has_less = F.exists(parts[COUNTS], lambda each: each["count"] < 0)
    return (parts["count"] < 0) | has_less | ((parts["count"] == 0) & has_rest)


def count_part(column: str) -> StateColumn:
    """Return the part that counts the non-null values of a column."""
    return _count(lambda: F.col(column).isNotNull())


def _count(is_counted: Callable[[], Column]) -> StateColumn:
    return _added(lambda: F.sum(F.when(is_counted(), sign()).otherwise(_none())))


def _added(made: Callable[[], Column]) -> StateColumn:
    return StateColumn(partial=made, merge=lambda p: F.sum(p))


def _tally(value: Callable[[], Column], is_counted: Callable[[], Column]) -> StateColumn:
    def counts() -> Column:
        entry = F.struct(value().alias("value"), sign().alias("count"))
        return _summed(F.collect_list(F.when(is_counted(), entry)))

    return StateColumn(partial=counts, merge=lambda p: F.collect_list(p), tidy=lambda lists: _summed(F.flatten(lists)))


def _summed(entries: Column) -> Column:
    """Return entries of value and count with one entry for each value, sorted, without those that count nothing.

    Each step reads its array through the variable of a lambda: Spark evaluates any other expression anew for each
    element, and the cost would grow with the square of the number of values.
    """

    def begins_of(ordered: Column) -> Column:
        return F.array_compact(
            F.transform(
                ordered,
                lambda each, at: F.when((at == 0) | ~each["value"].eqNullSafe(F.get(ordered, at - 1)["value"]), at),
            )
        )

    def added(ordered: Column, begins: Column) -> Column:
        def one(begin: Column, at: Column) -> Column:
            end = F.coalesce(F.get(begins, at + 1), F.size(ordered))
            count = F.aggregate(
                F.slice(ordered, begin + 1, end - begin), _none(), lambda so_far, each: so_far + each["count"]
            )
            return F.struct(F.get(ordered, begin)["value"].alias("value"), count.alias("count"))

        return F.filter(F.transform(begins, one), lambda each: each["count"] != 0)

    def whole(ordered: Column) -> Column:
        return F.get(F.transform(F.array(begins_of(ordered)), lambda begins: added(ordered, begins)), F.lit(0))

    return F.get(F.transform(F.array(F.array_sort(entries)), whole), F.lit(0))


def _none() -> Column:
    return F.lit(0).cast("bigint")
