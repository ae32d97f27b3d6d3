"""A file has one meaning, whichever way it is read: that of an oracle in plain Python, row for row (H16, DX6).

The ways: alone, with others, by tasks in ranges, compressed, from a bucket, and slice by slice through a `FileSource`.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from examples import examples
from integration.test_s3_input import Bucket, bucket
from pyspark.sql.types import StructType
from reads import read_here

import drainmark as dm
from drainmark.jobs.formats.format import Expected
from drainmark.jobs.operators.sources.slices import SliceLimit
from drainmark.jobs.tasks.buckets import StoredObject
from drainmark.jobs.tasks.executor import OnSpark
from drainmark.jobs.tasks.file_ranges import InputFile
from drainmark.jobs.tasks.places import LocalPlace
from drainmark.jobs.tasks.read_files import ReadFiles, read_files
from drainmark.resources.spark.session import SparkEngine

__all__ = ["bucket"]

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("s3_credentials")]

# --- the oracle: what texts mean ----------------------------------------------------------------------------------


class Misfit(ValueError):
    """A record is no row."""


class Token(str):
    """A number of JSON, as it is written."""


_FLOAT = r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?"
_DAY = r"(\d{4})-(\d\d?)-(\d\d?)"
_TIME = rf"{_DAY}(?:[T ](\d\d?):(\d\d?)(?::(\d\d?)(?:\.(\d+))?)?(Z|[+-]\d\d(?::?\d\d)?)?)?"


def whole(bits: int) -> Callable[[str], Any]:
    def value(text: str) -> int:
        return must(int(text) if re.fullmatch("[+-]?[0-9]+", text) else None, lambda n: -(2**bits) <= n < 2**bits)

    return value


def must(value: Any, is_one: Callable[[Any], bool]) -> Any:
    if value is None or not is_one(value):
        raise Misfit
    return value


def double(text: str) -> float:
    if re.fullmatch("[+-]?(NaN|Infinity|Inf)", text):
        return float(text)
    value = must(text if re.fullmatch(_FLOAT, text, re.ASCII) else None, bool)
    return must(float(value), lambda n: abs(n) < float("inf") and (n != 0 or Decimal(value) == 0))


def decimal(text: str) -> Decimal:
    found = Decimal(must(text if re.fullmatch(_FLOAT, text, re.ASCII) else None, bool))
    return must(found.quantize(Decimal("0.01")), lambda n: n == found and abs(n) < 10**8)


def timestamp(text: str) -> str:
    """Return the moment in UTC as numpy does, which knows the years of the Gregorian calendar."""
    import datetime as dt

    found = must(re.fullmatch(_TIME, text, re.ASCII), bool)
    year, month, day, hour, minute, second, digits, zone = found.groups()
    more = (digits or "0").ljust(6, "0")
    must(more[6:].strip("0"), lambda rest: not rest)
    try:
        numbers = [int(each or 0) for each in (year, month, day, hour, minute, second, more[:6])]
        local = dt.datetime(*numbers)  # type: ignore[arg-type]  # noqa: DTZ001 - in the zone of the text
    except ValueError:
        raise Misfit from None
    offset = (zone or "Z").replace("Z", "+00").replace(":", "").ljust(5, "0")
    sign = -1 if offset[0] == "-" else 1
    return str(local - sign * dt.timedelta(hours=int(offset[1:3]), minutes=int(offset[3:])))


def date(text: str) -> str:
    return timestamp(must(text if re.fullmatch(_DAY, text, re.ASCII) else None, bool))[:10]


VALUES: Mapping[str, Callable[[str], Any]] = {
    "tinyint": whole(7),
    "bigint": whole(63),
    "double": double,
    "decimal(10,2)": decimal,
    "boolean": lambda text: must({"true": True, "false": False}.get(text.lower()), lambda value: True),
    "date": date,
    "timestamp": timestamp,
    "string": str,
}


# --- the oracle: what records are -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Files of one declaration."""

    form: str
    ddl: str
    options: Mapping[str, str]
    end: str = "\n"

    @property
    def columns(self) -> list[tuple[str, str]]:
        return [(name, kind) for name, kind in (column.split(" ", 1) for column in self.ddl.split(", "))]

    @property
    def header(self) -> str:
        return self.options.get("sep", ",").join(name for name, _ in self.columns)

    @property
    def encoding(self) -> str:
        return self.options.get("encoding", "utf-8")

    @property
    def has_several(self) -> bool:
        return "multiLine" in self.options

    def expected(self) -> Expected:
        columns = tuple((field.name, field.dataType) for field in StructType.fromDDL(self.ddl).fields)
        options = {name.lower(): value for name, value in self.options.items()}
        return Expected(format=self.form, columns=None if self.form == "text" else columns, options=options)


Meaning = tuple[list[Any], list[int]] | None
"""Rows in order, and the numbers of the bad records; None for a file that is refused."""


def meaning(case: Case, text: str) -> Meaning:
    rows: list[Any] = []
    bad: list[int] = []
    fields = {"csv": csv_fields, "json": json_fields, "text": lambda case, record: [record]}[case.form]
    found = records(case, text)
    if case.options.get("header"):
        first = next(found, None)
        if first is not None and csv_fields(case, first[1]) != [name for name, _ in case.columns]:
            return None
    for number, record in found:
        try:
            rows.append(tuple(map(repr, typed(case, fields(case, record)))))
        except Misfit:
            bad.append(number)
    return rows, bad


def records(case: Case, text: str) -> Iterator[tuple[int, str]]:
    """Yield (number, record), without blank lines and comments."""
    if case.form == "json" and case.has_several:
        yield from enumerate(map(json.dumps, json.loads(text)), start=1)
        return
    if case.has_several:
        yield from enumerate(re.findall(r'((?:[^"\n]|"[^"]*")+)\n', text), start=1)
        return
    own = case.options.get("lineSep")
    lines = text.split(own) if own else re.split("\r\n|\r|\n", text)
    for number, line in enumerate(lines[:-1] if lines[-1] == "" else lines, start=1):
        is_record = case.form == "text" or line.strip(" ")
        if is_record and not line.startswith(case.options.get("comment", "\n")):
            yield number, line


def csv_fields(case: Case, record: str) -> list[str | None]:
    given = {"delimiter": case.options.get("sep", ","), "quotechar": case.options.get("quote", '"')}
    try:
        (fields,) = csv.reader(io.StringIO(record, newline=""), strict=True, **given)  # type: ignore[arg-type]
    except csv.Error:
        raise Misfit from None
    return [None if field in ("", case.options.get("nullValue", "")) else field for field in fields]


def json_fields(case: Case, record: str) -> list[Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return must(dict(pairs), lambda found: len(found) == len(pairs))

    try:
        found = json.loads(record, parse_int=Token, parse_float=Token, parse_constant=must, object_pairs_hook=once)
    except (ValueError, TypeError):
        raise Misfit from None
    names = [name for name, _ in case.columns]
    if not isinstance(found, dict) or not set(names) & set(found):
        raise Misfit
    return [member(kind, found.get(name)) for name, kind in case.columns]


def member(kind: str, value: Any) -> Any:
    """Return the text of a JSON value if its column takes such a token."""
    takes: Mapping[str, tuple[type, ...]] = {"string": (str,), "decimal(10,2)": (str,), "date": (str,)}
    if value is None:
        return None
    is_one = isinstance(value, takes.get(kind, (Token,))) and not (kind == "date" and isinstance(value, Token))
    return must(str(value), lambda text: is_one)


def typed(case: Case, fields: Sequence[Any]) -> list[Any]:
    must(fields, lambda found: len(found) == len(case.columns))
    return [None if each is None else VALUES[kind](each) for each, (_, kind) in zip(fields, case.columns, strict=True)]


# --- files --------------------------------------------------------------------------------------------------------

NUMBERS = ["7", "-12", "+5", "007", "", "127", "128", "9223372036854775808", "1.0", "0x1F", "1_000", "1,5", "٣", " 3",
           "1L"]  # fmt: skip
FLOATS = ["0.1", "1.", ".5", "-0.0", "1E-7", "4.9e-324", "1e-400", "1e400", "NaN", "nan", "-Inf", "inf", "1d", "1.5 "]
TEXTS = ["a", " a", "ä€", "null", "-", "'q'", "a#b", 'a"b', "b\t", "0x1F", "\x7f", "x y"]
QUOTED = ['"a"', '"a,b;c"', '""', '" a "', '"a""b"', '"#"', '"1"', '"open']
DATES = ["2024-02-29", "2023-02-29", "2024-1-1", "0001-01-01", "9999-12-31", "2024-01-01 ", "20240101", "1582-10-10"]
TIMES = ["2024-02-29 10:11:12", "2024-02-29T10:11:12.123456000Z", "2024-02-29T10:11:12.1234567", "2024-02-29T1:2",
         "2024-02-29 10:11:12+02:00", "1582-10-10 00:00:00-0130", "2024-02-29 24:00:00", "2024-02-29", "12:00", "now",
         "2024-02-29T10:11:12+05", "2024-02-29 10:11:60", "2024-02-29 10:11:12 Z"]  # fmt: skip
ODD: Mapping[str, Sequence[str]] = {
    "tinyint": NUMBERS,
    "bigint": NUMBERS,
    "double": [*NUMBERS, *FLOATS],
    "decimal(10,2)": [*NUMBERS, "1.25", "0.005", "1.250", "1.2e1", "1e-3", "12345678.90", "123456789"],
    "string": TEXTS,
    "boolean": ["true", "FALSE", "1", "yes", " true"],
    "date": DATES,
    "timestamp": [*DATES, *TIMES],
}


def random_text(case: Case, chance: random.Random) -> str:
    """Return the text of a file that is plain, a little odd, or odd throughout."""
    oddity = chance.choice([0.0, 0.1, 1.0])
    lines = [record_of(case, chance, oddity) for _ in range(chance.randrange(6))]
    if case.options.get("header"):
        lines.insert(0, "other" if chance.random() < 0.1 else case.header)
    if case.form == "json" and case.has_several:
        return f"[{','.join(lines)}]"
    return "".join(line + case.end for line in lines)


def record_of(case: Case, chance: random.Random, oddity: float) -> str:
    def text(kind: str) -> str:
        return chance.choice(ODD[kind][:3] if chance.random() >= oddity else ODD[kind])

    is_odd = chance.random() < oddity / 4
    if case.form == "json":
        pairs = [f'"{name}": {chance.choice([json.dumps(text(kind)), text(kind), "null"])}' for name, kind in
                 case.columns]  # fmt: skip
        odd = [] if case.has_several else ['{"other": 1}', "{", f"{{{pairs[0]}, {pairs[0]}}}", "[1]", ""]
        plain = f"{{{', '.join(chance.sample(pairs, k=chance.randrange(1, len(pairs) + 1)))}}}"
        if case.has_several:  # a document is whole, or refused: each of its objects is one
            plain = json.dumps({case.columns[0][0]: text("string")})
        return chance.choice(odd) if odd and is_odd else plain
    if case.form == "text":
        return chance.choice([*TEXTS, *QUOTED, "", " "])
    if is_odd and not case.has_several:
        return chance.choice(["", "  ", "#,,", "1", ",,,,,,"])
    fields = [chance.choice(quoted(case)) if kind == "string" and chance.random() < oddity else text(kind)
              for _, kind in case.columns]  # fmt: skip
    return case.options.get("sep", ",").join(fields)


def quoted(case: Case) -> list[str]:
    if case.has_several:
        return ['"a\nb"', '"\n"', '"a,\n""b"""', '"a"']
    return [field.replace('"', case.options.get("quote", '"')) for field in QUOTED]


CASES: Mapping[str, Case] = {
    "csv": Case("csv", "a bigint, b string, c double", {}),
    "header": Case("csv", "a string, b decimal(10,2), c boolean", {"header": "true"}),
    "returns": Case("csv", "a date, b timestamp", {"sep": ";", "header": "true"}, end="\r\n"),
    "lone returns": Case("csv", "a string, b bigint", {"sep": "\t"}, end="\r"),
    "marks": Case("csv", "a string, b tinyint", {"quote": "'", "comment": "#", "nullValue": "-", "header": "true"}),
    "several lines": Case("csv", "a bigint, b string", {"multiLine": "true", "header": "true"}),
    "own ends": Case("csv", "a bigint, b string", {"lineSep": "|"}, end="|"),
    "encoding": Case("csv", "a timestamp, b string", {"encoding": "UTF-16LE"}),
    "json": Case("json", "a bigint, b decimal(10,2), c string, d date, e double", {}),
    "documents": Case("json", "a string", {"multiLine": "true"}),
    "text": Case("text", "value string", {}),
    "text in own encoding": Case("text", "value string", {"encoding": "UTF-16"}, end="\r\n"),
}
PACKED = {"": None, ".gz": gzip.compress, ".bz2": bz2.compress, ".zst": lambda content: pa.compress(content, "zstd")}


# --- the ways -----------------------------------------------------------------------------------------------------


def found_by(read: ReadFiles, numbers: Sequence[int]) -> list[Meaning]:
    """Return what was read of files, their rows in the order of their places."""
    tables = read.rows.tables()
    rows: dict[int, list[Any]] = {number: [] for number in numbers}
    for table in tables:
        names = [name for name in table.column_names if not name.startswith("_")]
        columns = [map(shown, table[name].to_pylist()) for name in names]
        places = [(each["block"], each["row"]) for each in table["_position"].to_pylist()]
        for number, place, *values in zip(table["_sequence_id"].to_pylist(), places, *columns, strict=True):
            rows[number].append((place, *values))
    verdicts = [read.verdicts[number] for number in numbers]
    return [
        None if said.refused else ([row[1:] for row in sorted(rows[number])], [each.position or 0 for each in said.bad])
        for number, said in zip(numbers, verdicts, strict=True)
    ]


def shown(value: Any) -> str:
    return repr(str(value).removesuffix("+00:00")) if hasattr(value, "isoformat") else repr(value)


@pytest.fixture
def written(tmp_path: Path) -> Callable[[bytes, str], InputFile]:
    """Return a function that writes a file under a number of its own."""
    numbers = count(1)

    def write(content: bytes, suffix: str = "") -> InputFile:
        number = next(numbers)
        path = tmp_path / f"{number:05d}{suffix or '.data'}"
        path.write_bytes(content)
        return InputFile(number=number, path=str(path), size=len(content))

    return write


@pytest.mark.seed("H16", "DX6")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_file_has_the_rows_and_the_bad_records_of_the_oracle_whichever_way_it_is_read(
    engine: SparkEngine, bucket: Bucket, tmp_path: Path, written: Any, case: Case
) -> None:
    session, chance = engine.session, random.Random(repr(case))
    texts = [random_text(case, chance) for _ in range(examples(80))]
    wanted = [meaning(case, text) for text in texts]
    assert sum(bool(each and each[0]) for each in wanted) > len(texts) // 4, (
        "too few files have rows for this to mean anything"
    )
    contents = [text.encode(case.encoding) for text in texts]
    expected, here = case.expected(), [written(content) for content in contents]
    numbers = [file.number for file in here]

    def differing(found: Sequence[Meaning]) -> list[Any]:
        return [(text, one, two) for text, one, two in zip(texts, found, wanted, strict=True) if one != two][:3]

    assert not differing(found_by(read_here(here, expected), numbers)), "with others"
    assert not differing([found_by(read_here([file], expected), [file.number])[0] for file in here]), "alone"
    ways = {name: [written(pack(each), name) for each in contents] for name, pack in PACKED.items() if pack is not None}
    ways["ranges"] = here
    ways["bucket"] = [stored(bucket, written(content), content) for content in contents]
    place = LocalPlace(str(tmp_path / "rows"))
    files = [file for each in ways.values() for file in each]
    by_tasks = read_files(OnSpark(session), files, expected, place, 16)
    found = dict(zip(files, found_by(by_tasks, [file.number for file in files]), strict=True))
    for name, members in ways.items():
        assert not differing([found[file] for file in members]), name


def stored(bucket: Bucket, file: InputFile, content: bytes) -> InputFile:
    key, of_tasks = f"in/{file.number}", bucket.store.bucket(bucket.address)
    etag = bucket.store.put(bucket.address, key, content)
    found = StoredObject(bucket=of_tasks, key=key, size=len(content), etag=etag)
    return InputFile(number=file.number, path=file.path, size=file.size, stored=found)


class Here:
    """A reach of one folder."""

    region = "app/rows"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, path: str) -> Path:
        return self.folder / path


@pytest.mark.parametrize("case", [CASES[name] for name in ("csv", "header", "marks", "json", "text")])
def test_the_slices_of_a_file_that_grows_have_its_rows(
    engine: SparkEngine, tmp_path: Path, written: Any, case: Case
) -> None:
    """Slices of a few bytes, each a file with the header: their rows and bad lines are those of the whole file."""
    assert engine.session, "types are parsed by a session"
    chance = random.Random(repr(case))
    texts = [random_text(case, chance) for _ in range(12)]
    wholes = [each for text in texts if (each := meaning(case, text)) is not None]
    good = [text for text in texts if meaning(case, text) is not None]
    header = f"{case.header}{case.end}" if case.options.get("header") else ""
    bodies = [text.removeprefix(header) for text in good]
    (tmp_path / "growing").write_text(header + "".join(bodies))
    schema = None if case.form == "text" else case.ddl
    source = dm.FileSource(path="growing", format=case.form, schema=schema, options=case.options, slice_bytes=20)
    rows, bad, after, access = [], 0, None, Here(tmp_path)
    while (piece := source.next_slice(after, access, SliceLimit(source="rows"))) is not None:
        (part,) = source.parts(piece, access, "rows")
        file = written(b"")
        part.place(Path(file.path))
        ((read, numbers),) = found_by(read_here([file], case.expected()), [file.number])
        rows, bad, after = [*rows, *read], bad + len(numbers), piece.end
    assert rows == [row for read, _ in wholes for row in read]
    assert bad == sum(len(numbers) for _, numbers in wholes)


MARK = b"\xef\xbb\xbf"
TRICKY = {
    "a mark behind the header": b"a,b\n" + MARK + b"1,2\n",
    "a header behind a control character": b"\x1f\na,b\n1,2\n",
    "a header behind a blank line": b" \na,b\n1,2\n",
    "two marks": MARK + MARK + b"a,b\n1,2\n",
}


@pytest.mark.parametrize("content", TRICKY.values(), ids=TRICKY)
@pytest.mark.parametrize("place", [0, 1])
def test_where_a_file_stands_among_others_makes_no_difference(
    engine: SparkEngine, written: Any, content: bytes, place: int
) -> None:
    case = Case("csv", "a string, b string", {"header": "true"})
    assert engine.session, "types are parsed by a session"
    contents = [b"a,b\n3,4\n", b"a,b\n5,6\n"]
    contents.insert(place, content)
    files = [written(each) for each in contents]
    (alone,) = found_by(read_here([files[place]], case.expected()), [files[place].number])
    together = found_by(read_here(files, case.expected()), [file.number for file in files])
    assert together[place] == alone
    together.pop(place)
    assert together == [([("'3'", "'4'")], []), ([("'5'", "'6'")], [])]
