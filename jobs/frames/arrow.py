"""Rows between this process's memory, as Arrow tables, and Spark's, as frames.

Spark says that a member of a struct cannot be null, and gives it nulls where the whole struct is null, as it is for the
missing side of an outer join, or for a row that leaves a state. Arrow refuses to convert such rows, and to write them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from drainmark.jobs.frames.names import quoted_name

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import Schema
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def frame_of(session: SparkSession, rows: pa.Table, schema: StructType | None = None) -> DataFrame:
    """Return rows as a frame.

    They are passed in one chunk: Spark 4.2 stops at a chunk without rows, as joined tables may have, and silently loses
    the rows behind it.

    Args:
        schema: the rows' types, if Arrow's do not tell them (times without a zone).
    """
    whole = relaxed(rows).combine_chunks()
    if schema is None and not whole.num_rows:  # Spark Connect needs types if there is no row
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = from_arrow_schema(whole.schema)
    return session.createDataFrame(whole) if schema is None else session.createDataFrame(whole, relaxed_type(schema))


def arrow_of(frame: DataFrame) -> pa.Table:
    """Return the rows of a frame; this starts a job."""
    import pyarrow as pa

    try:
        return frame.toArrow()
    except pa.ArrowInvalid:
        schema = relaxed_type(frame.schema)
        if schema == frame.schema:
            raise
        return frame.select(
            *(frame[quoted_name(each.name)].cast(each.dataType).alias(each.name) for each in schema)
        ).toArrow()


def relaxed(rows: pa.Table) -> pa.Table:
    """Return rows with types in which all that is nested in a column may be null."""
    import pyarrow as pa

    schema = pa.schema([field.with_type(_nullable_inside(field.type)) for field in rows.schema])
    # a table that is cast without rows has no chunk
    return rows.cast(schema) if rows.num_rows and not rows.schema.equals(schema) else rows


def _nullable_inside(kind: pa.DataType) -> pa.DataType:
    """Return an Arrow type in which all that is nested may be null."""
    import pyarrow as pa

    def inside(field: pa.Field) -> pa.Field:
        return field.with_type(_nullable_inside(field.type)).with_nullable(True)

    if pa.types.is_struct(kind):
        return pa.struct([inside(field) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(inside(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(inside(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_nullable_inside(kind.key_type), inside(kind.item_field))
    return kind


def relaxed_type(schema: StructType) -> StructType:
    """Return Spark's type of rows in which all that is nested in a column may be null."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    def inside(kind: Any) -> Any:
        if isinstance(kind, StructType):
            return StructType([StructField(field.name, inside(field.dataType), True, field.metadata) for field in kind])
        if isinstance(kind, ArrayType):
            return ArrayType(inside(kind.elementType), True)
        if isinstance(kind, MapType):
            return MapType(inside(kind.keyType), inside(kind.valueType), True)
        return kind

    columns = [StructField(each.name, inside(each.dataType), each.nullable, each.metadata) for each in schema]
    return StructType(columns)


def delta_schema(schema_json: str) -> Schema:
    """Return Delta's schema of the JSON of a Spark schema."""
    from deltalake import Schema

    # It reads an escaped pair of surrogates as another letter.
    return Schema.from_json(json.dumps(json.loads(schema_json), ensure_ascii=False))


def typed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows in the columns of a schema; columns that it got since then are null."""
    import pyarrow as pa

    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def filled(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns of a schema that they lack, null in each."""
    import pyarrow as pa

    lacking = [field for field in schema if field.name not in rows.column_names]
    return typed(rows, pa.schema([*rows.schema, *lacking])) if lacking else rows
