"""Columns that Drainmark adds to the rows of a stream, and the types of rows with them: tags first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

SEQUENCE_ID = "_sequence_id"


POSITION = "_position"


SOURCE_FILE = "source_file"


ORDINAL = "_position_ordinal"


GONE = "_gone"
"""Column of a change stream (boolean, never null): true in a row that takes an earlier row back, false in a new row.
Also in the changes of a kept state that can lose keys, and in the history of a sink of a change stream: true in the row
that deletes its key."""


TAGS = (SEQUENCE_ID, POSITION, ORDINAL, GONE)
"""Columns of the rows of a consistent stream: the trigger, the place in the trigger's file, an ordinal (array<bigint>),
and in change streams whether the row is gone. The ordinal orders rows of one place: those that a function made of one
row, and those of a union."""


RESERVED = (*TAGS, SOURCE_FILE)
"""Columns that a source adds to its rows, and so cannot read."""


RESCUED = "_rescued"
"""Column for the values of columns that are not declared, if a source has `on_schema="rescue"`: string, JSON."""


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


def spark_type(schema_json: str) -> StructType:
    """Return the type that Spark's, and Delta's, JSON of a schema describes."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(schema_json))


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of a Spark type; the session's zone is UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    found: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return found
