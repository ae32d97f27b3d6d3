"""What comes of a file: its rows, its bad lines with their reasons, or its refusal; and its cost (I9 to I14)."""

from __future__ import annotations

import bz2
import contextlib
import dataclasses
import errno
import gzip
import io
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from pyspark.sql.types import (
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)
from reads import Read, read, read_bytes, read_here
from waiting import SOON

from drainmark.jobs.errors import ObjectChanged, ObjectMissing
from drainmark.jobs.formats.bad_records import CAPS, BadRecord, are_about_schema
from drainmark.jobs.formats.format import Expected, format_of
from drainmark.jobs.formats.lines.content import END, LocalFile, content_of, first_lines
from drainmark.jobs.tasks.file_ranges import InputFile, ranges_of
from drainmark.jobs.tasks.places import LocalPlace
from drainmark.jobs.tasks.read_files import ReadTask

COLUMNS = (("id", LongType()), ("name", StringType()))
Judge = Callable[..., Read]


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    """Return a function that writes bytes to a file and reads it."""

    def judged(content: bytes, kind: str, suffix: str = ".data", **options: str) -> Read:
        named, columns = {name.lower(): value for name, value in options.items()}, None if kind == "text" else COLUMNS
        return read_bytes(tmp_path, content, kind, columns, suffix=suffix, options=named)

    return judged


def zstd(content: bytes) -> bytes:
    packed: bytes = pa.compress(content, "zstd", asbytes=True)
    return packed


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
    "escapes that are none": (b'1,"a\\b"\n2,a\\,\n'.replace(b",\n", b"\n"), "csv", {}, 2),
    "lines of the separator in TSV": (b"\t\n1\ta\n\n", "csv", {"sep": "\\t"}, 2),
    "comments": (b"#1,a\n1,#\n", "csv", {"comment": "#"}, 1),
    "records with an end of their own": (b"1,a;2,b; ;#;", "csv", {"lineSep": ";", "comment": "#"}, 2),
    "options in other letters": (b'id,name\n1,"a\nb"\n', "csv", {"Header": "TRUE", "multiLine": "True"}, 1),
    "blank records of several lines": (b'1,"a\nb"\n \n\n2,c', "csv", {"multiLine": "true"}, 2),
    "an empty text between ends of its own": (b"a;;b;\n", "text", {"lineSep": ";"}, 3),
    "one text": (b"a\nb\n", "text", {"wholetext": "true"}, 1),
    "no text": (b"", "text", {"wholetext": "true"}, 0),
    "json": (b'{"id":1}\n{"id":2,"x":{"y":[1,{}]}}\n', "json", {}, 2),
    "json of mixed types": (b'{"name":1}\n{"name":"a"}\n{"name":[1]}\n', "json", {}, 3),
    "a document": (b'[{"id":1},\n {"id":2}]', "json", {"multiLine": "true"}, 2),
    "a document of one record": (b'{"id":\n1}', "json", {"multiLine": "true"}, 1),
    "an empty document": (b" \n", "json", {"multiLine": "true"}, 0),
    "json with blank lines": (b'\n{"id":1}\r\n  \n', "json", {}, 1),
    "json about infinity": (b'{"name":"see Infinity, Information and NaN"}\n', "json", {}, 1),
    "a whole surrogate pair": (b'{"name":"\\ud83d\\ude00","id":1}\n', "json", {}, 1),
    "a number of 5000 digits": (b'{"name":' + b"1" * 5000 + b"}\n", "json", {}, 1),
    "an empty file": (b"", "json", {}, 0),
}


@pytest.mark.parametrize("name", GOOD)
def test_each_record_of_a_good_file_is_a_row(name: str, judge: Judge) -> None:
    content, format_, options, records = GOOD[name]
    packed = {".data": content, ".gz": gzip.compress(content), ".bz2": bz2.compress(content)}
    packed[".zst"] = zstd(content)
    for suffix, written in packed.items():
        found = judge(written, format_, suffix, **options)
        assert (found.refused, found.bad, found.verdict.records) == (None, (), records)


def test_rows_of_files_that_are_read_together_are_numbered_from_0_in_each(tmp_path: Path) -> None:
    files = []
    for number, content in enumerate((b"a\nb\n", b"", b"c", b"d\ne\n\xff\n", b"f\r\n"), 5):
        path = tmp_path / f"{number}.data"
        path.write_bytes(content)
        files.append(InputFile(number=number, path=str(path), size=len(content)))
    tables = read_here(files, Expected(format="text", columns=None)).rows.tables()
    rows = {(row["_sequence_id"], row["_position"]["row"], row["value"]) for each in tables for row in each.to_pylist()}
    assert rows == {(5, 0, "a"), (5, 1, "b"), (7, 0, "c"), (8, 0, "d"), (8, 1, "e"), (9, 0, "f")}
    assert {row["_position"]["block"] for each in tables for row in each.to_pylist()} == {0}


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
    "half a surrogate pair": (b'{"name":"\\ud800"}', "json", "has half of a surrogate pair"),
    "the other half": (b'{"name":"\\udc00"}', "json", "has half of a surrogate pair"),
    "a field less": (b"1", "csv", "has 1 columns, declared are 2"),
    "a field more": (b"1,a,", "csv", "has 3 columns, declared are 2"),
    "no field that is declared": (b'{"other":1}', "json", "has no declared field, it has 'other'"),
    "an empty object": (b"{}", "json", "has no declared field, it is empty"),
    "text behind a quote": (b'1,"a" b', "csv", "has text behind a closing quote: ' b'"),
    "a value of another type": (b"x,a", "csv", "column 'id': 'x' is no bigint"),
    "nested too deep": (b'{"id":' + b"[" * 600 + b"]" * 600 + b"}", "json", "is nested deeper than 512"),
    "a hundred thousand brackets": (b"[" * 100_000, "json", "is nested deeper than 512"),
}


@pytest.mark.seed("I12")
@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_is_taken_out_with_its_number_text_and_reason(name: str, judge: Judge) -> None:
    bad, format_, reason = BAD_LINES[name]
    good = {"text": b"a line", "csv": b"7,good", "json": b'{"id":7}'}[format_]
    found = judge(b"\n".join([good, bad, good, b""]), format_)
    assert [*found.reasons] == [2]
    assert found.bad[0].reason.startswith(reason)
    assert found.bad[0].raw == bad.decode(errors="backslashreplace")[: CAPS.raw_characters]
    assert len(found.rows) == found.verdict.records == 2


def test_lines_that_a_parser_would_join_are_judged_one_by_one(judge: Judge) -> None:
    # The lines are bad, although there are as many values as lines: a count alone would accept them.
    assert [*judge(b'{"id"\n:1}\n{"id":1}{"id":2}\n', "json").reasons] == [1, 2, 3]


@pytest.mark.parametrize(
    ("content", "kind", "options", "numbers"),
    [
        (b"1,a\r\nx,b\r\n\r\ny,c", "csv", {}, [2, 4]),
        (b"1,a\rx,b\r\ry,c", "csv", {}, [2, 4]),
        (b"\n#\nid,name\n\nx,b\n", "csv", {"header": "true", "comment": "#"}, [5]),
        (b'id,name\n1,"a\nb"\n\nx,c\n', "csv", {"header": "true", "multiLine": "true"}, [4]),
        (b'1,"a\nb"\n\0\n', "csv", {"multiLine": "true"}, [2]),
        (b'[{"id":1},\n\n{"id":"x"}, [], null]', "json", {"multiLine": "true"}, [2, 3, 4]),
        (b"1,a;x,b;", "csv", {"lineSep": ";"}, [2]),
        ("1,é\nx,b\n".encode("utf-16"), "csv", {"encoding": "UTF-16"}, [2]),
    ],
)
def test_positions_are_numbers_of_lines_or_of_records_that_may_have_several(
    judge: Judge, content: bytes, kind: str, options: dict[str, str], numbers: list[int]
) -> None:
    assert [*judge(content, kind, **options).reasons] == numbers


def test_the_text_of_a_bad_record_is_cut_and_says_so() -> None:
    record = BadRecord.of(1, b"\xff" * 10_000, "bad")
    assert record.raw == "\\xff" * (CAPS.raw_characters // 4)
    assert record.reason == "bad (raw is cut to 4096 characters, of 10000 bytes)"


# --- bad files ----------------------------------------------------------------------------------------------------

GZIP, BZIP2 = gzip.compress(b"1,a\n" * 1000), bz2.compress(b"1,a\n" * 1000)
ZSTD = zstd(b"1,a\n" * 1000)
BAD_FILES: Mapping[str, tuple[bytes, str, dict[str, str], str]] = {
    "truncated gzip": (GZIP[:-9], ".gz", {}, "cannot be decompressed"),
    "gzip with a flipped bit": (GZIP[:30] + bytes([GZIP[30] ^ 4]) + GZIP[31:], ".gz", {}, "cannot be decompressed"),
    "gzip with a wrong CRC": (GZIP[:-8] + b"\0\0\0\0" + GZIP[-4:], ".gz", {}, "cannot be decompressed: CRC"),
    "plain text named .gz": (b"1,a\n", ".gz", {}, "cannot be decompressed: Not a gzipped file"),
    "zeros named .gz": (b"\0" * 10, ".gz", {}, "cannot be decompressed: Not a gzipped file"),
    "a damaged stream behind one of bzip2": (2 * BZIP2[:1] + BZIP2[1:], ".bz2", {}, "cannot be decompressed"),
    "the same behind a whole one": (BZIP2 + BZIP2[1:], ".bz2", {}, "cannot be decompressed"),
    "truncated bzip2": (BZIP2 + BZIP2[:-9], ".bz2", {}, "cannot be decompressed"),
    "truncated zstd": (ZSTD[:-3], ".zst", {}, "cannot be decompressed"),
    "garbage behind zstd": (ZSTD + b"garbage", ".zst", {}, "cannot be decompressed"),
    "another compression": (b"...", ".lz4", {}, "is compressed as .lz4, which is not read"),
    "garbage behind gzip": (GZIP + b"garbage", ".gz", {}, "cannot be decompressed: Not a gzipped file"),
    "gzip without the name": (GZIP, ".data", {}, "is compressed with gzip"),
    "a zip archive": (b"PK\x03\x04...", ".data", {}, "is a zip archive"),
    "UTF-16": ("1,a\n".encode("utf-16"), ".data", {}, "is UTF-16 by its byte order mark"),
    "not the encoding it has by the options": (b"1,\xff\n", ".data", {"encoding": "US-ASCII"}, "is not US-ASCII"),
    "UTF-16 without a mark": ("1,a\n".encode("utf-16-be"), ".data", {"encoding": "UTF-16"}, "is not UTF-16"),
    "half a character at the end": ("1,a".encode("utf-16")[:-1], ".data", {"encoding": "UTF-16"}, "is not UTF-16"),
    "a line without end": (b"a" * (CAPS.line_bytes + 1), ".data", {}, "has a line of more than"),
    "an open quote at the end": (b'1,"a\nb"\n2,"c', ".data", {"multiLine": "true"}, "has a quote that is not closed"),
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
def test_a_bad_file_is_refused_whole_with_a_reason(name: str, judge: Judge) -> None:
    content, suffix, options, reason = BAD_FILES[name]
    found = judge(content, "csv", suffix, **options)
    assert (found.refused or "").startswith(reason)
    assert found.verdict.is_schema == ("header" in options)


TOLD = {
    "another separator": (b"id;name\n1;a\n", "csv", {"header": "true"}, 'options={"sep": ";"} reads it'),
    "tabs": (b"ID\tName\n1\ta\n", "csv", {"header": "true"}, r'options={"sep": "\t"} reads it'),
    "a name twice": (b"id,id\n1,1\n", "csv", {"header": "true"}, "missing: 'name'; twice: 'id'"),
    "an object over lines": (b'{\n "id": 1\n}\n', "json", {}, 'read with options={"multiLine": "true"}'),
    "an array of objects": (b'[{"id":1},{"id":2}]\n', "json", {}, 'read with options={"multiLine": "true"}'),
}


@pytest.mark.parametrize("name", TOLD)
def test_a_file_that_needs_another_declaration_says_which(name: str, judge: Judge) -> None:
    content, kind, options, told = TOLD[name]
    found = judge(content, kind, **options)
    assert (found.refused or found.bad[0].reason).endswith(told)


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16", "ISO-8859-1", "UTF-16LE"])
def test_a_document_is_refused_only_if_its_records_cannot_be_told_apart(judge: Judge, encoding: str) -> None:
    for wrong in ("1", "null", '{"id":1} {"id":2}', '[{"id":1},]', '[{"id":1}', "[" * 1000):
        content = wrong.encode(encoding)
        assert "is " in str(judge(content, "json", multiLine="true", encoding=encoding).refused), wrong
    content = '[{"id":1},null,[1],{"id":"é"}]'.encode(encoding)
    assert [*judge(content, "json", multiLine="true", encoding=encoding).reasons] == [2, 3, 4]


@pytest.mark.parametrize("encoding", ["ISO-8859-1", "UTF-16", "UTF-16LE", "utf_32", "UTF-8-SIG", "windows-1252"])
@pytest.mark.parametrize("options", [{}, {"multiLine": "true"}, {"lineSep": "\n"}, {"header": "true"}])
def test_files_of_other_encodings_have_the_same_rows(judge: Judge, encoding: str, options: dict[str, str]) -> None:
    content = 'id,name\n1,é\n2,"b"\n'[0 if "header" in options else 8 :]
    found = judge(content.encode(encoding), "csv", encoding=encoding, **options)
    assert found.rows == [{"id": 1, "name": "é"}, {"id": 2, "name": "b"}]
    with_mark = judge(("\ufeff" + content).encode("utf-16-le"), "csv", encoding="UTF-16LE", **options)
    assert with_mark.rows == found.rows


@pytest.mark.parametrize("encoding", ["hex", "base64", "rot13", "undefined", "no such", "a\0b"])
def test_an_encoding_that_is_none_of_text_is_refused_at_the_declaration(encoding: str) -> None:
    expected = Expected(format="csv", columns=COLUMNS, options={"encoding": encoding})
    assert "is not known" in str(format_of("csv").cannot_read(expected))


def test_concatenated_members_are_read_and_an_empty_file_is_one_when_compressed(judge: Judge) -> None:
    for suffix, pack in ((".gz", gzip.compress), (".bz2", bz2.compress)):
        assert judge(pack(b"a\n") + pack(b"b\n"), "text", suffix).verdict.records == 2
    assert judge(gzip.compress(b"a\n") + b"\0" * 600, "text", ".gz").verdict.records == 1, "as from tapes"
    assert [judge(b"", "text", suffix).verdict.records for suffix in (".gz", ".bz2", ".zst")] == [0, 0, 0]


def test_more_bad_lines_than_the_cap_are_a_bad_file(judge: Judge) -> None:
    found = judge(b"\xff\n" * (CAPS.bad_rows + 1), "text")
    assert found.refused == "more than 100000 rows are bad; the first, line 1: not UTF-8: byte 0xff at 1"


def test_a_file_that_no_disk_holds_is_refused_before_it_is_taken_for_an_empty_one() -> None:
    assert "it is no file of a disk" in str(read(Path("/proc/version"), Expected(format="text", columns=None)).refused)


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
    result = read(path, Expected(format="parquet", columns=COLUMNS))
    assert result.verdict.is_schema == (found is not None)
    assert result.rows == [{"id": None, "name": None}] * 2 if found is None else found in (result.refused or "")


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
        name for name, kind in kinds.items() if read(path, Expected(format="parquet", columns=(("s", kind),))).refused
    }
    assert refused == {"missing", "other", "narrower"}


def test_what_is_no_parquet_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"PAR1", b"PAR1" + b"\xff" * 100 + b"PAR1", b"text\n"):
        assert str(read_bytes(tmp_path, content, "parquet", COLUMNS).refused).startswith("is no Parquet file")


def test_a_bad_row_with_a_date_that_python_cannot_hold_is_told_as_text(tmp_path: Path) -> None:
    path, columns = tmp_path / "file.data", (("day", DateType()), ("name", StringType()))
    days = pa.array([3_000_000, 3_000_000], pa.int32()).cast(pa.date32())
    pq.write_table(pa.table({"day": days, "name": pa.array([b"\xff", b"a"])}), path)
    found = read(path, Expected(format="parquet", columns=columns))
    assert len(found.rows) == 1
    assert '"10183-' in (found.bad[0].raw or "")


# --- failures that are no fault of the file -----------------------------------------------------------------------


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


@dataclasses.dataclass
class FailingData:
    """The bytes of a file, of which those behind a place cannot be read."""

    content: bytes
    error: Exception
    upto: int

    @property
    def size(self) -> int:
        return len(self.content)

    def read(self, start: int, end: int) -> bytes:
        if end > self.upto:
            raise self.error
        return self.content[start:end]


@pytest.mark.parametrize("suffix", [".data", ".gz", ".bz2", ".zst"])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), ObjectMissing("it is gone")])
@pytest.mark.parametrize("encoding", [None, "ISO-8859-1"])
def test_a_disk_or_a_store_that_fails_is_no_fault_of_a_file_of_lines(
    suffix: str, error: Exception, encoding: str | None
) -> None:
    packed = {".data": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".zst": zstd}[suffix](os.urandom(1000))
    content = content_of(FailingData(packed, error, 0), suffix, encoding)
    with pytest.raises(type(error)) as caught:
        content.read(0, 100)
    assert getattr(caught.value, "errno", None) == getattr(error, "errno", None)


def test_a_file_that_is_gone_is_the_failure_of_a_task_and_no_verdict(tmp_path: Path) -> None:
    file, expected = InputFile(number=7, path=str(tmp_path / "a.gz"), size=1), Expected(format="text", columns=None)
    with pytest.raises(FileNotFoundError):
        read_here([file], expected)
    with pytest.raises(FileNotFoundError):
        list(ReadTask(expected, None).work(ranges_of(file, expected, 1)))


def test_only_of_parquet_nanoseconds_may_be_declared_as_the_numbers_that_stand_there(tmp_path: Path) -> None:
    table = pa.table({"at": pa.array([1_234_567_890_123_456_789], pa.timestamp("ns"))})
    path, found = tmp_path / "file", {}
    for name, write in (("parquet", pq.write_table), ("orc", orc.write_table)):
        with path.open("wb") as file:
            write(table, file)
        found[name] = read(path, Expected(format=name, columns=(("at", LongType()),))).refused
    assert found == {"parquet": None, "orc": "has other columns than declared; 'at' is timestamp_ntz, not bigint"}


class FailingFile(LocalFile):
    """A file of a disk that fails."""

    def read(self, start: int, end: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("name", ["parquet", "orc", "binary"])
def test_a_disk_that_fails_is_no_fault_of_a_file_without_lines(name: str) -> None:
    expected = Expected(format=name, columns=[("id", LongType())])
    with pytest.raises(OSError, match="Input/output error") as caught:
        [*format_of(name).rows_of(FailingFile(0, 1000), expected, 0, END)]
    assert caught.value.errno == errno.EIO


@dataclasses.dataclass
class FailingRead:
    """Bytes that can be read some times."""

    content: bytes
    error: Exception
    times: int

    @property
    def size(self) -> int:
        return len(self.content)

    def read(self, start: int, end: int) -> bytes:
        self.times -= 1
        if self.times < 0:
            raise self.error
        return self.content[start:end]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), ObjectChanged("it is another")])
def test_a_store_that_fails_is_no_fault_of_a_parquet_file_whichever_read_fails(error: Exception) -> None:
    sink, rows = io.BytesIO(), 60_000
    columns = {"id": pa.array(range(rows)), "at": pa.array(range(rows), pa.timestamp("us"))}
    options = {"use_deprecated_int96_timestamps": True, "use_dictionary": False, "compression": "none"}
    pq.write_table(pa.table(columns), sink, row_group_size=20_000, **options)
    expected = Expected(format="parquet", columns=[("id", LongType()), ("at", TimestampType())])
    for times in itertools.count():
        data = FailingRead(sink.getvalue(), error, times)
        with contextlib.suppress(type(error)):  # no other error, and no refusal
            assert sum(part.rows.num_rows for part in expected.reads.rows_of(data, expected, 0, END)) == rows
            break
    assert times > 5


def test_the_first_lines_of_a_file_of_zstd_leave_it_open(tmp_path: Path) -> None:
    path = tmp_path / "file.zst"
    path.write_bytes(zstd(b"a,d\n1,2\n"))
    with path.open("rb") as file:
        assert first_lines(file, ".zst") == b"a,d\n1,2\n"
        assert not file.closed


# --- bombs --------------------------------------------------------------------------------------------------------


@pytest.mark.seed("I14")
@pytest.mark.parametrize("content", [b"\n", b"\0"], ids=["lines", "zeros"])
def test_a_gzip_bomb_is_refused_in_bounded_time_and_memory(content: bytes, tmp_path: Path) -> None:
    """Ten gigabytes in ten megabytes are refused before much is decompressed, with less than 512 MB of memory.

    A task reads such a file, whatever the size of the group: `FileIntake` counts the bytes first.
    """
    path = tmp_path / "bomb.gz"
    member = gzip.compress(content * 10_000_000, 9)
    with path.open("wb") as bomb:
        for _ in range(1000):
            bomb.write(member)
    program = """
import dataclasses, json, sys
from pathlib import Path
from drainmark.jobs.formats.format import Expected
from drainmark.jobs.formats.lines import content
from drainmark.jobs.tasks.file_ranges import InputFile, ranges_of
from drainmark.jobs.tasks.places import LocalPlace
from drainmark.jobs.tasks.read_files import ReadTask
content.CAPS = dataclasses.replace(content.CAPS, ratio_free_bytes=4 << 20)  # as many rows take a task seconds
expected, folder = Expected(format="text", columns=None), sys.argv[1] + ".rows"
file = InputFile(number=7, path=sys.argv[1], size=Path(sys.argv[1]).stat().st_size)
(told,) = ReadTask(expected, LocalPlace(folder, is_kept=False)).work(ranges_of(file, expected, 1))
facts = told["answers"][0]["facts"]
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))  # not what it was forked from
print(json.dumps([facts["refused"], int(peak.split()[1]) * 1024]))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, str(path)], cwd=Path(__file__).parents[3], capture_output=True, text=True,
        check=True, timeout=SOON, env=dict(os.environ),
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


def test_a_task_sends_a_bounded_part_of_the_bad_rows_of_a_parquet_file_and_all_of_them_when_asked(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file.data"
    pq.write_table(pa.table({"id": pa.array([1 << 31] * 1000, pa.uint32()), "name": ["x" * 3000] * 1000}), path)
    expected = Expected(format="parquet", columns=(("id", IntegerType()), ("name", StringType())))
    ranges = ranges_of(InputFile(number=1, path=str(path), size=path.stat().st_size), expected, END)
    told = []
    for place, is_asked in ((LocalPlace(str(tmp_path / "rows"), is_kept=False), False), (None, True)):
        (facts,) = ReadTask(expected, place, sends_all=is_asked).work(ranges)
        (answer,) = facts["answers"]
        told.append(answer["facts"])
    assert [facts["bad_count"] for facts in told] == [1000, 1000]
    assert len(told[0]["bad"]) < 500
    assert [record["position"] for record in told[1]["bad"]] == list(range(1, 1001))
