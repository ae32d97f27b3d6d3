"""The fields of a CSV record are the same by every parser of ours, and those of Spark but for what is named (I12)."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StringType

from drainmark.jobs.formats import csv as csv_format
from drainmark.jobs.formats import csv_fields
from drainmark.jobs.formats.csv_fields import Dialect, NoRecord, RecordEnds, fields_of
from drainmark.jobs.formats.format import Expected
from drainmark.resources.spark.session import SparkEngine

TEXTS = st.lists(
    st.sampled_from(
        [
            "a",
            "b",
            '"',
            '"',
            '""',
            "'",
            "\\",
            '\\"',
            ",",
            ",",
            ";",
            "\t",
            " ",
            "|",
            "||",
            "~",
            "$",
            "¶",
            "°",
            "NA",
            "é",
            "#",
            "\x0b",
        ]
    ),
    max_size=10,
).map("".join)
DIALECTS = st.builds(
    Dialect,
    sep=st.sampled_from([",", ",", ";", "\t", " ", "||", "é"]),
    quote=st.sampled_from(['"', '"', "'", "", "|", "~", "$", "¶"]),
    escape=st.sampled_from(["\\", '"', "'", "", "|", "~", "$", "¶", "°"]),
    null=st.sampled_from(["", "NA"]),
    trims_left=st.booleans(),
    trims_right=st.booleans(),
)


def fields(record: str, dialect: Dialect) -> list[str | None] | str:
    try:
        return fields_of(record, dialect)
    except NoRecord as fault:
        return str(fault)


def by_each_character(record: str, dialect: Dialect) -> list[str | None] | None:
    """Return the fields as the rules at the head of `csv_fields` say, written down a second time; None if bad."""
    found: list[str | None] = []
    at = 0
    while True:
        start = _behind_blanks(record, at, dialect) if dialect.trims_left else at
        if dialect.quote and record.startswith(dialect.quote, start):
            text, at = _quoted(record, start + 1, dialect)
            at = _behind_blanks(record, at, dialect)
            if at > len(record) or (at < len(record) and not record.startswith(dialect.sep, at)):
                return None
            found.append(None if text == dialect.null else text)
        else:
            end = record.find(dialect.sep, at)
            text, at = record[at : end if end >= 0 else len(record)], end if end >= 0 else len(record)
            text = text.lstrip(dialect.blanks) if dialect.trims_left else text
            text = text.rstrip(dialect.blanks) if dialect.trims_right else text
            found.append(None if text in ("", dialect.null) else text)
        if at == len(record):
            return found
        at += len(dialect.sep)


def _behind_blanks(record: str, at: int, dialect: Dialect) -> int:
    while at < len(record) and record[at] in dialect.blanks:
        at += 1
    return at


def _quoted(record: str, at: int, dialect: Dialect) -> tuple[str, int]:
    """Return a text up to its closing quote, and the place behind that; one behind the record if none closes it."""
    pairs = {2 * dialect.quote: dialect.quote}
    if dialect.escape not in ("", dialect.quote):
        pairs |= {dialect.escape + dialect.quote: dialect.quote, 2 * dialect.escape: dialect.escape}
    text = ""
    while at < len(record):
        pair = record[at : at + 2]
        if pair not in pairs and record[at] == dialect.quote:
            return text, at + 1
        text, at = text + pairs.get(pair, record[at]), at + 1 + (pair in pairs)
    return text, len(record) + 1


def is_possible(dialect: Dialect) -> bool:
    return dialect.fault is None


@settings(max_examples=examples(300))
@given(record=TEXTS, dialect=DIALECTS, line_end=st.sampled_from(["", "\n", "\r\n", "\r"]))
@pytest.mark.seed("B04")
def test_fields_are_those_of_a_look_at_each_character(record: str, dialect: Dialect, line_end: str) -> None:
    """By Python's parser, which takes the plain records, by the patterns, and by the rules once more."""
    if not is_possible(dialect):
        return
    record = record.replace("b", line_end)
    wanted = by_each_character(record, dialect)
    found = fields(record, dialect)
    assert (None if isinstance(found, str) else found) == wanted
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_fields, "_doubled", lambda *given: None)
        assert fields(record, dialect) == found


@settings(max_examples=examples(300))
@given(records=st.lists(TEXTS, min_size=1, max_size=4), dialect=DIALECTS, line_end=st.sampled_from(["\n", "\r\n"]))
def test_arrows_parser_gives_the_rows_of_the_definition_where_lines_are_plain(
    records: Sequence[str], dialect: Dialect, line_end: str
) -> None:
    if not is_possible(dialect):
        return
    counts = {len(each) for record in records if isinstance(each := fields(record, dialect), list)}
    options = {"sep": dialect.sep, "quote": dialect.quote, "escape": dialect.escape, "nullvalue": dialect.null}
    lines, content = csv_format.CsvLines(), "".join(record + line_end for record in records).encode()
    for count in counts:
        columns = tuple((f"c{place}", StringType()) for place in range(count))
        expected = Expected(format="csv", columns=columns, options=options)
        quick = lines.parse_quickly(content, expected)
        if quick is not None:
            is_record = lines.record_test(expected)
            slow = lines.parse([record.encode() for record in records if is_record(record.encode())], expected)
            assert (quick.rows.to_pylist(), quick.faults) == (slow.rows.to_pylist(), slow.faults)


@settings(max_examples=examples(300))
@given(records=st.lists(TEXTS, max_size=4), dialect=DIALECTS, line_end=st.sampled_from(["\n", "\r\n"]))
def test_the_ends_of_records_are_where_their_fields_end(
    records: Sequence[str], dialect: Dialect, line_end: str
) -> None:
    """So no record with line ends within quotes is cut into two, and no two are joined."""
    if not is_possible(dialect) or len(dialect.sep) > 1 or dialect.trims_left:
        return
    good = [each for each in (record.replace("a", line_end) for record in records) if is_good(each, dialect)]
    content = "".join(record + line_end for record in good).encode()
    ends, at, found = RecordEnds.of(dialect), 0, []
    while at < len(content):
        at, start = ends.end(content, at, is_quoted=False), at
        found.append(content[start:at].decode().removesuffix("\n").removesuffix("\r"))
    assert found == good
    assert not ends.is_open_after(content, is_quoted=False)


@pytest.mark.parametrize("quote", ['"', "'", "|", "~", "$", "^", "]", "¶"])
@pytest.mark.parametrize("escape", [None, "", "\\", "^", "°"])
def test_a_quote_of_any_character_may_have_a_line_end_within(quote: str, escape: str | None) -> None:
    """`°` has the first byte of `¶`."""
    dialect = Dialect(quote=quote, escape=quote if escape is None else escape)
    records = [f"1,{quote}a\n °,2{quote},2", "2,x,3", f"3,{quote}{quote * 2}{quote},4"]
    if dialect.escape == "°":
        records[0] = f"1,{quote}a\n °° °{quote},2{quote},2"
    content = "".join(f"{record}\n" for record in records).encode()
    ends, at, found = RecordEnds.of(dialect), 0, []
    while at < len(content):
        at, start = ends.end(content, at, is_quoted=False), at
        found.append(content[start:at].decode().removesuffix("\n"))
    assert found == records
    assert fields(records[2], dialect) == ["3", quote, "4"]


def is_good(record: str, dialect: Dialect) -> bool:
    """Say whether a text is one record: each line end in it stands within quotes."""
    beginnings = (record[:at] for at, mark in enumerate(record) if mark == "\n")
    is_one = isinstance(fields(record, dialect), list) and not record.endswith("\r")
    return is_one and all(isinstance(fields(each, dialect), str) for each in beginnings)


# --- Spark's reader -------------------------------------------------------------------------------------------------

VALUES = [
    ("a", "b c"), ("", None), ('say "so"', "x,y;z|w"), ("two\nlines", "a\r\nb"), ("a\rb", '\\"'), ("é€", "'q'"),
    (" a ", "#x"), ("back\\slash", "NA"), ("tab\there", "\\"), ("1", '"'), ('""', "',\""), ("\\\\", "x"),
    ('a\\"b\\', 'c\\"'),
]  # fmt: skip
OPTIONS: list[dict[str, str]] = [
    {},
    {"nullValue": "NA"},
    {"ignoreLeadingWhiteSpace": "true"},
    {"escape": '"'},
    {"escape": '"', "sep": ";"},
    {"escape": '"', "nullValue": "NA"},
    {"escape": '"', "sep": "||"},
    {"escape": '"', "ignoreLeadingWhiteSpace": "true", "ignoreTrailingWhiteSpace": "true"},
    {"sep": "\t", "quote": "'"},
    {"sep": "\t", "quote": "'", "escape": "'"},
]
OTHERWISE = {
    '"a""b",1': ('a"b', "1"),  # two quotes are one, whatever the escape is
    '"a" b,1': "has text behind a closing quote: ' b'",
    '"a,1': "a quote is not closed",
}
"""Records that Spark reads as something else: what they are here. A line of separators is a record as well."""


def dialect_of(options: dict[str, str]) -> Dialect:
    return Dialect.of({name.lower(): value for name, value in options.items()})


def as_python_writes(row: Sequence[str | None], options: dict[str, str]) -> str | None:
    text, dialect = io.StringIO(newline=""), dialect_of(options)
    if len(dialect.sep) > 1:
        return None
    is_doubled = dialect.escape == dialect.quote
    csv.writer(
        text, delimiter=dialect.sep, quotechar=dialect.quote, lineterminator="", doublequote=is_doubled,
        escapechar=None if is_doubled else dialect.escape,
    ).writerow(row)  # fmt: skip
    return text.getvalue()


def test_well_formed_records_are_those_of_sparks_reader_and_the_differences_are_these(engine: SparkEngine) -> None:
    from pyspark.sql import functions as sf

    rows = [(*row, *(as_python_writes(row, options) for options in OPTIONS)) for row in VALUES]
    names = [f"python{number}" for number in range(len(OPTIONS))]
    assert engine.session is not None
    frame = engine.session.createDataFrame(rows, ", ".join(f"`{name}` string" for name in ("a", "b", *names)))
    written = [sf.to_csv(sf.struct("a", "b"), dict(options)) for options in OPTIONS]
    odd = sf.array(*(sf.from_csv(sf.lit(record), sf.lit("a string, b string")) for record in OTHERWISE))
    cases = [case for name, by_spark in zip(names, written, strict=True) for case in (sf.col(name), by_spark)]
    dialects = [options for options in OPTIONS for _ in range(2)]
    read = [
        sf.struct(case.alias("text"), sf.from_csv(case, sf.lit("a string, b string"), options).alias("fields"))
        for case, options in zip(cases, dialects, strict=True)
    ]
    found = frame.select(*read, odd).collect()
    for row in found:
        for each, options in zip(row[:-1], dialects, strict=True):
            if each.text is not None:
                assert fields(each.text, dialect_of(options)) == [*each.fields], (each.text, options)
    for record, by_spark in zip(OTHERWISE, found[0][-1], strict=True):
        here = fields(record, Dialect())
        assert (here if isinstance(here, str) else tuple(here)) == OTHERWISE[record] != tuple(by_spark)
    assert fields("\t\t", Dialect(sep="\t")) == [None] * 3
