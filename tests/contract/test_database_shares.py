"""Shares of a slice of a `DatabaseSource`: one after the other, they have the rows of the slice; no Spark."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from postgres import PostgresServer

import drainmark as dm
from drainmark.jobs.operators.sources import database_source
from drainmark.jobs.operators.sources.slices import Slice, SliceLimit
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.inputs.source_access import RegionAccess
from drainmark.resources.settings import Settings

OURS = SimpleNamespace(is_ours=True, see=lambda folder: True)
OTHERS = SimpleNamespace(is_ours=False, see=lambda folder: False)
DAY = dt.datetime.fromisoformat("2026-01-01 00:00:00")
CURSORS: dict[str, tuple[Any, Any, list[Any]]] = {
    "numbers": (sa.BigInteger(), 0, [1, 2, 2, 2, 5, 8, 8, 13, 21, 21]),
    "texts": (sa.Text(), "", ["A", "B", "a", "a", "aa", "b", "z", "\u00e9", "\u00e9", "\u4e2d"]),
    "times": (sa.DateTime(), DAY, [DAY + dt.timedelta(seconds=n / 4) for n in (1, 2, 2, 3, 4, 5, 8, 8, 9, 12)]),
}
"""Type, value before the first row, and the values of ten rows."""


@pytest.fixture(params=["sqlite", "postgresql"])
def access(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RegionAccess]:
    (tmp_path / "rows.db").touch()  # a source makes no file
    url = f"sqlite:///{tmp_path / 'rows.db'}"
    if request.param == "postgresql":
        given = sa.make_url(request.getfixturevalue("postgres_url")).set(drivername="postgresql+psycopg")
        url = given.render_as_string(hide_password=False)
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path, databases={"here": url}))
    yield place.access("app/s")
    place.registry.close()


def filled(access: RegionAccess, kind: str) -> dm.DatabaseSource:
    column, start, values = CURSORS[kind]
    table = sa.Table("kept", sa.MetaData(), sa.Column("at", column), sa.Column("n", sa.BigInteger()))
    with access.database("here").begin() as connection:
        table.create(connection)
        connection.execute(table.insert(), [{"at": value, "n": n} for n, value in enumerate(values)])
    query = "select n, at from kept where at > :after and at <= :upto order by at, n"
    return dm.DatabaseSource("here", query, cursor="at", schema="n bigint, at string", start=start)


def rows(source: dm.DatabaseSource, access: RegionAccess, *pieces: Slice) -> list[int]:
    return [int(n) for piece in pieces for batch in source.read(piece, access) for n in batch.column("n").to_pylist()]


class Number(IntEnum):
    FIRST = 0


def test_a_start_of_a_kind_of_whole_number_has_a_largest_value(access: RegionAccess) -> None:
    source = replace(filled(access, "numbers"), start=Number.FIRST)
    whole = replace(source, query=source.query.replace("at <= :upto", ":upto >= at"))
    piece = whole.next_slice(None, access, SliceLimit(source="s"))
    assert piece is not None
    assert rows(whole, access, piece) == list(range(10))


@pytest.mark.parametrize("kind", CURSORS)
def test_shares_of_any_size_have_the_rows_of_the_slice_in_their_order(access: RegionAccess, kind: str) -> None:
    source = filled(access, kind)
    whole = source.next_slice(None, access, SliceLimit(source="s"))
    assert whole is not None
    expected = rows(source, access, whole)
    assert sorted(expected) == list(range(10))
    for size, at_least in ((1, 6), (2, 4), (3, 3), (9, 1), (10, 1), (100, 1)):
        shares = source.shares(whole, access, share_bytes=size * database_source._ROW_BYTES, workers=OURS)
        assert shares is not None
        assert (shares[0].start, shares[-1].end) == (whole.start, whole.end)
        assert rows(source, access, *shares) == expected, size
        assert at_least <= len(shares) <= max(1, 10 // size) + 1, size
        assert size < 10 or len(shares) == 1


def test_only_workers_of_this_machine_read_its_files(access: RegionAccess) -> None:
    source = filled(access, "numbers")
    whole = source.next_slice(None, access, SliceLimit(source="s"))
    assert whole is not None
    shares = source.shares(whole, access, share_bytes=1, workers=OTHERS)
    assert (shares is None) == (access.database("here").dialect.name == "sqlite")


TOGETHER = (
    "select min(n) as n, at from kept where at > :after and at <= :upto group by at order by at",
    "select count(*) over () as n, at from kept where at > :after and at <= :upto order by at",
    "select distinct n, at from kept where at > :after and at <= :upto order by at, n",
    "with found as (select * from kept where at > :after and at <= :upto)\n"
    "select (select count(*) from found) as n, at from found order by at",
    "select (select count(*) from kept as k where k.at > :after and k.at <= kept.at) as n, at from kept"
    " where at > :after and at <= :upto order by at",
    "select n, at from kept where at > :after and at <= :upto union all select -1, max(at) from kept order by at, n",
    "select n, at from kept where at > :after and at <= :upto order by at desc, n",
    "select n, at from kept where at > :after and at <= :upto order by n desc, at",
)
"""Queries that give other rows, or another order, for the parts of a range than for the whole range."""


def test_a_range_is_one_share_where_its_rows_may_depend_on_each_other(access: RegionAccess) -> None:
    cut = filled(access, "numbers")
    for query in TOGETHER:
        source = replace(cut, query=query)
        whole = source.next_slice(None, access, SliceLimit(source="s"))
        assert whole is not None
        shares = source.shares(whole, access, share_bytes=database_source._ROW_BYTES, workers=OURS)
        assert shares is not None
        assert [(each.start, each.end) for each in shares] == [(whole.start, whole.end)], query
        assert rows(source, access, *shares) == rows(source, access, whole)
    for order in ("AT", "kept.at ASC , n", '"at",n;', "at\n"):
        query = f"select n, at from kept where at > :after\nand at <= :upto Order  By {order}"  # noqa: S608
        shares = replace(cut, query=query).shares(whole, access, share_bytes=database_source._ROW_BYTES, workers=OURS)
        assert len(shares or ()) > 5, order


WORDS = ["apple", "Apple", "banana", "b-2", "\u00e9clair", "Zebra", "zebra", "\u4e2d", "\U0001f600"]


@pytest.mark.parametrize("rows_at_once", [1, 2, 100])
def test_texts_are_read_in_the_order_of_the_databases_locale(
    postgres_server: PostgresServer, tmp_path: Path, rows_at_once: int
) -> None:
    """No text sorts last in every locale: in that of the United States, U+10FFFF comes before all of these words."""
    url = sa.make_url(postgres_server.new_database(locale="en_US.UTF-8")).set(drivername="postgresql+psycopg")
    settings = Settings(
        home=tmp_path / "home", project_root=tmp_path,
        databases={"here": url.render_as_string(hide_password=False)},
    )  # fmt: skip
    place = Workplace(settings)
    access = place.access("app/s")
    table = sa.Table("kept", sa.MetaData(), sa.Column("at", sa.Text()), sa.Column("n", sa.BigInteger()))
    with access.database("here").begin() as connection:
        table.create(connection)
        connection.execute(table.insert(), [{"at": word, "n": n} for n, word in enumerate(WORDS)])
        ordered = connection.execute(sa.text("select n from kept order by at")).scalars().all()
    query = "select n, at from kept where at > :after and at <= :upto order by at"
    source = dm.DatabaseSource("here", query, cursor="at", schema="n bigint, at string", start="", rows=rows_at_once)
    pieces: list[Slice] = []
    while (piece := source.next_slice(pieces[-1].end if pieces else None, access, SliceLimit(source="s"))) is not None:
        pieces.append(piece)
    place.registry.close()
    assert rows(source, access, *pieces) == ordered != sorted(ordered)


@pytest.mark.parametrize("kind", CURSORS)
@pytest.mark.seed("B14")
def test_rows_that_come_later_with_the_last_cursor_are_told_once(access: RegionAccess, kind: str) -> None:
    source, (_, _, values) = filled(access, kind), CURSORS[kind]
    (first,) = found(source, access, None)
    assert source.remark(first, 10) is None
    assert found(source, access, first.end) == [], "nothing came"
    add(access, values[-1], values[-1])
    (told,) = found(source, access, first.end)
    assert rows(source, access, told) == []
    assert (source.remark(told, 0) or "").startswith("2 rows with a at above ")
    assert source.label(told, "s", access) != source.label(first, "s", access)
    assert sorted(rows(source, access, first)) == [*range(10), 10, 10], "a reset reads them"
    add(access, values[-1])
    (again,) = found(source, access, told.end)
    assert (source.remark(again, 0) or "").startswith("1 rows with a at above ")


def test_the_next_rows_bring_the_remark_along(access: RegionAccess) -> None:
    source = filled(access, "numbers")
    (first,) = found(source, access, None)
    add(access, 21, 22)
    (second,) = found(source, access, first.end)
    assert rows(source, access, second) == [10]
    assert (source.remark(second, 1) or "").startswith("1 rows with a at above 13 and up to 21 came after")


def test_rows_without_a_cursor_are_told_when_their_number_grows(access: RegionAccess) -> None:
    source = filled(access, "numbers")
    add(access, None, None)
    (first,) = found(source, access, None)
    assert source.remark(first, 10) == "2 rows have no at, and are never read"
    add(access, 22)
    (second,) = found(source, access, first.end)
    assert source.remark(second, 1) is None
    add(access, None, 23)
    (third,) = found(source, access, second.end)
    assert source.remark(third, 1) == "3 rows have no at, and are never read"


def add(access: RegionAccess, *values: Any) -> None:
    with access.database("here").begin() as connection:
        table = sa.Table("kept", sa.MetaData(), autoload_with=connection)
        connection.execute(table.insert(), [{"at": value, "n": 10} for value in values])


def found(source: dm.DatabaseSource, access: RegionAccess, after: Any) -> list[Slice]:
    """Return all slices after a position, which the registry has kept as JSON."""
    pieces: list[Slice] = []
    after = after and json.loads(json.dumps(after))
    while (piece := source.next_slice(after, access, SliceLimit(source="s"))) is not None:
        pieces.append(piece)
        after = json.loads(json.dumps(piece.end))
    return pieces
