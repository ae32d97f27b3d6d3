"""SQL that makes columns of a text: what `dm.parse` and sources of records have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

BAD = "__bad"
"""Field of a parsed struct: the text, where it does not fit the columns."""


def sql_of(kind: DataType) -> str:
    """Return a type as SQL takes it: names of fields may be any, as `$oid` or `content-type`, and so are quoted."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{_quoted(field.name)}: {sql_of(field.dataType)}' for field in kind.fields)}>"
    if isinstance(kind, ArrayType):
        return f"array<{sql_of(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{sql_of(kind.keyType)}, {sql_of(kind.valueType)}>"
    return str(kind.simpleString())


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def struct_of(text: str, form: str, schema: StructType, options: Mapping[str, str] | None = None) -> str:
    """Return the SQL of a CSV or JSON text as a struct of the columns and `BAD`.

    Args:
        text: SQL of the text.
        options: of Spark's reader.
    """
    columns = ", ".join(f"{_quoted(field.name)} {sql_of(field.dataType)}" for field in schema.fields)
    given = {**(options or {}), "mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD}
    listed = ", ".join(f"{literal(name)}, {literal(value)}" for name, value in given.items())
    return f"from_{form}({text}, {literal(f'{columns}, {BAD} string')}, map({listed}))"


def without_line_end(text: str) -> str:
    """Return the SQL of a text without the end of its last line."""
    return f"regexp_replace({text}, '\\\\r?\\\\n\\\\z', '')"


def literal(value: str) -> str:
    """Return a text as a literal of SQL."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
