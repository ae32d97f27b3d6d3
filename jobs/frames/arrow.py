"""Arrow rows as a frame: the only way from this process's memory into Spark's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def frame_of(session: SparkSession, rows: pa.Table, schema: StructType | None = None) -> DataFrame:
    """Return rows as a frame.

    They are passed in one chunk: Spark 4.2 stops at a chunk without rows, as joined tables may have, and silently loses
    the rows behind it.

    Args:
        schema: the rows' types, if Arrow's do not tell them (times without a zone).
    """
    whole = rows.combine_chunks()
    if schema is None and not whole.num_rows:  # Spark Connect needs types if there is no row
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = from_arrow_schema(whole.schema)
    return session.createDataFrame(whole) if schema is None else session.createDataFrame(whole, schema)
