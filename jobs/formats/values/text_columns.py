"""Types, names and texts in SQL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from drainmark.jobs.frames.names import quoted_name

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


def sql_of(kind: DataType) -> str:
    """Return a type in SQL; names of fields are quoted, since they may be any text, such as `$oid`, `content-type`."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{quoted_name(field.name)}: {sql_of(field.dataType)}' for field in kind.fields)}>"
    if isinstance(kind, ArrayType):
        return f"array<{sql_of(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{sql_of(kind.keyType)}, {sql_of(kind.valueType)}>"
    return str(kind.simpleString())


def ddl_of(columns: Iterable[tuple[str, DataType]]) -> str:
    """Return columns as DDL."""
    return ", ".join(f"{quoted_name(name)} {sql_of(kind)}" for name, kind in columns)


def without_line_end(text: str) -> str:
    """Return the SQL of a text without the end of its last line."""
    return f"regexp_replace({text}, '\\\\r?\\\\n\\\\z', '')"


def literal(value: str) -> str:
    """Return a text as a literal of SQL."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
