"""Values that Spark can hold and a database cannot: a search for them before a group is committed.

Dates outside the years 1 to 9999 fit no database, since Python has none. PostgreSQL has no text with a NUL. SQLite has
no NaN: it stores null instead, without an error, so a NaN key would add a row with every group. Its `INTEGER PRIMARY
KEY` has no null: it stores the next number instead. PostgreSQL has NaN, and treats it as equal to itself, as Spark
does. Both have the infinities.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from drainmark.jobs.formats.values.far_times import RULE, first_far, has_times, python_rows

if TYPE_CHECKING:
    import pyarrow as pa

Unfit = tuple[dict[str, Any], str]
"""A row, and the rule that it breaks."""


def may_be_unfit(schema: pa.Schema, dialect: str) -> bool:
    """Say whether a column of the schema may hold such a value."""
    return has_times(schema) or any(_suspects(field.type, dialect) for field in schema)


def up_to_unfit(
    rows: Iterable[pa.Table], dialect: str, unfit: list[Unfit], *, numbered: str | None = None
) -> Iterator[pa.Table]:
    """Yield tables until one has such a value (exclusive); add that row and its rule to `unfit`.

    Args:
        numbered: the column that has a number in place of each null.
    """
    for table in rows:
        found = first_unfit(table, dialect, numbered)
        if found is not None:
            unfit.append(found)
            return
        yield table


def first_unfit(rows: pa.Table, dialect: str, numbered: str | None = None) -> Unfit | None:
    """Return a row with such a value and the rule it breaks; None if there is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if numbered in rows.column_names and rows.column(numbered).null_count:
        place = pc.index(pc.is_null(rows.column(numbered)), pa.scalar(True)).as_py()
        rule = f"column {numbered!r}: an INTEGER PRIMARY KEY of SQLite has no null"
        return python_rows(rows.slice(place, 1))[0], rule
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if not _suspects(column.type, dialect):
            continue
        is_float = pa.types.is_floating(column.type)
        place = pc.index(pc.is_nan(column) if is_float else pc.match_substring(column, "\0"), pa.scalar(True)).as_py()
        if place >= 0:
            rule = "SQLite has no NaN" if is_float else "PostgreSQL has no NUL in texts"
            return python_rows(rows.slice(place, 1))[0], f"column {name!r}: {rule}"
    far = first_far(rows)
    return None if far is None else (far, RULE)


def _suspects(kind: pa.DataType, dialect: str) -> bool:
    import pyarrow as pa

    if dialect == "sqlite":
        return bool(pa.types.is_floating(kind))
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
