"""The law of the reader: a file gives the same rows, bad records and refusal in whatever way it is read (I9, I10, I12).

By the definition alone, with the quick parsers, by ranges wherever it is cut, together with other small files, and by
tasks. Limits are so low that some bytes reach them.
"""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from examples import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)
from reads import Read, input_file, parsed, read, read_here, rows_of

from drainmark.jobs.formats import bad_records, csv_fields, json_records
from drainmark.jobs.formats.bad_records import CAPS, Caps
from drainmark.jobs.formats.csv import CsvLines
from drainmark.jobs.formats.format import Expected, formats
from drainmark.jobs.formats.json import JsonLines
from drainmark.jobs.formats.lines import content as contents_of_files
from drainmark.jobs.formats.lines import line_ranges, record_ranges
from drainmark.jobs.formats.lines.record_ranges import EdgeFacts, quoted_at
from drainmark.jobs.formats.text import TextLines
from drainmark.jobs.tasks import read_files
from drainmark.jobs.tasks.executor import Here
from drainmark.jobs.tasks.file_ranges import EdgeTask, FileRange, InputFile, has_cuts, ranges_of
from drainmark.jobs.tasks.places import LocalPlace
from drainmark.jobs.tasks.read_files import ReadFiles, ReadRows, ReadTask

SMALL = Caps(
    piece_bytes=7, line_bytes=40, document_bytes=160, bad_rows=5, raw_characters=16, columns=6, json_depth=3,
    json_values=8,
)  # fmt: skip
MODULES = (bad_records, contents_of_files, csv_fields, json_records, line_ranges, record_ranges, read_files)
QUICK = (CsvLines, JsonLines, TextLines)


@pytest.fixture(scope="module", autouse=True)
def small_caps() -> Iterator[None]:
    """Set all limits so low that texts of some bytes reach them."""
    formats()  # a module that is loaded later would keep these limits
    with pytest.MonkeyPatch.context() as patch:
        limit(patch, SMALL)
        patch.setattr(read_files, "_JOINED_FILE_BYTES", SMALL.line_bytes)
        patch.setattr(read_files, "_JOINED_BYTES", 3 * SMALL.line_bytes)
        yield


def limit(patch: pytest.MonkeyPatch, caps: Caps) -> None:
    for module in MODULES:
        patch.setattr(module, "CAPS", caps)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


# --- contents and declarations ------------------------------------------------------------------------------------

COMMON = [
    *(b"a", b"b,1", b",", b",", b'"', b'"', b'""', b"\\", b'\\"', b"'", b"1", b"1.25", b"#", b" ", b"\t", b";", b"NA"),
    *(b"\n", b"\n", b"\n", b"\r\n", b"\r\n", b"\r", b"\0", b"\xff", "é€".encode(), b"\xef\xbb\xbf", b"x" * 20),
]
OF_CSV = [b"a,1\n", b'"a",1\n', b'"a""b",2\r\n', b'"a\nb",1\n', b'"a\r\nb",1\n', b"2024-01-01,x\n", b"k,n\n", b"K,N\n"]
OF_JSON = [
    *(b'{"k":"a"}', b'{"k":"b","n":1}\n', b'{"K":1}', b"{", b"}", b"[", b"]", b'{"n":1.25}\n', b'{"n":1.0}', b"NaN"),
    *(
        b'{"k":"a","x":[1]}\n',
        b'{"k":{"a": 1}}\n',
        b'{"k":[[[1]]]}',
        b'{"k":"\\ud800"}',
        b'{"n":1e-400}',
        b'{"k":"\\ud83d\\ude00","n":1}\n',
        b"{}\n",
    ),
]
OF_JSON.append(b'{"k":"\\ud83d\\ude00","n":1}\n')
HEADS = [b"", b"", b"k,n\n", b"\xef\xbb\xbf", b"\xef\xbb\xbfk,n\r\n", b"\n \nk,n\n", b"n,k\n", b"PAR1", b"\xff\xfe"]


def contents(pieces: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    parts = st.lists(st.sampled_from([*COMMON, *pieces, *pieces]), max_size=20)
    return st.builds(lambda head, found: head + b"".join(found), st.sampled_from(HEADS), parts)


COLUMNS = st.sampled_from(
    [
        (("k", StringType()), ("n", IntegerType())),
        (("k", StringType()), ("n", DecimalType(4, 1))),
        (("k", TimestampType()), ("n", StringType())),
        (("k", StringType()),),
    ]
)
ENCODING = st.sampled_from(["UTF-8", "UTF-16", "UTF-16LE", "ISO-8859-1", "US-ASCII"])
DIALECT: dict[str, st.SearchStrategy[str]] = {
    "header": st.sampled_from(["true", "TRUE", "false"]),
    "quote": st.sampled_from(['"', "'", "\0", ""]),
    "escape": st.sampled_from(["\\", '"', ""]),
    "sep": st.sampled_from([",", ";", "\\t", " "]),
    "nullvalue": st.sampled_from(["NA", "1", " "]),
    "ignoretrailingwhitespace": st.sampled_from(["true", "false"]),
}
OF_LINES = {
    "comment": st.just("#"),
    "sep": st.sampled_from([",", ";", "\\t", " ", "||", ",,"]),
    "ignoreleadingwhitespace": st.sampled_from(["true", "false"]),
}


def options(**optional: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, str]]:
    return st.fixed_dictionaries({}, optional=optional)


def fixed(found: st.SearchStrategy[dict[str, str]], **given: str) -> st.SearchStrategy[dict[str, str]]:
    return found.map(lambda each: {**each, **given})


LINE_ENDS = st.sampled_from([";", "\n", "\r\n", ",1", "}"])
CSV_OPTIONS = st.one_of(
    options(**{**DIALECT, **OF_LINES}),
    options(**{**DIALECT, **OF_LINES}),
    fixed(options(**DIALECT), multiline="true"),
    fixed(options(**DIALECT), multiline="true"),
    options(**{**DIALECT, **OF_LINES}, encoding=ENCODING),
    fixed(options(**DIALECT, encoding=ENCODING), multiline="true"),
    options(**{**DIALECT, **OF_LINES}, linesep=LINE_ENDS, encoding=ENCODING),
)
JSON_OPTIONS = st.one_of(
    options(allownofields=st.just("TRUE")),
    options(encoding=ENCODING),
    fixed(options(encoding=ENCODING), multiline="true"),
    options(encoding=ENCODING, linesep=LINE_ENDS),
)
TEXT_OPTIONS = st.one_of(
    st.just(dict[str, str]()),
    options(encoding=ENCODING),
    options(encoding=ENCODING, linesep=LINE_ENDS),
    fixed(options(encoding=ENCODING), wholetext="TRUE"),
)
POLICIES = st.sampled_from([None, None, "rescue", "quarantine", "halt"])
CASES = st.one_of(
    st.tuples(contents([]), st.builds(Expected, format=st.just("text"), columns=st.none(), options=TEXT_OPTIONS)),
    *2 * [
        st.tuples(
            contents(OF_CSV),
            st.builds(Expected, format=st.just("csv"), columns=COLUMNS, options=CSV_OPTIONS, on_schema=POLICIES),
        )
    ],
    st.tuples(
        contents(OF_JSON),
        st.builds(
            Expected,
            format=st.just("json"),
            columns=COLUMNS,
            options=JSON_OPTIONS,
            on_schema=POLICIES,
            rounding=st.sampled_from([None, "half_up"]),
        ),
    ),
)  # fmt: skip
CUTS = st.sets(st.integers(1, 120), max_size=6)


# --- the ways -----------------------------------------------------------------------------------------------------


def by_the_definition(path: Path, expected: Expected) -> Read:
    with pytest.MonkeyPatch.context() as patch:
        for lines in QUICK:
            patch.setattr(lines, "parse_quickly", lambda *given: None)
        patch.setattr(read_files, "_JOINED_FILE_BYTES", -1)
        return read(path, expected)


def with_others(path: Path, expected: Expected, others: Sequence[bytes]) -> list[Read]:
    """Return what comes of a file among others, and of those."""
    files = [input_file(path)]
    for number, content in enumerate(others, 8):
        other = path.with_name(f"other{number}.data")
        other.write_bytes(content)
        files.append(input_file(other, number))
    found = read_here(files, expected)
    verdicts = [(file.number, found.verdicts[file.number]) for file in files]
    return [Read(rows=rows_of(found.rows.tables(), *each), verdict=each[1]) for each in verdicts]


def cut_at(file: InputFile, expected: Expected, cuts: set[int]) -> list[FileRange]:
    whole = ranges_of(file, expected, 2**40)
    size = Path(file.path).stat().st_size
    if not has_cuts(expected) or not file.path.endswith(".data") or not size:
        return whole
    bounds = itertools.pairwise([0, *sorted(cut for cut in cuts if 0 < cut < size), size])
    return [FileRange(file=file, start=start, end=end) for start, end in bounds]


def by_tasks(path: Path, expected: Expected, cuts: set[int]) -> Read:
    """Read a file as tasks do, each range in a share of its own."""
    ranges = cut_at(input_file(path), expected, cuts)
    if expected.is_multiline and len(ranges) > 1:
        begins = quoted_at([EdgeFacts(**each["edges"]) for each in EdgeTask(expected).work(ranges)])
        ranges = [replace(each, is_quoted=is_quoted) for each, is_quoted in zip(ranges, begins, strict=True)]
    place = LocalPlace(str(path.with_name("rows")), is_kept=False)
    told = Here().run(ReadTask(expected, place), [(each,) for each in ranges])
    found = [read_files._RangeAnswer(facts=line_ranges.facts_of(each["answers"][0]["facts"])) for each in told]
    for each, answer in zip(ranges, found, strict=True):
        if answer.facts.is_sample:
            (more,) = ReadTask(expected, None, sends_all=True).work((each,))
            answer.facts.bad = line_ranges.facts_of(more["answers"][0]["facts"]).bad
    joined = ReadFiles(rows=ReadRows(place=place))
    joined.join([ranges], iter(found), expected)
    tables = [pq.read_table(place.opened(file["name"])) for each in told for file in each["written"]]
    return Read(rows=rows_of(tables, 7, joined.verdicts[7]), verdict=joined.verdicts[7])


def require_same(found: Read, wanted: Read) -> None:
    assert found.verdict == wanted.verdict
    assert found.rows == wanted.rows


# --- the law ------------------------------------------------------------------------------------------------------

TEXT = Expected(format="text", columns=None)


def is_readable(expected: Expected) -> bool:
    return expected.reads.cannot_read(expected) is None


BLANK_NULL = Expected(format="csv", columns=(("k", StringType()),), options={"nullvalue": " "})
KINDS = Expected(format="json", columns=(("k", StringType()),), on_schema="halt")
LONG = Expected(format="csv", columns=(("k", StringType()), ("n", StringType())), options={"multiline": "true"})


@settings(max_examples=examples(250))
@given(case=CASES, cuts=CUTS)
@example(case=(b"a\n \nb\n", BLANK_NULL), cuts=set())  # a line of blanks is no record, whatever null is
@example(case=(b"x\n" * 6 + b'{"k":"a","z":1}\n', KINDS), cuts={8})  # the kind that halts is behind the cap
def test_a_file_gives_the_same_wherever_it_is_cut(folder: Path, case: tuple[bytes, Expected], cuts: set[int]) -> None:
    content, expected = case
    path = folder / "file.data"
    path.write_bytes(content)
    if not is_readable(expected):
        return
    wanted = by_the_definition(path, expected)
    require_same(read(path, expected), wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_ranges, "_SENT_CHARACTERS", 3)  # a task sends a sample of the bad records first
        found = by_tasks(path, expected, cuts)
    if found != wanted:
        assert has_header_behind(content, expected, min(cuts)), (found, wanted)
        assert found.refused is not None, "the only difference: the first range must have the header"


def has_header_behind(content: bytes, expected: Expected, cut: int) -> bool:
    mark = b"\xef\xbb\xbf"
    first = content.removeprefix(mark)[: max(1, cut - len(mark) if content.startswith(mark) else cut)]
    assert expected.lines is not None
    return expected.header is not None and not any(map(expected.lines.record_test(expected), first.splitlines()))


@settings(max_examples=examples(100))
@example(case=(b"a\xff\n", TEXT), others=[b"b\n"])
@given(case=CASES, others=st.lists(contents(OF_CSV), min_size=1, max_size=3))
def test_a_file_gives_the_same_among_others(
    folder: Path, case: tuple[bytes, Expected], others: Sequence[bytes]
) -> None:
    content, expected = case
    path = folder / "file.data"
    path.write_bytes(content)
    if not is_readable(expected):
        return
    for each, written in zip(with_others(path, expected, others), (content, *others), strict=True):
        path.write_bytes(written)
        require_same(each, by_the_definition(path, expected))


PACKED = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda content: pa.compress(content, "zstd", asbytes=True),
}


@settings(max_examples=examples(60))
@given(case=CASES, suffix=st.sampled_from([*PACKED]))
def test_a_compressed_file_gives_what_its_content_gives(
    folder: Path, case: tuple[bytes, Expected], suffix: str
) -> None:
    content, expected = case
    if not is_readable(expected):
        return
    plain, packed = folder / "file.data", folder / f"file{suffix}"
    plain.write_bytes(content)
    packed.write_bytes(PACKED[suffix](content))
    wanted = by_the_definition(plain, expected)
    require_same(read(packed, expected), wanted)
    require_same(by_tasks(packed, expected, set()), wanted)


def test_a_record_beyond_the_cap_is_refused_wherever_its_last_piece_ends(folder: Path) -> None:
    for lines in range(1, 8):
        path = folder / "file.data"
        path.write_bytes(b'"' + lines * (b"x" * 29 + b"\n") + b"x" * 29 + b'",1\n')
        is_long = path.stat().st_size > SMALL.document_bytes
        assert str(read(path, LONG).refused).startswith("has a record of more than" if is_long else "None")


CORPORA = Path(__file__).parents[3] / "shared" / "data" / "badinput"


@pytest.mark.skipif(not CORPORA.exists(), reason="the corpora of bad input are not here")
def test_hostile_files_of_others_give_the_same_wherever_they_are_cut(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, replace(CAPS, piece_bytes=5000))
    texts = (("k", StringType()), ("n", StringType()))
    found = [path for path in CORPORA.rglob("*") if path.is_file() and path.stat().st_size < 300_000]
    assert len(found) > 300
    for original in found:
        path, is_json = folder / "file.data", original.suffix == ".json"
        path.write_bytes(original.read_bytes())
        options = {"multiline": str(path.stat().st_size % 2 == 0)}
        expected = Expected(format="json" if is_json else "csv", columns=texts, options=options)
        size, wanted = path.stat().st_size, by_the_definition(path, expected)
        assert read(path, expected) == wanted, original
        assert by_tasks(path, expected, {size // 3 + 1, size // 2 + 1, size - 1}) == wanted, original


# --- Parquet ------------------------------------------------------------------------------------------------------

ROW = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-9, 9),
        "t": st.none() | st.sampled_from([b"", b"text", b"\xff"]),
        "l": st.none() | st.lists(st.none() | st.fixed_dictionaries({"a": st.integers(0, 255)}), max_size=3),
    }
)
ROW_TYPES = pa.schema([("n", pa.int64()), ("t", pa.binary()), ("l", pa.list_(pa.struct([("a", pa.uint8())])))])
IN_GROUPS = Expected(
    format="parquet",
    columns=[
        ("n", LongType()),
        ("t", StringType()),
        ("l", ArrayType(StructType().add("a", ByteType()))),
    ],
)


def parquet_of(groups: Sequence[Sequence[dict[str, Any]]], **options: Any) -> bytes:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, ROW_TYPES, write_page_checksum=True, **options) as writer:
        for rows in groups:
            writer.write_table(pa.Table.from_pylist(list(rows), schema=ROW_TYPES))
    return sink.getvalue()


def as_bytes(text: str | None) -> bytes | None:
    return text.encode() if text is not None else None


def is_good(row: dict[str, Any]) -> bool:
    return row["t"] != b"\xff" and all(part is None or part["a"] < 128 for part in row["l"] or ())


@settings(max_examples=examples(80))
@given(
    groups=st.lists(st.lists(ROW, max_size=4), max_size=6),
    cuts=st.sets(st.floats(0, 1), max_size=6),
    version=st.sampled_from(["1.0", "2.0"]),
    damage=st.none() | st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)),
)
def test_a_parquet_file_gives_the_same_wherever_it_is_cut(
    folder: Path,
    groups: Sequence[Sequence[dict[str, Any]]],
    cuts: set[float],
    version: str,
    damage: tuple[float, int] | None,
) -> None:
    content = bytearray(parquet_of(groups, data_page_version=version))
    if damage is not None:
        content[int(damage[0] * len(content))] ^= damage[1]
    path = folder / "file.data"
    path.write_bytes(content)
    wanted = read(path, IN_GROUPS)
    require_same(by_tasks(path, IN_GROUPS, {int(cut * len(content)) for cut in cuts}), wanted)
    if damage is None and sum(not is_good(row) for row in itertools.chain(*groups)) <= SMALL.bad_rows:
        assert wanted.refused is None
        rows = list(itertools.chain(*groups))
        assert [{**row, "t": as_bytes(row["t"])} for row in wanted.rows] == [row for row in rows if is_good(row)]
        assert [bad.position for bad in wanted.bad] == [at for at, row in enumerate(rows, 1) if not is_good(row)]


def test_each_row_group_is_in_the_range_of_its_first_byte(folder: Path) -> None:
    """So the tasks of a file share its work; a range without a first byte has none, and reads only the footer."""
    path, rows = folder / "file.data", [[{"n": number, "t": None, "l": None}] for number in range(5)]
    path.write_bytes(parquet_of(rows))
    metadata = pq.read_metadata(path)
    firsts = [metadata.row_group(number).column(0).dictionary_page_offset for number in range(5)]
    for (number, first), end in zip(enumerate(firsts), [*firsts[1:], path.stat().st_size], strict=True):
        assert [part.rows["n"].to_pylist() for part in parsed(path, IN_GROUPS, first, end)] == [[number]]
        assert not [*parsed(path, IN_GROUPS, first + 1, end)]
    whole = input_file(path)
    assert len(ranges_of(whole, IN_GROUPS, 100)) == -(-path.stat().st_size // 100)
