"""The columns of a file that names them, and may have more than are declared; types and texts in SQL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from drainmark.jobs.formats.column_fit import Bare
from drainmark.jobs.formats.format import Expected
from drainmark.jobs.frames.exact_texts import exact_json
from drainmark.jobs.frames.names import literal, quoted_name
from drainmark.jobs.frames.tags import RESCUED, RESERVED

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_UNREAD = "(not read: Spark has no such type)"
"""Text in the place of a value that is not read."""


@dataclass(frozen=True, slots=True)
class FileColumns:
    """The columns of a file, in the order of the file.

    Attributes:
        ddl: of the columns that Spark reads: the declared ones as declared, the others as found.
        unread: names of columns that are not declared and have a type that Spark lacks; `ddl` has most of them, as
            numbers or bytes that show which rows have a value.
    """

    ddl: str
    unread: tuple[str, ...] = ()


def file_columns(file: BinaryIO, suffix: str, expected: Expected) -> FileColumns | None:
    """Return the columns of a file.

    None if the file names no columns, lacks a declared one, or has names that are not clear (see `are_clear`). Such a
    file is read with the declared columns, and refused if it does not fit them.

    Args:
        suffix: ending of the file's name; it tells the compression.

    Raises:
        OSError: the file cannot be read.
    """
    declared = {name.casefold(): (name, kind) for name, kind in expected.columns or ()}
    found = [declared.get(name.casefold(), (name, kind)) for name, kind in _found(file, suffix, expected)]
    names = [name for name, _ in found]
    if not are_clear(names) or not declared.keys() <= {name.casefold() for name in names}:
        return None
    read = [(name, kind.kind if isinstance(kind, Bare) else kind) for name, kind in found if kind is not None]
    return FileColumns(ddl_of(read), tuple(name for name, kind in found if kind is None or isinstance(kind, Bare)))


def are_clear(names: Sequence[str]) -> bool:
    """Say whether names are printable, on one line, and distinct for Spark, also from those that a source adds."""
    folded = {name.casefold() for name in names}
    has_line_ends = any(len(name.splitlines()) > 1 or not name.isprintable() for name in names)
    return not has_line_ends and len(folded) == len(names) and not folded & {"", RESCUED, *RESERVED}


def _found(file: BinaryIO, suffix: str, expected: Expected) -> Sequence[tuple[str, Any]]:
    return expected.reads.columns_in(file, suffix, expected) or ()


def rescued_sql(others: Sequence[str], unread: Sequence[str]) -> str:
    """Return the SQL of the values of rows in some columns, as JSON text; null if all are null.

    Args:
        unread: names of these or further columns whose values are not read; the text says so.
    """
    values = {name: quoted_name(name) for name in others}
    for name in unread:
        values[name] = f"if({values[name]} is null, null, {literal(_UNREAD)})" if name in values else literal(_UNREAD)
    if not values:
        return "cast(null as string)"
    members = ", ".join(f"{literal(name)}, {value}" for name, value in values.items())
    return f"nullif({exact_json(f'named_struct({members})', nulls=False)}, '{{}}')"


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
