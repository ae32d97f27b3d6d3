"""Sums of doubles that are the same for any order of the rows.

A sum of doubles rounds at every row, so the sum of a file would depend on the number of tasks that read it; if large
amounts cancel, by any amount. Here each double is cut into parts of 24 bits at fixed places, from 2^96 down to 2^-72.
The parts of one place are added without rounding, as long as a key has fewer than 2^28 rows in a file; then the seven
sums are added from the largest place down, which rounds only in the last digit. The rest of a double below 2^-72
(2e-22), and doubles from 2^96 (8e28) on, are added as Spark does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from drainmark.jobs.lazy import F

if TYPE_CHECKING:
    from pyspark.sql import Column

PLACES = range(72, -73, -24)
_BITS = 24
TOO_LARGE = 2.0 ** (PLACES[0] + _BITS)


def exact_sum(values: Column) -> Column:
    """Return the sum of doubles over rows in any order, as an aggregate expression (not for windows); double."""
    number = values.cast("double")
    first, *others = pieces(number)
    total = F.sum(first)
    for piece in others:
        total = total + F.sum(piece)
    # The comparison is false for NaN, too.
    return F.when(F.count_if(~(F.abs(number) < F.lit(TOO_LARGE))) > 0, F.sum(number)).otherwise(total)


def pieces(number: Column, places: Sequence[int] = PLACES) -> list[Column]:
    """Return the parts of a double cut at the places, the largest first, and the rest; their sum is the double."""
    return [piece(number, at, places) for at in range(len(places) + 1)]


def piece(number: Column, at: int, places: Sequence[int] = PLACES) -> Column:
    """Return one of the `pieces`, made without the others: each expression costs a call to the JVM."""

    def whole(at: int) -> Column:
        return F.rint(number * F.lit(2.0 ** -places[at])) * F.lit(2.0 ** places[at])

    finer = number if at == len(places) else whole(at)
    return finer - whole(at - 1) if at else finer
