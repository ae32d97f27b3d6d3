"""`percentile`: the number of values in each bucket; buckets grow with the values, so the error is relative.

Spark's KLL sketches make random choices when they are full, so two runs over one file differ. Counts are the same in
any order: the buckets of a sketch are (γ^(k−1), γ^k] for γ = (1 + error) / (1 − error), their mirror images for
negative values, and one each for zero, ±infinity and NaN. Spark's sketch of frequent items holds the counts: it is
exact as long as it may hold as many items as there can be buckets.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import UsageError
from drainmark.jobs.lazy import F
from drainmark.jobs.state.aggregations.aggregation import Aggregation
from drainmark.jobs.state.aggregations.retraction import counted

if TYPE_CHECKING:
    from pyspark.sql import Column

_MOST_BUCKETS = 1_000_000
_LARGEST = 746.0
"""More than |ln x| of any double except zero and infinity."""

_SMALLEST_ERROR = 0.0016
"""With this error, all doubles together have fewer buckets than `_MOST_BUCKETS`."""


@dataclass(frozen=True, slots=True)
class _Buckets:
    """The numbering of the buckets; the numbers rise with the values."""

    error: float

    @property
    def gamma(self) -> float:
        return (1 + self.error) / (1 - self.error)

    @property
    def one(self) -> int:
        """Return the bucket that ends with 1.0. Smaller positive values have smaller numbers, above zero."""
        return math.ceil(_LARGEST / math.log(self.gamma)) + 1

    @property
    def infinite(self) -> int:
        return 2 * self.one + 1

    def of(self, number: Column) -> Column:
        size = F.abs(number)
        bucket = F.ceil(F.log(size) / F.lit(math.log(self.gamma))) + self.one
        found = (
            F.when(F.isnan(number), self.infinite + 1)
            .when(number == 0, 0)
            .otherwise(F.signum(number) * F.when(size == float("inf"), self.infinite).otherwise(bucket))
        )
        return F.when(number.isNotNull(), found.cast("int"))

    def value(self, bucket: Column) -> Column:
        """Return the value that differs from every value of the bucket by at most the error; null stays null."""
        end = (F.abs(bucket) - self.one) * F.lit(math.log(self.gamma))
        size = F.least(F.exp(end + F.lit(math.log(2 / (1 + self.gamma)))), F.lit(sys.float_info.max))
        return (
            F.when(bucket > self.infinite, float("nan"))
            .when(bucket == 0, 0.0)
            .otherwise(F.signum(bucket) * F.when(F.abs(bucket) == self.infinite, float("inf")).otherwise(size))
        )


def percentile(column: str, p: float | Sequence[float], *, error: float = 0.01) -> Aggregation:
    """Compute a percentile of the non-null values, with a bounded relative error: `dm.percentile("seconds", 0.95)`.

    It is the smallest value such that at least this share of the values is not larger (Spark's `percentile_disc`), to
    within `error` times itself; the smallest and the largest value are exact. It is the same for any split of the rows
    and any order. NaN counts as larger than all numbers. The state has one entry for each bucket in use: at an error of
    0.01, up to 115 for each power of ten that the values span, and never more than values. Over a change stream the
    value is exact, and the state has all different values.

    Args:
        column: of numbers, read as doubles.
        p: from 0 to 1; one gives a double, several an array of doubles, null without values.
        error: from 0.0016 to 0.5.

    Raises:
        UsageError: `p` or `error` is out of bounds.

    Example:
        spread = dm.aggregate(orders, keys=["item"], values={"median": dm.percentile("amount", 0.5)}, name="spread")
    """
    several = isinstance(p, Sequence)
    shares = tuple(p) if isinstance(p, Sequence) else (p,)
    if not shares or not all(0 <= share <= 1 for share in shares):
        raise UsageError(f"percentile of {column!r}: {p!r} is not from 0 to 1", remedy="write 0.95 for 95 %")
    if not _SMALLEST_ERROR <= error <= 0.5:
        raise UsageError(f"percentile of {column!r}: error={error!r} is not from 0.0016 to 0.5", remedy="leave it out")
    buckets = _Buckets(error)

    def shown(found: Sequence[Column], count: Column) -> Column:
        return F.when(count > 0, F.array(*found) if several else found[0])

    def finish(parts: Mapping[str, Column]) -> Column:
        return shown([_at_share(parts, buckets, share) for share in shares], parts["count"])

    def left(counts: Column) -> Column:
        count = F.aggregate(counts, F.lit(0).cast("bigint"), lambda so_far, each: so_far + each["count"])
        return shown([_item_at(counts, "value", "double", count, share) for share in shares], count)

    return Aggregation(
        partial={
            "count": lambda: F.count(F.col(column)),
            "smallest": lambda: F.min(F.col(column).cast("double")),
            "largest": lambda: F.max(F.col(column).cast("double")),
            "buckets": lambda: _sketch("accumulate", buckets.of(F.col(column).cast("double"))),
        },
        merge={
            "count": lambda p: F.sum(p),
            "smallest": lambda p: F.min(p),
            "largest": lambda p: F.max(p),
            "buckets": lambda p: _sketch("combine", p),
        },
        finish=finish,
        label=f"percentile({column}, error {error})",
        columns=(column,),
        over_changes=lambda kind: counted(column, "double", left),
    )


def _at_share(parts: Mapping[str, Column], buckets: _Buckets, share: float) -> Column:
    """Return the value of the first bucket at the end of which the count of values reaches the share."""
    held = F.filter(_sketch("estimate", parts["buckets"]), lambda each: each["item"].isNotNull())
    value = buckets.value(_item_at(F.array_sort(held), "item", "int", parts["count"], share))
    return F.least(F.greatest(value, parts["smallest"]), parts["largest"])


def _item_at(held: Column, field: str, kind: str, count: Column, share: float) -> Column:
    """Return the first item, of sorted items with their counts, with which the count of all reaches the share."""
    rank = F.greatest(F.ceil(F.lit(Decimal(str(share))) * count).cast("bigint"), F.lit(1))

    def passed(until: Column, each: Column) -> Column:
        so_far = until["count"] + each["count"]
        is_there = until["item"].isNull() & (so_far >= rank)
        item = F.when(is_there, each[field]).otherwise(until["item"])
        return F.struct(so_far.alias("count"), item.alias("item"))

    start = F.struct(F.lit(0).cast("bigint").alias("count"), F.lit(None).cast(kind).alias("item"))
    return F.aggregate(held, start, passed, lambda until: until["item"])


def _sketch(verb: str, of: Any) -> Column:
    return F.call_function(f"approx_top_k_{verb}", of, F.lit(_MOST_BUCKETS))
