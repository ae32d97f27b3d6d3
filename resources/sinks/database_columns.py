"""Columns of database tables for the columns of a stream: types, checks of an existing table, and unfit values."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator, TypeEngine

from drainmark.jobs.errors import SchemaMismatch
from drainmark.jobs.formats.values.far_times import RULE, first_far, has_times, python_rows
from drainmark.jobs.frames.arrow import delta_schema

if TYPE_CHECKING:
    import pyarrow as pa

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_WIDTHS = {"smallint": 2, "integer": 4, "bigint": 8}
_MICROSECONDS = 6
_SHORT_KEY = 2000  # bytes; an index of PostgreSQL takes 2704
_ANY_LENGTH: Mapping[str, int] = {}
_LOOSE = """
SELECT attname, format_type(atttypid, atttypmod) || coalesce(' COLLATE ' || collname, '')
FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid LEFT JOIN pg_collation ON pg_collation.oid = attcollation
WHERE attrelid = to_regclass(:name) AND attnum > 0 AND (typname IN ('citext', 'bpchar') OR NOT collisdeterministic)
"""
_KEY_INDEXES = "SELECT count(*) FROM pragma_index_list(:name, :schema) WHERE origin = 'pk'"


class _Instant(TypeDecorator[dt.datetime]):
    """A point in time; SQLite, which keeps no zones, gets it in UTC."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return value.astimezone(dt.UTC).replace(tzinfo=None) if value is not None and _is_sqlite(dialect) else value

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return value.replace(tzinfo=dt.UTC) if value is not None and _is_sqlite(dialect) else value


class _Decimal(TypeDecorator[Decimal]):
    """A decimal number; SQLite, which has none, gets its digits as text."""

    impl = sa.Numeric
    cache_ok = True

    def load_dialect_impl(self, dialect: Any) -> Any:
        return dialect.type_descriptor(sa.Text() if _is_sqlite(dialect) else self.impl_instance)

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return str(value) if value is not None and _is_sqlite(dialect) else value

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return Decimal(value) if value is not None and _is_sqlite(dialect) else value


_TYPES: Mapping[str, type[TypeEngine[Any]] | TypeEngine[Any]] = {
    "byte": sa.SmallInteger,
    "short": sa.SmallInteger,
    "integer": sa.Integer,
    "long": sa.BigInteger,
    "float": sa.REAL,
    "double": sa.Double,
    "boolean": sa.Boolean,
    "string": sa.Text,
    "binary": sa.LargeBinary,
    "date": sa.Date,
    "timestamp": _Instant,
    "timestamp_ntz": sa.DateTime,
}


def always_quoted(name: str) -> sa.quoted_name:
    """Return a name that is quoted in every statement: SQLAlchemy's lists of reserved words lack some."""
    return sa.quoted_name(name, quote=True)


def columns_of(schema_json: str, names: Sequence[str] = ()) -> list[sa.Column[Any]]:
    """Return a column for each field of a Spark schema, all nullable.

    Args:
        names: only these fields, in this order; all by default.

    Raises:
        SchemaMismatch: a field has a type that databases do not have.
    """
    fields = {field["name"]: field["type"] for field in json.loads(schema_json)["fields"]}
    return [sa.Column(always_quoted(name), _type_of(name, fields[name])) for name in names or fields]


def _type_of(name: str, kind: Any) -> Any:
    if isinstance(kind, str) and kind in _TYPES:
        return _TYPES[kind]
    decimal = _DECIMAL.fullmatch(kind) if isinstance(kind, str) else None
    if decimal is not None:
        return _Decimal(int(decimal[1]), int(decimal[2]))
    found = kind["type"] if isinstance(kind, dict) else kind
    remedy = "give it as text, e.g. F.to_json, or leave it out"
    raise SchemaMismatch(f"column {name!r} is of type {found}, for which databases have none", remedy=remedy)


def require_lengths(dialect: sa.Dialect, wanted: sa.Table, what: str) -> None:
    """Check that the database would not shorten the name of a column.

    Raises:
        SchemaMismatch: a name is too long.
    """
    cut = tuple(name for name in wanted.columns.keys() if len(name.encode()) > dialect.max_identifier_length)  # noqa: SIM118
    if cut:
        msg = f"{what} cannot have the column {cut[0]!r}: a name has {dialect.max_identifier_length} bytes at most"
        raise SchemaMismatch(msg, remedy="give the column a shorter name in a dm.functor before", columns=cut)


def require_columns(inspector: Any, wanted: sa.Table, what: str) -> None:
    """Check that the columns of an existing table can take the rows.

    Raises:
        SchemaMismatch: a column is missing or cannot hold the values, or one that the stream lacks takes no null.
    """
    found = {column["name"]: column for column in inspector.get_columns(wanted.name, schema=wanted.schema)}
    dialect = inspector.engine.dialect
    for column in wanted.columns:
        kind = column.type.compile(dialect)
        if column.name not in found:
            table = dialect.identifier_preparer.format_table(wanted)
            remedy = f"ALTER TABLE {table} {_lacking(column, found, dialect)}"
            raise SchemaMismatch(f"{what} has no column {column.name!r}", remedy=remedy, columns=(column.name,))
        there = found[column.name]
        if not _can_hold(there["type"], column.type, dialect):
            msg = f"column {column.name!r} of {what} is {there['type']}, expected {kind}"
            raise SchemaMismatch(msg, remedy="change one of the two", columns=(column.name,))
    bare = [
        name
        for name, there in found.items()
        if name not in wanted.columns
        and not there["nullable"]
        and there.get("default") is None
        and not there.get("autoincrement")
        and not there.get("identity")
        and not there.get("computed")
    ]
    if bare:
        msg = f"{what} has columns that the stream lacks and that take no null: {', '.join(sorted(bare))}"
        raise SchemaMismatch(msg, remedy="give them defaults, or add them to the stream", columns=tuple(bare))


def _lacking(column: sa.Column[Any], found: Collection[str], dialect: Any) -> str:
    """Return what ALTER TABLE is to do about a column that a table lacks; SQLite has no two that differ in case."""
    quoted = dialect.identifier_preparer
    alike = [name for name in found if _is_sqlite(dialect) and name.encode().lower() == column.name.encode().lower()]
    if alike:
        return f"RENAME COLUMN {quoted.quote_identifier(alike[0])} TO {quoted.format_column(column)}"
    return f"ADD COLUMN {quoted.format_column(column)} {column.type.compile(dialect)}"


def _can_hold(there: Any, wanted: Any, dialect: Any) -> bool:
    """Say whether a column takes every value unchanged; columns of SQLite ignore the declared precision."""
    mine = wanted.load_dialect_impl(dialect) if isinstance(wanted, TypeDecorator) else wanted
    families = (sa.Integer, sa.DateTime, sa.Boolean, sa.Date, sa.LargeBinary, sa.String, sa.Float, sa.Numeric)
    family = next(family for family in families if isinstance(mine, family))
    if not isinstance(there, family) or (family is sa.Numeric and isinstance(there, sa.Float)):
        return False
    return dialect.name == "sqlite" or _is_as_wide(there, mine, dialect)


def _is_as_wide(there: Any, mine: Any, dialect: Any) -> bool:
    is_wide = True
    needed: Any = mine
    if isinstance(mine, sa.Integer):
        has, needs = (_WIDTHS.get(kind.compile(dialect).lower(), 4) for kind in (there, mine))
        is_wide = has >= needs
    elif isinstance(mine, sa.DateTime):
        is_exact = getattr(there, "precision", None) in (None, _MICROSECONDS)
        is_wide = is_exact and bool(there.timezone) == bool(mine.timezone)
    elif isinstance(mine, sa.String):
        is_wide = type(there) is not sa.String  # the types `name` and `"char"`, which cut texts, are String
    elif isinstance(mine, sa.Float):
        is_wide = not (isinstance(mine, sa.Double) and isinstance(there, sa.REAL))
    elif isinstance(mine, sa.Numeric) and there.precision is not None:
        scale = there.scale or 0
        is_wide = scale >= needed.scale and there.precision - scale >= needed.precision - needed.scale
    return is_wide


def require_exact_keys(connection: sa.Connection, table: sa.Table, keys: Collection[str], what: str) -> None:
    """Check that the key columns of an existing table tell all keys apart; in SQLite a merge itself ensures this.

    Raises:
        SchemaMismatch: a column treats different texts as equal, as `citext` does.
    """
    if connection.dialect.name == "sqlite":
        return
    name = connection.dialect.identifier_preparer.format_table(table)
    loose = [row for row in connection.execute(sa.text(_LOOSE), {"name": name}) if row[0] in keys]
    if loose:
        column, kind = loose[0]
        msg = f"the key column {column!r} of {what} is {kind}, for which texts are equal that are not the same"
        remedy = f"ALTER TABLE {name} ALTER COLUMN {connection.dialect.identifier_preparer.quote(column)} TYPE text"
        raise SchemaMismatch(msg, remedy=f'{remedy} COLLATE "C", or choose another key', columns=(column,))


def numbered_column(connection: sa.Connection, table: sa.Table) -> str | None:
    """Return the `INTEGER PRIMARY KEY` of a table of SQLite, which stores a number in place of a null.

    It has no index of its own, as other primary keys have, since it is the number of the row.
    """
    if connection.dialect.name != "sqlite":
        return None
    keys = sa.inspect(connection).get_pk_constraint(table.name, schema=table.schema)["constrained_columns"]
    given = {"name": table.name, "schema": table.schema or "main"}
    is_indexed = connection.execute(sa.text(_KEY_INDEXES), given).scalar()
    return keys[0] if keys and not is_indexed else None


def cut_columns(connection: sa.Connection, table: sa.Table) -> dict[str, int]:
    """Return, by name, how many characters a text column of PostgreSQL holds; it cuts blanks off the end of more."""
    if connection.dialect.name != "postgresql":
        return {}
    found = sa.inspect(connection).get_columns(table.name, schema=table.schema)
    kinds = {each["name"]: each["type"] for each in found if each["name"] in table.columns}
    return {name: kind.length for name, kind in kinds.items() if isinstance(kind, sa.String) and kind.length}


def has_terms(inspector: Any, table: sa.Table, ours: Sequence[str]) -> bool:
    """Say whether a table restricts its rows more than the columns of `columns_of` and our indexes do.

    Args:
        ours: names of the indexes that Drainmark made.
    """
    where = {"table_name": table.name, "schema": table.schema}
    if any(
        find(**where)
        for find in (inspector.get_check_constraints, inspector.get_unique_constraints, inspector.get_foreign_keys)
    ):
        return True
    if inspector.get_pk_constraint(**where)["constrained_columns"]:
        return True
    if any(index["unique"] and index["name"] not in ours for index in inspector.get_indexes(**where)):
        return True
    return any(
        not column["nullable"] or getattr(column["type"], "length", None) for column in inspector.get_columns(**where)
    )


def arrow_schema(schema_json: str, names: Sequence[str] = ()) -> pa.Schema:
    """Return the Arrow schema of a Spark schema's fields."""
    import pyarrow as pa

    found = pa.schema(delta_schema(schema_json))
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return pa.schema(
        [pa.field(name, plain.get(found.field(name).type, found.field(name).type)) for name in names or found.names]
    )


def _is_sqlite(dialect: Any) -> bool:
    return bool(dialect.name == "sqlite")


Unfit = tuple[dict[str, Any], str]
"""A row with a value that Spark can hold and a database cannot, and the rule that it breaks.

Dates outside the years 1 to 9999 fit no database, since Python has none. PostgreSQL has no text with a NUL, and cuts
blanks off the end of a text that is too long, without an error, so such a key would add a row with every group. SQLite
has no NaN: it stores null instead, with the same effect. Its `INTEGER PRIMARY KEY` has no null: it stores the next
number instead. PostgreSQL has NaN, and treats it as equal to itself, as Spark does. Both have the infinities.
"""


def may_be_unfit(schema: pa.Schema, dialect: str) -> bool:
    """Say whether a column of the schema may hold such a value."""
    return has_times(schema) or any(_suspects(field.type, dialect) for field in schema)


def may_be_too_long(rows: pa.Table, keys: Collection[str], dialect: str) -> bool:
    """Say whether a row may have a key that is too long for an index of PostgreSQL, which compresses what it holds."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kinds = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    texts = [rows.column(key) for key in keys if rows.schema.field(key).type in kinds]
    if dialect != "postgresql" or not texts or not rows.num_rows:
        return False
    whole = reduce(pc.add, (pc.fill_null(pc.binary_length(text), 0) for text in texts))
    return bool(pc.max(whole).as_py() > _SHORT_KEY)


def up_to_unfit(
    rows: Iterable[pa.Table],
    dialect: str,
    unfit: list[Unfit],
    *,
    numbered: str | None = None,
    lengths: Mapping[str, int] = _ANY_LENGTH,
) -> Iterator[pa.Table]:
    """Yield tables until one has such a value (exclusive); add that row and its rule to `unfit`.

    Args:
        numbered: the column that has a number in place of each null.
        lengths: see `cut_columns`.
    """
    for table in rows:
        found = first_unfit(table, dialect, numbered, lengths)
        if found is not None:
            unfit.append(found)
            return
        yield table


def first_unfit(
    rows: pa.Table, dialect: str, numbered: str | None = None, lengths: Mapping[str, int] = _ANY_LENGTH
) -> Unfit | None:
    """Return a row with such a value and the rule it breaks; None if there is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if numbered in rows.column_names and rows.column(numbered).null_count:
        place = pc.index(pc.is_null(rows.column(numbered)), pa.scalar(True)).as_py()
        rule = f"column {numbered!r}: an INTEGER PRIMARY KEY of SQLite has no null"
        return python_rows(rows.slice(place, 1))[0], rule
    for name, length in lengths.items():
        text = rows.column(name)
        is_long, stays_long = (pc.greater(pc.utf8_length(each), length) for each in (text, pc.utf8_rtrim(text, " ")))
        place = pc.index(pc.and_not(is_long, stays_long), pa.scalar(True)).as_py()
        if place >= 0:
            rule = f"column {name!r}: PostgreSQL would cut blanks off the end, since it holds {length} characters"
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
