"""SQL that makes columns of a text: what `dm.parse` and sources of records have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

BAD = "_bad"
"""Field of a parsed struct: the text, where it does not fit the columns."""


def struct_of(text: str, form: str, schema: StructType, options: Mapping[str, str] | None = None) -> str:
    """Return the SQL of a CSV or JSON text as a struct of the columns and `BAD`.

    Args:
        text: SQL of the text.
        options: of Spark's reader.
    """
    columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in schema.fields)
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
