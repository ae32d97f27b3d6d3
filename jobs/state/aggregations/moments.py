"""`variance` and `stddev`, independent of the order of rows and of the grouping of files.

The sum of x² minus the square of the sum of x loses digits if the values are close together and far from zero, and a
running mean depends on the order. So both sums are kept exactly: x, and the squares of its halves, are cut at fixed
places (`exact_sums`), and the pieces of one place add up without rounding. Only the finished value is rounded, after a
difference with twice the digits of a double.

Over a change stream the squares have more places, so that the pieces of most doubles have no rest, which would round;
the others are counted (`retraction`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from drainmark.jobs.lazy import F
from drainmark.jobs.state.aggregations.aggregation import Aggregation, Retractable
from drainmark.jobs.state.aggregations.exact_sums import PLACES, piece
from drainmark.jobs.state.aggregations.retraction import COUNTS, count_part, is_short_of, signed_sums, unfitting

if TYPE_CHECKING:
    from pyspark.sql import Column

_CUT = 2.0**27 + 1
_NOISE = 2.0**-101
"""The possible error of the difference below, relative to its first operand; a smaller difference counts as 0."""

_LARGEST = 2.0**60
_SQUARES = range(96, -145, -24)
"""Places of the squares of doubles below `_LARGEST` that have no rest at the last of `PLACES`."""


def variance(column: str) -> Aggregation:
    """Compute the sample variance of the non-null values, like Spark's `var_samp`; double, null if fewer than two.

    It is the same for any split of the rows and any order, as long as a key has fewer than 2^27 rows and its sum of
    squares stays below 2^125 (4e37); for values below 1e-11 the last digit may depend on the order. 14 digits are
    correct if the standard deviation is more than 1e-7 of the mean; a deviation below 1e-15 of the mean gives 0. NaN
    makes it NaN, and so do values above 1e140.

    Example:
        variances = dm.aggregate(orders, keys=["item"], values={"variance": dm.variance("amount")}, name="variances")
    """
    return _of(column, "variance", lambda found: found)


def stddev(column: str) -> Aggregation:
    """Compute the sample standard deviation, like Spark's `stddev_samp`: the square root of `dm.variance`; double.

    Example:
        deviations = dm.aggregate(orders, keys=["item"], values={"deviation": dm.stddev("amount")}, name="deviations")
    """
    return _of(column, "stddev", lambda found: F.sqrt(found))


def _of(column: str, word: str, root: Callable[[Column], Column]) -> Aggregation:
    places = range(len(PLACES) + 1)
    sums = {f"sum{place}": _sum(column, place) for place in places}
    squares = {f"squares{place}": _sum_of_squares(column, place) for place in places}
    parts = {"count": lambda: F.count(F.col(column)), **sums, **squares}
    return Aggregation(
        partial=parts,
        merge=dict.fromkeys(parts, lambda p: F.sum(p)),
        finish=lambda found: root(
            _finished(
                found["count"], F.array(*(found[name] for name in sums)), F.array(*(found[name] for name in squares))
            )
        ),
        over_changes=lambda kind: _left(column, root),
        label=f"{word}({column})",
        is_invertible=True,
        columns=(column,),
    )


def _left(column: str, root: Callable[[Column], Column]) -> Retractable:
    """Return the value of the rows that are left of a change stream."""

    def number() -> Column:
        return F.col(column).cast("double")

    def fits() -> Column:
        return (F.abs(number()) < F.lit(_LARGEST)) & (piece(number(), len(PLACES)) == 0)

    sums = signed_sums("sum", len(PLACES), lambda at: piece(number(), at), fits)
    squares = signed_sums("squares", len(_SQUARES), lambda at: _piece_of_square(number(), at, _SQUARES), fits)

    def finish(found: Mapping[str, Column]) -> Column:
        others = [F.flatten(F.transform(found[COUNTS], of_one)) for of_one in (_times_count, _squares_times_count)]
        totals = [F.array(*(found[name] for name in names)) for names in (sums, squares)]
        return root(_finished(found["count"], *(F.concat(*each) for each in zip(totals, others, strict=True))))

    return Retractable(
        parts={"count": count_part(column), **sums, **squares, COUNTS: unfitting(number, fits)},
        finish=finish,
        rows=lambda found: found["count"],
        is_short=lambda found: is_short_of(found, [*sums, *squares]),
    )


def _times_count(each: Column) -> Column:
    return F.array(*_product(each["value"], each["count"].cast("double")))


def _squares_times_count(each: Column) -> Column:
    square, rest = _product(each["value"], each["value"])
    count = each["count"].cast("double")
    return F.array(*_product(square, count), rest * count)


def _sum(column: str, place: int) -> Callable[[], Column]:
    return lambda: F.sum(piece(F.col(column).cast("double"), place))


def _sum_of_squares(column: str, place: int) -> Callable[[], Column]:
    return lambda: F.sum(_piece_of_square(F.col(column).cast("double"), place, PLACES))


def _piece_of_square(number: Column, at: int, places: Sequence[int]) -> Column:
    high, low = _halves(number)
    return piece(high * high, at, places) + piece((high + high) * low, at, places) + piece(low * low, at, places)


def _finished(count: Column, sums: Column, squares: Column) -> Column:
    """Return (n·Σx² − (Σx)²) / (n·(n − 1)) from arrays of doubles; each operand has a high and a low double."""
    number = count.cast("double")
    operands = F.struct(_total(sums), _total(squares))
    differences = F.transform(F.array(operands), lambda pair: _difference(number, pair["col1"], pair["col2"]))
    return F.when(number > 1, F.transform(differences, _above_noise)[0] / (number * (number - 1)))


def _difference(count: Column, total: Column, squares: Column) -> Column:
    left, left_rest = _product(count, squares["high"])
    right, right_rest = _product(total["high"], total["high"])
    left_rest = left_rest + count * squares["low"]
    right_rest = right_rest + F.lit(2.0) * total["high"] * total["low"]
    return F.struct(((left - right) + (left_rest - right_rest)).alias("is"), (left * F.lit(_NOISE)).alias("noise"))


def _above_noise(difference: Column) -> Column:
    is_noise = ~F.isnan(difference["is"]) & (difference["is"] <= difference["noise"])
    return F.when(is_noise, F.lit(0.0)).otherwise(difference["is"])


def _total(numbers: Column) -> Column:
    """Return the sum of doubles with twice the digits of a double: a struct of `high` and `low`."""
    nothing = F.struct(F.lit(0.0).alias("high"), F.lit(0.0).alias("low"))

    def added(total: Column, number: Column) -> Column:
        high = total["high"] + number
        other = high - total["high"]
        rounded_off = (total["high"] - (high - other)) + (number - other)
        return F.struct(high.alias("high"), (total["low"] + rounded_off).alias("low"))

    return F.aggregate(numbers, nothing, added)


def _product(left: Column, right: Column) -> tuple[Column, Column]:
    """Return the product of two doubles and its rounding error."""
    product = left * right
    left_high, left_low = _halves(left)
    right_high, right_low = _halves(right)
    crossed = left_high * right_low + left_low * right_high
    return product, ((left_high * right_high - product) + crossed) + left_low * right_low


def _halves(number: Column) -> tuple[Column, Column]:
    lifted = number * F.lit(_CUT)
    high = lifted - (lifted - number)
    return high, number - high
