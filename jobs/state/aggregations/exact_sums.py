"""Sums of doubles that are the same for any order of the rows.

A sum of doubles rounds at every row, so the sum of a file would depend on the number of tasks that read it; if large
amounts cancel, by any amount. Here each double is cut into parts of 24 bits at fixed places, from 2^96 down to 2^-72.
The parts of one place are added without rounding, as long as a key has fewer than 2^28 rows in a file; then the seven
sums are added from the largest place down, which rounds only in the last digit. The rest of a double below 2^-72
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
_TOO_LARGE = 2.0 ** (PLACES[0] + _BITS)


def exact_sum(values: Column) -> Column:
    """Return the sum of doubles over rows in any order, as an aggregate expression (not for windows); double."""
    number = values.cast("double")
    first, *others = pieces(number)
    total = F.sum(first)
    for piece in others:
        total = total + F.sum(piece)
    # The comparison is false for NaN, too.
    return F.when(F.count_if(~(F.abs(number) < F.lit(_TOO_LARGE))) > 0, F.sum(number)).otherwise(total)


def pieces(number: Column) -> list[Column]:
    """Return the parts of a double cut at `PLACES`, the largest first, and the rest; their sum is the double."""
    whole = [F.rint(number * F.lit(2.0**-place)) * F.lit(2.0**place) for place in PLACES]
    return [whole[0], *(finer - coarser for coarser, finer in itertools.pairwise(whole)), number - whole[-1]]
