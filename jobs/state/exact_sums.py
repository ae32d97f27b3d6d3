"""Sums of doubles that are the same in whatever order the rows come.

A sum of doubles rounds at every row, so that the sum of a file would depend on how many tasks read it; where large
amounts cancel, by any amount. Here each double is cut into parts of 24 bits at fixed places, from 2^96 down to 2^-72.
The parts of one place are added without rounding, as long as a key has fewer than 2^28 rows in a file; then the seven
sums are added from the largest place down, which rounds in the last digit alone. What is left of a double below 2^-72
(2e-22), and doubles from 2^96 (8e28) on, are added as Spark does it.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from drainmark.jobs.lazy import F

if TYPE_CHECKING:
    from pyspark.sql import Column

PLACES = range(72, -73, -24)
_BITS = 24
_MANTISSA = 52
_TOO_LARGE = 2.0 ** (PLACES[0] + _BITS)


def exact_sum(values: Column) -> Column:
    """Return the sum of doubles over rows in no order: an aggregate expression, which no window takes; double."""
    number = values.cast("double")
    size = F.abs(number)
    whole = [_rounded(number, size, place) for place in PLACES]
    parts = [whole[0], *(finer - coarser for coarser, finer in itertools.pairwise(whole)), number - whole[-1]]
    total = F.sum(parts[0])
    for part in parts[1:]:
        total = total + F.sum(part)
    # Of NaN, too, it is not true that it is small enough.
    return F.when(F.count_if(~(size < F.lit(_TOO_LARGE))) > 0, F.sum(number)).otherwise(total)


def _rounded(number: Column, size: Column, place: int) -> Column:
    """Return a double rounded to a multiple of 2^place; one that is large has no other digits."""
    lifted = F.lit(1.5 * 2.0 ** (place + _MANTISSA))
    found = (number + lifted) - lifted
    largest = place + _MANTISSA - 1
    return found if largest >= PLACES[0] + _BITS else F.when(size < F.lit(2.0**largest), found).otherwise(number)
