"""What a text becomes, against Spark's casts, and the fast ways against the definition."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import pyarrow as pa
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from value_differences import NAMED, REPAIRS, Seen, names_of
from value_texts import FORMATS, ODD, formatted, texts

from drainmark.jobs.formats.values.grammar import Rules, reader_of, values_of
from drainmark.resources.spark.session import SparkEngine

SPARK = ("tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "date", "timestamp", "timestamp_ntz")
DECIMALS = ("decimal(10,2)", "decimal(38,0)", "decimal(38,38)", "decimal(38,18)", "decimal(5,5)")
KINDS = (*SPARK, *DECIMALS)
AS_WRITTEN, HALF_UP = Rules(), Rules(rounding="half_up")


def type_of(name: str) -> Any:
    """Return a Spark type by its name in SQL."""
    from pyspark.sql import types

    if name.startswith("decimal"):
        return types.DecimalType(*map(int, name[8:-1].split(",")))
    whole = (types.ByteType(), types.ShortType(), types.IntegerType(), types.LongType())
    others = (types.FloatType(), types.DoubleType(), types.BooleanType(), types.StringType())
    times = (types.DateType(), types.TimestampType(), types.TimestampNTZType())
    every = (*whole, *others, *times)
    return next(each for each in every if each.simpleString() == name)


def plain(values: Any) -> list[Any]:
    """Return values as Python's; days and microseconds for times, since Python has no year 10000."""
    if pa.types.is_timestamp(values.type) or pa.types.is_date(values.type):
        values = values.cast(pa.int32() if pa.types.is_date(values.type) else pa.int64())
    return list(values.to_pylist())


def ours(written: Sequence[str], kind: str, rules: Rules = AS_WRITTEN) -> list[Any]:
    return plain(values_of(pa.array(written, pa.string()), type_of(kind), rules).values)


def one(kind: str, text: str, rules: Rules = AS_WRITTEN) -> Any:
    return ours([text], kind, rules)[0]


@cache
def defined(kind: str, text: str, rules: Rules = AS_WRITTEN) -> Any:
    reader = reader_of(type_of(kind), rules)
    return plain(pa.array([reader.one(text)], reader.kind))[0]


def cast(engine: SparkEngine, written: Sequence[str], expressions: Mapping[str, str]) -> dict[str, list[Any]]:
    """Return the values of Spark's expressions over the column `text`."""
    rows = engine.session.createDataFrame(pa.table({"text": pa.array(written, pa.string())}))
    found = rows.selectExpr(*(f"{made} as `{name}`" for name, made in expressions.items())).toArrow()
    return {name: plain(found[name].combine_chunks()) for name in expressions}


def differences(engine: SparkEngine, written: Sequence[str]) -> tuple[set[str], list[str]]:
    """Return the names of the differences to Spark, and those without a name."""
    names: set[str] = set()
    nameless: list[str] = []
    for kind, values in cast(engine, written, {kind: f"try_cast(text as {kind})" for kind in KINDS}).items():
        for text, our, spark in zip(written, ours(written, kind), values, strict=True):
            if repr(our) != repr(spark):
                seen = Seen(text, kind.partition("(")[0], our, spark)
                found = names_of(seen, partial(defined, kind), partial(defined, kind, rules=HALF_UP))
                names.update(found)
                nameless += [] if found else [f"{kind} {text!r}: {our!r}, and Spark has {spark!r}"]
    return names, nameless


def test_each_difference_to_sparks_casts_has_a_name(engine: SparkEngine) -> None:
    names, nameless = differences(engine, list(dict.fromkeys(texts(seed=7, amount=1500))))
    assert nameless == []
    assert names == {*NAMED, *REPAIRS, "RT11"}  # each name is met


@settings(max_examples=2)
@given(seed=st.integers(0, 10**9))
def test_differences_of_other_texts_have_the_same_names(engine: SparkEngine, seed: int) -> None:
    _, nameless = differences(engine, texts(seed, amount=200)[len(ODD) :])
    assert nameless == []


@pytest.mark.parametrize(
    ("kind", "rules"), [*((kind, AS_WRITTEN) for kind in KINDS), *((kind, HALF_UP) for kind in DECIMALS)], ids=str
)
def test_the_fast_ways_give_what_the_definition_gives(kind: str, rules: Rules) -> None:
    written = texts(seed=11, amount=examples(1400))
    values = [repr(defined(kind, text, rules)) for text in written]
    assert [repr(each) for each in ours(written, kind, rules)] == values
    alone = written[:: 1 if "decimal" in kind else 3]  # each may be read all at once
    assert [repr(one(kind, text, rules)) for text in alone] == values[:: 1 if "decimal" in kind else 3]
    good = [text for text, value in zip(written, values, strict=True) if value != "None"]
    assert repr(ours(good, kind, rules)) == repr([one(kind, text, rules) for text in good])


# --- formats of users -----------------------------------------------------------------------------------------------

JAVAS = {
    "a year of other than four digits, or with a sign": r"[+-]\d{4,}|\d{5,}|\b0000",
    "a number with more zeros before it than its letters ask for": r"(?<!\d)0\d\d(?!\d)|(?<!\d)-?0+(?!\d)",
}
"""What Java reads by these formats and Drainmark does not."""
OURS = {"yyyyMMddHHmmssSSS": "Java takes the digits of the fraction for some of the year"}


def test_formats_of_users_are_read_as_spark_reads_them(engine: SparkEngine) -> None:
    written = {pattern: formatted(3, pattern, 200) for pattern in FORMATS}
    every = list(dict.fromkeys(text for each in written.values() for text in each))
    casts = {str(place): f'try_to_timestamp(text, "{each}")' for place, each in enumerate(FORMATS)}
    for pattern, spark in zip(FORMATS, cast(engine, every, casts).values(), strict=True):
        rules = Rules(timestamp_format=pattern)
        for text, our, theirs in zip(every, ours(every, "timestamp", rules), spark, strict=True):
            is_javas = our is None and any(re.search(form, text) for form in JAVAS.values())
            assert our == theirs or is_javas or (theirs is None and pattern in OURS), (pattern, text, our, theirs)


@pytest.mark.parametrize("pattern", FORMATS)
def test_formats_are_read_by_columns_as_one_by_one(pattern: str) -> None:
    rules = Rules(timestamp_format=pattern)
    written = formatted(5, pattern, 300)
    values = ours(written, "timestamp", rules)
    assert values == [defined("timestamp", text, rules) for text in written]
    assert sum(value is not None for value in values) > 30
