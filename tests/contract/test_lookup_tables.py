"""Lookup tables in a bucket: this process reads small ones, tasks read large ones (DX2)."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from drainmark.jobs.errors import DrainmarkError
from drainmark.jobs.errors.spark_faults import environment_fault
from drainmark.resources.delta import lookup_tables
from drainmark.resources.delta.lookup_tables import LookupTables, StoredTable
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine
from drainmark.resources.storage.bucket_folder import BucketFolder

pytestmark = pytest.mark.spark

COLUMNS = {
    "k": pa.array(["a", "b", None, "d"]),
    "n": pa.array([1, None, 3, 4], pa.int64()),
    "x": pa.array([0.5, 1.5, None, -2.0]),
    "at": pa.array([dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC), None, None, None], pa.timestamp("us", "UTC")),
    "local": pa.array([None, 1_767_323_045_000_006, None, None], pa.timestamp("us")),
    "price": pa.array([Decimal("1.25"), None, Decimal("0.01"), None], pa.decimal128(9, 2)),
    "tags": pa.array([["x"], [], None, ["y", None]]),
    "day": pa.array([dt.date(2026, 1, 1), None, dt.date(2026, 1, 1), dt.date(2026, 2, 1)]),
    "part": pa.array([7, 7, 8, None], pa.int32()),
    "is_new": pa.array([True, False, True, None]),
    "kind": pa.array(["a b", "é%20", None, "x/y:z"]),
}
PARTITIONS = ["day", "part", "is_new", "kind"]


@pytest.fixture
def tables(s3_place: BucketFolder, s3_server: str, tmp_path: Path) -> LookupTables:
    settings = Settings(home=tmp_path, project_root=tmp_path, s3_endpoint_url=s3_server)
    return LookupTables(settings, s3_place)


def found(tables: LookupTables, engine: SparkEngine, name: str, version: int | None = None) -> list[Any]:
    rows = tables.read(engine.session, name, version).toArrow().select(list(COLUMNS)).to_pylist()
    return sorted(rows, key=str)


@pytest.mark.seed("DX2")
@pytest.mark.parametrize(
    "most", [pytest.param(1 << 30, marks=pytest.mark.slow, id="here"), pytest.param(-1, id="by tasks")]
)  # fmt: skip
def test_the_rows_are_those_of_the_version_asked_for(
    tables: LookupTables, s3_place: BucketFolder, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(lookup_tables, "KEPT_BYTES", most)
    monkeypatch.setattr(lookup_tables, "_SHARE_BYTES", 700)
    target, rows = s3_place / "lake/names", pa.table(COLUMNS)
    write_deltalake(target.uri, rows, partition_by=PARTITIONS, storage_options=target.storage_options())
    expected = sorted(rows.to_pylist(), key=str)
    assert tables.version("names") == 0
    write_deltalake(target.uri, rows.slice(1, 2), mode="overwrite", storage_options=target.storage_options())
    assert found(tables, engine, "names") == sorted(rows.slice(1, 2).to_pylist(), key=str)
    assert found(tables, engine, "names", 0) == expected
    assert (tables._kept["names"][2] is None) == (most < 0), "rows of a large table are in this process"


@pytest.mark.parametrize("most", [1 << 30, -1], ids=["here", "by tasks"])
def test_a_file_that_is_gone_is_named(
    tables: LookupTables, s3_place: BucketFolder, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """The missing file fails each attempt of the operator that looks it up; it does not count as a missing trigger."""
    monkeypatch.setattr(lookup_tables, "KEPT_BYTES", most)
    target = s3_place / "lake/names"
    write_deltalake(target.uri, pa.table({"k": ["a"]}), storage_options=target.storage_options())
    (file,) = StoredTable.of(target, 0).files
    target.remove([file.path])
    with pytest.raises(Exception, match=f"names cannot be looked up: .*{file.path} is gone") as raised:
        tables.read(engine.session, "names", 0).toArrow()
    assert not isinstance(raised.value, DrainmarkError)
    assert environment_fault(raised.value) is None


def test_rows_of_a_large_table_are_not_broadcast(
    tables: LookupTables, s3_place: BucketFolder, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_tables, "KEPT_BYTES", -1)
    target = s3_place / "lake/names"
    write_deltalake(target.uri, pa.table({"k": ["a"], "n": [1]}), storage_options=target.storage_options())
    orders = engine.session.createDataFrame([("a",), ("b",)], "k string")
    names = tables.read(engine.session, "names", 0).where("n > 0").select("k", "n")
    joined = orders.join(names, "k", "left")
    assert sorted(joined.toArrow().to_pylist(), key=str) == [{"k": "a", "n": 1}, {"k": "b", "n": None}]
    plan = joined._jdf.queryExecution().executedPlan().toString() if hasattr(joined, "_jdf") else ""
    assert "SortMergeJoin" in plan
    assert "Broadcast" not in plan
