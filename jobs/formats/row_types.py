"""The types of rows as sources give them: tags first, then the columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from drainmark.jobs.errors import UsageError
from drainmark.jobs.frames.tags import CORRUPT, POSITION, RESERVED, SEQUENCE_ID, SOURCE_FILE
from drainmark.jobs.operators.sources.contract import Reach
from drainmark.jobs.operators.sources.source import Source

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType


def plain_types(kind: DataType) -> Iterator[DataType]:
    """Yield the types without parts that a type is made of."""
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


def row_type(source: Source, output: str, reach: Reach) -> StructType:
    """Return the type of a source's rows as read: tags, then its columns.

    Raises:
        UsageError: a column is called as what all rows carry, or as another one; Spark would not tell them apart.
    """
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    columns = source.columns(reach, output)
    declared = (
        StructType.fromDDL(columns)
        if isinstance(columns, str)
        else from_arrow_schema(columns, prefer_timestamp_ntz=True)
    )
    _require_own_names(source, declared.names, (*RESERVED, CORRUPT) if isinstance(columns, str) else RESERVED)
    return tagged_type(declared)


def _require_own_names(source: Source, names: Sequence[str], reserved: Sequence[str]) -> None:
    taken = {name.casefold(): f"all rows carry a column {name} of their own" for name in reserved}
    for name in names:
        if (why := taken.get(name.casefold())) is not None:
            raise UsageError(
                f"{source.name!r} cannot have a column {name!r}: {why}",
                remedy="leave it out of the schema, or give it another name where the rows come from",
                operator=source.name, location=source.location,
            )  # fmt: skip
        taken[name.casefold()] = f"{name!r} is one, and Spark does not tell upper from lower case"


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
