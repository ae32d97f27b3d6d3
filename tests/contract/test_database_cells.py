"""Cells of real databases become values exactly, or their row is bad; no Spark. The docs' tables are the cases."""

from __future__ import annotations

import datetime as dt
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from nobody import ROOT
from pyspark.sql import types as T

import drainmark as dm
from drainmark.jobs.errors import StoreRefused
from drainmark.jobs.formats.byte_records import BAD, RAW
from drainmark.jobs.operators.sources.cell_values import CellReader, refusal
from drainmark.jobs.operators.sources.slices import SliceLimit
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.inputs.source_access import RegionAccess
from drainmark.resources.settings import Settings

PAGE = (ROOT / "docs" / "how-to" / "databases.md").read_text()
KINDS: dict[str, T.DataType] = {
    "string": T.StringType(), "binary": T.BinaryType(), "boolean": T.BooleanType(), "double": T.DoubleType(),
    "int": T.IntegerType(), "bigint": T.LongType(), "date": T.DateType(), "timestamp": T.TimestampType(),
    "timestamp_ntz": T.TimestampNTZType(), "decimal(10,1)": T.DecimalType(10, 1), "decimal(10,2)": T.DecimalType(10, 2),
}  # fmt: skip
QUERY = "select id, v from cells where id > :after and id <= :upto order by id"


def lines(heading: str) -> list[list[str]]:
    """Return the cells of the lines of a table of the page."""
    text = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [line[1:-1].split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]


def code(cell: str) -> str:
    return cell.strip().removeprefix("`").removesuffix("`")


@contextmanager
def reaching(url: str, tmp_path: Path) -> Iterator[RegionAccess]:
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path, databases={"here": url}))
    yield place.access("app/s")
    place.registry.close()


def cells(access: RegionAccess, *columns: tuple[str, str], query: str = QUERY, rows: int = 100) -> list[dict[str, Any]]:
    source = dm.DatabaseSource("here", query, schema="-", rows=rows)
    piece = source.next_slice(None, access, SliceLimit(source="s"))
    assert piece is not None
    reader = CellReader(tuple((name, KINDS[kind]) for name, kind in columns))
    return [row for batch in reader(source.read(piece, access)) for row in batch.to_pylist()]


def read(url: str, tmp_path: Path, *columns: tuple[str, str], **more: Any) -> list[dict[str, Any]]:
    with reaching(url, tmp_path) as access:
        return cells(access, *columns, **more)


@pytest.fixture(scope="module")
def postgres(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any]]:
    """Yield a database with the types of the page, in UTC: its URL and an engine."""
    from postgres import empty_database

    given = sa.make_url(empty_database(request)).set(drivername="postgresql+psycopg")
    engine = sa.create_engine(given, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in (
            f"alter database {given.database} set timezone to 'UTC'",
            f"alter database {given.database} set lc_monetary to 'C'",
            "create type mood as enum ('ok', 'sad')",
            "create type pair as (a int, b text)",
            "create domain price as numeric check (value > 0)",
        ):
            connection.execute(sa.text(statement))
    engine.dispose()
    yield given.render_as_string(hide_password=False), engine
    engine.dispose()


def fill(engine: Any, kind: str, value: str) -> None:
    with engine.connect() as connection:
        connection.exec_driver_sql("drop table if exists cells")
        connection.exec_driver_sql(f"create table cells (id bigint, v {kind})")
        connection.exec_driver_sql(f"insert into cells values (7, {value})")  # noqa: S608


def types_of(cell: str) -> list[str]:
    return re.findall(r"`([^`]*)`", cell)[:1] if cell.strip().startswith("a") else re.findall(r"`([^`]*)`", cell)


def is_there(engine: Any, extension: str) -> bool:
    with engine.connect() as connection:
        known = sa.text("select 1 from pg_available_extensions where name = :name")
        if connection.execute(known, {"name": extension}).scalar() is None:
            return False
        connection.exec_driver_sql(f"create extension if not exists {extension}")
        return True


def fault(row: dict[str, Any], wanted: str) -> str | None:
    """Return what a row is, if it is not as the page says."""
    if wanted.strip() == "bad":
        is_told = str(row[BAD]).startswith("the row with id 7: column 'v': ") and '{"id": "7", "v": ' in str(row[RAW])
        return None if is_told else str(row)
    return None if (row[BAD], row[RAW], str(row["v"])) == (None, None, code(wanted)) else str(row)


@pytest.mark.seed("B03")
def test_postgresql_gives_what_the_page_says(postgres: tuple[str, Any], tmp_path: Path) -> None:
    url, engine = postgres
    found, tried = {}, 0
    with reaching(url, tmp_path) as access:
        for types, column, value, wanted in lines("PostgreSQL"):
            for kind in types_of(types):
                if kind in ("hstore", "citext") and not is_there(engine, kind):
                    continue
                fill(engine, kind, code(value))
                (row,) = cells(access, ("id", "bigint"), ("v", code(column)))
                tried += 1
                if (other := fault(row, wanted)) is not None:
                    found[kind, column, value] = other
    assert found == {}
    assert tried > 80


@pytest.mark.seed("B03")
def test_sqlite_gives_what_the_page_says(tmp_path: Path) -> None:
    found = {}
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'x.db'}", isolation_level="AUTOCOMMIT")
    with reaching(f"sqlite:///{tmp_path / 'x.db'}", tmp_path) as access:
        for value, column, wanted in lines("SQLite"):
            fill(engine, "", code(value))
            (row,) = cells(access, ("id", "bigint"), ("v", code(column)))
            if (other := fault(row, wanted)) is not None:
                found[value, column] = other
    engine.dispose()
    assert found == {}
    assert len(lines("SQLite")) > 20


def test_good_rows_beside_bad_ones_are_read(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "x.db") as connection:
        connection.execute("create table cells (id integer, v, w)")
        connection.executemany("insert into cells values (?, ?, ?)", [(1, 1, 2), (2, "x", b"\xff"), (3, None, 4)])
    query = QUERY.replace("v from", "v, w from")
    found = read(f"sqlite:///{tmp_path / 'x.db'}", tmp_path, ("v", "int"), ("w", "string"), query=query)
    assert [(row["v"], row["w"]) for row in found if row[BAD] is None] == [(1, "2"), (None, "4")]
    assert "column 'v': 'x' is no int" in found[1][BAD]
    assert "column 'w': b'\\xff' are bytes, and no text in UTF-8" in found[1][BAD]
    assert found[1][RAW] == '{"id": "2", "v": "x", "w": "\\\\xff"}'


def test_local_times_of_places_before_zones_are_read(postgres: tuple[str, Any], tmp_path: Path) -> None:
    url, engine = postgres
    fill(engine, "timestamptz", "'1800-01-01 12:00:00+00'")
    there = sa.make_url(url).update_query_dict({"options": "-c TimeZone=Europe/Berlin"})
    (row,) = read(there.render_as_string(hide_password=False), tmp_path, ("v", "timestamp"))
    assert (row[BAD], str(row["v"])) == (None, "1800-01-01 12:00:00+00:00")


def test_settings_of_the_server_change_no_value(postgres: tuple[str, Any], tmp_path: Path) -> None:
    url, engine = postgres
    fill(engine, "timestamptz", "'2026-02-01 12:00:00+00'")
    others = "-c TimeZone=Pacific/Chatham -c DateStyle=SQL,DMY -c extra_float_digits=-5 -c bytea_output=escape"
    there = sa.make_url(url).update_query_dict({"options": others}).render_as_string(hide_password=False)
    columns = ("v", "timestamp"), ("f", "double"), ("b", "binary"), ("day", "date")
    more = r"v, cast(0.1 as float8) + 0.2 as f, cast('\x00ff' as bytea) as b, cast('02/01/2026' as date) as day from"
    (row,) = read(there, tmp_path, *columns, query=QUERY.replace("v from", more))
    assert (row[BAD], str(row["v"]), row["f"]) == (None, "2026-02-01 12:00:00+00:00", 0.1 + 0.2)
    assert (row["b"], str(row["day"])) == (b"\x00\xff", "2026-01-02"), "the query is read as the server reads it"


def test_odd_names_are_read_and_columns_of_one_name_left_out(postgres: tuple[str, Any], tmp_path: Path) -> None:
    url, engine = postgres
    fill(engine, "int", "1")
    query = QUERY.replace("v from", 'v as "a ""b""\\:c%", v as d, 2 as d from')
    (row,) = read(url, tmp_path, ('a "b":c%', "int"), ("d", "int"), query=query)
    assert (row['a "b":c%'], "d" in row) == (1, False)


@pytest.mark.parametrize(
    "kind",
    [T.ArrayType(T.IntegerType()), T.MapType(T.StringType(), T.StringType()), T.StructType(), T.DayTimeIntervalType()],
)
def test_types_that_no_cell_has_are_refused(kind: T.DataType) -> None:
    assert "column 'v'" in (refusal([("id", T.LongType()), ("v", kind)]) or "")


def test_the_order_is_that_of_the_query(postgres: tuple[str, Any], tmp_path: Path) -> None:
    url, engine = postgres
    fill(engine, "int", "1")
    with engine.connect() as connection:
        connection.exec_driver_sql(
            "insert into cells select mod(n * 7919, 20000), n from generate_series(1, 20000) as n"
        )
    assert (ids := [row["id"] for row in read(url, tmp_path, ("id", "int"), rows=10**6)]) == sorted(ids)
    assert len(ids) == 20_000


@pytest.mark.parametrize(
    "case",
    [
        ("timestamp", "'infinity'",
         "select id, v from cells where v > :after and v <= :upto and isfinite(v) order by v",
         dt.datetime.fromisoformat("2020-01-01")),
        ("uuid", "'f0000000-0000-4000-8000-000000000001'",
         "select id, cast(v as text) as v from cells where cast(v as text) > :after and cast(v as text) <= :upto"
         " order by 2", ""),
    ],
)  # fmt: skip
def test_a_cursor_of_another_type_is_refused_with_its_name_and_the_remedy_works(
    postgres: tuple[str, Any], tmp_path: Path, case: tuple[str, str, str, Any]
) -> None:
    (url, engine), (kind, value, finite, start) = postgres, case
    fill(engine, kind, value)
    query = "select id, v from cells where v > :after and v <= :upto order by v"
    source = partial(dm.DatabaseSource, "here", cursor="v", schema="-", start=start)
    with reaching(url, tmp_path) as access:
        with pytest.raises(StoreRefused, match="cursor 'v'"):
            source(query=query).next_slice(None, access, SliceLimit(source="s"))
        if kind == "timestamp":
            with engine.connect() as connection:
                connection.exec_driver_sql("insert into cells values (8, '2026-01-01')")
        piece = source(query=finite).next_slice(None, access, SliceLimit(source="s"))
        assert piece is not None
        assert piece.facts["rows"] == 1
