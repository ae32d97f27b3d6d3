"""Large files are read by ranges, from a folder and from a bucket; the tables equal those of a whole read (H2)."""

from __future__ import annotations

import bz2
import gzip
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harness import multiset, run_once
from integration import test_bad_input_corpora as corpora
from integration.bad_inputs import QUARANTINE, REGION, copying, write
from integration.test_object_ways import CASES
from integration.test_s3_input import Bucket, bucket, place

from drainmark.orchestration.workplace.workplace import Workplace

__all__ = ["bucket", "place"]

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("s3_credentials")]

IN_RANGES = {"small_group_bytes": 0, "range_bytes": 5}
STORES = ("folder", "bucket")
SAMPLE = (("csv with headers", "folder"), ("plain", "bucket"), ("compressed csv", "bucket"))
"""The cases of the default run."""


def left_by(home: Workplace, inbox: Path | str, scan: Mapping[str, Any]) -> Mapping[str, Any]:
    """Run the files of an inbox through a region that copies them, and return its tables and its counts of rows."""
    run_once(home, copying(inbox, **scan))
    table, history = home.store(REGION).table(f"lake/{QUARANTINE}"), home.history(REGION)
    outputs = [home.store(REGION).table(f"lake/{output}").read() for output in scan.get("outputs") or ("copied",)]
    return {
        "rows": [named_by_files(rows.to_pylist()) for rows in outputs],
        "bad": named_by_files(table.read().to_pylist() if table.exists() else []),
        "rows in": {number: state.rows_in for number, state in history.states.items()},
    }


def named_by_files(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    return multiset([{**row, "source_file": row["source_file"].rpartition("/")[2]} for row in rows])


def differing(one: Any, other: Any) -> list[str]:
    """Return the rows that only one of two results has, as text for a failed test."""
    texts = [Counter(map(repr, found[0] if found and isinstance(found[0], list) else found)) for found in (one, other)]
    return [*(f"- {text}" for text in texts[0] - texts[1]), *(f"+ {text}" for text in texts[1] - texts[0])]


def in_stores(*cases: str) -> list[Any]:
    """Return each case with each store; it is slow if it is not in the sample."""
    each = ((case, store) for case in cases for store in STORES)
    return [pytest.param(*one, id="-".join(one), marks=() if one in SAMPLE else pytest.mark.slow) for one in each]


@dataclass(frozen=True)
class Twice:
    """Two reads of the same files: whole from a folder, and by ranges from that folder or from a bucket."""

    place: Callable[..., Workplace]
    bucket: Bucket
    folder: Path

    def require_same(self, store: str, files: Mapping[str, bytes], scan: Mapping[str, Any]) -> None:
        write(self.folder, files)
        for name, content in files.items():
            self.bucket.store.put(self.bucket.address, f"in/{name}", content)
        wanted = left_by(self.place("whole"), self.folder, scan)
        inbox = self.folder if store == "folder" else self.bucket.uri
        found = left_by(self.place("ranges", **IN_RANGES), inbox, scan)
        for what, value in wanted.items():
            if found[what] != value:
                pytest.fail("\n".join([f"{what}, ranges of {inbox}:", *differing(value, found[what])]))


@pytest.fixture
def twice(place: Callable[..., Workplace], bucket: Bucket, tmp_path: Path) -> Twice:
    return Twice(place, bucket, tmp_path / "inbox")


@pytest.mark.seed("DX6", "I9", "I11")
@pytest.mark.parametrize(
    ("case", "store"), in_stores(*(case for case in CASES if case not in ("binary", "whole texts")))
)
def test_ranges_leave_the_rows_places_and_quarantine_of_whole_files(twice: Twice, case: str, store: str) -> None:
    twice.require_same(store, *CASES[case])


FRAGMENTS = {
    "csv": (b"a", "é".encode(), b"1", b"-7", b"x", b",", b",", b",", b" ", b'"', b'""', b"\\", b"\xff", b"\0"),
    "json": (
        *(b'{"k": "a", "n": 1}', b'{"k": "b"}', b'{"n": 2}', b"{", b"}", b'"k"', b":", b'"x"', b",", b"[]", b"null"),
        *(b'{"n": "none"}', b" ", b"1", "é".encode(), b"\xff", b"\0"),
    ),
    "text": (b"a", b" ", "é".encode(), b"\t", b"\xff", b"\0", b"\xef\xbb\xbf"),
}
GOOD = {"csv": b"a,1\n", "json": b'{"k": "a", "n": 1}\n', "text": b"one\n"}
ENDS = (b"\n", b"\n", b"\n", b"\r\n", b"\r", b"")


def random_file(chance: random.Random, form: str) -> bytes:
    """Return a mix of good lines and random lines."""
    lines = []
    for _ in range(chance.randrange(8)):
        odd = b"".join(chance.choices(FRAGMENTS[form], k=chance.randrange(7))) + chance.choice(ENDS)
        lines.append(chance.choice((GOOD[form], GOOD[form], odd)))
    return b"".join(lines)


@pytest.mark.seed("DX6", "I9", "I11")
@pytest.mark.parametrize(
    ("form", "store", "seed"),
    [
        pytest.param(form, store, seed, marks=() if (form, store, seed) == ("csv", "bucket", 0) else pytest.mark.slow)
        for form in FRAGMENTS
        for store in STORES
        for seed in range(3)
    ],
)
def test_files_of_anything_leave_the_same_by_ranges(twice: Twice, form: str, store: str, seed: int) -> None:
    chance = random.Random(f"{form} {seed}")
    files = {f"{number:03d}": random_file(chance, form) for number in range(30)}
    schema = {} if form == "text" else {"schema": "k string, n int"}
    twice.require_same(store, files, {"format": form, "max_bad_ratio": 1.0, **schema})


@pytest.mark.seed("DX6", "I9", "I11")
@pytest.mark.parametrize(("case", "store"), in_stores(*(f"compressed {form}" for form in FRAGMENTS)))
def test_compressed_files_leave_the_same_piece_by_piece(twice: Twice, case: str, store: str) -> None:
    form = case.removeprefix("compressed ")
    chance = random.Random(form)
    plain = [random_file(chance, form) for _ in range(12)]
    files = {f"{number:03d}.gz": gzip.compress(content) for number, content in enumerate(plain)}
    whole = gzip.compress(GOOD[form] * 50)
    files |= {
        "bz2.bz2": bz2.compress(GOOD[form] * 3),
        "changed.gz": whole[:20] + bytes([whole[20] ^ 255]) + whole[21:],
        "cut.gz": whole[:-9],
        "empty.gz": gzip.compress(b""),
        "no gzip.gz": GOOD[form] * 20,
        "two members.gz": whole + gzip.compress(b"\xff\n" + GOOD[form]),
    }
    schema = {} if form == "text" else {"schema": "k string, n int"}
    twice.require_same(store, files, {"format": form, "max_bad_ratio": 1.0, **schema})


DOCUMENTS = {
    "plain": b"a,1\nb,2\n",
    "line ends in quotes": b'"a\n\nb",1\nc,2\n"d\n",3',
    "many in one": b'"' + b"x\n" * 40 + b'",1\nb,2\n',
    "quotes as they come": b'"a ""b"",\n",1\nx"y,2\n"z"tail,3\n"e\\"\n",4\n',
    "crlf": b'"a\r\nb",1\r\n"c\nd",2\r\n',
    "crlf misfits": b'"a\r\nb",1\r\n"c\nd",x\r\n"e\r\nf",y\r\ng,2\r\n"h\ri",3\r\n',
    "crlf in quotes alone": b'a,1\n"b\r\nc",2\n"d\re",3\n',
    "line ends of two kinds": b"a,1\r\nb,2\nc,3\r\n",
    "lone returns": b"a,1\rb,2\r",
    "empty lines": b"\n\na,1\n\n\nb,2\n\n",
    "lines of spaces": b"a,1\n  \nb,2\n",
    "misfits": b'"a\nb",x\nb,2\n"c\n\nd",y\n"e\nf",3\ng,4\nh,5\n',
    "too many fields": b'a,1\n"b\n",2,3\nc,3\nd,4\n',
    "open": b'a,1\n"b\nc,2\n',
    "open but for a comma": b'a,1\nb,"\n\n\n',
    "no utf-8": b'a,1\n"\xff\n",2\n',
    "nul": b'a,1\n"\n\0",2\n',
    "mark": b'\xef\xbb\xbf"a\n",1\nb,2\n',
    "empty": b"",
}


@pytest.mark.seed("DX6", "I9", "I11")
@pytest.mark.parametrize(("kind", "store"), in_stores("plain", "header"))
def test_records_of_several_lines_are_cut_where_they_end(twice: Twice, kind: str, store: str) -> None:
    options = {"escape": '"', "header": "true"} if kind == "header" else {}
    head = b"k,n\n" if options else b""
    files = {name: head + content for name, content in DOCUMENTS.items() if not (head and name == "mark")}
    scan = {"format": "csv", "schema": "k string, n int", "options": {"multiLine": "true", **options}}
    twice.require_same(store, files, scan)


@pytest.mark.slow
@pytest.mark.skipif(not corpora.DATA.is_dir(), reason="the shared data is absent")
@pytest.mark.parametrize(
    "judged",
    [
        corpora.test_a_line_of_json_is_taken_if_its_authors_call_it_json_and_it_is_an_object,
        corpora.test_csv_spectrum_is_read_as_its_authors_read_it,
        corpora.test_text_is_taken_line_by_line_where_it_is_utf8,
    ],
)
def test_the_corpora_get_the_same_verdicts_by_ranges(
    place: Callable[..., Workplace], tmp_path: Path, judged: Callable[..., None]
) -> None:
    judged(place(small_group_bytes=0, range_bytes=50), tmp_path, [])
