"""Rows in the order of their stream: (sequence id, position, ordinal).

An ordinal tells rows of one position apart, as a function that explodes gives them, and rows of several streams of a
union.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from drainmark.jobs.frames.tags import ORDINAL, POSITION, SEQUENCE_ID, TAGS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


POSITION_TYPE = "struct<block: bigint, row: bigint>"


def quoted(names: Sequence[str]) -> list[str]:
    """Return column names as SQL takes them."""
    return [f"`{name}`" for name in names]


def payload_of(frame: DataFrame) -> list[str]:
    """Return the columns of a stream less its tags."""
    return [name for name in frame.columns if name not in TAGS]


def without_points(frame: DataFrame) -> DataFrame:
    """Return a frame of which no column has a point in its name: what gives rows to Python takes it for a struct's."""
    if not any("." in name for name in frame.columns):
        return frame
    return frame.toDF(*(f"_column_{place}" if "." in name else name for place, name in enumerate(frame.columns)))


def positioned(frame: DataFrame) -> DataFrame:
    """Return a stream with a position, null where it has none (behind an aggregate)."""
    return frame if POSITION in frame.columns else frame.selectExpr("*", f"cast(null as {POSITION_TYPE}) as {POSITION}")


def places_in(columns: Sequence[str]) -> list[str]:
    """Return what a stream with these columns orders the rows of an id by, as far as it is in the rows' tags."""
    return [tag for tag in (POSITION, ORDINAL) if tag in columns]


def tags_in(columns: Sequence[str]) -> list[str]:
    """Return the tags among columns."""
    return [tag for tag in TAGS if tag in columns]


def in_given_order(frame: DataFrame) -> DataFrame:
    """Return what a function made of rows one by one, with ordinals: those made of one row, in the order as made.

    Spark numbers the rows of a partition as they come, and all that is made of one row comes in one partition.
    """
    ordinal = "array(monotonically_increasing_id())"
    if ORDINAL in frame.columns:
        ordinal = f"concat(coalesce({ORDINAL}, array()), {ordinal})"
    return frame.selectExpr(*quoted([name for name in frame.columns if name != ORDINAL]), f"{ordinal} as {ORDINAL}")


def in_port_order(frame: DataFrame, port: int) -> DataFrame:
    """Return a stream of a union with ordinals: of rows in one place those of the first port come first."""
    own = f"concat(array({port}L), coalesce({ORDINAL}, array()))" if ORDINAL in frame.columns else f"array({port}L)"
    return frame.selectExpr(*quoted([name for name in frame.columns if name != ORDINAL]), f"{own} as {ORDINAL}")


def in_key_order(frame: DataFrame, keys: Sequence[str], *, is_one_partition: bool) -> DataFrame:
    """Return a stream of which each key's rows are on one partition, in the order of the stream."""
    together = frame if is_one_partition else frame.repartition(*quoted([key.replace("`", "``") for key in keys]))
    return together.sortWithinPartitions(SEQUENCE_ID, *places_in(frame.columns))


def same(names: Sequence[str], left: str, right: str) -> str:
    """Return the SQL condition that columns are equal, null being equal to null."""
    return " and ".join(f"{left}.`{name}` <=> {right}.`{name}`" for name in names) or "true"
