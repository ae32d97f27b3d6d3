"""The types of rows as they are read: tags first, then the columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType


def plain_types(kind: DataType) -> Iterator[DataType]:
    """Yield the plain types that a type is made of: those without fields, elements, keys or values."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        parts = [field.dataType for field in kind.fields]
    elif isinstance(kind, ArrayType):
        parts = [kind.elementType]
    elif isinstance(kind, MapType):
        parts = [kind.keyType, kind.valueType]
    else:
        yield kind
        return
    for part in parts:
        yield from plain_types(part)


def tagged_type(declared: StructType) -> StructType:
    """Return the type of rows with the tags before their columns."""
    from pyspark.sql.types import LongType, StructType

    place = StructType().add("block", LongType()).add("row", LongType())
    schema = StructType().add(SEQUENCE_ID, LongType()).add(POSITION, place)
    for column in declared.fields:
        schema.add(column.name, column.dataType)
    return schema


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of a Spark type; the session's zone is UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    found: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return found
