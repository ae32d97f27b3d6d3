"""ORC files: their rows, and why some files are quarantined whole."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bad_inputs import REGION, run, write
from harness import rows
from pyarrow import orc

import drainmark as dm
from drainmark.jobs.formats.format import formats
from drainmark.orchestration.testing.files import encoded
from drainmark.orchestration.workplace.workplace import Workplace

SCHEMA = "id bigint, name string, at timestamp, day date, price decimal(12,2), tags array<string>"
AT = dt.datetime(2026, 7, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
ROWS = [
    {"id": 1, "name": "ö", "at": AT, "day": dt.date(1500, 1, 1), "price": Decimal("1.25"), "tags": ["a", None]},
    {"id": None, "name": None, "at": None, "day": None, "price": None, "tags": None},
]
TYPES = pa.schema(
    [
        ("id", pa.int32()), ("name", pa.string()), ("at", pa.timestamp("us", "UTC")), ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)), ("tags", pa.list_(pa.string())), ("more", pa.int8()),
    ]
)  # fmt: skip


def file_of(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    orc.write_table(table, sink, **options)
    return bytes(sink.getvalue().to_pybytes())


GOOD = file_of(pa.Table.from_pylist(ROWS, schema=TYPES), compression="zstd")
MANY = file_of(pa.table({"id": range(5000), "name": [f"n{number}" for number in range(5000)]}), compression="zlib")
PLAIN = TYPES.remove(2).insert(2, pa.field("at", pa.timestamp("us")))


@pytest.mark.spark
def test_rows_come_as_they_were_written_and_bad_files_are_quarantined(workplace: Workplace, tmp_path: Path) -> None:
    early = AT.replace(year=1960)
    files = {
        "a.orc": GOOD,
        "b.orc": file_of(pa.Table.from_pylist([], schema=TYPES)),
        "cut.orc": GOOD[:-40],
        "empty.orc": b"",
        "lacks.orc": file_of(pa.Table.from_pylist(ROWS, schema=TYPES).drop_columns(["day"])),
        "other.orc": file_of(pa.Table.from_pylist([{"id": "x"}], schema=TYPES.set(0, pa.field("id", pa.string())))),
        "early.orc": file_of(pa.Table.from_pylist([{"at": early}], schema=TYPES)),
        "no zone.orc": file_of(pa.Table.from_pylist([{"at": AT.replace(tzinfo=None)}], schema=PLAIN)),
        "z.orc": GOOD,
    }
    write(tmp_path / "inbox", files)
    found = run(workplace, tmp_path / "inbox", format="orc", schema=SCHEMA)
    refused = {name: fate.refused for name, fate in found.items() if fate.refused}
    assert set(refused) == {"cut.orc", "empty.orc", "lacks.orc", "other.orc"}
    assert refused["lacks.orc"] == "has other columns than declared; missing: 'day'"
    assert refused["other.orc"] == "has other columns than declared; 'id' is string, not bigint"
    assert [row["at"] for row in found["early.orc"].rows] == [early]
    assert all(refused[name].startswith("is no ORC file that can be read: ") for name in ("cut.orc", "empty.orc"))
    for name in ("a.orc", "z.orc"):
        assert found[name].rows_in == len(ROWS)
        read = [{key: row[key] for key in ROWS[0]} for row in found[name].rows]
        assert sorted(read, key=lambda row: row["id"] is None) == ROWS
    assert [row["at"] for row in found["no zone.orc"].rows] == [AT]
    assert found["b.orc"].rows_in == 0
    assert not found["b.orc"].bad
    assert len(rows(workplace, REGION, "copied")) == 6


@pytest.mark.spark
def test_what_only_a_reader_finds_is_taken_out_and_the_others_are_read(workplace: Workplace, tmp_path: Path) -> None:
    workplace.settings = workplace.settings.model_copy(update={"small_group_bytes": 0})
    broken = MANY[:501] + bytes([MANY[501] ^ 0xFF]) + MANY[502:]
    write(tmp_path / "inbox", {f"{n}.orc": broken if n in (1, 3) else MANY for n in range(5)})
    found = run(workplace, tmp_path / "inbox", format="orc", schema="id bigint, name string")
    refused = {name: fate.refused for name, fate in found.items() if fate.refused}
    assert set(refused) == {"1.orc", "3.orc"}
    assert all(why.startswith("has stripes that cannot be read: ") for why in refused.values())
    assert all(len(fate.rows) == 5000 for fate in found.values() if not fate.refused)


@pytest.mark.spark
def test_what_spark_wrote_is_read(workplace: Workplace, engine: Any, tmp_path: Path) -> None:
    local = "timestamp_ntz'1500-07-01 12:00:00'"
    written = engine.session.sql(f"select timestamp'2026-07-01 12:00:00' at, {local} local, array({local}) all")
    written.coalesce(1).write.orc(str(tmp_path / "written"))
    (part,) = (tmp_path / "written").glob("*.orc")
    write(tmp_path / "inbox", {"a.orc": part.read_bytes()})
    found = run(
        workplace,
        tmp_path / "inbox",
        format="orc",
        schema="at timestamp, local timestamp_ntz, all array<timestamp_ntz>",
    )
    (row,) = found["a.orc"].rows
    local_time = AT.replace(year=1500, microsecond=0, tzinfo=None)
    assert (row["at"], row["local"], row["all"]) == (AT.replace(microsecond=0), local_time, [local_time])


@pytest.mark.spark
def test_the_kit_writes_rows(engine: Any, tmp_path: Path) -> None:
    scan = dm.DirectoryScan(path="x", format="orc", schema=SCHEMA)
    path = tmp_path / "a.orc"
    path.write_bytes(encoded(ROWS, scan, "a.orc"))
    assert orc.read_table(path)["name"].to_pylist() == ["ö", None]


def test_formats_are_found_by_their_files() -> None:
    assert set(formats()) == {"binary", "csv", "debezium", "json", "orc", "parquet", "text"}
