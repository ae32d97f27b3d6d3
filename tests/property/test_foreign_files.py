"""Files as other systems write them, byte for byte: their rows and faults are the same on each way."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from reads import read
from test_cut_files import PACKED, by_tasks, by_the_definition, with_others

from drainmark.jobs.formats.byte_records import parse_texts
from drainmark.jobs.formats.format import Expected


class File(NamedTuple):
    """A file of another system.

    Attributes:
        rows: the values of each row.
        faults: number of the line, or of the record -> the reason, without the column of CSV.
    """

    content: bytes
    format: str
    columns: Mapping[str, DataType]
    options: Mapping[str, str]
    rows: list[tuple[Any, ...]]
    faults: Mapping[int, str] = {}


def struct(fields: Mapping[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


TEXT, INT, LONG, DOUBLE = StringType(), IntegerType(), LongType(), DoubleType()
RFC = {"header": "true", "escape": '"', "multiline": "true"}
MOMENT = dt.datetime(2024, 1, 31, 12, 34, 56, 123456, dt.UTC)
NO_NUMBER = "'nan' is no double: only a double or float has NaN, Infinity and Inf, and only so written"
FILES = {
    "Excel, German": File(
        'Kunde;Betrag;Datum\r\nMüller;1234,56;31.12.2024\r\n"Groß; & Co";-3;01.02.2024\r\n;;\r\n'.encode("cp1252"),
        "csv",
        {"Kunde": TEXT, "Betrag": DecimalType(10, 2), "Datum": DateType()},
        {"header": "true", "sep": ";", "encoding": "cp1252", "dateformat": "dd.MM.yyyy"},
        [("Groß; & Co", Decimal("-3.00"), dt.date(2024, 2, 1)), (None, None, None)],
        {2: "'1234,56' is no decimal(10,2): write the decimal point as '.'"},
    ),
    "Excel, Unicode text": File(
        '\ufeffKunde\tBetrag\r\nMüller\t1.5\r\n"a ""b"""\t2\r\n"zwei\nZeilen"\t3\r\n'.encode("utf-16-le"),
        "csv",
        {"Kunde": TEXT, "Betrag": DOUBLE},
        {**RFC, "sep": "\\t", "encoding": "UTF-16"},
        [("Müller", 1.5), ('a "b"', 2.0), ("zwei\nZeilen", 3.0)],
    ),
    "Excel, its separator in the first line": File(
        b"sep=;\r\na;b\r\n1;2\r\n",
        "csv",
        {"a": INT, "b": INT},
        {"header": "true", "sep": ";", "comment": "s"},
        [(1, 2)],
    ),
    "DuckDB": File(
        'i,q,c,n,d,t\n1,"a""b","x,y",,1.5,2024-01-31 12:34:56.123456\n2,"two\nlines","","",nan,1500-01-01 00:00:00\n'
        '3,"\\\\back\\slash,", sp ,NULL,1e+300,\n4,"ends\\","#c",é😀,-0.0,9999-12-31 23:59:59\n'.encode(),
        "csv",
        {"i": INT, "q": TEXT, "c": TEXT, "n": TEXT, "d": DOUBLE, "t": TimestampType()},
        RFC,
        [
            (1, 'a"b', "x,y", None, 1.5, MOMENT),
            (3, "\\\\back\\slash,", " sp ", "NULL", 1e300, None),
            (4, "ends\\", "#c", "é😀", -0.0, dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)),
        ],
        {3: NO_NUMBER},
    ),
    "Polars, lines of JSON": File(
        b'{"i":1,"n":null,"t":"2024-01-31 12:34:56.123456","dec":"1.50","l":[1,null],"s":{"x":1},"u":1}\n'
        b'{"i":2,"n":"","t":null,"dec":"1.50","l":[],"s":null,"u":18446744073709551615}\n',
        "json",
        {
            "i": INT,
            "n": TEXT,
            "t": TimestampType(),
            "dec": DecimalType(5, 2),
            "l": ArrayType(LONG),
            "s": struct({"x": LONG}),
            "u": DecimalType(20, 0),
        },
        {},
        [
            (1, None, MOMENT, Decimal("1.50"), [1, None], {"x": 1}, Decimal(1)),
            (2, "", None, Decimal("1.50"), [], None, Decimal(2**64 - 1)),
        ],
    ),
    "PostgreSQL, COPY": File(
        b'1,"",x\n2,,"a\\b"\n3,"a""b","ends\\"\n\\.\n',
        "csv",
        {"a": INT, "b": TEXT, "c": TEXT},
        {"escape": '"'},
        [(1, None, "x"), (2, None, "a\\b"), (3, 'a"b', "ends\\")],
        {4: "has 1 columns, declared are 3"},
    ),
    "MySQL, into outfile": File(
        b"1\t\\N\tx\\ty\n2\ta\\\tb\tc\n",
        "csv",
        {"a": INT, "b": TEXT, "c": TEXT},
        {"sep": "\\t", "nullvalue": "\\N", "quote": ""},
        [(1, None, "x\\ty")],
        {2: "has 4 columns, declared are 3"},
    ),
    "MySQL, enclosed": File(
        b'"1","\\N","x"\n"2",\\N,"a\\"b"\n"3",\\N,"a\\nb"\n',
        "csv",
        {"a": INT, "b": TEXT, "c": TEXT},
        {"nullvalue": "\\N"},
        [(1, None, "x"), (2, None, 'a"b'), (3, None, "a\\nb")],
    ),
    "Spark": File(
        b'a,b,c\n"x\\"y",,""\n"back\\\\slash",2024-01-01T00:00:00.000+01:00,1\nplain\\,,\n',
        "csv",
        {"a": TEXT, "b": TimestampType(), "c": TEXT},
        {"header": "true"},
        [
            ('x"y', None, None),
            ("back\\slash", dt.datetime(2023, 12, 31, 23, tzinfo=dt.UTC), "1"),
            ("plain\\", None, None),
        ],
    ),
    "pandas, lines of JSON": File(
        b'{"i":9007199254740993,"s":"\\u00e9\\ud83d\\ude00","d":null}\n{"i":9.007199254740992e15,"s":"a","d":1}\n',
        "json",
        {"i": LONG, "s": TEXT, "d": DOUBLE},
        {},
        [(9007199254740993, "é😀", None)],
        {2: "field 'i': '9.007199254740992e15' is no bigint: it has a point or an exponent"},
    ),
    "MongoDB, extended JSON": File(
        b'{"_id":{"$oid":"65a"},"n":{"$numberLong":"5"},"doc":{"x": 1.50}}\n',
        "json",
        {"_id": struct({"$oid": TEXT}), "n": struct({"$numberLong": DecimalType(19, 0)}), "doc": TEXT},
        {},
        [({"$oid": "65a"}, {"$numberLong": Decimal(5)}, '{"x": 1.50}')],
    ),
    "Kafka Connect, an envelope": File(
        b'{"schema":{"type":"struct"},"payload":{"before":null,"after":{"a":1,"x":2},"op":"c"}}\r\n'
        b'{"payload":{"after":{"A":1}}}\r\n',
        "json",
        {"schema": TEXT, "payload": struct({"after": struct({"a": LONG}), "op": TEXT})},
        {},
        [('{"type":"struct"}', {"after": {"a": 1}, "op": "c"})],
        {2: "field 'payload.after.A': declared as 'a', and names count letter by letter"},
    ),
    "a terminal's log": File(
        b"\x1b[31mred\x1b[0m\x0c\xe2\x80\xa8end\r\n\n  \nbad \xff\n",
        "text",
        {"value": TEXT},
        {},
        [("\x1b[31mred\x1b[0m\x0c\u2028end",), ("",), ("  ",)],
        {4: "not UTF-8: byte 0xff at 5"},
    ),
}


@pytest.mark.parametrize("writer", FILES)
def test_a_file_of_another_system_has_its_values_on_each_way(tmp_path: Path, writer: str) -> None:
    file = FILES[writer]
    of_text, columns = file.format == "text", tuple(file.columns.items())
    expected = Expected(format=file.format, columns=None if of_text else columns, options=file.options)
    assert expected.reads.cannot_read(expected) is None
    path = tmp_path / "file.data"
    path.write_bytes(file.content)
    wanted = by_the_definition(path, expected)
    assert repr(plain(wanted.rows)) == repr(file.rows)  # 0.0 and -0.0 are two
    faults = {place: re.sub("^column '[^']*': ", "", reason) for place, reason in wanted.reasons.items()}
    assert faults == file.faults
    every = range(len(file.content) // 2, len(file.content), 3)  # the first range must have the header
    ways = [read(path, expected), *with_others(path, expected, [file.content]), by_tasks(path, expected, {*every})]
    for suffix, packed in PACKED.items():
        (packed_path := path.with_suffix(suffix)).write_bytes(packed(file.content))
        ways += [read(packed_path, expected), by_tasks(packed_path, expected, set())]
    for found in ways:
        assert (found.verdict, repr(found.rows)) == (wanted.verdict, repr(wanted.rows))
    if not of_text and not {"header", "multiline"} & file.options.keys():
        lines = [line.removesuffix(b"\r") for line in file.content.removesuffix(b"\n").split(b"\n")]
        rows, why = parse_texts(pa.array(lines), expected)
        assert plain(rows.filter(why.is_null()).to_pylist()) == file.rows
        assert why.drop_null().to_pylist() == [*wanted.reasons.values()]


def plain(rows: Any) -> list[tuple[Any, ...]]:
    """Return the values of rows, times in one zone object."""
    return [
        tuple(value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value for value in row.values())
        for row in rows
    ]
