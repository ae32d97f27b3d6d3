"""One file within the caps takes bounded memory and time, whatever is in it (I13, I14)."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import json
import os
import random
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DateType, DecimalType, LongType, StringType, TimestampType
from reads import Read, parsed, read_bytes

from drainmark.jobs.formats import bad_records, json_records, parquet, parquet_pages
from drainmark.jobs.formats.bad_records import CAPS, Refused
from drainmark.jobs.formats.format import Expected
from drainmark.jobs.formats.lines import content as contents
from drainmark.jobs.formats.lines.content import Held
from drainmark.jobs.formats.values import json_tables

pytestmark = [pytest.mark.seed("I13", "I14"), pytest.mark.timeout(120)]

DIGITS = CAPS.number_digits
Judge = Callable[..., Read]


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    """Return a function that reads bytes as a file of some columns."""
    return partial(read_bytes, tmp_path)


@pytest.fixture
def small_caps(monkeypatch: pytest.MonkeyPatch) -> bad_records.Caps:
    """Return caps that small files exceed."""
    caps = dataclasses.replace(
        CAPS, json_values=1000, document_values=3000, ratio_free_bytes=1 << 20, decompressed_bytes=8 << 20
    )
    for module in (json_records, parquet_pages, contents):
        monkeypatch.setattr(module, "CAPS", caps)
    return caps


# --- JSON ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines",
    [
        [{"k": 1, f"x{number}": 1} for number in range(6000)],  # as rows that are keyed by an id
        [{f"x{number + 1000 * line}": 1 for number in range(1000)} for line in range(20)],
        [{"k": 1, "y": {f"x{number}": {}}} for number in range(6000)],
    ],
    ids=["a name a line", "a thousand names a line", "names below a name"],
)
def test_names_that_differ_from_line_to_line_take_no_table_of_all_of_them(
    judge: Judge, lines: Sequence[dict[str, Any]]
) -> None:
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.system_memory_pool())
    pa.set_memory_pool(pool)
    try:
        found = judge(content, "json", [("k", LongType())], options={"allownofields": "true"})
    finally:
        pa.set_memory_pool(before)
    assert (found.refused, found.bad, len(found.rows)) == (None, (), len(lines))
    assert pool.max_memory() < 128 << 20  # a table of all names would have 36 million cells of eight bytes


def test_lines_are_read_alike_in_one_table_and_in_many(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [b'{"k":%d,"x%d":[{"y":"a:b"}]}\n' % (n, n % 7) for n in range(50)]
    bad = [b'{"k":1}{"k":2}\n', b'{"k":1,"k":2}\n', b'{"k":1,}\n', b"[1]\n"]
    for broken in ([], *([line] for line in bad)):
        written = b"".join([*lines[:20], *broken, *lines[20:]])
        whole = judge(written, "json", [("k", LongType())])
        assert ([row["k"] for row in whole.rows], len(whole.bad)) == ([*range(50)], len(broken))
        for cells in (1, 30, 200):
            with monkeypatch.context() as patch:
                patch.setattr(json_tables, "_PARSED_CELLS", cells)
                assert judge(written, "json", [("k", LongType())]) == whole


def test_a_name_that_stands_twice_among_many_is_found_at_once(judge: Judge) -> None:
    names = b",".join(b'"x%d":1' % number for number in range(400_000))
    (bad,) = judge(b'{%b,"twice":1,"twice":2}\n' % names, "json", [("k", LongType())]).bad
    assert "'twice' stands twice" in bad.reason


@pytest.mark.parametrize(
    "value", ["[" + "1," * 2000 + "1]", "[" + "[]," * 1500 + "[]]", json.dumps({f"x{n}": n for n in range(1500)})]
)
def test_a_record_of_too_many_values_is_bad_and_the_others_are_good(
    judge: Judge, small_caps: bad_records.Caps, value: str
) -> None:
    content = f'{{"k":1}}\n{{"k":2,"v":{value},"text":"NaN"}}\n{{"k":3}}\n{{"k":NaN}}\n'.encode()
    found = judge(content, "json", [("k", LongType())])
    assert ([row["k"] for row in found.rows], [*found.reasons]) == ([1, 3], [2, 4])
    assert found.reasons[2].startswith("has more than 1000 values")


def test_a_document_of_too_many_values_is_refused(judge: Judge, small_caps: bad_records.Caps) -> None:
    options = {"multiline": "true"}
    content = json.dumps([{"k": n, "comma": ",,,,"} for n in range(500)]).encode()
    assert judge(content, "json", [("k", LongType())], options=options).refused is None
    content = json.dumps([{"k": n} for n in range(4000)]).encode()
    assert "more than 3000 values" in str(judge(content, "json", [("k", LongType())], options=options).refused)


def test_many_quotes_that_never_close_are_looked_at_once(judge: Judge) -> None:
    (bad,) = judge(b"{" * 600 + b'"' + b'\\"' * 4_000_000 + b"\n", "json", [("k", LongType())]).bad
    assert bad.reason.startswith("is nested deeper") or bad.reason.startswith("is no JSON")


# --- numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounding", [None, "half_up"])
@pytest.mark.parametrize(
    "number", ["0." + "1" * DIGITS, "9" * (DIGITS + 1), "1" * 3_000_000 + "e-9", "-" + "7" * 10**6]
)
@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_decimal_of_many_digits_is_bad_before_anybody_computes_with_it(
    judge: Judge, kind: str, number: str, rounding: str | None
) -> None:
    record = f'x,"{number}"\n' if kind == "csv" else f'{{"k":"x","d":"{number}"}}\n'
    good = "y,1.25\n" if kind == "csv" else '{"k":"y","d":1.25}\n'
    columns = [("k", StringType()), ("d", DecimalType(10, 2))]
    found = judge((good + record + good).encode(), kind, columns, rounding=rounding)
    assert (len(found.rows), [*found.reasons]) == (2, [2])
    assert str(DIGITS) in found.reasons[2]


def test_a_text_may_be_of_digits(judge: Judge) -> None:
    columns = [("k", StringType()), ("d", DecimalType(10, 2))]
    assert judge(b"1" * 100_000 + b",1.25\n", "csv", columns).bad == ()
    assert judge(b'{"k":"%b","d":1.25}\n' % (b"1" * 100_000), "json", columns).bad == ()


# --- CSV ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [b"," * 120_000 + b"x" * 6_000_000 + b"\n", b"a\n" * 120_000 + b"x" * 6_000_000, b'"a\nb",' * 100_000 + b"\n"],
    ids=["fields before a long one", "records before a long one", "line ends in quotes"],
)
def test_records_over_several_lines_take_time_by_their_length(judge: Judge, content: bytes) -> None:
    columns = [("a", StringType()), ("d", DecimalType(10, 2))]
    reason = str(judge(content, "csv", columns, options={"multiline": "true"}).refused)
    assert reason == "None" or reason.startswith("more than 100000 rows are bad")


def test_blank_lines_are_passed_over_at_once_and_counted_right(judge: Judge) -> None:
    content = b"\n" * 2_000_000 + b"a,t\n" + b"\t\r\n \n" * 150_000 + b"x,2026-01-01\n\nbad\n"
    found = judge(content, "csv", [("a", StringType()), ("t", TimestampType())], options={"header": "true"})
    assert (len(found.rows), [*found.reasons]) == (1, [2_300_004])


@pytest.mark.parametrize("separator", ["|", "\t"])
def test_a_record_that_never_ends_is_refused_before_it_is_held(judge: Judge, separator: str) -> None:
    content = b"x,1.25\n" * (CAPS.line_bytes // 6)
    found = judge(content, "csv", [("a", StringType()), ("d", DecimalType(10, 2))], options={"linesep": separator})
    assert "has a record of more than" in str(found.refused)


@pytest.mark.parametrize("sep", [",", "\t", " "])
def test_blanks_at_which_fields_begin_are_looked_at_once(judge: Judge, sep: str) -> None:
    for trims in ("true", "false"):
        options = {"sep": sep, "ignoreleadingwhitespace": trims, "ignoretrailingwhitespace": trims}
        content = (f"a{sep}" + "\x0b \t"[: 2 if sep != " " else 1] * 400_000 + "b\n").encode()
        assert len(judge(content, "csv", [("a", StringType()), ("b", StringType())], options=options).rows) == 1


def test_a_line_of_too_many_columns_is_bad_and_the_others_are_good(judge: Judge) -> None:
    found = judge(b"a,b\n" + b"," * 2_000_000 + b"\nc,d\n", "csv", [("a", StringType()), ("b", StringType())])
    assert (len(found.rows), [*found.reasons]) == (2, [2])
    assert found.reasons[2].startswith("has more than 20000 columns")
    columns = [(f"c{number}", StringType()) for number in range(CAPS.columns + 1)]
    (reason,) = judge(b"," * CAPS.columns + b"\n", "csv", columns).reasons.values()
    assert reason.startswith("has more than 20000 columns"), "declared or not"


# --- zstd ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "records", "refused"),
    [
        (b"a,1.25\n" * 3, 3, None),
        (b"\0" * 40_000_000, 0, "200 times its bytes"),
        (os.urandom(1 << 16) * 150 + b"\0", 0, "8388608 bytes when decompressed"),
        (b"a,1.25\n" * 1_000_000, 0, "200 times its bytes"),
    ],
    ids=["good", "a line of zeros", "what has no lines", "lines"],
)
def test_zstd_is_unpacked_as_a_stream_with_a_bound(
    judge: Judge, small_caps: bad_records.Caps, content: bytes, records: int, refused: str | None
) -> None:
    columns = [("a", StringType()), ("d", DecimalType(10, 2))]
    found = judge(pa.compress(content, codec="zstd", asbytes=True), "csv", columns, suffix=".zst")
    assert len(found.rows) == records
    assert (refused or "None") in str(found.refused)


# --- Parquet ------------------------------------------------------------------------------------------------------

_TEXT = pa.array(["x" * 100_000])
HOSTILE: dict[str, tuple[Callable[[], pa.Table], Any, str]] = {
    "a page of zeros": (lambda: pa.table({"a": ["0" * 4_000_000]}), {"use_dictionary": False}, "a page of column 'a'"),
    "a text that all rows share": (
        lambda: pa.table({"a": pa.DictionaryArray.from_arrays(pa.array([0] * 10_000, pa.int32()), _TEXT)}),
        {"store_schema": False},
        "bytes when decompressed",
    ),
    "a row of many items": (
        lambda: pa.table({"a": pa.array([[7] * 500_000])}),
        {},
        "arrays in column 'a.list.element'",
    ),
    "a text that all texts begin with": (
        lambda: pa.table({"a": _TEXT.take(pa.array([0] * 2000))}),
        {"use_dictionary": False, "column_encoding": {"a": "DELTA_BYTE_ARRAY"}},
        "bytes when decompressed",
    ),
    "items that all begin with a text": (
        lambda: pa.table({"a": [["x" * 10_000] * 5000]}),
        {"use_dictionary": False, "column_encoding": {"a.list.element": "DELTA_BYTE_ARRAY"}},
        "arrays in column 'a.list.element'",
    ),
    "rows without values": (lambda: pa.table({"a": pa.nulls(3_000_000, pa.int64())}), {}, "bytes when decompressed"),
}


def sizes_of(path: Path) -> Sequence[parquet_pages.Size]:
    return [*parquet_pages.bytes_in_memory(parquet_pages.ParquetData.of(Held(path.read_bytes()))).values()]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_small_parquet_file_of_gigabytes_is_refused_unread(
    tmp_path: Path, small_caps: bad_records.Caps, name: str
) -> None:
    make, written, reason = HOSTILE[name]
    rows, path = make(), tmp_path / "file.data"
    pq.write_table(rows, path, compression="zstd", **written)
    stored = rows.schema.field("a").type
    kind = from_arrow_type(stored.value_type if pa.types.is_dictionary(stored) else stored)
    with pytest.raises(Refused, match=re.escape(reason)):
        next(parsed(path, Expected(format="parquet", columns=[("a", kind)])))
    assert path.stat().st_size < 1 << 17


def test_ordinary_parquet_files_are_within_the_caps_and_their_bytes_are_told(tmp_path: Path) -> None:
    rows = pa.table({"n": range(5000), "s": [f"s{n % 10}" for n in range(5000)], "l": [[n, None] for n in range(5000)]})
    for version, compression in (("1.0", "zstd"), ("2.0", "gzip"), ("2.0", "none"), ("1.0", "snappy")):
        path = tmp_path / f"{version}-{compression}"
        pq.write_table(rows, path, data_page_version=version, compression=compression, row_group_size=2000)
        sizes = sizes_of(path)
        read = [pq.ParquetFile(path).read_row_group(number).nbytes for number in range(3)]
        assert all(size.total >= 0.9 * found for size, found in zip(sizes, read, strict=True))
        assert sum(size.total for size in sizes) < 20 * sum(read)


SHARING: dict[str, Callable[[list[str]], Any]] = {
    "one long text among short ones": lambda texts: [*texts, "x" * 50_000],
    "lists": lambda texts: [texts[at : at + 10] for at in range(0, 60_000, 10)],
    "structs": lambda texts: [{"b": text} if text != "0" * 6 else None for text in texts],
    "maps": lambda texts: pa.array([[(text, text)] for text in texts], pa.map_(pa.string(), pa.string())),
}


@pytest.mark.parametrize("name", SHARING)
@pytest.mark.parametrize(
    ("version", "compression"), [("1.0", "zstd"), ("2.0", "none"), ("1.0", "lz4"), ("2.0", "gzip")]
)
@pytest.mark.parametrize("encoding", ["dictionary", "DELTA_BYTE_ARRAY"])
@pytest.mark.usefixtures("small_caps")
def test_texts_that_share_bytes_are_counted_as_often_as_they_occur(
    tmp_path: Path, name: str, version: str, compression: str, encoding: str
) -> None:
    """As if each were the longest, or the whole dictionary, most files with many texts would be refused."""
    texts = [f"{number * 7919 % 3000:x}" * 6 for number in range(60_000)]
    rows, path = pa.table({"a": SHARING[name](texts)}), tmp_path / "file.data"
    pq.write_table(rows, path)
    leaves = [
        leaf.path for leaf in map(pq.read_metadata(path).schema.column, range(pq.read_metadata(path).num_columns))
    ]
    encodings = None if encoding == "dictionary" else dict.fromkeys(leaves, encoding)
    written = {"use_dictionary": encodings is None, "column_encoding": encodings, "compression": compression}
    pq.write_table(rows, path, data_page_version=version, row_group_size=25_000, **written)
    sizes = sizes_of(path)
    assert 0.8 * rows.nbytes < sum(size.total for size in sizes) < 1.6 * rows.nbytes


def test_long_texts_among_short_ones_are_read_few_rows_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_WORST_BATCH_BYTES", 20_000_000)
    path, texts = tmp_path / "file.data", pa.array(["x" * 1_000_000, "y"])
    indices = pa.array([0] * 300 + [1] * 60_000, pa.int32())
    rows = pa.table({"a": pa.DictionaryArray.from_arrays(indices, texts)})
    pq.write_table(rows, path, compression="zstd", store_schema=False, dictionary_pagesize_limit=1 << 21)
    batches = parsed(path, Expected(format="parquet", columns=[("a", StringType())]))
    assert max(part.rows.nbytes for part in batches) < 21_000_000


@given(st.binary(max_size=60), st.integers(0, 300))
def test_packed_lengths_that_are_no_lengths_are_refused(content: bytes, values: int) -> None:
    with contextlib.suppress(Refused):
        parquet_pages._beginnings(content, values)


def test_long_texts_of_a_dictionary_are_read_few_rows_at_a_time(tmp_path: Path) -> None:
    path, text = tmp_path / "file.data", "x" * 1_000_000
    indices = pa.array([0] * 400, pa.int32())
    rows = pa.table({"a": pa.DictionaryArray.from_arrays(indices, pa.array([text]))})
    pq.write_table(rows, path, compression="zstd", store_schema=False, dictionary_pagesize_limit=1 << 21)
    batches = parsed(path, Expected(format="parquet", columns=[("a", StringType())]))
    sizes = [part.rows.nbytes for part in batches]
    assert max(sizes) < 20_000_000
    assert sum(sizes) > 400_000_000


def test_no_damage_ends_the_process_or_raises(tmp_path: Path) -> None:
    """Arrow ends the process if a footer's facts about a column contradict each other and one asks it for them."""
    path, dice = tmp_path / "file.data", random.Random(7)
    days = [dt.date(2024, 1, 1)] * 50
    pq.write_table(pa.table({"n": range(50), "s": [f"s{n % 10}" for n in range(50)], "d": days}), path)
    whole, columns = path.read_bytes(), [("n", LongType()), ("s", StringType()), ("d", DateType())]
    expected, verdicts = Expected(format="parquet", columns=columns), set()
    for _ in range(1500):
        content = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            content[dice.randrange(len(content))] = dice.randrange(256)
        path.write_bytes(content)
        try:
            for _ in parsed(path, expected):
                pass
            verdicts.add("read")
        except Refused as refused:
            verdicts.add(str(refused)[:9])
    assert {"read", "is no Par", "has pages"} <= verdicts
