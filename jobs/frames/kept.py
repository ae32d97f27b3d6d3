"""Frames that Spark keeps: computed once, read many times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drainmark.jobs.lazy import F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def kept(frame: DataFrame) -> DataFrame:
    """Return a frame of the same rows that Spark keeps from its first use until `unpersist`, also within a union.

    Spark flattens a union of unions when it is declared: it replaces a kept union by the frames of that union, and so
    computes them again, perhaps with other results. The filter makes sure that the kept frame is no union itself.
    """
    return frame.where(F.lit(True)).persist()
