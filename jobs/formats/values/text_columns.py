"""SQL that turns a text into columns, for `dm.parse` and for sources of records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

WITHOUT_DATE = r"^[\s\x00-\x20]*(?:T|\d+:)"
"""A time that begins like this has no date: a parser would add the date of today."""

BAD = "__bad"
"""Field of a parsed struct: the text, if it does not fit the columns."""


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


def quoted_name(name: str) -> str:
    """Return a name quoted for SQL."""
    return f"`{name.replace('`', '``')}`"


def struct_of(text: str, form: str, schema: StructType, options: Mapping[str, str] | None = None) -> str:
    """Return the SQL of a CSV or JSON text as a struct of the columns and `BAD`.

    Args:
        text: SQL of the text.
        options: of Spark's reader.
    """
    columns = ddl_of((field.name, field.dataType) for field in schema.fields)
    given = {**(options or {}), "mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD}
    listed = ", ".join(f"{literal(name)}, {literal(value)}" for name, value in given.items())
    return f"from_{form}({text}, {literal(f'{columns}, {BAD} string')}, map({listed}))"


def is_changed(text: str, form: str, schema: StructType, options: Mapping[str, str] | None = None) -> str:
    """Return the SQL condition that Spark's parser would silently change a value of a text, or leave it out.

    The rules are those of `jobs.formats.values.lossy_values` for records of files.
    """
    from pyspark.sql.types import StringType, StructField, StructType

    texts = StructType([StructField(field.name, _as_text(field.dataType) or StringType()) for field in schema.fields])
    read = struct_of(text, form, texts, options)
    changed = [
        found
        for field in schema.fields
        if _as_text(field.dataType) and (found := _changed(f"read.{quoted_name(field.name)}", field.dataType))
    ]
    # `exists` gives the parsed text a name: otherwise it would be parsed once per column
    conditions = [f"exists(array({read}), read -> {' or '.join(changed)})"] if changed else []
    if form == "json":
        conditions.append(_is_misspelt(text, schema))
    return f"coalesce({' or '.join(conditions) or 'false'}, false)"


def no_value(text: str, kind: DataType) -> str:
    """Return the SQL condition that a cast of a text would change it."""
    return f"coalesce({_changed(text, kind) or 'false'}, false)"


def _as_text(kind: Any) -> DataType | None:
    """Return a type with texts in place of the values that a parser may change; None if it can change none."""
    from pyspark.sql.types import ArrayType, MapType, StringType, StructField, StructType

    if kind.typeName() in ("decimal", "timestamp"):
        return StringType()
    if isinstance(kind, ArrayType):
        item = _as_text(kind.elementType)
        return ArrayType(item) if item else None
    if isinstance(kind, MapType):
        item = _as_text(kind.valueType)
        return MapType(kind.keyType, item) if item else None
    if isinstance(kind, StructType):
        fields = [StructField(field.name, found) for field in kind.fields if (found := _as_text(field.dataType))]
        return StructType(fields) if fields else None
    return None


def _changed(text: str, kind: Any, depth: int = 0) -> str | None:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if kind.typeName() == "timestamp":
        return f"{text} rlike {literal(WITHOUT_DATE)}"
    if kind.typeName() == "decimal":
        widest = 38 - (kind.precision - kind.scale)
        plain = literal(rf"^[^eE]*\.\d{{{kind.scale}}}\d*[1-9]")
        exact = f"try_cast({text} as decimal(38, {widest})) <=> try_cast({text} as {kind.simpleString()})"
        return f"({text} rlike {plain} or ({text} rlike '[eE]' and not ({exact})))"
    if isinstance(kind, StructType):
        parts = (_changed(f"{text}.{quoted_name(each.name)}", each.dataType, depth) for each in kind.fields)
        return " or ".join(found for found in parts if found) or None
    if isinstance(kind, ArrayType | MapType):
        is_array = isinstance(kind, ArrayType)
        items = text if is_array else f"map_values({text})"
        found = _changed(f"item_{depth}", kind.elementType if is_array else kind.valueType, depth + 1)
        return f"exists({items}, item_{depth} -> {found})" if found else None
    return None


def _is_misspelt(text: str, schema: StructType) -> str:
    """Return the condition that a field, at any depth, has a name that differs from the declared one only in case."""
    listed = dict.fromkeys("|".join(map(re.escape, names)) for names in _names_in(schema))
    looks = "|".join(rf'"(?!(?:{names})")(?iu:{names})"\s*:' for names in listed)  # cheap, but not exact
    return f"({text} rlike {literal(looks)} and {_misspelt_in(text, schema)})"


def _names_in(kind: Any) -> Iterator[list[str]]:
    """Yield the names of the fields of each struct in a type."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        yield kind.names
        for field in kind.fields:
            yield from _names_in(field.dataType)
    elif isinstance(kind, ArrayType | MapType):
        yield from _names_in(kind.elementType if isinstance(kind, ArrayType) else kind.valueType)


def _misspelt_in(text: str, kind: Any, depth: int = 0) -> str | None:
    """Return the exact condition for the JSON text of a value of that type; None if the type has no names."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        # `exists` gives the parsed text a name: otherwise it would be parsed once per field
        fields = f"fields_{depth}"
        parts = ((f"{fields}[{literal(each.name)}]", each.dataType) for each in kind.fields)
        deeper = (_misspelt_in(part, inner, depth + 1) for part, inner in parts)
        conditions = [_has_like(f"map_keys({fields})", name) for name in kind.names]
        conditions += [found for found in deeper if found]
        return f"exists(array({_members_of(text)}), {fields} -> {' or '.join(conditions)})"
    if isinstance(kind, ArrayType | MapType):
        is_array, item = isinstance(kind, ArrayType), f"part_{depth}"
        items = f"from_json({text}, 'array<string>')" if is_array else f"map_values({_members_of(text)})"
        found = _misspelt_in(item, kind.elementType if is_array else kind.valueType, depth + 1)
        return f"exists({items}, {item} -> {found})" if found else None
    return None


def _members_of(text: str) -> str:
    """Return the SQL of a JSON object as a map from names to the JSON texts of values."""
    return f"from_json({text}, 'map<string,string>')"


def _has_like(names: str, name: str) -> str:
    is_like = f"exists({names}, name -> lower(name) = {literal(name.lower())})"
    return f"(not array_contains({names}, {literal(name)}) and {is_like})"


def without_line_end(text: str) -> str:
    """Return the SQL of a text without the end of its last line."""
    return f"regexp_replace({text}, '\\\\r?\\\\n\\\\z', '')"


def literal(value: str) -> str:
    """Return a text as a literal of SQL."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
