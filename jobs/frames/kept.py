"""Frames that Spark keeps: computed once, read many times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drainmark.jobs.lazy import F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def kept(frame: DataFrame) -> DataFrame:
    """Return a frame of the same rows that Spark keeps from its first use until `unpersist`, in a union, too.

    A union of unions is made one flat union when it is declared, which takes the place of a kept one by what that was
    made of: it would be computed again, and perhaps differently. So what is kept is no union itself.
    """
    return frame.where(F.lit(True)).persist()
