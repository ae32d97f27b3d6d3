"""Options of files: each one that a format has changes what is read; each other one of Spark's is refused by name.

The remedy of a refusal is followed: what it says to write instead is taken.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import DataType, DateType, DecimalType, LongType, StringType, TimestampNTZType, TimestampType
from reads import read_here

import drainmark as dm
from drainmark.jobs.formats.format import formats
from drainmark.jobs.tasks.file_ranges import InputFile

TEXT, NUMBER = StringType(), LongType()
CHANGE = [TEXT, NUMBER, TimestampType()]
AT = dt.datetime.fromisoformat("2026-01-31T12:00:00")
READ: Mapping[str, list[tuple[Mapping[str, str], list[DataType], bytes, list[Any]]]] = {
    "csv": [
        ({"header": "true"}, [TEXT, TEXT], b"c0,c1\na,1\n", [("a", "1")]),
        ({"sep": ";"}, [TEXT, NUMBER], b"a,b;1\n", [("a,b", 1)]),
        ({"delimiter": "\\t"}, [TEXT, NUMBER], b"a\t1\n", [("a", 1)]),
        ({"sep": "||"}, [TEXT, NUMBER], b"a||1\n", [("a", 1)]),
        ({"quote": "'"}, [TEXT, NUMBER], b"'a,b',1\n\"c\",2\n", [("a,b", 1), ('"c"', 2)]),
        ({"quote": ""}, [TEXT, NUMBER], b'"a",1\n', [('"a"', 1)]),
        ({"escape": "^"}, [TEXT, NUMBER], b'"a^"b",1\n"c""d",2\n', [('a"b', 1), ('c"d', 2)]),
        ({"comment": "#"}, [TEXT, NUMBER], b"# no,1\na,1\n", [("a", 1)]),
        ({"nullValue": "-"}, [TEXT, NUMBER], b"-,1\na,-\n,2\n", [(None, 1), ("a", None), (None, 2)]),
        ({"ignoreLeadingWhiteSpace": "true"}, [TEXT, NUMBER], b" a , 1\n", [("a ", 1)]),
        ({"ignoreTrailingWhiteSpace": "true"}, [TEXT, NUMBER], b" a ,1 \n", [(" a", 1)]),
        ({"multiLine": "true"}, [TEXT, NUMBER], b'"a\r\nb",1\n', [("a\r\nb", 1)]),
        ({"dateFormat": "dd.MM.yyyy"}, [DateType()], b"31.01.2026\n", [(AT.date(),)]),
        ({"timestampFormat": "dd/MM/yyyy HH"}, [TimestampType()], b"31/01/2026 12\n", [(AT.replace(tzinfo=dt.UTC),)]),
        ({"timestampNTZFormat": "dd/MM/yyyy HH"}, [TimestampNTZType()], b"31/01/2026 12\n", [(AT,)]),
        ({"encoding": "ISO-8859-1"}, [TEXT], b"\xe9\n", [("é",)]),
        ({"charset": "UTF-16"}, [TEXT], "é\n".encode("utf-16"), [("é",)]),
        ({"lineSep": ";"}, [TEXT, NUMBER], b"a,1;;b,2", [("a", 1), ("b", 2)]),
    ],
    "json": [
        ({"multiLine": "true"}, [TEXT, NUMBER], b'[{"c0": "a",\n"c1": 1}]', [("a", 1)]),
        ({"allowNoFields": "true"}, [TEXT], b'{"other": 1}\n', [(None,)]),
        ({"dateFormat": "dd.MM.yyyy"}, [DateType()], b'{"c0": "31.01.2026"}\n', [(AT.date(),)]),
        ({"timestampFormat": "yyyyMMddHH"}, [TimestampType()], b'{"c0": "2026013112"}', [(AT.replace(tzinfo=dt.UTC),)]),
        ({"timestampNTZFormat": "yyyyMMddHH"}, [TimestampNTZType()], b'{"c0": "2026013112"}', [(AT,)]),
        ({"encoding": "UTF-32LE"}, [TEXT], '{"c0": "é"}\n'.encode("utf-32le"), [("é",)]),
        ({"charset": "cp1252"}, [TEXT], b'{"c0": "\x80"}\n', [("€",)]),
        ({"lineSep": ";"}, [NUMBER], b'{"c0": 1};{"c0":\n2};', [(1,), (2,)]),
    ],
    "text": [
        ({"wholetext": "true"}, [], b"a\nb\n", [("a\nb\n",)]),
        ({"encoding": "UTF-16LE"}, [], "a\né".encode("utf-16le"), [("a",), ("é",)]),
        ({"charset": "ISO-8859-1"}, [], b"\xe9", [("é",)]),
        ({"lineSep": "|"}, [], b"a\n||b|", [("a\n",), ("",), ("b",)]),
    ],
    "debezium": [
        ({"allowNoFields": "true"}, [TEXT, *CHANGE], b'{"op":"c","after":{"x":1}}\n', [(None, "c", None, None)]),
        ({"timePrecisionMode": "connect"}, [TimestampNTZType(), *CHANGE],
         b'{"op":"c","after":{"c0":1769860800000}}\n', [(AT, "c", None, None)]),
        ({"decimalHandlingMode": "string"}, [DecimalType(4, 0), *CHANGE], b'{"op":"c","after":{"c0":"1234"}}\n',
         [(Decimal(1234), "c", None, None)]),
        ({"encoding": "UTF-32LE"}, [TEXT, *CHANGE], '{"op":"c","after":{"c0":"é"}}\n'.encode("utf-32le"),
         [("é", "c", None, None)]),
        ({"charset": "cp1252"}, [TEXT, *CHANGE], b'{"op":"c","after":{"c0":"\x80"}}\n', [("€", "c", None, None)]),
        ({"lineSep": ";"}, [NUMBER, *CHANGE], b'{"op":"c",\n"after":{"c0":1}};null;', [(1, "c", None, None)]),
    ],
    "parquet": [],
    "orc": [],
    "binary": [],
}  # fmt: skip
Case = tuple[str, Mapping[str, str], list[DataType], bytes, list[Any]]
CASES: list[Case] = [(form, *case) for form, cases in READ.items() for case in cases]


def scan_of(form: str, **arguments: Any) -> dm.DirectoryScan:
    schema = {"schema": "a string"} if formats()[form].has_schema else {}
    return dm.DirectoryScan(**{"path": "in", "format": form, **schema, **arguments})


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{'-'.join(case[1])}")
def test_an_option_changes_what_is_read(tmp_path: Path, case: Case) -> None:
    form, options, types, content, rows = case
    scan = scan_of(form, options=options)
    assert not [*scan.problems()]
    expected = scan.expects([(f"c{place}", kind) for place, kind in enumerate(types)] if types else None)
    (tmp_path / "1.data").write_bytes(content)
    file = InputFile(number=1, path=str(tmp_path / "1.data"), size=len(content))
    found = read_here([file], expected)
    assert found.verdicts[1].bad == ()
    assert [tuple(row.values())[2:] for table in found.rows.tables() for row in table.to_pylist()] == rows
    without = read_here([file], scan_of(form).expects(expected.columns))
    others = [tuple(row.values())[2:] for table in without.rows.tables() for row in table.to_pylist()]
    assert others != rows, "without the option something else is read"


def test_every_option_of_a_format_has_a_case() -> None:
    for name, form in formats().items():
        assert {option.lower() for options, *_ in READ[name] for option in options} == form.options


GENERIC = ("ignoreCorruptFiles", "ignoreMissingFiles", "pathGlobFilter", "recursiveFileLookup", "modifiedBefore",
           "modifiedAfter")  # fmt: skip
SPARK: Mapping[str, tuple[str, ...]] = {
    "csv": (
        "inferSchema", "preferDate", "enforceSchema", "nanValue", "positiveInf", "negativeInf", "maxColumns",
        "enableDateTimeParsingFallback", "maxCharsPerColumn", "mode", "columnNameOfCorruptRecord", "samplingRatio",
        "charToEscapeQuoteEscaping", "emptyValue", "locale", "unescapedQuoteHandling", "compression", "timeZone",
        "singleVariantColumn",
    ),
    "json": (
        "timeZone", "primitivesAsString", "prefersDecimal", "allowComments", "allowUnquotedFieldNames",
        "allowSingleQuotes", "allowNumericLeadingZeros", "allowBackslashEscapingAnyCharacter", "mode", "samplingRatio",
        "columnNameOfCorruptRecord", "enableDateTimeParsingFallback", "allowUnquotedControlChars", "compression",
        "dropFieldIfAllNull", "locale", "allowNonNumericNumbers", "singleVariantColumn", "maxNestingDepth", "maxNumLen",
        "maxStringLen",
    ),
    "text": ("compression",),
    "parquet": ("mergeSchema", "datetimeRebaseMode", "int96RebaseMode"),
    "orc": ("mergeSchema",),
    "binary": (),
}  # fmt: skip
"""The options of Spark's readers that files here do not have."""
FOLLOWED: Mapping[str, Mapping[str, Any]] = {
    "start_from= at the source": {"start_from": "2026-01-01"},
    "pattern= at the source": {"pattern": "2025*"},
    "recursive=True at the source": {"recursive": True},
    'on_missing="skip" at the source': {"on_missing": "skip"},
    'read format="text"': {"format": "text", "schema": None},
    "declare the columns in schema=": {"schema": "a string, b decimal(10,2)"},
    "declare a string column": {"schema": "a string"},
    "leave it out": {},
}
"""The beginning of what is to be done -> the arguments of a source for which it was done."""


@pytest.mark.parametrize(("form", "option"), [(form, each) for form in SPARK for each in (*SPARK[form], *GENERIC)])
def test_another_option_of_spark_is_refused_by_name_with_what_to_write_instead(form: str, option: str) -> None:
    ((rule, said, remedy),) = scan_of(form, options={option: "1"}).problems()
    assert rule == "READER_OPTION"
    assert said == f"{form} files have no option {option.lower()!r}"
    if "leave out schema=, too" in remedy:
        scan = scan_of(form, schema=None, options={"header": "true"} if form == "csv" else {})
        assert scan.says_columns, "of the first files the schema is inferred"
        return
    (done,) = [arguments for said, arguments in FOLLOWED.items() if remedy.startswith(said)]
    assert not [*scan_of(form, **done).problems()]
    assert remedy != "leave it out", "there is something to say"


@pytest.mark.parametrize(("on_schema", "good"), [(None, 0), ("rescue", 1)])
def test_a_record_without_declared_fields_is_good_only_where_its_fields_are_kept(
    tmp_path: Path, on_schema: Any, good: int
) -> None:
    (tmp_path / "1.data").write_bytes(b'{"other": 1}\n{}\n')
    scan = scan_of("json", on_schema=on_schema)
    file = InputFile(number=1, path=str(tmp_path / "1.data"), size=1)
    verdict = read_here([file], scan.expects([("a", TEXT)])).verdicts[1]
    assert (verdict.records, len(verdict.bad)) == (good, 2 - good)
