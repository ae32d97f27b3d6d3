"""The types of rows as sources give them: tags first, then the columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.graph.operator import POSITION, SEQUENCE_ID, SOURCE_FILE
from jobs.operators.sources import Reach, Source

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def row_type(source: Source, output: str, reach: Reach) -> StructType:
    """Return the type of a source's rows as read: tags, then its columns."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    columns = source.columns(reach, output)
    if isinstance(columns, str):
        return tagged_type(StructType.fromDDL(columns))
    return tagged_type(from_arrow_schema(columns, prefer_timestamp_ntz=True))


def tagged_type(declared: StructType) -> StructType:
    """Return the type of rows with the tags before their columns."""
    from pyspark.sql.types import LongType, StructType

    place = StructType().add("block", LongType()).add("row", LongType())
    schema = StructType().add(SEQUENCE_ID, LongType()).add(POSITION, place)
    for column in declared.fields:
        schema.add(column.name, column.dataType)
    return schema


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return a Spark type as Arrow has it; the session's zone is UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    found: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return found


def empty_rows(session: SparkSession, source: Source, output: str, reach: Reach) -> DataFrame:
    """Return no rows with the columns that a source's rows have as they are read."""
    from pyspark.sql.types import StringType

    return session.createDataFrame([], row_type(source, output, reach).add(SOURCE_FILE, StringType()))
