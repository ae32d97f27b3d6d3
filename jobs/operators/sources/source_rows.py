"""The type of a source's rows as read: tags first, then its columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from drainmark.jobs.errors import UsageError
from drainmark.jobs.formats.format import format_of
from drainmark.jobs.frames.tags import RESERVED, SOURCE_FILE, tagged_type
from drainmark.jobs.operators.sources.contract import SourceAccess
from drainmark.jobs.operators.sources.source import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def row_type(source: Source, output: str, access: SourceAccess) -> StructType:
    """Return the type of a source's rows as read: tags, then its columns.

    Raises:
        UsageError: a column has the name of a reserved column, or of another one, which Spark could not tell apart; or
            a type that its format never has.
    """
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    columns = source.columns(access, output)
    declared = (
        StructType.fromDDL(columns)
        if isinstance(columns, str)
        else from_arrow_schema(columns, prefer_timestamp_ntz=True)
    )
    _require_own_names(source, declared.names, RESERVED)
    if (parsed := source.parsed(output)) is not None:
        _require_readable(source, *parsed)
    return tagged_type(declared)


def _require_readable(source: Source, form: str, ddl: str) -> None:
    from pyspark.sql.types import StructType

    for column in StructType.fromDDL(ddl).fields:
        if (why := format_of(form).unreadable(column.dataType)) is not None:
            raise UsageError(
                f"column {column.name!r} of {source.name!r} has a type that is never read from {form}",
                remedy=why,
                operator=source.name,
                location=source.location,
                column=column.name,
            )


def _require_own_names(source: Source, names: Sequence[str], reserved: Sequence[str]) -> None:
    taken = {name.casefold(): f"all rows carry a column {name} of their own" for name in reserved}
    for name in names:
        if (why := taken.get(name.casefold())) is not None:
            raise UsageError(
                f"{source.name!r} cannot have a column {name!r}: {why}",
                remedy="leave it out of the schema, or give it another name where the rows come from",
                operator=source.name,
                location=source.location,
            )
        taken[name.casefold()] = f"{name!r} is one, and Spark does not tell upper from lower case"


def empty_rows(session: SparkSession, source: Source, output: str, access: SourceAccess) -> DataFrame:
    """Return an empty frame with the columns of a source's rows as read."""
    from pyspark.sql.types import StringType

    return session.createDataFrame([], row_type(source, output, access).add(SOURCE_FILE, StringType()))
