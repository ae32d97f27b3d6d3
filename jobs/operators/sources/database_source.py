"""`DatabaseSource`: the rows of a query, by ranges of a cursor column."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.errors import InputChanged, StoreUnavailable
from drainmark.jobs.operators.sources.contract import Connections, Reach, RowSlices, Workers
from drainmark.jobs.operators.sources.slices import Position, Slice, SliceLimit

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DatabaseSource"]

_ROW_BYTES = 256
_ROWS_AT_ONCE = 5000
_LAST: dict[type, Any] = {int: 2**63 - 1, dt.datetime: dt.datetime.fromisoformat("9999-12-31 23:59:59")}
"""The largest value of a cursor, by type: for a query that needs an upper bound. Texts have no largest value: a
database may order another text above any text."""

_UP_TO = re.compile(r"<=\s*:upto\b")
_ACROSS_ROWS = re.compile(
    r"\b(?:distinct|group\s+by|over|limit|offset|fetch|top|union|except|intersect)\b|(?:^|\()\s*with\b", re.IGNORECASE
)
"""Words in a query with which a row may depend on other rows of its range: parts of the range may give other rows."""

_FORM, _TEXT = "form", "text"
"""Marks a position: the database gave a time as text, as SQLite does; only the same text compares like the column."""


@dataclass(frozen=True)
class DatabaseSource(RowSlices):
    """The new rows of a database query, by ranges of a column that only grows.

    A trigger is a range (after, upto] of the cursor, fixed when it is found. Its rows are written and committed like
    every other input: after the commit, Drainmark asks the database for them again only after a rewind. If a range
    has another number of rows when it is read than when it was found, it is read nevertheless; the history notes that.

    The cursor is bound as the database gave it. If the database compares it differently, so that no row is in the range
    that ends with its own largest value, the region halts.

    Rows have to appear in the order of the cursor: a row that is committed late, below the end of a range that was
    found, is never read. If several writers fill a sequence at once, read with a delay:
    `where at < now() - interval …`.

    If a group is larger than `small_group_bytes`, tasks read the rows. Each task reads a range of the cursor of bounded
    size, in a transaction of its own, and takes the URL from its own environment. The run reads the rows of a smaller
    group. One task reads the whole range if a part of it might give other rows: if the query has `distinct`,
    `group by`, `over`, `limit`, `union` or the like, begins with `with`, names a parameter twice, or is not in the
    order of the cursor. The file of an SQLite database is read only by tasks on its own machine.

    Args:
        database: name of the database in the setting `databases`, which has its URL; the URL is nowhere else.
        query: a select with `:after` and `:upto`, in the order of the cursor. Compare a text cursor by `<= :upto`:
            Drainmark drops this condition to find new rows, since no text is the last one in every database.
        cursor: the column that only grows; a whole number, a time without a zone, or a text.
        schema: DDL of the query's columns.
        rows: rows in each trigger; more only if several rows have the last value of the cursor.
        start: the cursor before the first row: 0, a `datetime`, or a text.

    Example:
        # drainmark.toml: [databases]
        #                 crm = "postgresql+psycopg://reader@db/crm"
        @dm.consistent(trigger="operator-driven")
        @dm.source(
            dm.DatabaseSource(
                database="crm",
                query="select id, name from customers where id > :after and id <= :upto order by id",
                schema="id bigint, name string",
            )
        )
        def customers(scanned):
            return scanned
    """

    kind: ClassVar[str] = "query"

    database: str
    query: str
    cursor: str = "id"
    schema: str = ""
    rows: int = 10_000
    start: int | str | dt.datetime = 0

    def problems(self, trigger: str | None) -> Iterator[tuple[str, str, str]]:
        if "://" in self.database:
            yield "DATABASE_URL", "the code names a database's address", "name it in the setting databases"
        for parameter in (":after", ":upto"):
            if parameter not in self.query:
                yield "QUERY", f"the query has no {parameter}", "select … where id > :after and id <= :upto order by id"
        if isinstance(self.start, str) and ":upto" in _UP_TO.sub("", self.query):
            yield "QUERY", "the query compares a text with :upto otherwise than by <= :upto", f"{self.cursor} <= :upto"
        if not self.schema:
            yield "SCHEMA_MISSING", "a query needs the types of its columns", 'add schema="id bigint, …"'
        if not self.cursor.isidentifier():
            yield "CURSOR", f"cursor={self.cursor!r} is no name of a column", "name a column of the query"
        if isinstance(self.rows, bool) or not isinstance(self.rows, int) or self.rows < 1:
            yield "QUERY_ROWS", f"rows={self.rows!r} is no number of rows", "give a whole number from 1 up"
        if isinstance(self.start, bool) or not isinstance(self.start, int | str | dt.datetime):
            yield "START", f"start={self.start!r} is no value of a cursor", "0, a datetime, or a text"

    def fingerprint(self) -> Any:
        return {"query": self.query, "cursor": self.cursor, "schema": self.schema}

    def columns(self, reach: Reach) -> str:
        return self.schema

    def next_slice(self, after: Position | None, reach: Reach, cut: SliceLimit) -> Slice | None:
        rows = self.rows
        if cut.is_periodic:  # all new rows, or about `max_bytes` of them
            rows = max(1, cut.max_bytes // _ROW_BYTES) if cut.max_bytes is not None else 2**62
        begin = self._value(after)
        found, most = self._found(self.query), {"after": begin, "most": rows}
        above = self._found(_UP_TO.sub(" is not null", self.query))
        if ":upto" in above:
            most["upto"] = _LAST[type(self.start)]
        with self._connected(reach) as connection:
            last = f"select max(cursor_value) from ({above} order by {self.cursor} limit :most) as first_rows"  # noqa: S608
            given = connection.execute(_text(last), most).scalar()
            if given is None:
                return None
            end = self._position(given)
            upto = self._value(end)
            count = f"select count(*) from ({found}) as counted_rows"  # noqa: S608
            number = int(connection.execute(_text(count), {"after": begin, "upto": upto}).scalar_one())
            if not number or upto == begin:
                if connection.execute(_text(last), most).scalar() != given:
                    return None  # deleted in between: the next scan finds other rows
                raise self._passed_over(begin, upto)
        return Slice(start=after, end=end, size_bytes=max(1, number * _ROW_BYTES), facts={"rows": number})

    @contextmanager
    def _connected(self, reach: Connections) -> Iterator[Any]:
        from sqlalchemy.exc import OperationalError

        try:
            with reach.database(self.database).connect() as connection:
                yield connection
        except OperationalError as error:
            said = str(error.orig).strip().partition("\n")[0]
            raise StoreUnavailable(
                f"the database {self.database!r} does not answer the query: {said}",
                remedy="look at the database, and at the query; runs try again",
            ) from error

    def _passed_over(self, begin: Any, upto: Any) -> InputChanged:
        return InputChanged(
            f"the database has rows with a {self.cursor} above {_plain(begin)}, the last {_plain(upto)}, and none of "
            f"them above the one and up to the other: it compares {self.cursor} otherwise than it gives it",
            remedy="select a cursor that it gives exactly, e.g. a whole number, or cast it to text and give a text as "
            "start, under a new name of the source",
            trigger=f"query:{self.database}#{_plain(begin)}",
        )

    def label(self, piece: Slice, source: str, reach: Reach) -> str:
        return f"query:{source}#{_plain(self._value(piece.start))}..{piece.end['upto']}"

    def read(self, piece: Slice, reach: Connections) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        bounds = {"after": self._value(piece.start), "upto": self._value(piece.end)}
        with self._connected(reach) as connection:
            result = connection.execution_options(stream_results=True, yield_per=_ROWS_AT_ONCE).execute(
                _text(self.query), bounds
            )
            names = list(result.keys())
            for rows in result.partitions(_ROWS_AT_ONCE):
                columns = zip(*rows, strict=True)
                yield pa.record_batch([pa.array(list(column)) for column in columns], names=names)

    def shares(self, piece: Slice, reach: Reach, *, share_bytes: int, workers: Workers) -> Sequence[Slice] | None:
        if not workers.is_ours and reach.database(self.database).dialect.name == "sqlite":
            return None  # its file is on this machine
        rows = max(1, share_bytes // _ROW_BYTES)
        is_large = piece.facts.get("rows", 0) > rows
        ends = self._cuts(piece, reach, rows) if is_large and self._is_row_wise else []
        places = [piece.start, *ends, piece.end]
        size = piece.size_bytes // (len(places) - 1)
        return [
            Slice(start=start, end=end, size_bytes=size) for start, end in zip(places, [*ends, piece.end], strict=False)
        ]

    @property
    def _is_row_wise(self) -> bool:
        """Say whether the query, by its text, gives the same rows in the same order if it is asked range by range."""
        _, *orders = re.split(r"\border\s+by\s", self.query, flags=re.IGNORECASE)
        by_cursor = rf"\s*(?:\w+\.)*[\"`]?{self.cursor}[\"`]?\s*(?:\basc\s*)?(?:,|;|$)"
        return (
            all(len(re.findall(rf"{name}\b", self.query)) == 1 for name in (":after", ":upto"))
            and _ACROSS_ROWS.search(self.query) is None
            and len(orders) == 1
            and re.match(by_cursor, orders[0], re.IGNORECASE) is not None
        )

    def _cuts(self, piece: Slice, reach: Reach, rows: int) -> list[Position]:
        """Return the cursor at every `rows`-th row of a slice, in order, without the bounds of the slice."""
        found = self._found(self.query)
        numbered = f"select cursor_value, row_number() over (order by cursor_value) as place from ({found}) as r"  # noqa: S608
        every = f"select cursor_value from ({numbered}) as numbered_rows where place % :rows = 0 order by place"  # noqa: S608
        bounds = {"after": self._value(piece.start), "upto": self._value(piece.end)}
        with self._connected(reach) as connection:
            given = connection.execute(_text(every), {**bounds, "rows": rows}).scalars().all()
        places = {str(self._value(place)): place for place in map(self._position, given)}
        outer = {str(bound) for bound in bounds.values()}
        return [place for value, place in places.items() if value not in outer]

    def _found(self, query: str) -> str:
        """Return a query for the cursor alone; it needs no escaping, since query and column come from the author."""
        return f"select {self.cursor} as cursor_value from ({query.rstrip().rstrip(';')}) as found_rows"  # noqa: S608

    def remark(self, piece: Slice, rows: int) -> str | None:
        found = piece.facts.get("rows")
        return None if found in (None, rows) else f"{found} rows were found, and {rows} when they were read"

    def _position(self, given: Any) -> Position:
        """Return the position at a value of the cursor that the database gave."""
        if not isinstance(self.start, dt.datetime):
            return {"upto": int(given) if isinstance(self.start, int) else str(given)}
        if isinstance(given, str):
            return {"upto": given, _FORM: _TEXT}
        return {"upto": _plain(given if isinstance(given, dt.datetime) else dt.datetime.fromisoformat(str(given)))}

    def _value(self, position: Position | None) -> Any:
        """Return the cursor value of a position, for a query: of the type of `start`, or the text of the database."""
        if position is None:
            return self.start
        value = position["upto"]
        if isinstance(self.start, dt.datetime) and position.get(_FORM) != _TEXT:
            return dt.datetime.fromisoformat(str(value))
        return value


def _plain(value: Any) -> int | str:
    return value.isoformat(sep=" ") if isinstance(value, dt.datetime) else value


def _text(statement: str) -> Any:
    from sqlalchemy import text

    return text(statement)
