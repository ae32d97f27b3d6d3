"""`variance` and `stddev`, independent of the order of rows and of the grouping of files.

The sum of x² minus the square of the sum of x loses digits if the values are close together and far from zero, and a
running mean depends on the order. So both sums are kept exactly: x, and the squares of its halves, are cut at fixed
places (`exact_sums`), and the pieces of one place add up without rounding. Only the finished value is rounded, after a
difference with twice the digits of a double.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from drainmark.jobs.lazy import F
from drainmark.jobs.state.aggregations.aggregation import Aggregation
from drainmark.jobs.state.aggregations.exact_sums import PLACES, pieces

if TYPE_CHECKING:
    from pyspark.sql import Column

_CUT = 2.0**27 + 1
_NOISE = 2.0**-101
"""The possible error of the difference below, relative to its first operand; a smaller difference counts as 0."""


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
        finish=lambda found: root(_finished(found, list(sums), list(squares))),
        label=f"{word}({column})",
        columns=(column,),
    )


def _sum(column: str, place: int) -> Callable[[], Column]:
    return lambda: F.sum(pieces(F.col(column).cast("double"))[place])


def _sum_of_squares(column: str, place: int) -> Callable[[], Column]:
    def partial() -> Column:
        number = F.col(column).cast("double")
        high, low = _halves(number)
        return F.sum(pieces(high * high)[place] + pieces((high + high) * low)[place] + pieces(low * low)[place])

    return partial


def _finished(found: Mapping[str, Column], sums: Sequence[str], squares: Sequence[str]) -> Column:
    """Return (n·Σx² − (Σx)²) / (n·(n − 1)); each operand has a high and a low double."""
    count = found["count"].cast("double")
    operands = F.struct(_total([found[name] for name in sums]), _total([found[name] for name in squares]))
    differences = F.transform(F.array(operands), lambda pair: _difference(count, pair["col1"], pair["col2"]))
    return F.when(count > 1, F.transform(differences, _above_noise)[0] / (count * (count - 1)))


def _difference(count: Column, total: Column, squares: Column) -> Column:
    left, left_rest = _product(count, squares["high"])
    right, right_rest = _product(total["high"], total["high"])
    left_rest = left_rest + count * squares["low"]
    right_rest = right_rest + F.lit(2.0) * total["high"] * total["low"]
    return F.struct(((left - right) + (left_rest - right_rest)).alias("is"), (left * F.lit(_NOISE)).alias("noise"))


def _above_noise(difference: Column) -> Column:
    is_noise = ~F.isnan(difference["is"]) & (difference["is"] <= difference["noise"])
    return F.when(is_noise, F.lit(0.0)).otherwise(difference["is"])


def _total(numbers: Sequence[Column]) -> Column:
    """Return the sum of doubles with twice the digits of a double: a struct of `high` and `low`."""
    nothing = F.struct(F.lit(0.0).alias("high"), F.lit(0.0).alias("low"))

    def added(total: Column, number: Column) -> Column:
        high = total["high"] + number
        other = high - total["high"]
        rounded_off = (total["high"] - (high - other)) + (number - other)
        return F.struct(high.alias("high"), (total["low"] + rounded_off).alias("low"))

    return F.aggregate(F.array(*numbers), nothing, added)


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
