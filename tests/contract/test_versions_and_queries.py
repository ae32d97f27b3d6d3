"""`TableSource` on real Delta tables, `DatabaseSource` on a real database; no Spark (V144)."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from deltalake import DeltaTable, write_deltalake
from ports import free_ports

import drainmark as dm
from drainmark.jobs.errors import InputChanged, InputMissing, StoreRefused, StoreUnavailable, UnknownName, UsageError
from drainmark.jobs.errors.environment import ClusterRefused
from drainmark.jobs.frames.origins import ORIGIN
from drainmark.jobs.operators.sources import table_log, table_rows
from drainmark.jobs.operators.sources.contract import RowSlices
from drainmark.jobs.operators.sources.slices import Position, Slice, SliceLimit
from drainmark.jobs.tasks.parquet_shares import constant_of
from drainmark.jobs.tasks.places import BucketPlace
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.delta.lookup_tables import LookupTables
from drainmark.resources.inputs.source_access import RegionAccess
from drainmark.resources.settings import Settings
from drainmark.resources.sinks.databases import url_of
from drainmark.resources.storage.folder import LocalFolder
from drainmark.resources.storage.object_store import ObjectStore

NOWHERE: Any = None
"""The reach of a task that reads a table: it needs nothing but the share."""
ONE = SliceLimit(source="s")
TICK = SliceLimit(source="s", is_periodic=True)
QUERY = "select id, name from people where id > :after and id <= :upto order by id"


@pytest.fixture
def access(tmp_path: Path) -> Iterator[RegionAccess]:
    settings = Settings(
        home=tmp_path / "home", project_root=tmp_path,
        databases={"here": f"sqlite:///{tmp_path / 'people.db'}"},
        registry_url=f"sqlite:///{tmp_path / 'registry.db'}",
    )  # fmt: skip
    place = Workplace(settings)
    yield place.access("app/s")
    place.registry.close()


def slices(
    source: RowSlices, access: RegionAccess, after: Position | None = None, cut: SliceLimit = ONE
) -> list[Slice]:
    found: list[Slice] = []
    while (piece := source.next_slice(after, access, cut)) is not None:
        found.append(piece)
        after = json.loads(json.dumps(piece.end))  # as the registry gives it back
    return found


def values(source: RowSlices, access: RegionAccess, piece: Slice, column: str) -> list[Any]:
    found = [value for batch in source.read(piece, access) for value in batch.column(column).to_pylist()]
    is_number = isinstance(source, dm.DatabaseSource) and column in ("id", "n")  # its cells are texts
    return [float(value) for value in found] if is_number else found


# --- versions -----------------------------------------------------------------------------------------------------


def table_of(access: RegionAccess, *parts: list[int], **options: Any) -> Path:
    path = access.settings.home / "lake" / "orders"
    for numbers in parts:
        write_deltalake(str(path), pa.table({"n": numbers, "p": ["x" if n % 2 else "y" for n in numbers]}),
                        mode="append", **options)  # fmt: skip
    return path


@pytest.mark.parametrize("partitions", [None, ["p"]])
def test_each_version_is_what_it_added(access: RegionAccess, partitions: list[str] | None) -> None:
    path = table_of(access, [1, 2], [3], partition_by=partitions)
    source = dm.TableSource("orders")
    found = slices(source, access)
    assert [piece.end["version"] for piece in found] == [0, 1]
    assert [sorted(values(source, access, piece, "n")) for piece in found] == [[1, 2], [3]]
    assert sorted(values(source, access, found[0], "p")) == ["x", "y"]
    assert source.label(found[1], "s", access) == "delta:orders#1"
    DeltaTable(str(path)).optimize.compact()
    assert slices(source, access, found[1].end) == [], "compaction adds no rows"
    table_of(access, [4], partition_by=partitions)
    (later,) = slices(source, access, found[1].end)
    assert (later.end["version"], values(source, access, later, "n")) == (3, [4])
    assert sorted(values(source, access, found[0], "n")) == [1, 2], "a version is read again from its own files"


@pytest.mark.parametrize("sees", [True, False])
def test_workers_read_the_files_of_a_table_that_they_see(access: RegionAccess, sees: bool) -> None:
    """Shares of any size have the rows of the slice, in their order."""
    path = table_of(access, list(range(20)), [20], [21, 22], partition_by=["p"])
    source, asked = dm.TableSource("orders"), []

    def see(folder: Path) -> bool:
        asked.append(folder)
        return sees

    (whole,) = slices(source, access, cut=TICK)
    workers = SimpleNamespace(is_ours=False, see=see)
    for size in (1, 2000, 10**6):
        shares = source.shares(whole, access, share_bytes=size, workers=workers)
        if not sees:
            assert shares is None
            continue
        found = [n for share in shares or () for n in values(source, access, share, "n")]
        assert found == values(source, access, whole, "n")
        assert len(shares or ()) >= (5 if size < 2000 else 1)
    assert set(asked) == {path}


@pytest.mark.usefixtures("s3_credentials")
def test_workers_read_the_files_of_a_table_in_a_bucket_by_themselves(access: RegionAccess, s3_server: str) -> None:
    bucket = f"s3://{uuid.uuid4().hex[:12]}"
    store = ObjectStore(s3_server)
    store.connection.client.create_bucket(Bucket=bucket.removeprefix("s3://"))
    there = replace(access, settings=access.settings.model_copy(update={"s3_endpoint_url": s3_server}))
    folder = there.table(f"{bucket}/stock")
    for numbers in ([3, 1], [2]):
        write_deltalake(folder.uri, pa.table({"n": numbers}), mode="append", storage_options=folder.storage_options())
    source = dm.TableSource(folder.uri)
    (whole,) = slices(source, there, cut=TICK)
    workers = SimpleNamespace(is_ours=False, see=lambda path: False)
    (share,) = source.shares(whole, there, share_bytes=10**6, workers=workers) or ()
    assert [n for batch in source.read(share, NOWHERE) for n in batch.column("n").to_pylist()] == [3, 1, 2]
    keys = [found.key for page in store.pages(bucket, "stock/") for found in page]
    store.delete(bucket, [key for key in keys if key.endswith(".parquet")])
    with pytest.raises(InputMissing, match=r"version 0 of .* cannot be read any more: its file .* is gone"):
        list(source.read(share, NOWHERE))
    with pytest.raises(InputMissing, match=r"version 0 of .* cannot be read any more: its file .* is gone"):
        list(source.read(whole, there))
    with pytest.raises(StoreUnavailable, match="s3://"):
        list(source.read(away(share), NOWHERE))
    store.delete(bucket, [key for key in keys if key.endswith(f"{1:020d}.json")])
    with pytest.raises(InputMissing, match=r"version 1 of .* cannot be read any more: its log entry is gone"):
        source.check(whole, there, "stock")


def away(share: Slice) -> Slice:
    """Return the share with a bucket that does not answer."""
    assert isinstance(share, table_log.FilesSlice)
    assert isinstance(share.share.place, BucketPlace)
    (port,) = free_ports(1)
    nowhere = replace(share.share.place.bucket, server=f"http://127.0.0.1:{port}")
    place = replace(share.share.place, bucket=nowhere)
    return replace(share, share=replace(share.share, place=place))


def test_a_sink_of_another_region_is_read_without_its_tags(access: RegionAccess) -> None:
    rows = pa.table({"n": [1, 2], "source_file": ["a", "b"], "_sequence_id": [7, 8]})
    write_deltalake(str(access.settings.home / "lake" / "orders"), rows)
    source = dm.TableSource("orders")
    (whole,) = slices(source, access)
    assert source.columns(access).names == ["n"]
    assert [batch.schema.names for batch in source.read(whole, access)] == [["n", ORIGIN]]
    assert [origin["id"] for origin in values(source, access, whole, ORIGIN)] == [7, 8]
    assert values(source, access, whole, "n") == [1, 2]


@pytest.mark.parametrize(
    "values_of_p",
    [
        pa.array(["a%20b", "100%25", "x y", "\u00fc/1", "a+b", None]),
        pa.array([dt.datetime(2026, 1, 1, 1, 2, 3, 4, tzinfo=dt.UTC), None], pa.timestamp("us", tz="UTC")),
        pa.array([1_767_229_323_000_004], pa.timestamp("us")),
        pa.array([dt.date(2026, 1, 1)]),
        pa.array([Decimal("1.50")]),
        pa.array([True, False]),
        pa.array([-1], pa.int8()),
    ],
    ids=lambda values: str(values.type),
)
def test_the_value_of_a_partition_is_what_it_was(access: RegionAccess, values_of_p: pa.Array) -> None:
    path, numbers = access.settings.home / "lake" / "orders", pa.array(range(len(values_of_p)))
    write_deltalake(str(path), pa.table({"p": values_of_p, "n": numbers}), partition_by=["p"])
    source = dm.TableSource("orders")
    (whole,) = slices(source, access)
    found = dict(zip(values(source, access, whole, "n"), values(source, access, whole, "p"), strict=True))
    assert [found[number] for number in sorted(found)] == values_of_p.to_pylist()


def test_a_time_without_a_zone_in_the_log_is_one_of_utc() -> None:
    """Older versions of Spark's writer wrote it so."""
    kind = pa.timestamp("us", tz="UTC")
    moment = dt.datetime(2026, 1, 1, 1, 2, 3, tzinfo=dt.UTC)
    for text in ("2026-01-01 01:02:03", "2026-01-01T01:02:03.000000Z", "2026-01-01 01:02:03.0"):
        assert constant_of(text, kind).as_py() == moment


def test_a_tick_takes_all_versions_and_a_bounded_one_as_many_as_fit(access: RegionAccess) -> None:
    table_of(access, [1], [2], [3])
    source = dm.TableSource("orders", starting_version=1)
    (everything,) = slices(source, access, cut=TICK)
    assert sorted(values(source, access, everything, "n")) == [2, 3]
    bounded = slices(source, access, cut=SliceLimit(source="s", is_periodic=True, max_bytes=1))
    assert [piece.end["version"] for piece in bounded] == [1, 2]


@pytest.mark.parametrize("reason", ["age", "number"])
@pytest.mark.parametrize("cut", [ONE, TICK], ids=["one", "tick"])
def test_versions_without_rows_are_remembered_before_the_log_forgets_them(
    access: RegionAccess, monkeypatch: pytest.MonkeyPatch, cut: SliceLimit, reason: str
) -> None:
    path = table_of(access, [1])
    source = dm.TableSource("orders")
    (first,) = slices(source, access, cut=cut)
    for days in range(1, 4):
        properties = {"delta.deletedFileRetentionDuration": f"interval {days} days"}
        DeltaTable(str(path)).alter.set_table_properties(properties)
    assert slices(source, access, first.end, cut) == [], "no trigger for each of them"
    if reason == "number":
        monkeypatch.setattr(table_log, "_REMEMBERED_VERSIONS", 3)
    else:
        later = time.time() + 3601
        monkeypatch.setattr(table_rows.time, "time", lambda: later)
    (empty,) = slices(source, access, first.end, cut)
    assert (empty.end["version"], empty.size_bytes, values(source, access, empty, "n")) == (3, 0, [])
    DeltaTable(str(path)).create_checkpoint()
    for version in range(3):
        (path / "_delta_log" / f"{version:020d}.json").unlink()
    table_of(access, [2])
    (more,) = slices(source, access, empty.end, cut)
    assert values(source, access, more, "n") == [2]
    source.check(empty, access, "s")
    assert values(source, access, empty, "n") == [], "a replay needs nothing of it"


def test_a_version_that_rewrites_rows_halts_or_is_passed_over(access: RegionAccess) -> None:
    path = table_of(access, [1, 2])
    DeltaTable(str(path)).delete("n = 1")
    table_of(access, [5])
    first = dm.TableSource("orders").next_slice(None, access, TICK)
    assert first is not None
    assert first.end["version"] == 0, "what comes before is taken first"
    with pytest.raises(InputChanged) as caught:
        dm.TableSource("orders").next_slice(first.end, access, TICK)
    assert "version 1" in caught.value.message
    assert 'on_change="ignore"' in (caught.value.remedy or "")
    lenient = dm.TableSource("orders", on_change="ignore")
    found = slices(lenient, access)
    assert [piece.end["version"] for piece in found] == [0, 2]
    assert values(lenient, access, found[1], "n") == [5]


@pytest.mark.parametrize("place", ["a name", "a path", "a bucket"])
def test_a_table_that_is_not_there_is_told_with_the_nearest(
    access: RegionAccess, tmp_path: Path, place: str, request: pytest.FixtureRequest
) -> None:
    """A name below the lake, however deep; a path, and an address, beside the tables of its folder."""
    parent, there = {"a name": "", "a path": f"{tmp_path}/home/lake/", "a bucket": ""}[place], access
    if place == "a bucket":
        server = request.getfixturevalue("s3_server")
        request.getfixturevalue("s3_credentials")
        store = ObjectStore(server)
        store.connection.client.create_bucket(Bucket=(bucket := f"b{uuid.uuid4().hex[:10]}"))
        there = replace(access, settings=access.settings.model_copy(update={"s3_endpoint_url": server}))
        parent = f"s3://{bucket}/some/"
        options = there.table(f"{parent}orders").storage_options()
        for name in ("orders", "stock"):
            write_deltalake(f"{parent}{name}", pa.table({"n": [1]}), storage_options=options)
    else:
        for name in ("orders", "stock"):
            write_deltalake(str(tmp_path / "home" / "lake" / name), pa.table({"n": [1]}))
    for name, said in ((f"{parent}oders", f"did you mean '{parent}orders'?"),
                       (f"{parent}xxx", f"known: {parent}orders, {parent}stock")):  # fmt: skip
        with pytest.raises(UnknownName) as caught:
            dm.TableSource(name).next_slice(None, there, ONE)
        assert name in caught.value.message
        assert (caught.value.remedy or "").startswith(f"{said}; or make it first")
    assert dm.TableSource(f"{parent}orders").next_slice(None, there, ONE) is not None


def test_a_lookup_finds_its_table_by_any_address(tmp_path: Path) -> None:
    """Where only Spark can look, Spark tells whether there is a table."""
    home = tmp_path / "home"
    write_deltalake(str(home / "lake" / "orders"), pa.table({"n": [1]}))
    tables = LookupTables(Settings(home=home, project_root=tmp_path), LocalFolder(home))
    for parent in ("", f"{home}/lake/", f"file://{home}/lake/"):
        assert tables.is_made(f"{parent}orders")
        assert not tables.is_made(f"{parent}oders")
        said = tables.missing(f"{parent}oders")
        assert (said.remedy or "").startswith(f"did you mean '{parent}orders'?")
    assert tables.is_made("hdfs://node/orders")
    assert (tables.missing("s3://bucket").remedy or "").startswith("make it first"), "nothing is beside a bucket"


def test_a_table_in_a_lake_without_any_is_to_be_made_first(access: RegionAccess) -> None:
    with pytest.raises(UnknownName) as caught:
        dm.TableSource("orders").next_slice(None, access, ONE)
    assert (caught.value.remedy or "").startswith("make it first")


def test_what_was_vacuumed_or_never_was_is_named(access: RegionAccess) -> None:
    source = dm.TableSource("orders")
    with pytest.raises(UsageError):
        source.next_slice(None, access, ONE)
    path = table_of(access, [1], [2])
    first, second = slices(source, access)
    for file in path.glob("*.parquet"):
        file.unlink()
    with pytest.raises(InputMissing):
        list(source.read(first, access))
    (path / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(InputMissing) as caught:
        list(source.read(second, access))
    assert "version 1" in caught.value.message


def test_another_table_under_the_same_name_is_found(access: RegionAccess) -> None:
    path = table_of(access, [1])
    source = dm.TableSource("orders")
    (first,) = slices(source, access)
    shutil.rmtree(path)
    table_of(access, [1], [2])
    with pytest.raises(InputChanged):
        slices(source, access, first.end)
    with pytest.raises(InputChanged, match="another table now"):
        list(source.read(first, access))
    with pytest.raises(InputChanged, match="another table now"):
        source.shares(first, access, share_bytes=10, workers=SimpleNamespace(is_ours=False, see=lambda path: True))


def test_a_worker_that_does_not_find_what_the_run_saw_is_no_loss(access: RegionAccess) -> None:
    path = table_of(access, [1])
    source = dm.TableSource("orders")
    (whole,) = slices(source, access)
    workers = SimpleNamespace(is_ours=False, see=lambda folder: True)
    (share,) = source.shares(whole, access, share_bytes=10**6, workers=workers) or ()
    for file in path.glob("*.parquet"):
        file.unlink()
    with pytest.raises(ClusterRefused, match=r"a worker does not find .* of orders"):
        list(source.read(share, NOWHERE))
    with pytest.raises(InputMissing, match=r"its file .* is gone"):
        source.shares(whole, access, share_bytes=10**6, workers=workers)


# --- queries ------------------------------------------------------------------------------------------------------


def people(access: RegionAccess, *ids: int) -> None:
    with sqlite3.connect(access.settings.project_root / "people.db") as connection:
        connection.execute("create table if not exists people (id integer, name text)")
        connection.executemany("insert into people values (?, ?)", [(n, f"p{n}") for n in ids])


def test_ranges_of_the_cursor_lie_one_behind_the_other(access: RegionAccess) -> None:
    source = dm.DatabaseSource("here", QUERY, schema="id bigint, name string", rows=2)
    people(access)
    assert slices(source, access) == []
    people(access, 1, 2, 3, 5, 5, 5, 6)
    found = slices(source, access)
    assert [piece.end["upto"] for piece in found] == [2, 5, 6]
    assert [piece.facts["rows"] for piece in found] == [2, 4, 1], "rows of one cursor value stay together"
    assert [values(source, access, piece, "id") for piece in found] == [[1, 2], [3, 5, 5, 5], [6]]
    assert source.label(found[1], "s", access) == "query:s#2..5"
    (whole,) = slices(source, access, cut=TICK)
    assert whole.end["upto"] == 6


@pytest.mark.parametrize("path", ["people.db", "{home}/../people.db", "{absolute}/people.db"])
def test_sources_and_sinks_find_the_same_file_wherever_a_process_works(
    access: RegionAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """A relative path counts from the project's root for both; neither makes a file elsewhere."""
    access.settings.home.mkdir(exist_ok=True)
    people(access, 1, 2)
    url = f"sqlite:///{path.replace('{absolute}', str(tmp_path))}"
    settings = access.settings.model_copy(update={"databases": {"here": url}})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    source = dm.DatabaseSource("here", QUERY, schema="id bigint, name string")
    (piece,) = slices(source, replace(access, settings=settings))
    assert piece.facts["rows"] == 2
    assert Path(url_of(settings, "here").database or "").samefile(tmp_path / "people.db")
    assert not list(elsewhere.iterdir())


def test_a_range_that_has_other_rows_when_it_is_read_is_remarked(access: RegionAccess) -> None:
    source = dm.DatabaseSource("here", QUERY, schema="id bigint, name string")
    people(access, 1, 3)
    (piece,) = slices(source, access)
    people(access, 2)
    assert values(source, access, piece, "id") == [1, 2, 3]
    assert source.remark(piece, 2) is None
    assert source.remark(piece, 3) == "2 rows were found, and 3 when they were read"


def test_times_and_texts_are_cursors_too(access: RegionAccess) -> None:
    with sqlite3.connect(access.settings.project_root / "people.db") as connection:
        connection.execute("create table seen (at text, name text)")
        moments = [("2026-01-01 10:00:00", "a"), ("2026-01-02 10:00:00.5", "b"), ("2026-01-03 00:00:00", "c")]
        connection.executemany("insert into seen values (?, ?)", moments)
    query = "select at, name from seen where at > :after and at <= :upto order by at"
    for start in ("", "2026-01-01 12:00:00"):
        source = dm.DatabaseSource("here", query, cursor="at", schema="at string, name string", rows=1, start=start)
        names = [values(source, access, piece, "name") for piece in slices(source, access)]
        assert names == [["a"], ["b"], ["c"]][1 if start else 0 :]


def moments(access: RegionAccess, *seconds: float) -> Any:
    """Write times as SQLAlchemy does, to the microsecond; return the engine of the database."""
    sqlite3.connect(access.settings.project_root / "people.db").close()  # a source makes no file
    engine = access.database("here")
    table = sa.Table("moments", sa.MetaData(), sa.Column("at", sa.DateTime), sa.Column("n", sa.Double))
    with engine.begin() as connection:
        table.create(connection, checkfirst=True)
        first = dt.datetime.fromisoformat("2026-01-01 00:00:00")
        connection.execute(table.insert(), [{"at": first + dt.timedelta(seconds=n), "n": n} for n in seconds])
    return engine


def timed(**further: Any) -> dm.DatabaseSource:
    query = "select at, n from moments where at > :after and at <= :upto order by at"
    start = dt.datetime.fromisoformat("2020-01-01")
    return dm.DatabaseSource("here", query, cursor="at", schema="at string, n double", start=start, **further)


@pytest.mark.parametrize("rows", [1, 2, 100])
def test_whole_seconds_of_a_text_are_got_past(access: RegionAccess, rows: int) -> None:
    """SQLite has no times: the text of a time with ".000000" comes after that without, so a time is bound unchanged."""
    source = timed(rows=rows)
    moments(access, 0, 1, 1.5, 2)
    found = slices(source, access)
    assert [n for piece in found for n in values(source, access, piece, "n")] == [0, 1, 1.5, 2]
    assert all(piece.facts["rows"] for piece in found)
    moments(access, 2.25, 3)
    later = slices(source, access, json.loads(json.dumps(found[-1].end)))
    assert [n for piece in later for n in values(source, access, piece, "n")] == [2.25, 3]
    former = {"upto": "2026-01-01 00:00:02"}  # as earlier versions wrote it: no slice had the row at this bound yet
    assert [n for piece in slices(source, access, former) for n in values(source, access, piece, "n")] == [2, 2.25, 3]


def test_a_cursor_that_is_given_otherwise_than_compared_halts(access: RegionAccess) -> None:
    query = "select n, name from halves where n > :after and n <= :upto order by n"
    source = dm.DatabaseSource("here", query, cursor="n", schema="n double, name string")
    with sqlite3.connect(access.settings.project_root / "people.db") as connection:
        connection.execute("create table halves (n real, name text)")
        connection.execute("insert into halves values (1.0, 'a')")
    (first,) = slices(source, access)
    with sqlite3.connect(access.settings.project_root / "people.db") as connection:
        connection.execute("insert into halves values (1.5, 'b')")
    with pytest.raises(InputChanged) as caught:
        source.next_slice(first.end, access, ONE)
    assert caught.value.remedy


@pytest.mark.parametrize("value", ["'5'", "'abc'", "2.5", "9e999", "x'ff'"])
def test_a_cursor_that_is_no_whole_number_halts(access: RegionAccess, value: str) -> None:
    """SQLite's columns hold any value. For it, each text is above each number: the source would look idle."""
    source = dm.DatabaseSource("here", QUERY.replace("people", "texts"), schema="id bigint, name string")
    with sqlite3.connect(access.settings.project_root / "people.db") as connection:
        connection.execute("create table texts (id, name text)")
        connection.execute(f"insert into texts values (1, 'a'), ({value}, 'b')")  # noqa: S608
    with pytest.raises(InputChanged, match="which is no whole number") as caught:
        source.next_slice(None, access, ONE)
    assert caught.value.remedy


def test_a_cursor_that_is_no_time_halts(access: RegionAccess) -> None:
    moments(access, 0).dispose()
    with sqlite3.connect(access.settings.project_root / "people.db") as connection:
        connection.execute("insert into moments values (x'ff', 1.0)")
    with pytest.raises(InputChanged, match="which is no time"):
        timed().next_slice(None, access, ONE)


@pytest.mark.parametrize("start", ["", dt.datetime.fromisoformat("2020-01-01")])
def test_a_start_of_another_kind_does_not_go_on_behind_what_was_read(access: RegionAccess, start: Any) -> None:
    """For SQLite each text is above the number up to which was read: all rows would come once more."""
    people(access, 1, 2)
    (piece,) = slices(dm.DatabaseSource("here", QUERY, schema="id bigint, name string"), access)
    query = "select id, name from people where name > :after and name <= :upto order by name"
    other = dm.DatabaseSource("here", query, cursor="name", schema="id bigint, name string", start=start)
    with pytest.raises(InputChanged, match="read up to 2, which is no cursor") as caught:
        other.next_slice(piece.end, access, ONE)
    assert "a new name of the source" in str(caught.value.remedy)


def test_a_query_may_end_with_a_comment_and_write_its_columns_in_capitals(access: RegionAccess) -> None:
    query = "select id as ID, name from people where id > :after and id <= :upto order by id -- the newest last"
    people(access, 1, 2)
    source = dm.DatabaseSource("here", query, schema="id bigint, name string")
    (piece,) = slices(source, access)
    assert values(source, access, piece, "ID") == ["1", "2"]


def test_a_query_that_has_no_plain_upper_bound_is_asked_up_to_the_last_number(access: RegionAccess) -> None:
    query = "select id, name from people where id > :after and not id > :upto order by id"
    people(access, 1, 2, 3)
    found = slices(dm.DatabaseSource("here", query, schema="id bigint, name string", rows=2), access)
    assert [piece.end["upto"] for piece in found] == [2, 3]


def test_no_address_is_in_the_code_the_fingerprint_or_a_message(access: RegionAccess) -> None:
    rules = {rule for rule, _, _ in dm.DatabaseSource("sqlite:///x", QUERY, schema="id int").problems("periodic")}
    assert rules == {"DATABASE_URL"}
    source = dm.DatabaseSource("there", QUERY, schema="id bigint")
    assert str(access.settings.project_root) not in json.dumps(source.fingerprint())
    with pytest.raises(UsageError) as caught:
        source.next_slice(None, access, ONE)
    assert "there" in caught.value.message
    assert "people.db" not in f"{caught.value} {access.settings!r}"


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"query": "select id from people"}, "QUERY"),
        ({"query": f"{QUERY}, :other"}, "QUERY"),
        ({"query": QUERY.replace("where", "where name <> ' :b' and")}, "QUERY"),
        ({"schema": ""}, "SCHEMA_MISSING"),
        ({"cursor": "id; drop table people"}, "CURSOR"),
        ({"rows": 0}, "QUERY_ROWS"),
        ({"start": 1.5}, "START"),
        ({"query": "select id from people where id > :after and not id > :upto", "start": ""}, "QUERY"),
    ],
)
def test_what_does_not_fit_a_query_is_refused(change: dict[str, Any], rule: str) -> None:
    arguments = {"database": "here", "query": QUERY, "schema": "id bigint", **change}
    assert rule in {found for found, _, _ in dm.DatabaseSource(**arguments).problems("periodic")}


def test_a_time_as_start_is_a_time_again_after_the_registry() -> None:
    source = dm.DatabaseSource("here", QUERY, schema="id bigint", start=dt.datetime.fromisoformat("2026-01-01"))
    assert source._value({"upto": "2026-01-02 10:00:00.500000"}) == dt.datetime.fromisoformat("2026-01-02 10:00:00.5")


def test_a_file_that_is_not_there_is_named_and_not_made(access: RegionAccess) -> None:
    file = access.settings.project_root / "people.db"
    with pytest.raises(StoreUnavailable, match=f"there is no database {file}"):
        dm.DatabaseSource("here", query=QUERY, schema="id bigint").next_slice(None, access, ONE)
    assert not file.exists()


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (QUERY.replace("people", "peple"), "no such table: peple"),
        (QUERY.replace("name", "nme", 1), "no such column: nme"),
        (QUERY.replace("where", "wher"), "syntax error"),
        (QUERY.replace("name", "upper_(name)", 1), "no such function: upper_"),
    ],
)
def test_a_query_that_the_database_refuses_is_not_waited_for(access: RegionAccess, query: str, said: str) -> None:
    people(access, 1, 2)
    source = dm.DatabaseSource("here", query=query, schema="id bigint, name string")
    with pytest.raises(StoreRefused, match=rf"'here' refuses.*{said}") as raised:
        slices(source, access)
    assert "correct the query" in (raised.value.remedy or "")
    assert "registry" not in str(raised.value)


def test_a_database_that_another_program_locks_is_waited_for(access: RegionAccess) -> None:
    people(access, 1, 2)
    source = dm.DatabaseSource("here", query=QUERY, schema="id bigint, name string")
    file = access.settings.project_root / "people.db"
    access.settings.databases["here"] = f"sqlite:///{file}?timeout=0.1"
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnavailable, match=r"'here' does not answer.*locked"):
            source.next_slice(None, access, ONE)
    assert len(slices(source, access)) == 1
