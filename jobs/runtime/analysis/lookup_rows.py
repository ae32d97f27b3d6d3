"""Rows of lookups: a table at one version, or none of a table that is not made yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from drainmark.jobs.errors import OperatorFailed
from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID
from drainmark.jobs.operators.joins.lookup import Lookup
from drainmark.jobs.runtime.outside import Outside

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def is_awaited(operator: Lookup, outside: Outside) -> bool:
    """Say whether a lookup's table is not made yet, and need not be: the lookup says its columns."""
    return operator.schema is not None and not outside.lookups.is_made(operator.table)


def no_rows(session: SparkSession, operator: Lookup) -> DataFrame:
    """Return the rows of a lookup whose table is not made yet."""
    return session.createDataFrame([], _declared(operator))


def newest_rows(session: SparkSession, operator: Lookup, outside: Outside) -> DataFrame:
    """Return the rows of a lookup now.

    Raises:
        UnknownName: there is no such table, and the lookup does not say its columns.
    """
    if is_awaited(operator, outside):
        return no_rows(session, operator)
    if operator.schema is None and not outside.lookups.is_made(operator.table):
        raise outside.lookups.missing(operator.table)
    return rows_at(session, operator, outside, None)


def rows_at(session: SparkSession, operator: Lookup, outside: Outside, version: int | None) -> DataFrame:
    """Return a lookup's table at a version, without its own tags, which are not tags of the stream.

    With a schema, the rows have its columns in its order, as they have before there is a table.

    Raises:
        OperatorFailed: the table lacks a column of the schema, or has another type for it.
    """
    rows = outside.lookups.read(session, operator.table, version).drop(SEQUENCE_ID, POSITION)
    if operator.schema is None:
        return rows
    declared = _types(_declared(operator))
    found = _types(rows.schema)
    wrong = [
        f"{name} is {found.get(name, 'missing')} instead of {kind}"
        for name, kind in declared.items()
        if found.get(name) != kind
    ]
    if wrong:
        raise OperatorFailed(
            f"{operator.name!r}: the table {operator.table} has other columns than the lookup's schema: "
            f"{', '.join(wrong)}",
            operator=operator.name,
            location=operator.location,
            remedy=f"change schema= of the lookup, or the table, which has {rows.schema.simpleString()}",
            table=operator.table,
        )
    return rows.select(*map(quoted_name, declared))


def _declared(operator: Lookup) -> StructType:
    """Return the columns of a lookup's schema.

    Raises:
        OperatorFailed: it is no list of columns, or has a column that the rows of a lookup cannot have.
    """
    from pyspark.errors import ParseException
    from pyspark.sql.types import StructType

    try:
        declared = StructType.fromDDL(operator.schema or "")
    except ParseException as error:
        raise _unfit(operator, f"cannot be parsed: {str(error).strip().splitlines()[0]}") from error
    if not isinstance(declared, StructType):
        raise _unfit(operator, "is the type of one value, not a list of columns")
    names = [name.lower() for name in declared.names]
    if twice := {name for name in names if names.count(name) > 1}:
        raise _unfit(operator, f"has {', '.join(sorted(twice))} twice")
    if any("char(" in kind for kind in _types(declared).values()):
        raise _unfit(operator, "has char or varchar, which are string in the rows of a table")
    if own := {SEQUENCE_ID, POSITION} & set(declared.names):
        raise _unfit(operator, f"has {', '.join(sorted(own))}, which are tags of streams, not columns of a lookup")
    return declared


def _unfit(operator: Lookup, why: str) -> OperatorFailed:
    return OperatorFailed(
        f"{operator.name!r}: schema={operator.schema!r} {why}",
        operator=operator.name,
        location=operator.location,
        remedy='give the columns that rows need, e.g. schema="item string, cents bigint"',
    )


def _types(schema: StructType) -> Mapping[str, str]:
    """Return the types of columns, without what Delta and DDL say of nulls."""
    return {field.name: field.dataType.simpleString() for field in schema.fields}
