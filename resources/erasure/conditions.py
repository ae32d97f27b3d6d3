"""The condition by which the rows of a person are found in a table, typed by its columns."""

from __future__ import annotations

import datetime as dt
import functools
import operator
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from drainmark.jobs.protocol.persons import Person, spellings
from drainmark.jobs.protocol.row_conditions import Condition

if TYPE_CHECKING:
    import pyarrow as pa

QUARANTINED = ("raw", "reason")
"""The columns of bad records that hold what the source said: they are searched as text."""

_OF_QUARANTINE = {"_sequence_id", "source_file", "position", "raw", "reason"}


def condition_of(person: Person, schema: pa.Schema) -> pa.compute.Expression | None:
    """Return the condition for the rows of a person; None if the table lacks a column, or none of its rows can match.

    It is never null. A table of bad records is searched as text.
    """
    if is_quarantine(schema):
        return _as_text(person)
    found = None
    for each in person.conditions:
        holds = _any(_holds(each, name, schema.field(name).type) for name in each.among(schema.names))
        if holds is None:
            return None
        found = holds if found is None else found & holds
    return found


def _any(found: Iterable[pa.compute.Expression | None]) -> pa.compute.Expression | None:
    return functools.reduce(operator.or_, [each for each in found if each is not None] or [None])


def _holds(condition: Condition, name: str, kind: pa.DataType) -> pa.compute.Expression | None:
    values = [value for text in condition.values if (value := value_of(text, kind)) is not None]
    return is_one_of(name, values, kind) if values else None


def is_one_of(name: str, values: Sequence[pa.Scalar], kind: pa.DataType) -> pa.compute.Expression:
    """Return the condition that a column has one of some values of its type; zeros are equal, and NaNs. Never null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    zeros = [0.0, -0.0] if pa.types.is_floating(kind) and any(value.as_py() == 0 for value in values) else []
    return pc.field(name).isin(pa.array([*values, *(pa.scalar(zero, kind) for zero in zeros)], kind))


def columns_of(person: Person, schema: pa.Schema) -> pa.Schema:
    """Return the columns that the condition for a table reads."""
    import pyarrow as pa

    names = QUARANTINED if is_quarantine(schema) else dict.fromkeys(person.columns_in(schema.names))
    return pa.schema([schema.field(name) for name in names])


def is_quarantine(schema: pa.Schema) -> bool:
    """Say whether a table has a region's bad records."""
    return set(schema.names) == _OF_QUARANTINE


def value_of(text: str, kind: pa.DataType) -> pa.Scalar | None:
    """Return a value in a type of Arrow; None if no value of the type is written so, or it does not fit in."""
    import pyarrow as pa

    value = _read(text, kind)
    try:
        return pa.scalar(value, kind) if value is not None else None
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return None


def _read(text: str, kind: pa.DataType) -> Any:
    """Return a value of Python for a type of Arrow; None if no value of the type is written so."""
    import pyarrow.types as kinds

    readers = (
        (lambda kind: kinds.is_string(kind) or kinds.is_large_string(kind), str),
        (kinds.is_boolean, lambda text: {"true": True, "false": False}.get(text.lower())),
        (kinds.is_integer, int),
        (kinds.is_floating, float),
        (kinds.is_decimal, Decimal),
        (kinds.is_date, dt.date.fromisoformat),
        (lambda kind: kinds.is_timestamp(kind) and kind.tz is None, dt.datetime.fromisoformat),
        (kinds.is_timestamp, _instant),
        (kinds.is_binary, str.encode),
    )
    read = next((read for is_of, read in readers if is_of(kind)), None)
    try:
        return read(text) if read is not None else None
    except (ValueError, InvalidOperation):
        return None


def _instant(text: str) -> dt.datetime:
    """Return a time of a column with a zone; one without a zone is of UTC."""
    moment = dt.datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)


def _as_text(person: Person) -> pa.compute.Expression:
    """Return the condition that a bad record, or the reason against it, holds a value of each condition."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = None
    for each in person.conditions:
        written = sorted({spelling for value in each.values for spelling in spellings(value)}, key=len, reverse=True)
        pattern = rf"(?:^|[^0-9A-Za-z_])(?:{'|'.join(map(re.escape, written))})(?:$|[^0-9A-Za-z_])"
        said = [
            pc.coalesce(pc.match_substring_regex(pc.field(name), pattern), pa.scalar(False)) for name in QUARANTINED
        ]
        holds = said[0] | said[1]
        found = holds if found is None else found & holds
    return found


def opaque_columns(schema: pa.Schema) -> Sequence[str]:
    """Return the columns that may hold rows, or parts of them, in a form that no condition reaches."""
    import pyarrow as pa

    return [field.name for field in schema if pa.types.is_nested(field.type) or pa.types.is_binary(field.type)]
