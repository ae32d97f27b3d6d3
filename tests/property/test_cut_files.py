"""A file that is judged by ranges gets the verdict of a check of the whole file, wherever it is cut (I9, I10)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import DecimalType, IntegerType, StringType, TimestampType

from drainmark.jobs.formats import csv_dialect
from drainmark.jobs.formats.bad_records import Caps, FileVerdict
from drainmark.jobs.formats.format import Expected
from drainmark.jobs.formats.lines import line_format, line_ranges, record_ranges
from drainmark.jobs.formats.lines.arrow_parser import can_parse, parse_lines
from drainmark.jobs.formats.lines.line_format import inspect, numbered_records
from drainmark.jobs.formats.lines.line_ranges import RangeFacts, RangeJudge, numbered_records_in, verdict_of
from drainmark.jobs.formats.lines.record_ranges import RecordJudge, edge_facts, quoted_at

SMALL = Caps(piece_bytes=7, line_bytes=24, bad_rows=5, raw_characters=16)

PIECES = [
    *(b"a", b"b,1", b",", b'"', b'""', b"\\", b'\\"', b"1", b"1.25", b"12:34", b"#", b" ", b"k,n", b"K,N"),
    *(b"\n", b"\n", b"\r\n", b"\r", b"\0", b"\xff", "é€".encode(), b"\xef\xbb\xbf", b"\xff\xfe"),
    *(
        b'{"k":"a"}',
        b'{"k":"b","n":1}',
        b'{"K":1}',
        b"{",
        b"}",
        b'{"n":1.25}',
        b'{"k":"a","x":[1]}',
        b"[1]",
        b"NaN",
        b"x" * 20,
    ),
]
contents = st.builds(
    lambda head, pieces: head + b"".join(pieces),
    st.sampled_from([b"", b"", b"k,n\n", b"\xef\xbb\xbf", b"\xef\xbb\xbfk,n\r\n", b"\n \nk,n\n", b"PAR1", b"\xff\xfe"]),
    st.lists(st.sampled_from(PIECES), max_size=24),
)
columns = st.sampled_from(
    [
        (("k", StringType()), ("n", IntegerType())),
        (("k", StringType()), ("n", DecimalType(4, 1))),
        (("k", TimestampType()), ("n", StringType())),
    ]
)
csv_options = st.fixed_dictionaries(
    {},
    optional={
        "header": st.sampled_from(["true", "false"]),
        "quote": st.sampled_from(['"', "'", "\0"]),
        "escape": st.sampled_from(["\\", '"']),
        "sep": st.sampled_from([",", ";", "||"]),
        "comment": st.just("#"),
    },
)
policies = st.sampled_from([None, "rescue", "quarantine", "halt"])
declared = st.one_of(
    st.just(Expected(format="text", columns=None)),
    st.builds(lambda found, options: Expected(format="csv", columns=found, options=options), columns, csv_options),
    st.builds(lambda found, strict: Expected(format="json", columns=found, strict=strict), columns, st.booleans()),
    st.builds(lambda found, policy: Expected(format="json", columns=found, on_schema=policy), columns, policies),
)
cuts = st.sets(st.integers(1, 120), max_size=6)


@dataclass
class Held:
    """Bytes in memory that ranges can read."""

    content: bytes

    @property
    def size(self) -> int:
        return len(self.content)

    def read(self, start: int, end: int) -> bytes:
        return self.content[start:end]


@pytest.fixture(scope="module", autouse=True)
def small_caps() -> Iterator[None]:
    """Set the limits of pieces, lines and bad rows so low that texts of some bytes reach them."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (line_format, line_ranges, record_ranges):
            patch.setattr(module, "CAPS", SMALL)
        yield


def ranges_of(content: bytes, at: set[int]) -> list[tuple[int, int]]:
    bounds = [0, *sorted(cut for cut in at if cut < len(content)), len(content)]
    return list(itertools.pairwise(bounds))


def by_ranges(content: bytes, expected: Expected, at: set[int], **given: Any) -> list[RangeFacts]:
    lines = expected.lines
    assert lines is not None
    return [
        RangeJudge(expected=expected, lines=lines, **given).judge(Held(content), start, end)
        for start, end in ranges_of(content, at)
    ]


def at_once(content: bytes, expected: Expected, folder: Path) -> tuple[FileVerdict, list[bytes]]:
    """Return the verdict on a whole file, and its good records."""
    path, cleaned = folder / "file.data", folder / "cleaned.data"
    path.write_bytes(content)
    cleaned.unlink(missing_ok=True)
    verdict = inspect(path, expected, cleaned)
    if verdict.refused is not None:
        return verdict, []
    assert expected.lines is not None
    if verdict.cleaned is None:
        found = [text for _, text in numbered_records(path, expected, expected.lines)]
    else:
        is_one = expected.lines.records_test(expected)
        found = [line.rstrip(b"\r\n") for line in cleaned.read_bytes().splitlines(keepends=True) if is_one(line)]
        found = found[expected.header is not None :]
    return replace(verdict, cleaned=None, records=len(found)), found


@settings(max_examples=400, deadline=None)
@given(content=contents, expected=declared, at=cuts)
def test_ranges_come_to_the_verdict_on_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, expected: Expected, at: set[int]
) -> None:
    wanted, records = at_once(content, expected, tmp_path_factory.getbasetemp())
    left: list[tuple[int, list[bytes]]] = []
    facts = by_ranges(content, expected, at, leave=lambda place, found: left.append((place, found)), sends_all=True)
    verdict = verdict_of(facts)
    if verdict is None:
        assert expected.header is not None
        return
    assert (verdict.refused, verdict.is_schema) == (wanted.refused, wanted.is_schema)
    if verdict.refused is None:
        assert (verdict.bad, verdict.records) == (wanted.bad, wanted.records)
        assert [record for _, found in left for record in found] == records
        assert [place for place, _ in left] == sorted({place for place, _ in left})


@settings(max_examples=100, deadline=None)
@given(content=contents, expected=declared, at=cuts)
def test_lines_have_the_numbers_that_they_have_in_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, expected: Expected, at: set[int]
) -> None:
    wanted, _ = at_once(content, expected, tmp_path_factory.getbasetemp())
    verdict = verdict_of(by_ranges(content, expected, at))
    if wanted.refused is not None or verdict is None:
        return
    assert expected.lines is not None
    before, found = 0, []
    for start, end in ranges_of(content, at):
        numbered = list(numbered_records_in(Held(content), start, end, expected, expected.lines))
        found += [(before + number, text) for number, text in numbered if text is not None]
        before += len(numbered)
    path = tmp_path_factory.getbasetemp() / "file.data"
    assert found == list(numbered_records(path, expected, expected.lines))


@settings(max_examples=200, deadline=None)
@given(content=contents, expected=declared, at=cuts)
def test_what_arrow_parses_of_ranges_and_what_is_left_to_spark_are_the_good_records_in_their_order(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, expected: Expected, at: set[int]
) -> None:
    if not can_parse(expected):
        return
    wanted, records = at_once(content, expected, tmp_path_factory.getbasetemp())
    places: dict[int, int] = {}

    def parse(place: int, lines: bytes, count: int) -> int | None:
        table = parse_lines(7, place, lines, count, expected)
        if table is None:
            return None
        position = table["_position"].to_pylist()
        assert position == [{"block": place, "row": row} for row in range(table.num_rows)]
        places[place] = table.num_rows
        return int(table.num_rows)

    def leave(place: int, found: list[bytes]) -> None:
        assert place not in places
        places[place] = len(found)

    facts = by_ranges(content, expected, at, parse=parse, leave=leave, sends_all=True)
    verdict = verdict_of(facts)
    if verdict is None or verdict.refused is not None:
        return
    assert (verdict.bad, verdict.records) == (wanted.bad, len(records))
    assert sum(places.values()) == len(records)


@settings(max_examples=200, deadline=None)
@given(content=contents, expected=declared, at=cuts)
def test_a_sample_of_the_bad_records_begins_with_the_first_and_counts_all(
    content: bytes, expected: Expected, at: set[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_ranges, "_SENT_CHARACTERS", 3)
        some = by_ranges(content, expected, at)
    everything = by_ranges(content, expected, at, sends_all=True)
    for sample, whole in zip(some, everything, strict=True):
        assert sample.bad == whole.bad[: len(sample.bad)]
        assert bool(sample.bad) == bool(whole.bad)
        assert sample.bad_count == whole.bad_count == len(whole.bad)


# --- records of several lines -------------------------------------------------------------------------------------

QUOTED = [
    *(
        b"a",
        b"b",
        b",",
        b",",
        b'"',
        b'"',
        b'"a\nb"',
        b'""',
        b"\\",
        b'\\"',
        b"'",
        b" ",
        b"1.25",
        b"\n",
        b"\n",
        b"\r\n",
        b"\r",
    ),
    *(b'"a\r\nb",1\n', b'1,"x"\n', b"\0", b"\xff", "é".encode()),
]
documents = st.builds(
    lambda head, pieces: head + b"".join(pieces),
    st.sampled_from([b"", b"", b"k,n\n", b"k,n\r\n", b"\xef\xbb\xbf"]),
    st.lists(st.sampled_from(QUOTED), max_size=24),
)
document_options = st.fixed_dictionaries(
    {"multiline": st.just("true")},
    optional={
        "header": st.sampled_from(["true", "false"]),
        "quote": st.sampled_from(['"', "'", "\0"]),
        "escape": st.sampled_from(["\\", '"', ""]),
    },
)


def records_by_ranges(content: bytes, expected: Expected, at: set[int]) -> tuple[FileVerdict | None, list[bytes]]:
    data, ranges = Held(content), ranges_of(content, at)
    edges = [edge_facts(data, start, end, expected) for start, end in ranges]
    begins = quoted_at(edges)
    if not isinstance(begins, list):
        return begins, []
    line_end = next((edge.line_end for edge in edges if edge.line_end), "")
    left: list[tuple[int, list[bytes]]] = []
    facts = [
        RecordJudge(expected=expected, leave=lambda place, found: left.append((place, found)), line_end=line_end).judge(
            data, start, end, is_quoted=is_quoted
        )
        for (start, end), is_quoted in zip(ranges, begins, strict=True)
    ]
    assert [place for place, _ in left] == sorted({place for place, _ in left})
    return verdict_of(facts), [record for _, found in left for record in found]


@settings(max_examples=400, deadline=None)
@given(content=documents, found=columns, options=document_options, at=cuts)
def test_records_of_several_lines_are_those_of_the_whole_document(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, found: Any, options: dict[str, str], at: set[int]
) -> None:
    expected = Expected(format="csv", columns=found, options=options)
    path = tmp_path_factory.getbasetemp() / "document.data"
    path.write_bytes(content)
    wanted = inspect(path, expected, path.with_suffix(".cleaned"))
    verdict, records = records_by_ranges(content, expected, at)
    text = content.removeprefix(b"\xef\xbb\xbf").decode(errors="replace")
    if verdict is None:
        is_odd = b"\r" in content or any(not line.strip() for line in text.splitlines())
        assert is_odd or expected.header is not None
        return
    assert (verdict.refused is None, verdict.is_schema) == (wanted.refused is None, wanted.is_schema)
    if verdict.refused is None:
        whole = [record.encode() for record in csv_dialect.records_of(text, expected.dialect)]
        if text.partition("\n")[0].endswith("\r"):  # then the parser turns line ends within quotes into line feeds
            whole = [record.replace(b"\r\n", b"\n") for record in whole]
        assert records == whole[expected.header is not None :]
        assert verdict.records == len(records)


@settings(max_examples=100, deadline=None)
@given(content=documents, found=columns, options=document_options, at=cuts)
def test_cuts_decide_nothing_of_a_document(content: bytes, found: Any, options: dict[str, str], at: set[int]) -> None:
    expected = Expected(format="csv", columns=found, options=options)
    once, cut = records_by_ranges(content, expected, set()), records_by_ranges(content, expected, at)
    is_same = once == cut or (once[0] is not None and cut[0] is None and expected.header is not None)
    assert is_same or (once[0] is not None and once[0].refused is not None and cut[0] is not None and cut[0].refused)
