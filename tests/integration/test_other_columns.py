"""Columns in files that are not declared: rescued, quarantined, or a reason to halt, as `on_schema` says."""

from __future__ import annotations

import datetime as dt
import gzip
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bad_inputs import Fate, copying, run, write
from harness import run_once
from pyarrow import orc

import drainmark as dm
from drainmark.jobs.errors import BadInput, Halted
from drainmark.orchestration.testing.running import Result
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark

SCHEMA = "k string, n int"
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC).replace(tzinfo=None)
UNREAD = "(not read: Spark has no such type)"
GIVEN: Mapping[int, Any] = {5: [1], 7: {"a": 1}}


def parquet(**columns: list[Any]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def as_orc(**columns: list[Any]) -> bytes:
    file = io.BytesIO()
    orc.write_table(pa.table(columns), file)
    return file.getvalue()


def small(*numbers: int) -> Any:
    return pa.array(numbers, pa.int32())


CSV: Mapping[str, bytes] = {
    "a.csv": b"k,n\na,1\nb,2\n",
    "b.csv": b'x,n,k,"y y"\n1,3,c,"q,\\"r\\""\n,4,d,\nz,none,e,1\n',
    "c.csv.gz": gzip.compress(b"k,n,x\nf,6,\xc3\xa9\n"),
    "d.csv": b"k,x\ng,1\n",
    "e.csv": b"k,n,K\nh,1,2\n",
    "f.csv": b"",
    "g.csv": b"k,n,source_file\ni,1,x\n",
}
JSON: Mapping[str, bytes] = {
    "a.json": b'{"k": "a", "n": 1}\n{"n": 2}\n',
    "b.json": b'{"k": "b", "x": 1.10, "y \\"y": {"z": [1, "2"] }, "n": 3}\n\n{"k": "c"}\n'
    b'{"k": "d", "n": "none", "x": 1}\n{"k": "e", "x": null, "v": "1"}\nnone\n{"k": "g", "x": null, "v" : null }\n',
    "c.json.gz": gzip.compress(b'{"x": 1e5, "k": "f"}\n{"x": 12345678901234567890123, "K": "g", "k": null}\n'),
    "d.json": b'{"x": 1}\n',
}
PARQUET: Mapping[str, bytes] = {
    "a": parquet(k=["a"], n=small(1)),
    "b": parquet(x=[1.5, None], k=["b", "c"], y=[["z"], None], n=small(2, 3)),
    "c": parquet(k=["d"], x=["other type"], n=small(4)),
    "d": parquet(k=["e"], x=["x"]),
    "e": parquet(k=["f"], n=small(5), u=pa.array([7], pa.uint16()), at=pa.array([123456], pa.timestamp("us"))),
    "f": parquet(k=["g"], n=small(6), at=pa.array([1], pa.time64("us")), on=pa.array([1], pa.timestamp("ns")), x=[1]),
    "g": parquet(k=["h", "i"], n=small(7, 8), **{
        f"c{number}": pa.array([value, None], kind)
        for number, (value, kind) in enumerate([
            (1, pa.time32("ms")), (1, pa.time64("us")), (1, pa.timestamp("ns", "UTC")), (1, pa.decimal256(50, 2)),
            ([1, None], pa.list_(pa.timestamp("ns"))), ([1], pa.list_(pa.uint64())),
            ({"a": 1, "b": None}, pa.struct([("a", pa.time64("us")), ("b", pa.uint8())])),
            ([("a", 1)], pa.map_(pa.string(), pa.uint32())),
        ])
    }),
    "h": parquet(
        k=["j"], n=small(9), u=pa.DictionaryArray.from_arrays(pa.array([0], pa.uint8()), pa.array(["x"])),
        cases=pa.array([{"a": 1, "A": 2}], pa.struct([("a", pa.int8()), ("A", pa.int8())])),
    ),
}  # fmt: skip
ORC = {
    "a": as_orc(k=["a"], n=small(1)),
    "b": as_orc(x=[1, None], k=["b", "c"], n=small(2, 3)),
    "c": as_orc(k=["d", "e"], n=small(4, 5), at=[NOON, None]),
    "d": as_orc(k=["f", "g"], n=small(6, 7), all=[[NOON], None]),
    "e": as_orc(k=["h"], n=small(8), at=[NOON.replace(year=1969, microsecond=1)], x=[1]),
}
RESCUED: Mapping[str, tuple[Mapping[str, bytes], dict[str, Any], Mapping[str, Any]]] = {
    "csv": (
        CSV,
        {"format": "csv", "options": {"header": "true"}},
        {
            "a.csv": [("a", 1, None), ("b", 2, None)],
            "b.csv": [("c", 3, '{"x":"1","y y":"q,\\"r\\""}'), ("d", 4, None)],
            "c.csv.gz": [("f", 6, '{"x":"é"}')],
            "d.csv": "has a header that differs from the declared columns; not declared: 'x'; missing: 'n'",
            "e.csv": "has a header that differs from the declared columns; twice: 'k'",
            "f.csv": [],
            "g.csv": "has a header that differs from the declared columns; not declared: 'source_file'",
        },
    ),
    "json": (
        JSON,
        {"format": "json"},
        {
            "a.json": [("a", 1, None), (None, 2, None)],
            "b.json": [
                ("b", 3, '{"x":1.10,"y \\"y":{"z": [1, "2"] }}'),
                ("c", None, None),
                ("e", None, '{"v":"1"}'),
                ("g", None, None),
            ],
            "c.json.gz": [("f", None, '{"x":1e5}'), (None, None, '{"x":12345678901234567890123,"K":"g"}')],
            "d.json": [(None, None, '{"x":1}')],
        },
    ),
    "parquet": (
        PARQUET,
        {"format": "parquet"},
        {
            "a": [("a", 1, None)],
            "b": [("b", 2, '{"x":1.5,"y":["z"]}'), ("c", 3, None)],
            "c": [("d", 4, '{"x":"other type"}')],
            "d": "has other columns than declared; missing: 'n'",
            "e": [("f", 5, '{"u":7,"at":"1970-01-01T00:00:00.123456"}')],
            "f": [("g", 6, json.dumps({"at": UNREAD, "on": UNREAD, "x": 1}, separators=(",", ":")))],
            "g": [
                (
                    "h",
                    7,
                    json.dumps({f"c{number}": GIVEN.get(number, UNREAD) for number in range(8)}, separators=(",", ":")),
                ),
                ("i", 8, None),
            ],
            "h": [("j", 9, json.dumps({"u": "x", "cases": UNREAD}, separators=(",", ":")))],
        },
    ),
    "csv of an output without files": (
        {"a.csv": CSV["a.csv"]},
        {"format": "csv", "options": {"header": "true"}, "outputs": {"copied": "*.csv", "others": "*.none"}},
        {"a.csv": [("a", 1, None), ("b", 2, None)]},
    ),
    "json of an output without files": (
        {"d.json": JSON["d.json"]},
        {"format": "json", "outputs": {"copied": "*.json", "others": "*.none"}},
        {"d.json": [(None, None, '{"x":1}')]},
    ),
    "orc": (
        ORC,
        {"format": "orc"},
        {
            "a": [("a", 1, None)],
            "b": [("b", 2, '{"x":1}'), ("c", 3, None)],
            "c": [("d", 4, '{"at":"2026-01-01T12:00:00.000000Z"}'), ("e", 5, None)],
            "d": [("f", 6, '{"all":["2026-01-01T12:00:00.000000Z"]}'), ("g", 7, None)],
            "e": [("h", 8, '{"at":"1969-01-01T12:00:00.000001Z","x":1}')],
        },
    ),
}


@pytest.fixture
def home(tmp_path: Path, engine: SparkEngine) -> Callable[..., Workplace]:
    """Return a function that makes a home of its own for each way of reading."""

    def made(name: str, **settings: Any) -> Workplace:
        place = Workplace(Settings(home=tmp_path / name, project_root=tmp_path, **settings))
        place.use_engine(engine)
        return place

    return made


def plain(fate: Fate) -> Any:
    if fate.refused is not None:
        return fate.refused
    return sorted(((row["k"], row["n"], row["_rescued"]) for row in fate.rows), key=repr)


SAMPLE = ("csv",)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in SAMPLE else pytest.mark.slow) for case in RESCUED]
)
def test_what_is_not_declared_is_rescued_as_it_stands_whichever_way_a_group_takes(
    home: Callable[..., Workplace], tmp_path: Path, case: str
) -> None:
    files, scan, expected = RESCUED[case]
    write(tmp_path / "inbox", files)
    is_cut = scan["format"] in ("csv", "json")
    ways: dict[str, dict[str, Any]] = {
        "small": {}, "by tasks": {"small_group_bytes": 0, **({"range_bytes": 16} if is_cut else {})}
    }  # fmt: skip
    found = {
        way: run(home(way, **settings), tmp_path / "inbox", schema=SCHEMA, on_schema="rescue", **scan)
        for way, settings in ways.items()
    }
    for fates in found.values():
        seen = {name: plain(fate) for name, fate in fates.items()}
        for name, wanted in expected.items():
            if isinstance(wanted, str):
                assert seen[name].startswith(wanted)
            else:
                assert seen[name] == sorted(wanted, key=repr)
    small, *others = [
        {name: [(row["position"], row["raw"], row["reason"]) for row in fate.bad] for name, fate in fates.items()}
        for fates in found.values()
    ]
    assert all(other == small for other in others)
    assert case != "csv" or small["b.csv"] == [(4, "z,none,e,1", "column 'n': 'none' is no int")]


def test_a_file_of_each_layout_and_a_comment_in_the_schema_cost_no_more_than_others(
    home: Callable[..., Workplace], tmp_path: Path
) -> None:
    """Twenty layouts that were joined one into the other took a minute; one more layout doubled the time."""
    files = {f"{number:02d}.csv": f"k,c{number},n\na,x,{number}\n".encode() for number in range(20)}
    write(tmp_path / "inbox", files)
    scan = {"format": "csv", "options": {"header": "true"}, "on_schema": "rescue"}
    found = run(home("many"), tmp_path / "inbox", schema=f"{SCHEMA} -- the number", **scan)
    assert {name: plain(fate) for name, fate in found.items()} == {
        f"{number:02d}.csv": [("a", number, f'{{"c{number}":"x"}}')] for number in range(20)
    }


REFUSED: Mapping[str, tuple[Mapping[str, bytes], dict[str, Any], Mapping[str, Any]]] = {
    "json": (
        {"a": JSON["a.json"], "b": b'{"k": "b", "x": 1}\n{"k": "c"}\n{"k": "d", "x": 1, "y": {"k": 1}}\n{"k": "e"}\n'},
        {"format": "json"},
        {1: "has fields that are not declared: 'x'", 3: "has fields that are not declared: 'x', 'y'"},
    ),
    "parquet": (
        {"a": PARQUET["a"], "b": PARQUET["b"]},
        {"format": "parquet"},
        {None: "has columns that are not declared: 'x', 'y'"},
    ),
    "orc": (ORC, {"format": "orc"}, {None: "has columns that are not declared: 'x'"}),
    "csv": (
        {"a": CSV["a.csv"], "b": b"k,n,x\na,1,2\n"},
        {"format": "csv", "options": {"header": "true"}},
        {None: "has a header that differs from the declared columns; not declared: 'x'"},
    ),
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case == "json" else pytest.mark.slow) for case in REFUSED],
)
def test_what_is_not_declared_is_quarantined_or_halts_with_file_and_columns(
    home: Callable[..., Workplace], tmp_path: Path, case: str
) -> None:
    files, scan, reasons = REFUSED[case]
    write(tmp_path / "inbox", files)
    by_tasks = home("by tasks", small_group_bytes=0)
    kept = run(by_tasks, tmp_path / "inbox", schema=SCHEMA, on_schema="quarantine", on_bad="halt", **scan)
    assert kept["a"].bad == []
    assert kept["b"].lines == reasons
    with pytest.raises(Halted) as caught:
        run_once(home("halting"), copying(tmp_path / "inbox", schema=SCHEMA, on_schema="halt", **scan))
    cause = caught.value.__cause__
    assert isinstance(cause, BadInput)
    assert str(tmp_path / "inbox" / "b") in cause.message
    assert next(iter(reasons.values())) in cause.message
    assert 'on_schema="rescue"' in (cause.remedy or "")


def test_left_out_further_fields_are_not_read(home: Callable[..., Workplace], tmp_path: Path) -> None:
    write(tmp_path / "inbox", {"b": REFUSED["json"][0]["b"]})
    found = run(home("plain"), tmp_path / "inbox", schema=SCHEMA, format="json")
    assert [set(row) for row in found["b"].rows] == [{"k", "n", "source_file"}] * 4


@pytest.mark.parametrize(
    "trigger",
    [{"trigger": "operator-driven"}, pytest.param({"trigger": "periodic", "period": 0}, marks=pytest.mark.slow)],
)
def test_slices_of_a_file_have_them_too(
    run_app: Callable[..., Result], tmp_path: Path, trigger: dict[str, Any]
) -> None:
    file = tmp_path / "log.csv"
    file.write_text("k,x,n\na,1,2\n")
    reads = dm.FileSource(path=str(file), format="csv", schema=SCHEMA, options={"header": "true"}, on_schema="rescue")

    def declare() -> None:
        @dm.consistent(**trigger)
        @dm.source(reads)
        def read(scanned: Any) -> Any:
            return scanned

        dm.sink(read, dm.DeltaAppend("copied"))

    result = run_app(declare)
    result.run()
    with file.open("a") as more:
        more.write("b,,3\n")
    result.run()
    found = sorted((row["k"], row["n"], row["_rescued"]) for row in result.sink("copied"))
    assert found == [("a", 2, '{"x":"1"}'), ("b", 3, None)]
