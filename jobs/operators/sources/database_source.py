"""`DatabaseSource`: the rows of a query, by ranges of a cursor column."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from drainmark.jobs.errors import InputChanged, StoreRefused, StoreUnavailable
from drainmark.jobs.errors.database_faults import is_passing, said_by
from drainmark.jobs.graph.annotations import is_count
from drainmark.jobs.operators.sources.contract import Connections, RowSlices, SourceAccess, Workers
from drainmark.jobs.operators.sources.database_cells import bare_query, cells_of
from drainmark.jobs.operators.sources.slices import Position, Slice, SliceLimit

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DatabaseSource"]

_ROW_BYTES = 256
_POLICIES = ("quarantine", "halt")
_LAST: dict[type, Any] = {int: 2**63 - 1, dt.datetime: dt.datetime.fromisoformat("9999-12-31 23:59:59")}
"""The largest value of a cursor, by type: for a query that needs an upper bound. Texts have no largest value: a
database may order another text above any text."""

_UP_TO = re.compile(r"<=\s*:upto\b")
_COUNTS = (
    "select count(*), sum(case when cursor_value = :upto then 1 else 0 end),"
    " max(case when cursor_value < :upto then cursor_value end) from ({}) as counted_rows"
)
_ACROSS_ROWS = re.compile(
    r"\b(?:distinct|group\s+by|over|limit|offset|fetch|top|union|except|intersect)\b|(?:^|\()\s*with\b", re.IGNORECASE
)
"""Words in a query with which a row may depend on other rows of its range: parts of the range may give other rows."""

_GIVEN = ("after", "upto")
_PARAMETER = re.compile(r"(?<![:\w\\]):(\w+)(?!:)")
"""A parameter of a query, as SQLAlchemy finds it: `\\:` and `::` are none, and a text is searched, too."""

_AFTER = re.compile(r"([\w.\"`]+)\s*>\s*:after\b")
_SHOWN_NULLS = 1000
_BELOW, _TIES, _NULLS, _LATE = "below", "ties", "nulls", "late"
"""Of a position: the cursor before its own, the rows above that one, the rows without a cursor. Of a slice: rows that
were not there when the slice before was found, below its end or at it."""

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

    Rows have to appear in the order of the cursor: a row that is committed late, with a cursor below the end of a range
    that was found or equal to it, is not read. The history says so if such rows have the last cursor of the range, and
    a reset to the state before reads them. A row whose cursor is null is never read; the history says how many
    there are. If several writers fill a sequence at once, read with a delay: `where at < now() - interval …`.

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
        on_bad: the treatment of a row with a cell that is no value of its column: it goes to the region's quarantine,
            which names column and cursor, or the region halts.

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
    on_bad: Literal["quarantine", "halt"] = "quarantine"

    @property
    def on_bad_cells(self) -> str:
        return self.on_bad

    def problems(self, trigger: str | None) -> Iterator[tuple[str, str, str]]:
        if "://" in self.database:
            yield "DATABASE_URL", "the code names a database's address", "name it in the setting databases"
        yield from _query_problems(self)
        if not self.schema:
            yield "SCHEMA_MISSING", "a query needs the types of its columns", 'add schema="id bigint, …"'
        if not self.cursor.isidentifier():
            yield "CURSOR", f"cursor={self.cursor!r} is no name of a column", "name a column of the query"
        if not is_count(self.rows):
            yield "QUERY_ROWS", f"rows={self.rows!r} is no number of rows", "give a whole number from 1 up"
        if isinstance(self.start, bool) or not isinstance(self.start, int | str | dt.datetime):
            yield "START", f"start={self.start!r} is no value of a cursor", "0, a datetime, or a text"
        if self.on_bad not in _POLICIES:
            yield "ON_BAD", f"on_bad={self.on_bad!r} is unknown", f"one of {', '.join(_POLICIES)}"

    def fingerprint(self) -> Any:
        return {"query": self.query, "cursor": self.cursor, "schema": self.schema}

    def columns(self, access: SourceAccess) -> str:
        return self.schema

    def next_slice(self, after: Position | None, access: SourceAccess, cut: SliceLimit) -> Slice | None:
        rows = self.rows
        if cut.is_periodic:  # all new rows, or about `max_bytes` of them
            rows = max(1, cut.max_bytes // _ROW_BYTES) if cut.max_bytes is not None else 2**62
        begin = self._value(after)
        found, most = self._found(self.query), {"after": begin, "most": rows}
        above = self._found(_UP_TO.sub(" is not null", self.query))
        if ":upto" in above:
            most["upto"] = next(last for kind, last in _LAST.items() if isinstance(self.start, kind))
        with self._connected(access) as connection:
            last = f"select max(cursor_value) from ({above} order by {self.cursor} limit :most) as first_rows"  # noqa: S608
            given = connection.execute(_text(last), most).scalar()
            late = self._late(connection, found, after)
            if given is None:
                return None if after is None or not late else _without_rows(after, late)
            end = self._position(given)
            upto = self._value(end)
            bounds = {"after": begin, "upto": upto}
            number, ties, below = connection.execute(_text(_COUNTS.format(found)), bounds).one()
            if not number or upto == begin:
                if connection.execute(_text(last), most).scalar() != given:
                    return None  # deleted in between: the next scan finds other rows
                raise _unfit(
                    self.database,
                    f"the database has rows with a {self.cursor} above {_plain(begin)}, the last {_plain(upto)}, and "
                    f"none of them above the one and up to the other: it compares {self.cursor} otherwise than it "
                    "gives it",
                )
            place = self._position(below) if below is not None else after
            nulls = self._without_cursor(connection)
        told = {_LATE: late} if late else {}
        if nulls > (after or {}).get(_NULLS, 0):
            told[_NULLS] = nulls
        end = {**end, _BELOW: _bare(place), _TIES: int(ties), **({_NULLS: nulls} if nulls else {})}
        return Slice(start=after, end=end, size_bytes=max(1, number * _ROW_BYTES), facts={"rows": int(number), **told})

    def _late(self, connection: Any, found: str, after: Position | None) -> int:
        """Return how many rows more than when it was found there are between a position and the cursor before it."""
        if after is None or _TIES not in after:
            return 0
        bounds = {"after": self._value(after[_BELOW]), "upto": self._value(after)}
        number = connection.execute(_text(f"select count(*) from ({found}) as counted_rows"), bounds).scalar_one()  # noqa: S608
        return max(0, int(number) - int(after[_TIES]))

    def _without_cursor(self, connection: Any) -> int:
        """Return the number of rows whose cursor is null, up to a bound; 0 if the query does not show how to ask."""
        nulls = _AFTER.sub(r"\1 is null", _UP_TO.sub(" is null", self.query))
        if ":after" in nulls or ":upto" in nulls:
            return 0
        some = (
            f"select count(*) from (select 1 as one from ({bare_query(nulls)}) as r limit {_SHOWN_NULLS}) as some_rows"  # noqa: S608
        )
        return int(connection.execute(_text(some)).scalar_one())

    @contextmanager
    def _connected(self, access: Connections) -> Iterator[Any]:
        from sqlalchemy.exc import DBAPIError

        try:
            with access.database(self.database).connect() as connection:
                yield connection
        except DBAPIError as error:
            said = said_by(error)
            if is_passing(error):
                raise StoreUnavailable(
                    f"the database {self.database!r} does not answer the query: {said}",
                    remedy="look at the database; runs try again",
                ) from error
            raise StoreRefused(
                f"the database {self.database!r} refuses the query with the cursor {self.cursor!r}: {said}",
                remedy="correct the query: a cursor is a whole number, a time or a text; leave infinite times out "
                f"(and isfinite({self.cursor})), and cast another type to text, with a text as start",
            ) from error

    def label(self, piece: Slice, source: str, access: SourceAccess) -> str:
        begin, end = _plain(self._value(piece.start)), piece.end["upto"]
        return f"query:{source}#{begin}..{end}{f'+{piece.end[_TIES]}' if begin == end else ''}"

    def read(self, piece: Slice, access: Connections) -> Iterator[pa.RecordBatch]:
        bounds = {"after": self._value(piece.start), "upto": self._value(piece.end)}
        with self._connected(access) as connection:
            yield from cells_of(connection, self.query, bounds, self.cursor)

    def shares(
        self, piece: Slice, access: SourceAccess, *, share_bytes: int, workers: Workers
    ) -> Sequence[Slice] | None:
        if not workers.is_ours and access.database(self.database).dialect.name == "sqlite":
            return None  # its file is on this machine
        rows = max(1, share_bytes // _ROW_BYTES)
        is_large = piece.facts.get("rows", 0) > rows
        ends = self._cuts(piece, access, rows) if is_large and self._is_row_wise else []
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

    def _cuts(self, piece: Slice, access: SourceAccess, rows: int) -> list[Position]:
        """Return the cursor at every `rows`-th row of a slice, in order, without the bounds of the slice."""
        found = self._found(self.query)
        numbered = f"select cursor_value, row_number() over (order by cursor_value) as place from ({found}) as r"  # noqa: S608
        every = f"select cursor_value from ({numbered}) as numbered_rows where place % :rows = 0 order by place"  # noqa: S608
        bounds = {"after": self._value(piece.start), "upto": self._value(piece.end)}
        with self._connected(access) as connection:
            given = connection.execute(_text(every), {**bounds, "rows": rows}).scalars().all()
        places = {str(self._value(place)): place for place in map(self._position, given)}
        outer = {str(bound) for bound in bounds.values()}
        return [place for value, place in places.items() if value not in outer]

    def _found(self, query: str) -> str:
        """Return a query for the cursor alone; it needs no escaping, since query and column come from the author."""
        return f"select {self.cursor} as cursor_value from ({bare_query(query)}) as found_rows"  # noqa: S608

    def remark(self, piece: Slice, rows: int) -> str | None:
        found, late, nulls = (piece.facts.get(name) for name in ("rows", _LATE, _NULLS))
        told = [] if found in (None, rows) else [f"{found} rows were found, and {rows} when they were read"]
        if late and piece.start is not None:
            place = f"{self.cursor} above {_plain(self._value(piece.start[_BELOW]))} and up to {piece.start['upto']}"
            told.append(
                f"{late} rows with a {place} came after that range was found: those that came after it was read are "
                "in no table, and a reset to the state before it reads them"
            )
        if nulls:
            told.append(f"{nulls} rows have no {self.cursor}, and are never read")
        return "; ".join(told) or None

    def _position(self, given: Any) -> Position:
        """Return the position at a value of the cursor that the database gave.

        Raises:
            InputChanged: it is no value of the kind of `start`.
        """
        if isinstance(self.start, str):
            return {"upto": str(given)}
        is_time = isinstance(self.start, dt.datetime)
        if is_time and isinstance(given, str):
            return {"upto": given, _FORM: _TEXT}
        try:
            found = dt.datetime.fromisoformat(str(given)) if is_time else int(given)
        except (TypeError, ValueError, OverflowError):
            found = None
        if found is None or not (is_time or found == given):
            kind = "time" if is_time else "whole number"
            why = f"the database {self.database!r} has a row whose {self.cursor} is {given!r}, which is no {kind}"
            raise _unfit(self.database, why)
        return {"upto": _plain(found)}

    def _value(self, position: Position | None) -> Any:
        """Return the cursor value of a position, for a query: of the type of `start`, or the text of the database."""
        return self.start if position is None else _cursor_at(position, self)


def _cursor_at(position: Position, source: DatabaseSource) -> Any:
    """Return the cursor value of a position; see `DatabaseSource._value`.

    Raises:
        InputChanged: the cursor was of another kind when the position was found.
    """
    value = position["upto"]
    if isinstance(value, int) is isinstance(source.start, int):
        if not isinstance(source.start, dt.datetime) or position.get(_FORM) == _TEXT:
            return value
        with suppress(ValueError):
            return dt.datetime.fromisoformat(value)
    why = f"{source.cursor} was read up to {value!r}, which is no cursor of the kind of start={source.start!r}"
    raise _unfit(source.database, why)


def _query_problems(source: DatabaseSource) -> Iterator[tuple[str, str, str]]:
    given = dict.fromkeys(_PARAMETER.findall(source.query))
    for name in _GIVEN:
        if name not in given:
            remedy = "select … where id > :after and id <= :upto order by id"
            yield "QUERY", f"the query has no :{name}", remedy
    for name in given:
        if name not in _GIVEN:
            remedy = "write the value itself; before a colon in a text write a backslash"
            yield "QUERY", f"the query has :{name}, which is no parameter of it", remedy
    if isinstance(source.start, str) and ":upto" in _UP_TO.sub("", source.query):
        yield "QUERY", "the query compares a text with :upto otherwise than by <= :upto", f"{source.cursor} <= :upto"


def _unfit(database: str, why: str) -> InputChanged:
    return InputChanged(
        why,
        remedy="select a cursor that it gives exactly, e.g. a whole number, or cast it to text and give a text as "
        "start, under a new name of the source",
        trigger=f"query:{database}",
    )


def _without_rows(after: Position, late: int) -> Slice:
    """Return a slice that only tells of rows that came late: no other slice may come for long."""
    end = {**after, _TIES: int(after[_TIES]) + late}
    return Slice(start=after, end=end, size_bytes=1, facts={"rows": 0, _LATE: late})


def _bare(position: Position | None) -> Position | None:
    """Return a position without the facts about its rows, which would hold those of all positions before."""
    return None if position is None else {name: position[name] for name in ("upto", _FORM) if name in position}


def _plain(value: Any) -> int | str:
    return value.isoformat(sep=" ") if isinstance(value, dt.datetime) else value


def _text(statement: str) -> Any:
    from sqlalchemy import text

    return text(statement)
