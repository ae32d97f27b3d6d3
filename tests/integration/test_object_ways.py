"""Objects of small groups go to the run's process, those of large groups to tasks; the tables are the same (H2)."""

from __future__ import annotations

import contextlib
import gzip
import io
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness import multiset, run_once
from integration.bad_inputs import QUARANTINE, REGION, copying
from integration.test_s3_input import Bucket, bucket, place

from drainmark.jobs.errors import Halted
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.workplace.workplace import Opened, Workplace
from drainmark.resources.storage.object_store import ObjectStore

__all__ = ["bucket", "place"]

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("s3_credentials")]

CSV = {
    "good": b"a,1\nb,2\n",
    "empty": b"",
    "misfit": b"a,1\nb,none\nc,3\n",
    "too many fields": b"a,1\nb,2,3\n\nc,4",
    "no utf-8": b"a,1\n\xff\xfe,2\nc,3\n",
    "nul": b"a,1\nb\0,2\n",
    "both": b"a,1\nb,none\nc\0,3\nd,4\ne,x\n",
    "quoted": b'"a,b",1\n"c",2\n"d""e",3\n',
    "open quote": b'"a,1\nb,2\n',
    "crlf": b"a,1\r\nb,2\r\n",
    "lone cr": b"a,1\rb,2\nc,3\n",
    "byte order mark": b"\xef\xbb\xbfa,1\nb,2\n",
    "too bad": b"x\ny\nz\na,1\n",
    "too bad by bytes": b"\xff\n\xff\n\xff\na,1\n",
    "packed.gz": gzip.compress(b"a,1\nb,none\n\xff,3\n"),
    "no gzip.gz": b"a,1\n",
}
JSON = {
    "good": b'{"a": "x", "n": 1}\n{"a": "y"}\n',
    "misfit": b'{"a": "x", "n": 1}\n{"a": "y", "n": "none"}\n',
    "broken": b'{"a": "x", "n": 1}\n{"a": \n{"n": 3}\n\n',
    "array": b'[{"a": "x"}, {"a": "y"}]\n{"n": 2}\n',
    "deep": b'{"a": "x", "n": ' + b"[" * 3000 + b"\n",
    "no utf-8": b'{"a": "\xff"}\n{"a": "z", "n": 5}\n',
}
TEXT = {
    "good": b"one\ntwo\n\nthree",
    "bad": b"one\n\xff\ntwo\n",
    "empty": b"",
    "crlf": b"a\r\nb\rc\n",
    "mark": b"\xef\xbb\xbfx\n",
}
COLUMNS = {
    "k": pa.array(["a", None, "é"]),
    "n": pa.array([1, None, -3], pa.int64()),
    "x": pa.array([0.5, -2.5, None]),
    "t": pa.array([0, 1_700_000_000_123_456, None], pa.timestamp("us", "UTC")),
    "l": pa.array([None, 1_700_000_000_123_456, 5], pa.timestamp("us")),
    "d": pa.array([0, 20_000, None], pa.date32()),
    "m": pa.array([Decimal("1.25"), None, Decimal("-0.01")], pa.decimal128(5, 2)),
    "b": pa.array([True, None, False]),
    "y": pa.array([b"\0", b"", None]),
}
PARQUET_SCHEMA = (
    "k string, n bigint, x double, t timestamp, l timestamp_ntz, d date, m decimal(5,2), b boolean, y binary"
)


def parquet(columns: Mapping[str, pa.Array], **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(dict(columns)), sink, **options)
    return sink.getvalue()


def miscounted() -> bytes:
    """Return a file that says it has a row more than its row groups have."""
    whole = parquet({name: pa.concat_arrays([column] * 25) for name, column in COLUMNS.items()})
    at = whole.index(b"\x16\x96\x01", len(whole) - 8 - int.from_bytes(whole[-8:-4], "little"))  # 75, as i64
    return whole[:at] + b"\x16\x98\x01" + whole[at + 3 :]


def damaged() -> bytes:
    """Return a file in which one page of the first column does not match its checksum."""
    options = {"use_dictionary": False, "compression": "none", "write_page_checksum": True}
    whole = parquet({**COLUMNS, "k": pa.array(["only here", "a", "b"])}, write_statistics=["t", "l", "d"], **options)
    assert whole.count(b"only here") == 1
    return whole.replace(b"only here", b"ONLY here")


PARQUET = {
    "good": parquet(COLUMNS),
    "reversed": parquet(dict(reversed(COLUMNS.items()))),
    "groups": parquet(COLUMNS, row_group_size=1),
    "no rows": parquet({name: column[:0] for name, column in COLUMNS.items()}),
    "further columns": parquet({**COLUMNS, "z": pa.array([1, 2, 3])}),
    "narrow": parquet({**COLUMNS, "n": pa.array([1, None, -3], pa.int32())}),
    "capitals": parquet({name.upper(): column for name, column in COLUMNS.items()}),
    "int96": parquet(COLUMNS, use_deprecated_int96_timestamps=True),
    "milliseconds": parquet({**COLUMNS, "t": COLUMNS["t"].cast(pa.timestamp("ms", "UTC"), safe=False)}),
    "without statistics": parquet(COLUMNS, write_statistics=False),
    "old": parquet({**COLUMNS, "d": pa.array([-200_000, 0, None], pa.date32())}),
}
NO_PARQUET = {
    "missing": parquet({name: column for name, column in COLUMNS.items() if name != "b"}),
    "text": b"k,n\na,1\n",
}
"""Files that cannot be read by their declaration."""

SAMPLE = ("outputs that are called as folders are", "csv with columns that are rescued")
"""Cases with several outputs, and with several layouts; the others are tested in ranges, and without runs."""

CASES: Mapping[str, tuple[Mapping[str, bytes], Mapping[str, Any]]] = {
    "csv": (CSV, {"format": "csv", "schema": "k string, n int"}),
    "csv with headers": (
        {
            **{name: b"k,n\n" + content for name, content in CSV.items() if not name.endswith(".gz")},
            "other": b"n,k\n1,a\n",
        },
        {"format": "csv", "schema": "k string, n int", "options": {"header": "true"}},
    ),
    "csv of odd types": (CSV, {"format": "csv", "schema": "`k é` string, n decimal(4,1)"}),
    "csv with options that are no texts": (
        {"good": b"k,n\na,1\nb,x\n"},
        {"format": "csv", "schema": "k string, n int", "options": {"header": True}},
    ),
    "csv of other marks": (
        {**CSV, "marks": b"# no row\n'a,b' ; 1\n- ;2\n"},
        {
            "format": "csv",
            "schema": "k string, n int",
            "options": {"sep": ";", "quote": "'", "comment": "#", "nullValue": "-", "ignoreLeadingWhiteSpace": "true"},
        },
    ),
    "outputs that are called as folders are": (
        {"a.csv": b"a,1\nb,none\n", "b.json": b'{"a": 1}\n{"a": "x"}\n'},
        {
            "format": "csv",
            "schema": {"rows": "k string, n int", "values": "k string"},
            "outputs": {"rows": "*.csv", "values": "*.json"},
        },
    ),
    "csv documents": (CSV, {"format": "csv", "schema": "k string, n int", "options": {"multiLine": "true"}}),
    "json": (JSON, {"format": "json", "schema": "a string, n int"}),
    "csv with columns that are rescued": (
        {
            "more.gz": gzip.compress(b"x,n,k\n1,2,a\n"),
            "fewer": b"x,k\n1,a\n",
            "other": b"n,k,y\n1,a,z\nx,b,\n",
            "no": b"\x1f\x8b",
        },
        {"format": "csv", "schema": "k string, n int", "options": {"header": "true"}, "on_schema": "rescue"},
    ),
    "json that is rescued": (JSON, {"format": "json", "schema": "n int", "on_schema": "rescue"}),
    "json that is not rescued": (JSON, {"format": "json", "schema": "n int", "on_schema": "quarantine"}),
    "json documents": (JSON, {"format": "json", "schema": "a string, n int", "options": {"multiLine": "true"}}),
    "text": (TEXT, {"format": "text"}),
    "whole texts": (TEXT, {"format": "text", "options": {"wholetext": "true"}}),
    "binary": (TEXT, {"format": "binary"}),
    "parquet": ({**PARQUET, **NO_PARQUET}, {"format": "parquet", "schema": PARQUET_SCHEMA}),
    "parquet with columns that are rescued": (
        {name: PARQUET[name] for name in ("good", "further columns", "groups")},
        {"format": "parquet", "schema": "k string, n bigint", "on_schema": "rescue"},
    ),
    "parquet of lists": (
        {"good": parquet({"k": pa.array([["a"], None])})},
        {"format": "parquet", "schema": "k array<string>"},
    ),
}


@pytest.mark.seed("DX6", "I9", "I11")
@pytest.mark.parametrize("case", SAMPLE)
def test_both_ways_leave_the_same_rows_places_and_quarantine(
    place: Callable[..., Workplace], bucket: Bucket, case: str
) -> None:
    require_same(place, bucket, *CASES[case])


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the objects that this process copies to its disk."""
    keys: list[str] = []
    fetch = ObjectStore.fetch

    def noted(store: ObjectStore, bucket: str, key: str, *rest: Any, **more: Any) -> Any:
        keys.append(key)
        return fetch(store, bucket, key, *rest, **more)

    monkeypatch.setattr(ObjectStore, "fetch", noted)
    return keys


@pytest.mark.seed("DX6")
def test_objects_of_large_groups_do_not_come_to_this_machine(
    place: Callable[..., Workplace], bucket: Bucket, copied: list[str]
) -> None:
    bucket.store.put(bucket.address, "in/a", b"a,1\nb,none\n")
    scan = {"format": "csv", "schema": "k string, n int"}
    run_once(place("tasks", small_group_bytes=0), copying(bucket.uri, **scan))
    assert not copied
    run_once(place("here"), copying(bucket.uri, **scan))
    assert copied == ["in/a"]


@pytest.mark.seed("DX6")
def test_parquet_objects_are_read_by_tasks(place: Callable[..., Workplace], bucket: Bucket, copied: list[str]) -> None:
    """They never come to this machine; a damaged object is quarantined, with all its rows."""
    for name, content in {**PARQUET, "damaged": damaged(), "miscounted": miscounted()}.items():
        bucket.store.put(bucket.address, f"in/{name}", content)
    scan = {"format": "parquet", "schema": PARQUET_SCHEMA}
    home = place("tasks", small_group_bytes=0)
    run_once(home, copying(bucket.uri, **scan))
    assert not copied
    assert home.store(REGION).table("lake/copied").read().num_rows == 3 * (len(PARQUET) - 1)
    bad = home.store(REGION).table(f"lake/{QUARANTINE}").read().to_pylist()
    reasons = {row["source_file"].rpartition("/")[2]: row["reason"] for row in bad}
    assert reasons.keys() == {"damaged", "miscounted"}
    assert "pages that cannot be read" in reasons["damaged"]
    assert "has 76 rows by its footer, and 75 of them in its row groups" in reasons["miscounted"]


@pytest.mark.seed("I2", "D16")
@pytest.mark.parametrize("becomes", [b"c,3\n", None], ids=["another", "nothing"])
def test_an_object_that_is_no_longer_what_was_scanned_is_not_read(
    place: Callable[..., Workplace], bucket: Bucket, becomes: bytes | None
) -> None:
    """Tasks find it out by its ETag; it costs no attempt."""
    for name in ("a", "b"):
        bucket.store.put(bucket.address, f"in/{name}", b"a,1\n")
    home = place(small_group_bytes=0)
    application = copying(bucket.uri, format="csv", schema="k string, n int")
    scan_region(home, application.region())
    if becomes is None:
        bucket.delete("a")
    else:
        bucket.store.put(bucket.address, "in/a", becomes)
    with contextlib.suppress(Halted):  # an operator must decide about a file that is gone
        run_once(home, application, scan=False)
    run = contextlib.nullcontext() if becomes else pytest.raises(Halted, match="gone")
    with run:
        run_once(home, application)
    found = sorted((row["k"], row["n"]) for row in home.store(REGION).table("lake/copied").read().to_pylist())
    assert found == ([("a", 1), ("c", 3)] if becomes else [])
    assert home.history(REGION).attempts == 0


def scanned_period(place: Callable[..., Workplace], bucket: Bucket) -> tuple[Workplace, Opened]:
    """Scan three objects of a period, for an application that skips missing ones; its groups go by tasks."""
    for name in ("a", "b", "c"):
        bucket.store.put(bucket.address, f"in/{name}", f"{name},1\n".encode())
    home = place(small_group_bytes=0)
    application = copying(bucket.uri, "periodic", format="csv", schema="k string, n int", on_missing="skip")
    scan_region(home, application.region())
    return home, application


@pytest.mark.seed("I5")
def test_an_object_of_a_period_that_is_gone_is_skipped_where_the_source_says_so(
    place: Callable[..., Workplace], bucket: Bucket
) -> None:
    """The object is in the middle of the period: the ids of those behind it do not change."""
    home, application = scanned_period(place, bucket)
    bucket.delete("b")
    run_once(home, application, scan=False)
    assert sorted(row["k"] for row in home.store(REGION).table("lake/copied").read().to_pylist()) == ["a", "c"]
    assert home.history(REGION).attempts == 0


@pytest.mark.seed("I5")
def test_an_object_of_which_the_scanned_version_is_left_is_not_skipped(
    place: Callable[..., Workplace], bucket: Bucket
) -> None:
    """Tasks read that version, as the run's process does in a small group."""
    bucket.keep_versions()
    home, application = scanned_period(place, bucket)
    bucket.delete("a")
    bucket.store.put(bucket.address, "in/b", b"b,2\n")
    run_once(home, application, scan=False)
    found = sorted((row["k"], row["n"]) for row in home.store(REGION).table("lake/copied").read().to_pylist())
    assert found == [("a", 1), ("b", 1), ("c", 1)]


def require_same(
    place: Callable[..., Workplace], bucket: Bucket, files: Mapping[str, bytes], scan: Mapping[str, Any]
) -> None:
    for name, content in files.items():
        bucket.store.put(bucket.address, f"in/{name}", content)
    left = []
    for home in (place("here"), place("tasks", small_group_bytes=0)):
        run_once(home, copying(bucket.uri, **scan))
        table, history = home.store(REGION).table(f"lake/{QUARANTINE}"), home.history(REGION)
        left.append(
            {
                "rows": [
                    multiset(home.store(REGION).table(f"lake/{output}").read().to_pylist())
                    for output in scan.get("outputs") or ("copied",)
                ],
                "bad": multiset(table.read().to_pylist()) if table.exists() else [],
                "rows in": {number: state.rows_in for number, state in history.states.items()},
            }
        )
    for what, found in left[0].items():
        assert left[1][what] == found, what
