"""The rows of a database query with each cell as a text: no driver's value, and no guess at a type, is in between.

PostgreSQL writes the texts itself, of all of its types. Other databases have few types; their drivers give each value
as a number, a text, bytes or a time of Python, whose text is exact.
"""

from __future__ import annotations

import datetime as dt
import math
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import UsageError
from drainmark.jobs.operators.sources.cell_values import HEX, PLACE

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_AT_ONCE = 5000
_BYTEA = 17
_EXACT = {"DateStyle": "ISO", "bytea_output": "hex", "extra_float_digits": "3"}
"""Settings of PostgreSQL, for one transaction, with which its texts are exact; none of them changes a query."""


def cells_of(connection: Any, query: str, bounds: Mapping[str, Any], cursor: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a query in its order: the columns of the query, and `PLACE`.

    Args:
        connection: of SQLAlchemy.
        cursor: the column that names a row.
    """
    import pyarrow as pa
    import sqlalchemy as sa

    of_bytes: frozenset[str] = frozenset()
    if connection.dialect.name == "postgresql":
        query, of_bytes = _as_texts(connection, query, bounds)
    options = connection.execution_options(stream_results=True, yield_per=_ROWS_AT_ONCE)
    with _whole_texts(connection):
        result = options.execute(sa.text(query), bounds)
        names = list(result.keys())
        for rows in result.partitions(_ROWS_AT_ONCE):
            columns = [
                _array([_text(cell, name) for cell in column])
                for name, column in zip(names, zip(*rows, strict=True), strict=True)
            ]
            fields = [
                pa.field(name, column.type, metadata=HEX if name in of_bytes else None)
                for name, column in zip(names, columns, strict=True)
            ]
            shown = columns[[name.casefold() for name in names].index(cursor.casefold())].to_pylist()
            places = pa.array([f"the row with {cursor} {value}" for value in shown], pa.string())
            yield pa.record_batch([*columns, places], schema=pa.schema([*fields, pa.field(PLACE, pa.string())]))


def bare_query(query: str) -> str:
    """Return a query to stand in brackets, which may end with a comment."""
    return f"{query.rstrip().rstrip(';')}\n"


def _as_texts(connection: Any, query: str, bounds: Mapping[str, Any]) -> tuple[str, frozenset[str]]:
    """Return a query that has PostgreSQL write each cell as text, and the columns that have bytes.

    Two columns of one name, which no schema can declare, are left out.
    """
    import sqlalchemy as sa

    inner = bare_query(query)
    for name, value in _EXACT.items():
        connection.execute(sa.text("select set_config(:name, :value, true)"), {"name": name, "value": value})
    described = connection.execute(sa.text(f"select * from ({inner}) as described_rows limit 0"), bounds)  # noqa: S608
    kinds = [(str(column[0]), column[1]) for column in described.cursor.description]
    described.close()
    number = Counter(name for name, _ in kinds)
    once = ['"{}"'.format(name.replace('"', '""').replace(":", r"\:")) for name, _ in kinds if number[name] == 1]
    casts = ", ".join(f"cast(read_rows.{quoted} as text) as {quoted}" for quoted in once)
    of_bytes = frozenset(name for name, kind in kinds if kind == _BYTEA)
    return f"select {casts} from ({inner}) as read_rows", of_bytes  # noqa: S608


@contextmanager
def _whole_texts(connection: Any) -> Iterator[None]:
    """Have SQLite give a text that is no UTF-8 as bytes: else its driver fails, and names no row."""
    if connection.dialect.name != "sqlite":
        yield
        return
    driver = connection.connection.driver_connection
    before, driver.text_factory = driver.text_factory, _decoded
    try:
        yield
    finally:
        driver.text_factory = before


def _decoded(content: bytes) -> str | bytes:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def _array(cells: Sequence[str | bytes | None]) -> pa.Array:
    import pyarrow as pa

    if any(isinstance(cell, bytes) for cell in cells):
        return pa.array([cell.encode() if isinstance(cell, str) else cell for cell in cells], pa.binary())
    return pa.array(cells, pa.string())


def _text(cell: Any, column: str) -> str | bytes | None:
    """Return the exact text of a driver's value, or its bytes."""
    if cell is None or isinstance(cell, str | bytes):
        return cell
    for kinds, text in _TEXTS:
        if isinstance(cell, kinds):
            return text(cell)
    msg = f"column {column!r}: the driver gives a {type(cell).__name__}, whose text is not known"
    raise UsageError(msg, remedy="cast the column to text in the query")


def _float(number: float) -> str:
    if math.isfinite(number):
        return str(number)
    return "NaN" if math.isnan(number) else f"{'-' * (number < 0)}Infinity"


def _duration(span: dt.timedelta) -> str:
    """Return a duration as MySQL writes its times: `-26:00:00.5`."""
    sign, span = ("-", -span) if span < dt.timedelta() else ("", span)
    minutes, seconds = divmod(span.days * 86_400 + span.seconds, 60)
    fraction = f".{span.microseconds:06d}" if span.microseconds else ""
    return f"{sign}{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}{fraction}"


_TEXTS: Sequence[tuple[Any, Callable[[Any], str | bytes]]] = (
    (bool, lambda cell: str(cell).lower()),
    (float, _float),
    (dt.datetime, lambda cell: cell.isoformat(sep=" ")),
    ((dt.date, dt.time), lambda cell: cell.isoformat()),
    (dt.timedelta, _duration),
    ((bytearray, memoryview), bytes),
    ((int, Decimal, uuid.UUID), str),
)
