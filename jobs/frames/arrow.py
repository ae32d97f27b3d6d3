"""Arrow rows as a frame: the one way from this process's memory into Spark's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def frame_of(session: SparkSession, rows: pa.Table, schema: StructType | None = None) -> DataFrame:
    """Return rows as a frame.

    In one piece: a chunk without rows, as joining tables may leave, ends what Spark 4.2 reads of them. The rows behind
    it would be lost, and nothing would say so.

    Args:
        schema: the rows' types, where Arrow's do not tell them (times without a zone).
    """
    whole = rows.combine_chunks()
    if schema is None and not whole.num_rows:  # Spark Connect asks for types where no row tells them
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = from_arrow_schema(whole.schema)
    return session.createDataFrame(whole) if schema is None else session.createDataFrame(whole, schema)
