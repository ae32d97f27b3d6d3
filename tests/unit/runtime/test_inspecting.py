"""The verdict of the inspection of a file, without Spark: bad lines and files with their reasons, and its cost."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from pyspark.sql.types import DecimalType, DoubleType, IntegerType, LongType, StringType, StructType

from drainmark.jobs.errors import ObjectMissing
from drainmark.jobs.formats import csv_dialect as csv_lines
from drainmark.jobs.formats import json_records as json_lines
from drainmark.jobs.formats.bad_records import CAPS, BadRecord, FileVerdict, are_about_schema
from drainmark.jobs.formats.csv_dialect import Dialect
from drainmark.jobs.formats.format import Expected, format_of
from drainmark.jobs.formats.lines.line_format import inspect

COLUMNS = (("id", LongType()), ("name", StringType()))
Inspect = Callable[..., FileVerdict]


@pytest.fixture
def judge(tmp_path: Path) -> Inspect:
    """Return a function that writes bytes to a file and inspects it."""

    def write_and_inspect(content: bytes, kind: str, suffix: str = ".data", **options: str) -> FileVerdict:
        path = tmp_path / f"file{suffix}"
        path.write_bytes(content)
        expected = Expected(format=kind, columns=COLUMNS, options={name.lower(): v for name, v in options.items()})
        cleaned = tmp_path / "cleaned"
        cleaned.unlink(missing_ok=True)
        return inspect(path, expected, cleaned)

    return write_and_inspect


def lines(verdict: FileVerdict) -> dict[int | None, str]:
    return {bad.position: bad.reason for bad in verdict.bad}


# --- good files ---------------------------------------------------------------------------------------------------

GOOD: Mapping[str, tuple[bytes, str, dict[str, str], int]] = {
    "text": ("a\r\nö\n\nlast".encode(), "text", {}, 4),
    "text with a byte order mark": (b"\xef\xbb\xbfa\nb\n", "text", {}, 2),
    "old Macintosh line ends": (b"1,a\r2,b\r", "csv", {}, 2),
    "csv with a header": (b"id,name\n1,a\n2,b", "csv", {"header": "true"}, 2),
    "a header behind lines of spaces": (b"\n \nid,name", "csv", {"header": "true"}, 0),
    "a header in other letters": (b"\xef\xbb\xbfID, Name\n1,a\n", "csv", {"header": "true"}, 1),
    "quoted fields": (b'1,"a,b"\n2,"c"\r\n', "csv", {}, 2),
    "a doubled quote, Spark's default escape": (b'1,"a""b"\n', "csv", {}, 1),
    "a doubled quote as the escape": (b'1,"a"",b"\n', "csv", {"escape": '"'}, 1),
    "an escaped quote": (b'1,"a\\"b"\n', "csv", {}, 1),
    "a quote inside a bare field": (b'1,5"\n', "csv", {}, 1),
    "json": (b'{"id":1}\n{"id":2,"x":{"y":[1,{}]}}\n', "json", {}, 2),
    "json of mixed types": (b'{"id":1}\n{"id":"a"}\n', "json", {}, 2),
    "json with blank lines": (b'\n{"id":1}\r\n  \n', "json", {}, 1),
    "json about infinity": (b'{"id":"see Infinity, Information and NaN"}\n', "json", {}, 1),
    "a whole surrogate pair": (b'{"id":"\\ud83d\\ude00"}\n', "json", {}, 1),
    "a number of 5000 digits": (b'{"id":' + b"1" * 5000 + b"}\n", "json", {}, 1),
    "an empty file": (b"", "json", {}, 0),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_file_is_left_alone_and_counted(name: str, judge: Inspect, tmp_path: Path) -> None:
    content, format_, options, records = GOOD[name]
    for suffix, packed in ((".data", content), (".gz", gzip.compress(content)), (".bz2", bz2.compress(content))):
        verdict = judge(packed, format_, suffix, **options)
        assert (verdict.refused, verdict.bad, verdict.cleaned) == (None, (), None)
        expected = Expected(format=format_, columns=COLUMNS, options=options)
        assert expected.reads.recount(tmp_path / f"file{suffix}", expected) == records


# --- bad lines ----------------------------------------------------------------------------------------------------

BAD_LINES: Mapping[str, tuple[bytes, str, str]] = {
    "text in Latin-1": (b"caf\xe9", "text", "not UTF-8: byte 0xe9 at 4"),
    "text with a NUL byte": (b"a\0b", "text", "has a NUL byte at 2"),
    "an open quote": (b'1,"abc', "csv", "a quote is not closed"),
    "an open quote behind an even number of quotes": (b'1,a"b,"cd', "csv", "a quote is not closed"),
    "a quote whose end is escaped": (b'1,"a\\"', "csv", "a quote is not closed"),
    "too many columns": (b"," * CAPS.columns, "csv", "has more than 20000 columns"),
    "text behind the value": (b'{"id":2} trailing', "json", "is no JSON: Extra data"),
    "two values on a line": (b'{"id":1}{"id":2}', "json", "is no JSON: Extra data"),
    "a name twice": (b'{"id":1,"id":2}', "json", "is no JSON: the name 'id' stands twice"),
    "a name twice inside": (b'{"x":{"id":1,"id":2}}', "json", "is no JSON: the name 'id' stands twice"),
    "an array": (b'[{"id":1}]', "json", "is JSON, and no object: an array"),
    "a text": (b'"id"', "json", "is JSON, and no object: a string"),
    "NaN": (b'{"id":NaN}', "json", "is no JSON: NaN is no number"),
    "minus infinity": (b'{"id":-Infinity}', "json", "is no JSON: -Infinity is no number"),
    "half a surrogate pair": (b'{"id":"\\ud800"}', "json", "has half of a surrogate pair"),
    "the other half": (b'{"id":"\\udc00"}', "json", "has half of a surrogate pair"),
    "a number beyond every double": (b'{"id":1e999}', "json", "is no JSON: 1e999 is too large"),
    "nested too deep": (b'{"id":' + b"[" * 600 + b"]" * 600 + b"}", "json", "is nested deeper than 512"),
    "a hundred thousand brackets": (b"[" * 100_000, "json", "is nested deeper than 512"),
}


@pytest.mark.seed("I12")
@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_is_taken_out_with_its_number_text_and_reason(name: str, judge: Inspect) -> None:
    bad, format_, reason = BAD_LINES[name]
    good = {"text": b"a line", "csv": b"7,good", "json": b'{"id":7}'}[format_]
    verdict = judge(b"\n".join([good, bad, good, b""]), format_)
    assert list(lines(verdict)) == [2]
    assert verdict.bad[0].reason.startswith(reason)
    assert verdict.bad[0].raw == bad.decode(errors="backslashreplace")[: CAPS.raw_characters]
    assert verdict.records == 2
    assert verdict.cleaned is not None
    assert verdict.cleaned.read_bytes() == good + b"\n" + good + b"\n"


def test_lines_that_a_parser_would_join_are_judged_one_by_one(judge: Inspect) -> None:
    # The lines are bad, although there are as many values as lines: a count alone would accept them.
    assert list(lines(judge(b'{"id"\n:1}\n{"id":1}{"id":2}\n', "json"))) == [1, 2, 3]


def test_the_text_of_a_bad_record_is_cut_and_says_so() -> None:
    record = BadRecord.of(1, b"\xff" * 10_000, "bad")
    assert record.raw == "\\xff" * (CAPS.raw_characters // 4)
    assert record.reason == "bad (raw is cut to 4096 characters, of 10000 bytes)"


# --- bad files ----------------------------------------------------------------------------------------------------

GZIP = gzip.compress(b"1,a\n" * 1000)
BAD_FILES: Mapping[str, tuple[bytes, str, dict[str, str], str]] = {
    "truncated gzip": (GZIP[:-9], ".gz", {}, "cannot be decompressed"),
    "gzip with a flipped bit": (GZIP[:30] + bytes([GZIP[30] ^ 4]) + GZIP[31:], ".gz", {}, "cannot be decompressed"),
    "gzip with a wrong CRC": (GZIP[:-8] + b"\0\0\0\0" + GZIP[-4:], ".gz", {}, "cannot be decompressed: CRC"),
    "plain text named .gz": (b"1,a\n", ".gz", {}, "cannot be decompressed: Not a gzipped file"),
    "garbage behind gzip": (GZIP + b"garbage", ".gz", {}, "cannot be decompressed: Not a gzipped file"),
    "gzip without the name": (GZIP, ".data", {}, "is compressed with gzip"),
    "a zip archive": (b"PK\x03\x04...", ".data", {}, "is a zip archive"),
    "UTF-16": ("1,a\n".encode("utf-16"), ".data", {}, "is UTF-16 by its byte order mark"),
    "not the encoding it has by the options": (b"1,\xff\n", ".data", {"encoding": "US-ASCII"}, "is not US-ASCII"),
    "a line without end": (b"a" * (CAPS.line_bytes + 1), ".data", {}, "has a line of more than"),
    "an open quote at the end": (b'1,"a\nb"\n2,"c', ".data", {"multiLine": "true"}, "has a quote that is not closed"),
    "Latin-1 with multiLine": (b'1,"a\nb\xe9"\n', ".data", {"multiLine": "true"}, "is not UTF-8"),
    "a column more": (b"id,name,age\n1,a,2\n", ".data", {"header": "true"}, "has a header that differs"),
    "a column less": (b"id\n1\n", ".data", {"header": "true"}, "has a header that differs"),
    "a header behind lines of spaces": (b"\n \nid", ".data", {"header": "true"}, "has a header that differs"),
    "the same, in quotes that hold lines": (
        b"\n \nid", ".data", {"header": "true", "multiLine": "true"}, "has a header that differs",
    ),
    "a header behind much else": (
        b"#" * 80 + b"\n" + b"\n" * CAPS.piece_bytes + b"id\n", ".data", {"header": "true", "comment": "#"},
        "has a header that differs",
    ),
    "another order": (b"name,id\na,1\n", ".data", {"header": "true"}, "has a header that differs"),
    "UTF-16 in another order": (
        "name,id\na,1\n".encode("utf-16"), ".data", {"header": "true", "encoding": "UTF-16"},
        "has a header that differs",
    ),
}  # fmt: skip


@pytest.mark.seed("I9", "I10", "I13", "I19")
@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused_whole_with_a_reason(name: str, judge: Inspect) -> None:
    content, suffix, options, reason = BAD_FILES[name]
    verdict = judge(content, "csv", suffix, **options)
    assert verdict.refused is not None
    assert verdict.refused.startswith(reason)
    assert verdict.cleaned is None
    assert verdict.is_schema == ("header" in options)


def test_files_of_other_encodings_and_documents_are_judged_whole(judge: Inspect) -> None:
    assert judge("1,é\n".encode("latin-1"), "csv", encoding="ISO-8859-1") == FileVerdict()
    assert judge("1,é\n".encode("utf-16"), "csv", encoding="UTF-16") == FileVerdict()
    assert judge(b'1,"a\nb"\n2,c\n', "csv", multiLine="true") == FileVerdict()
    assert judge(b'[{"id":1},\n {"id":2}]', "json", multiLine="true") == FileVerdict()
    for wrong in (b"[1]", b"null", b'{"id":1} {"id":2}', b'[{"id":1},null]', b"[" * 1000):
        assert judge(wrong, "json", multiLine="true").refused is not None
        encoded = wrong.decode().encode("utf-16")
        assert judge(encoded, "json", multiLine="true", encoding="UTF-16").refused is not None
    open_quote = '1,"a\n'.encode("utf-16")
    assert judge(open_quote, "csv", multiLine="true", encoding="UTF-16").refused is not None


def test_concatenated_members_are_read_and_an_empty_gzip_is_an_empty_file(judge: Inspect) -> None:
    assert judge(gzip.compress(b"a\n") + gzip.compress(b"b\n"), "text", ".gz").records == 2
    assert judge(b"", "text", ".gz").records == 0


def test_more_bad_lines_than_the_cap_are_a_bad_file(judge: Inspect) -> None:
    verdict = judge(b"\xff\n" * (CAPS.bad_rows + 1), "text")
    assert verdict.refused == "more than 100000 rows are bad; the first, line 1: not UTF-8: byte 0xff at 1"


# --- Parquet ------------------------------------------------------------------------------------------------------


@pytest.mark.seed("I19")
@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ({"id": pa.int64(), "name": pa.string()}, None),
        ({"name": pa.string(), "more": pa.int8(), "ID": pa.int32()}, None),
        ({"id": pa.int64()}, "missing: 'name'"),
        ({"id": pa.string(), "name": pa.string()}, "'id' is string, not bigint"),
        ({"id": pa.float64(), "name": pa.string()}, "'id' is double, not bigint"),
    ],
    ids=["as declared", "wider, in another order", "missing", "of another type", "narrowed"],
)
def test_a_parquet_file_is_judged_by_its_footer(schema: dict[str, Any], found: str | None, tmp_path: Path) -> None:
    path = tmp_path / "file.data"
    pq.write_table(pa.table({name: pa.array([None, None], kind) for name, kind in schema.items()}), path)
    verdict = inspect(path, Expected(format="parquet", columns=COLUMNS), tmp_path / "cleaned")
    assert verdict.is_schema == (found is not None)
    assert verdict == FileVerdict(records=2) if found is None else found in (verdict.refused or "")


def test_nested_columns_of_parquet_are_compared_to_the_bottom(tmp_path: Path) -> None:
    path = tmp_path / "file.data"
    pq.write_table(pa.table({"s": [{"a": 1, "d": 1.5}]}), path)
    kinds = {
        "as declared": StructType().add("a", LongType()).add("d", DoubleType()),
        "missing": StructType().add("a", LongType()).add("z", LongType()),
        "other": StructType().add("a", DecimalType(5, 2)),
        "narrower": StructType().add("a", IntegerType()),
    }
    refused = {
        name
        for name, kind in kinds.items()
        if inspect(path, Expected(format="parquet", columns=(("s", kind),)), tmp_path / "c").refused
    }
    assert refused == {"missing", "other", "narrower"}


def test_what_is_no_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.data"
    for content in (b"", b"PAR1", b"PAR1" + b"\xff" * 100 + b"PAR1", b"text\n"):
        path.write_bytes(content)
        verdict = inspect(path, Expected(format="parquet", columns=COLUMNS), tmp_path / "cleaned")
        assert (verdict.refused or "").startswith("is no Parquet file")


# --- the quick check agrees with the slow one ---------------------------------------------------------------------


class FailingStore(io.RawIOBase):
    """A file in a store that fails when the rows or the footer are read."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return 1000

    def tell(self) -> int:
        return 1000

    def readinto(self, buffer: Any) -> int:
        raise self.error


@pytest.mark.parametrize("name", ["orc", "parquet"])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), ObjectMissing("it is gone")])
def test_a_store_that_fails_is_no_fault_of_the_file(name: str, error: Exception) -> None:
    expected = Expected(format=name, columns=[("id", LongType())])
    with pytest.raises(type(error)) as caught:
        format_of(name).columns_in(io.BufferedReader(FailingStore(error)), "", expected)
    assert getattr(caught.value, "errno", None) == getattr(error, "errno", None)


def test_only_of_parquet_nanoseconds_may_be_declared_as_the_numbers_that_stand_there(tmp_path: Path) -> None:
    """Spark reads a time of ORC only as a time, and fails if it is declared as a number."""
    table = pa.table({"at": pa.array([1_234_567_890_123_456_789], pa.timestamp("ns"))})
    path, found = tmp_path / "file", {}
    for name, write in (("parquet", pq.write_table), ("orc", orc.write_table)):
        with path.open("wb") as file:
            write(table, file)
        found[name] = inspect(path, Expected(format=name, columns=(("at", LongType()),)), tmp_path / "c").refused
    assert found == {"parquet": None, "orc": "has other columns than declared; 'at' is timestamp_ntz, not bigint"}


def test_a_disk_that_fails_is_no_fault_of_an_orc_file(tmp_path: Path) -> None:
    class FailingFile(type(tmp_path)):  # type: ignore[misc]
        def open(self, *args: Any, **kwargs: Any) -> io.BufferedReader:
            return io.BufferedReader(FailingStore(OSError(errno.EIO, "Input/output error")))

    expected, path = Expected(format="orc", columns=[("id", LongType())]), FailingFile(tmp_path / "a")
    for look in (
        lambda: format_of("orc").judge(path, expected, path, bytes),
        lambda: format_of("orc").fault_within(path),
    ):
        with pytest.raises(OSError, match="Input/output error") as caught:
            look()
        assert caught.value.errno == errno.EIO


def test_a_quick_look_never_passes_what_line_by_line_is_bad() -> None:
    """Random damage to CSV and JSON: the careful check accepts everything that the quick check accepts."""
    chance = random.Random(20260101)
    dialects = (Dialect(), Dialect(escape='"'), Dialect(sep=";"))
    passed = 0
    for _ in range(4000):
        pieces = [chance.choice(['"', ",", ";", "a", "\\", "\n", "1", '""', ',"', '",']) for _ in range(12)]
        chunk = "".join(pieces) + "\n"
        for dialect in dialects:
            if csv_lines.quotes_are_closed(chunk.encode(), dialect):
                passed += 1
                assert all(csv_lines.fault_of(line, dialect) is None for line in chunk.splitlines()), (chunk, dialect)
    tokens = ['{"a":1}', "{", "}", '"a"', ":", "1", "[", "]", ",", "\n", "\n", '{"b":{"c":"\\ud800"}}', "NaN", " "]
    for _ in range(4000):
        chunk = "".join(chance.choice(tokens) for _ in range(7)) + "\n"
        records = json_lines.good_records(chunk.encode())
        if records is not None:
            passed += 1
            found = chunk.splitlines()
            assert len(found) == records
            assert [json_lines.fault_of(line, strict=True) for line in found] == [None] * records, chunk
    assert passed > 200, "else nothing was compared"


# --- bombs --------------------------------------------------------------------------------------------------------


@pytest.mark.seed("I14")
@pytest.mark.parametrize("content", [b"\n", b"\0"], ids=["lines", "zeros"])
def test_a_gzip_bomb_is_refused_in_bounded_time_and_memory(content: bytes, tmp_path: Path) -> None:
    """Ten gigabytes in ten megabytes are refused before much is decompressed, with less than 512 MB of memory."""
    path = tmp_path / "bomb.gz"
    member = gzip.compress(content * 100_000_000, 9)
    with path.open("wb") as bomb:
        for _ in range(100):
            bomb.write(member)
    program = """
import json, sys
from pathlib import Path
from drainmark.jobs.formats.lines.line_format import Expected, inspect
verdict = inspect(Path(sys.argv[1]), Expected(format="text", columns=None), Path(sys.argv[1] + ".cleaned"))
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))  # not what it was forked from
print(json.dumps([verdict.refused, int(peak.split()[1]) * 1024]))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, str(path)], cwd=Path(__file__).parents[3], capture_output=True, text=True,
        check=True, timeout=60, env=dict(os.environ),
    )  # fmt: skip
    refused, peak = json.loads(ended.stdout)
    assert refused.endswith("when decompressed") or refused.startswith("has a line of more than")
    assert peak < 512 * 1024 * 1024


@pytest.mark.parametrize(
    ("kinds", "on_schema", "is_schema"),
    [((False, True), "halt", True), ((True, False), "quarantine", False), ((True, True), "quarantine", True),
     ((False, False), "halt", False)],
)  # fmt: skip
def test_of_too_many_bad_rows_each_kind_halts_where_it_is_to(
    kinds: tuple[bool, ...], on_schema: str, is_schema: bool
) -> None:
    bad = [BadRecord(position=number, raw="", reason="bad", is_schema=kind) for number, kind in enumerate(kinds, 1)]
    assert are_about_schema(bad, on_schema) is is_schema
