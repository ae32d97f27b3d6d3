"""Every file of the collections of bad input gets the verdict that its authors say it deserves (I9–I13, I19).

The verdict of a file is derived from its authors' statements, never from results seen here: JSONTestSuite's names,
csv-spectrum's own JSON, the README of parquet-testing, and Python's decoder for plain text. DRAINMARK_VERDICTS=FILE
writes the table of verdicts.
"""

from __future__ import annotations

import gzip
import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bad_inputs import Fate, run, write

from drainmark.orchestration.workplace.workplace import Workplace

DATA = Path(__file__).parents[3] / "shared" / "data" / "badinput"
SPACES = bytes(range(33))

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not DATA.is_dir(), reason="the shared data is absent"),
]


@pytest.fixture(scope="module")
def table() -> Iterator[list[tuple[str, str, str]]]:
    """Collect (corpus, file, verdict), and write them to the file that DRAINMARK_VERDICTS names, if it is set."""
    verdicts: list[tuple[str, str, str]] = []
    yield verdicts
    if os.environ.get("DRAINMARK_VERDICTS"):
        Path(os.environ["DRAINMARK_VERDICTS"]).write_text(as_markdown(verdicts))


def as_markdown(verdicts: list[tuple[str, str, str]]) -> str:
    kinds = ("accepted", "rows quarantined", "file quarantined")
    counts = Counter((corpus, verdict) for corpus, _, verdict in verdicts)
    lines = [f"| corpus | files | {' | '.join(kinds)} |", "|---|--:|--:|--:|--:|"]
    for corpus in dict.fromkeys(corpus for corpus, _, _ in verdicts):
        numbers = [counts[corpus, kind] for kind in kinds]
        lines.append(f"| {corpus} | {sum(numbers)} | {' | '.join(map(str, numbers))} |")
    listing = [f"- {corpus}: {name}: {verdict}" for corpus, name, verdict in sorted(verdicts)]
    return "\n".join([*lines, "", *listing, ""])


def note(table: list[tuple[str, str, str]], corpus: str, found: Mapping[str, Fate]) -> None:
    for name, fate in found.items():
        verdict = "file quarantined" if fate.refused else "rows quarantined" if fate.bad else "accepted"
        table.append((corpus, name, verdict))


def contents(folder: str, pattern: str = "*") -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((DATA / folder).glob(pattern)) if path.is_file()}


# --- JSON ---------------------------------------------------------------------------------------------------------

JSON = {"format": "json", "schema": "a string, b string, id string", "max_bad_ratio": 1.0}
OTHER_FIELDS = {"allowNoFields": "true"}
EMPTY = {"n_single_space.json", "n_structure_no_data.json", "n_structure_UTF8_BOM_no_data.json"}
"""Files without records: as a file of JSON lines they are good, though an empty document is not valid JSON."""

TWICE = ("object_duplicated_key", "object_same_key")
"""RFC 8259 allows a duplicate name and leaves its meaning open; here it is refused."""


def json_files() -> dict[str, bytes]:
    return {**contents("json/test_parsing"), **contents("json/test_transform")}


def records_of(content: bytes) -> list[bytes]:
    """Return the lines that are not blank."""
    lines = content.removeprefix(b"\xef\xbb\xbf").splitlines()
    return [line for line in lines if line.strip(SPACES) or b"\0" in line]


def value_of(content: bytes) -> Any:
    """Return the value of the document in a `y_` file, which is good according to its authors."""
    return json.loads(content)


def test_a_line_of_json_is_taken_if_its_authors_call_it_json_and_it_is_an_object(
    workplace: Workplace, tmp_path: Path, table: list[tuple[str, str, str]]
) -> None:
    files = json_files()
    write(tmp_path / "inbox", files)
    found = run(workplace, tmp_path / "inbox", options=OTHER_FIELDS, **JSON)
    assert set(found) == set(files)
    note(table, "JSONTestSuite as JSON lines", found)
    for name, content in files.items():
        fate, records = found[name], records_of(content)
        assert fate.refused is not None or fate.rows_in == len(records), name
        if name in EMPTY:
            assert (fate.rows, fate.bad) == ([], []), name
        elif name.startswith("n_") and len(records) == 1:
            assert fate.rows == [], name
        elif name.startswith("y_") and len(records) == 1:
            good = isinstance(value_of(content), dict) and not name[2:].startswith(TWICE)
            assert (len(fate.rows), len(fate.bad)) == (1, 0) if good else (0, 1), name


def test_a_document_of_json_is_taken_if_its_authors_call_it_json_and_it_holds_objects(
    workplace: Workplace, tmp_path: Path, table: list[tuple[str, str, str]]
) -> None:
    """An item of an array that is no good object is a bad record beside the others."""
    files = json_files()
    write(tmp_path / "inbox", files)
    found = run(workplace, tmp_path / "inbox", options={"multiLine": "true", **OTHER_FIELDS}, **JSON)
    note(table, "JSONTestSuite as documents", found)
    for name, content in files.items():
        fate = found[name]
        if name in EMPTY:
            assert (fate.rows, fate.bad) == ([], []), name
        elif name.startswith("n_") or TWICE[1] in name:
            assert fate.rows == [], name
            assert fate.bad != [], name
        elif name.startswith("y_"):
            value = value_of(content)
            values = value if isinstance(value, list) else [value]
            good = 0 if name[2:].startswith(TWICE) else sum(isinstance(item, dict) for item in values)
            assert (len(fate.rows), len(fate.bad)) == (good, len(values) - good), name
            assert (fate.refused is None) == isinstance(value, list | dict), name


# --- CSV ----------------------------------------------------------------------------------------------------------


def test_csv_spectrum_is_read_as_its_authors_read_it(
    workplace: Workplace, tmp_path: Path, table: list[tuple[str, str, str]]
) -> None:
    files = contents("csv-spectrum/csvs")
    wanted = {name: json.loads((DATA / "csv-spectrum/json" / name).with_suffix(".json").read_text()) for name in files}
    headers = {tuple(expected[0]) for expected in wanted.values()}
    outputs = {"_".join(header): f"{'_'.join(header)}/*.csv" for header in headers}
    schemas = {"_".join(header): ", ".join(f"{name} string" for name in header) for header in headers}
    placed = {f"{'_'.join(wanted[name][0])}/{name}": content for name, content in files.items()}
    write(tmp_path / "inbox", placed)
    found = run(
        workplace, tmp_path / "inbox", format="csv", outputs=outputs, schema=schemas,
        options={"header": "true", "multiLine": "true"},
    )  # fmt: skip
    note(table, "csv-spectrum", found)
    for name, fate in found.items():
        expected = wanted[Path(name).name]
        got = [{column: row[column] or "" for column in expected[0]} for row in fate.rows]  # an empty field is null
        assert fate.bad == []
        assert sorted(map(repr, got)) == sorted(map(repr, expected)), name


# --- text ---------------------------------------------------------------------------------------------------------


def test_text_is_taken_line_by_line_where_it_is_utf8(
    workplace: Workplace, tmp_path: Path, table: list[tuple[str, str, str]]
) -> None:
    files = {
        **contents("messytables"),
        **contents("strings"),
        **contents("csv-spectrum/json"),
        **{f"json-{name}": content for name, content in contents("json").items()},
        **{f"parquet-{name}": content for name, content in contents("parquet").items()},
        **contents("", "*.md"),
        "bad_data.md": (DATA / "parquet/bad_data/README.md").read_bytes(),
    }
    write(tmp_path / "inbox", files)
    found = run(workplace, tmp_path / "inbox")
    note(table, "messytables, strings and the rest as text", found)
    for name, content in files.items():
        fate = found[name]
        plain = gzip.decompress(content) if name.endswith(".gz") else content
        lines = plain.removeprefix(b"\xef\xbb\xbf").splitlines()
        bad = [number for number, line in enumerate(lines, start=1) if not is_text(line)]
        if content[:2] in (b"PK", b"\xff\xfe") or 2 * len(bad) > len(lines):
            assert fate.refused is not None, name
            assert fate.rows == [], name
        else:
            assert list(fate.lines) == bad, name
            good = [line.decode() for number, line in enumerate(lines, start=1) if number not in bad]
            assert sorted(row["value"] for row in fate.rows) == sorted(good), name


def is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in line


# --- Parquet ------------------------------------------------------------------------------------------------------

READABLE = {"ARROW-GH-43605.parquet": "a dictionary of no bits, which Arrow reads"}
"""Files that are corrupt by the README, but have as many rows as the footer says; nothing shows an error."""


def test_corrupt_parquet_is_quarantined_whole(
    workplace: Workplace, tmp_path: Path, table: list[tuple[str, str, str]]
) -> None:
    corrupt = contents("parquet/bad_data", "*.parquet")
    files = {f"{number}/{name}": content for number, (name, content) in enumerate(corrupt.items())}
    write(tmp_path / "inbox", files)
    schemas = {f"f{name[0]}": declared(tmp_path / "inbox" / name) for name in files}
    outputs = {f"f{name[0]}": name for name in files}
    found = run(workplace, tmp_path / "inbox", format="parquet", outputs=outputs, schema=schemas)
    note(table, "parquet-testing bad_data", found)
    assert len(found) == 8
    for name, fate in found.items():
        assert (fate.refused is None) == (Path(name).name in READABLE), (name, fate.refused)
        assert not (fate.refused or "").startswith("has other columns"), "the declaration is to fit"
        assert fate.refused is not None or len(fate.rows) == pq.read_metadata(tmp_path / "inbox" / name).num_rows


def declared(path: Path) -> str:
    """Return the columns of a file as DDL, without columns of types that Spark does not have."""
    try:
        schema = pq.read_schema(path)
    except OSError:  # even the schema is corrupt
        return "x string"
    columns = {column.name: ddl(column.type) for column in schema}
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items() if kind is not None)


def ddl(kind: pa.DataType) -> str | None:
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import from_arrow_type

    try:
        found = "int" if kind == pa.uint16() else from_arrow_type(kind).simpleString().replace("void", "int")
    except PySparkTypeError:
        return None
    return None if found.startswith("time(") else found


# --- random damage ------------------------------------------------------------------------------------------------


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Return the content after a few random cuts, flips, doublings, and insertions of bytes that parsers interpret."""
    data = bytearray(content)
    for _ in range(chance.randrange(1, 5)):
        place = chance.randrange(len(data) + 1)
        kind = chance.randrange(5)
        if kind == 0:
            data[place : place + chance.randrange(1, 20)] = b""
        elif kind == 1 and place < len(data):
            data[place] ^= 1 << chance.randrange(8)
        elif kind == 2:
            data[place:place] = chance.choice([b'"', b",", b"\n", b"\r", b"{", b"}", b"\\", b"\0", b"\xff", b"\xe9"])
        elif kind == 3:
            data[place:place] = data[place : place + 30]
        else:
            data = data[: max(1, place)]
    return bytes(data)


RECORDS = [{"id": number, "name": f'n"{number}, ü', "x": number / 4} for number in range(12)]
ORIGINALS: Mapping[str, tuple[bytes, str, dict[str, Any]]] = {
    "text": ("".join(f"line {number} ü\n" for number in range(20)).encode(), "", {}),
    "gzip": (gzip.compress(b"".join(b"line %d\n" % number for number in range(200)), mtime=0), ".gz", {}),
    "csv": (
        ("id,name,x\n" + "".join(f'{r["id"]},"name, {r["id"]} ü",{r["x"]}\n' for r in RECORDS)).encode(), "",
        {"format": "csv", "schema": "id bigint, name string, x double", "options": {"header": "true"}},
    ),
    "json": (
        "".join(json.dumps(record) + "\n" for record in RECORDS).encode(), "",
        {"format": "json", "schema": "id bigint, name string, x double"},
    ),
}  # fmt: skip


def has_nulls_alone(line: bytes) -> bool:
    """Say whether a line is an object that has some of the columns, each null."""
    try:
        value = json.loads(line)
    except ValueError:
        return False
    members = [value[column] for column in ("id", "name", "x") if column in value] if isinstance(value, dict) else []
    return bool(members) and all(member is None for member in members)


def damage_and_run(workplace: Workplace, inbox: Path, kind: str, count: int, seed: int) -> None:
    """Assert: rows in are rows out plus quarantined (see `fates`), no file costs an attempt, and no group is split."""
    content, suffix, scan = ORIGINALS[kind]
    chance = random.Random(seed)
    files = {f"{number:05d}{suffix}": damaged(content, chance) for number in range(count)}
    write(inbox, files)
    found = run(workplace, inbox, **scan)
    assert set(found) == set(files)
    assert workplace.history("copying/read").epoch == 1
    for name, fate in found.items():
        if fate.refused is None and kind == "text":
            assert fate.rows_in == len(files[name].splitlines())
        if fate.refused is None and kind == "json":
            assert fate.rows_in == len(records_of(files[name]))
            empty = sum(all(row[column] is None for column in ("id", "name", "x")) for row in fate.rows)
            assert empty == sum(map(has_nulls_alone, records_of(files[name]))), "a row is null only where JSON has none"


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "csv" else pytest.mark.slow) for kind in ORIGINALS]
)
def test_damaged_files_are_accounted_for(kind: str, workplace: Workplace, tmp_path: Path) -> None:
    damage_and_run(workplace, tmp_path / "inbox", kind, 150, seed=20260101)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ORIGINALS)
def test_thousands_of_damaged_files_are_accounted_for(
    kind: str, seed: int, workplace: Workplace, tmp_path: Path
) -> None:
    damage_and_run(workplace, tmp_path / "inbox", kind, 2000, seed=seed)
