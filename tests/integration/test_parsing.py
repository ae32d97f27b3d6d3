"""Rows that are parsed in this process equal those that Spark's parser reads from the same files, row for row (H16)."""

from __future__ import annotations

import gzip
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import drainmark as dm
from drainmark.jobs.formats.lines.arrow_parser import can_parse, schema_of
from drainmark.jobs.formats.lines.line_format import inspect
from drainmark.jobs.frames.arrow import frame_of
from drainmark.jobs.frames.tags import CORRUPT
from drainmark.jobs.operators.sources.files.directory_scan import DirectoryScan
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
from drainmark.jobs.runtime.input.file_intake import expected_of
from drainmark.jobs.tasks.inspected_files import Content, Parser
from drainmark.jobs.tasks.places import LocalPlace
from drainmark.orchestration.testing.running import Result
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark

NUMBERS = ["0", "7", "-1", "+5", "007", "-0", "12", "99999999999", "9223372036854775807", "9223372036854775808", "1.0",
           "0x1F", "1_000", "1,5", "1e3", "٣", "1L", "", " 3", "3 ", "\t4", "true", "x"]  # fmt: skip
FLOATS = ["0.1", "1.", ".5", "-0.0", "1e5", "1E-7", "4.9e-324", "1e400", "-1e400", "NaN", "nan", "Inf", "inf",
          "Infinity", "1d", "2f", "0x1p3", "+1.5", " 1.5", "1.5 ", "1,5", "", "179769313486231570000",
          "0.30000000000000004",
          "123456789.123456789", "1e", "-"]  # fmt: skip
TEXTS = [
    "a",
    "",
    " ",
    " a",
    "a ",
    "ä€",
    "\\",
    "a\\",
    "\\n",
    "'",
    "NULL",
    "null",
    "#c",
    "a\tb",
    "\x7f",
    "0x1F",
    "a'b",
    "\x02",
]
QUOTED = ['"a"', '"a,b"', '""', '" a "', '"a""b"', '"a\\"b"', '"a;b"', '"#"', 'a"b', '"a" ', ' "a"', '"1"', '"\'"']
BOOLEANS = ["true", "false", "TRUE", "False", "1", "0", "t", "yes", "", " true"]
DATES = ["2024-02-29", "2023-02-29", "2024-1-1", "0001-01-01", "9999-12-31", "2024-01-01 ", "20240101", "",
         "1582-10-10", "2024-01-01T00:00:00", "+2024-01-1"]  # fmt: skip
TIMES = ["2024-02-29 10:11:12", "2024-02-29T10:11:12", "2024-02-29 10:11:12.5", "2024-02-29T10:11:12.123",
         "2024-02-29T10:11:12.123456", "2024-02-29T10:11:12.123456789", "2024-02-29T10:11:12Z",
         "2024-02-29T10:11:12.123Z", "2024-02-29T10:11:12+02:00", "2024-02-29 24:00:00", "2024-02-29 10:11:60",
         "1582-10-10 00:00:00", "2024-02-29",
         "0001-01-01 00:00:00", "2024-02-29 1:2:3", "2024-02-29  0:11:12", "1700000000000000000", "", "now",
         "2024-13-01 00:00:00"]  # fmt: skip
PLAIN: Mapping[str, Sequence[str]] = {
    "bigint": ["0", "7", "-12", "9223372036854775807", "-9223372036854775808", "", "007"],
    "double": ["0.1", "1.5", "-2e-3", "4.9e-324", "1.7976931348623157e308", "", "12345678901234567890", "7"],
    "decimal(10,2)": ["1.25", "-0.5", "100", "", ".5", "1.250", "12345678.90"],
    "string": ["a", "", " a", "ä€", "b c", "NULL", "'q'"],
    "boolean": ["true", "FALSE", ""],
    "date": ["2024-02-29", "1999-12-31", ""],
    "timestamp": ["2024-02-29 10:11:12", "1969-12-31T23:59:59.123", "1582-10-10 00:00:00.123456", ""],
    "timestamp_ntz": ["2024-02-29 10:11:12", "0001-01-01T00:00:00", ""],
}
ODD: Mapping[str, Sequence[str]] = {
    "bigint": NUMBERS, "int": NUMBERS, "smallint": NUMBERS, "tinyint": NUMBERS, "double": FLOATS, "float": FLOATS,
    "string": [*TEXTS, *QUOTED], "boolean": BOOLEANS, "date": DATES, "timestamp": TIMES, "timestamp_ntz": TIMES,
    "decimal(10,2)": [*NUMBERS, "0.005", "1e-3", "1,000.50", "1.2e1"],
}  # fmt: skip
SHAPES = [
    ("a bigint, b string", {}),
    ("a double, b bigint, c string", {"header": "true"}),
    ("a string, b string, c double", {"sep": ";"}),
    ("a string, b string", {"sep": "\t"}),
    ("a timestamp, b date, c boolean", {"sep": "|"}),
    ("a timestamp_ntz, b float, c int", {}),
    ("a smallint, b tinyint, c string", {"escape": '"'}),
    ("a decimal(10,2), b string", {}),
]
ENDS = ["\n", "\n", "\n", "\n", "\r\n", "\r", "\n\n", "\n \n"]


def source_of(kind: str, ddl: str | None, options: Mapping[str, str]) -> DirectorySource:
    scan = DirectoryScan(path="inbox", format=kind, schema=ddl, options=dict(options))
    return DirectorySource(name="rows", location=None, scan=scan, function=None)  # type: ignore[arg-type]  # only its reading is used


def line_of(chance: random.Random, kinds: Sequence[str], sep: str, oddity: float) -> str:
    fields = [chance.choice(ODD[kind] if chance.random() < oddity else PLAIN.get(kind, ["1", ""])) for kind in kinds]
    if chance.random() < oddity / 20:
        fields = fields[:-1] if chance.random() < 0.5 else [*fields, "extra"]
    return sep.join(fields)


def csv_file(chance: random.Random, ddl: str, options: Mapping[str, str]) -> bytes:
    """Return a file that is plain, a little odd, or odd throughout."""
    columns = [column.split() for column in ddl.split(", ")]
    sep, end = options.get("sep", ","), chance.choice(ENDS)
    oddity = chance.choice([0.0, 0.0, 0.05, 0.2, 1.0])
    lines = [line_of(chance, [kind for _, kind in columns], sep, oddity) for _ in range(chance.randrange(5))]
    if options.get("header"):
        lines[:0] = [*chance.choice([[], [], [], [""], ["  "]]), sep.join(name for name, _ in columns)]
    text = end.join(lines) + (end if chance.random() < 0.8 else "")
    return (b"\xef\xbb\xbf" if chance.random() < 0.1 else b"") + text.encode()


def text_file(chance: random.Random) -> bytes:
    return "".join(chance.choice(TEXTS + QUOTED + ["\x01", "", ""]) + chance.choice(ENDS) for _ in range(6)).encode()


def parsed_here(
    files: Mapping[int, bytes], source: DirectorySource, folder: Path, *, spooled: bool
) -> tuple[pa.Table, set[int]]:
    """Return the rows of the files that this process agrees to parse, and the numbers of those files."""
    expected = expected_of(source, "")
    assert can_parse(expected)
    place = LocalPlace(str(folder.parent / "parsed"))
    parser = Parser(expected, place if spooled else None)
    for number in files:
        content = Content()
        path = folder / f"{number:019d}.data"
        verdict = inspect(path, expected, folder / "cleaned", content.take)
        (folder / "cleaned").unlink(missing_ok=True)
        if verdict.is_good:
            parser.add(number, b"".join(content.pieces), verdict.records or 0)
    parsed = parser.finish()
    tables = [*parsed.tables, *(pq.read_table(place.opened(file.name)) for file in parser.written)]
    rows = pa.concat_tables(tables) if tables else pa.table({"_sequence_id": []})
    assert Counter(rows["_sequence_id"].to_pylist()) == Counter(
        {n: count for n, count in parsed.counts.items() if count}
    )
    return rows, set(parsed.counts)


def by_file(rows: pa.Table) -> dict[int, list[tuple[Any, ...]]]:
    """Return each file's rows in the order of their positions, as texts in which -0.0 differs from 0.0."""
    found: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    names = [name for name in rows.column_names if name not in ("_sequence_id", "_position")]
    order = [(place["block"], place["row"]) for place in rows["_position"].to_pylist()]
    columns = [rows[name].to_pylist() for name in names]
    for number, place, *values in zip(rows["_sequence_id"].to_pylist(), order, *columns, strict=True):
        found[number].append((place, *map(repr, values)))
    return {number: [row[1:] for row in sorted(members)] for number, members in found.items()}


def compare(
    engine: SparkEngine, source: DirectorySource, files: Mapping[int, bytes], root: Path, *, spooled: bool
) -> int:
    """Read the files both ways; return the number of files that this process parsed."""
    folder = root / "inbox"
    folder.mkdir(parents=True)
    for number, content in files.items():
        (folder / f"{number:019d}.data").write_bytes(content)
    sparks = source.read(engine.session, [str(folder)], "")
    here, numbers = parsed_here(files, source, folder, spooled=spooled)
    corrupt = CORRUPT in sparks.columns
    table = sparks.toArrow()
    if corrupt:
        wrong = {n for n, bad in zip(table["_sequence_id"].to_pylist(), table[CORRUPT].to_pylist(), strict=True) if bad}
        assert not numbers & wrong, {n: files[n] for n in sorted(numbers & wrong)}
        table = table.drop_columns([CORRUPT])
    if here.num_rows:
        schema = schema_of(expected_of(source, ""))
        assert schema.simpleString() == sparks.drop(CORRUPT).schema.simpleString()
        as_spark_sees_it = frame_of(engine.session, here, schema).toArrow()
        expected, found = by_file(table), by_file(as_spark_sees_it)
        differing = {n: (files[n], found.get(n), expected.get(n)) for n in numbers if found.get(n) != expected.get(n)}
        assert not differing
    return len(numbers)


@pytest.mark.parametrize("count", [150, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("ddl", "options"), SHAPES, ids=[ddl for ddl, _ in SHAPES])
def test_csv_files_have_the_rows_that_spark_reads(
    engine: SparkEngine, tmp_path: Path, ddl: str, options: dict[str, str], count: int
) -> None:
    chance = random.Random(f"{ddl}{options}")
    files = {number: csv_file(chance, ddl, options) for number in range(1, count + 1)}
    parsed = compare(engine, source_of("csv", ddl, options), files, tmp_path, spooled=False)
    assert parsed > count / 5, "too few files are parsed here for the comparison to mean anything"


def test_text_files_have_the_rows_that_spark_reads(engine: SparkEngine, tmp_path: Path) -> None:
    chance = random.Random(3)
    files = {number: text_file(chance) for number in range(1, 301)}
    assert compare(engine, source_of("text", None, {}), files, tmp_path, spooled=True) > 50


def test_one_odd_value_leaves_its_file_to_spark_and_no_other(engine: SparkEngine, tmp_path: Path) -> None:
    ddl = "a bigint, b double, c string"
    good = b"1,2.5,x\n2,3.5,y\n"
    odd = [f"{value},1.5,x\n".encode() for value in NUMBERS] + [f"1,{value},x\n".encode() for value in FLOATS]
    files = dict(enumerate(itertools.chain(*zip(itertools.repeat(good), odd, strict=False)), start=1))
    parsed = compare(engine, source_of("csv", ddl, {}), files, tmp_path, spooled=True)
    assert len(odd) <= parsed < len(files)


MARK = b"\xef\xbb\xbf"
TRICKY = {
    "a mark behind the header": b"a,b\n" + MARK + b"1,2\n",
    "a header behind a control character": b"\x1f\na,b\n1,2\n",
    "a header behind a blank line": b" \na,b\n1,2\n",
    "two marks": MARK + MARK + b"a,b\n1,2\n",
}


@pytest.mark.parametrize("content", TRICKY.values(), ids=TRICKY)
@pytest.mark.parametrize("place", [0, 1])
def test_where_a_file_stands_in_its_batch_makes_no_difference(
    engine: SparkEngine, tmp_path: Path, content: bytes, place: int
) -> None:
    files = {1 + place: content, 2 - place: b"a,b\n3,4\n"}
    source = source_of("csv", "a string, b string", {"header": "true"})
    compare(engine, source, dict(sorted(files.items())), tmp_path, spooled=False)


@pytest.mark.parametrize(
    ("kind", "ddl", "options"),
    [
        ("csv", "a bigint", {}),
        ("csv", "a bigint, b string", {"nullValue": "-"}),
        ("csv", "a bigint, b string", {"timestampFormat": "yyyy"}),
        ("csv", "a bigint, b string", {"quote": "'"}),
        ("csv", "a bigint, b string", {"comment": "#"}),
        ("csv", "a bigint, b string", {"multiLine": "true"}),
        ("csv", "a bigint, b binary", {}),
        ("text", None, {"wholetext": "true"}),
        ("json", "a bigint, b string", {}),
        ("parquet", "a bigint, b string", {}),
    ],
)
def test_what_may_be_read_otherwise_is_left_to_spark(
    engine: SparkEngine, kind: str, ddl: str | None, options: dict[str, str]
) -> None:
    assert engine.session, "types are parsed by a session"
    assert not can_parse(expected_of(source_of(kind, ddl, options), ""))


def test_rows_behind_an_empty_chunk_reach_spark(engine: SparkEngine) -> None:
    """pyspark 4.2 stops reading at a record batch without rows, and reports nothing."""
    chunks = [[1, 2], [], [3], [], [4]]
    rows = pa.concat_tables([pa.table({"n": pa.array(chunk, pa.int64())}) for chunk in chunks])
    assert sorted(row["n"] for row in frame_of(engine.session, rows).collect()) == [1, 2, 3, 4]


def test_a_table_without_rows_has_its_types_without_being_asked(engine: SparkEngine) -> None:
    """Spark Connect infers types from rows: an application with an empty quarantine failed there."""
    kinds = [("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("many", pa.list_(pa.float64()))]
    rows = pa.table({"n": [1], "at": [0], "many": [[0.5]]}, schema=pa.schema(kinds))
    empty = rows.slice(0, 0)

    class Session:
        """A session that passes its arguments on, including types, because it cannot infer types."""

        def createDataFrame(self, data: Any, schema: Any) -> Any:
            return engine.session.createDataFrame(data, schema)

    assert frame_of(Session(), empty).schema == frame_of(engine.session, rows).schema  # type: ignore[arg-type]


def both_sinks() -> None:
    scan = dm.DirectoryScan(path="inbox", format="csv", schema="n bigint, word string", settle=0, on_bad="quarantine")

    @dm.consistent(trigger="operator-driven")
    @dm.source(scan)
    def rows(scanned: Any) -> Any:
        return scanned

    dm.sink(dm.filter(lambda rows: dm.F.expr("n % 2 = 1"), name="odd", inputs=[rows]), dm.DeltaAppend("odd"))
    dm.sink(rows, dm.DeltaAppend("all_rows"))


@pytest.mark.parametrize("max_group", [pytest.param(1, marks=pytest.mark.slow), 9])
def test_both_parsers_share_a_group(run_app: Callable[..., Result], max_group: int) -> None:
    """Rows in = rows out + quarantined, whichever parser reads the file (I9)."""
    files = {
        "1.csv": b"1,a\n2,b\n",
        "2.csv": b'3,"c, ""d"""\n',
        "3.csv": b"",
        "4.csv": b"4,e\nx,f\n5,g\n7,h\n",
        "5.csv.gz": gzip.compress(b"6,i\n"),
        "6.csv": b"8,j\n\n9,k\n",
    }
    result = run_app(both_sinks, files, max_group=max_group)
    kept = {row["n"]: row["source_file"].rpartition("/")[2] for row in result.sink("all_rows")}
    assert kept == {1: "1.csv", 2: "1.csv", 3: "2.csv", 4: "4.csv", 5: "4.csv", 7: "4.csv", 6: "5.csv.gz", 8: "6.csv",
                    9: "6.csv"}  # fmt: skip
    assert sorted(row["n"] for row in result.sink("odd")) == [1, 3, 5, 7, 9]
    assert [row["raw"] for row in result.quarantine()] == ["x,f"]
    assert [state["rows_in"] for state in result.history] == [2, 1, 0, 4, 1, 2]
