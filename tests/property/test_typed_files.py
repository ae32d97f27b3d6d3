"""Parquet and ORC files of random columns have the rows that Spark's own reader finds in them (B10, B11).

Where Spark reads less, or changes a value, ours is tested with the value itself in `tests/unit/runtime`: unsigned
numbers beyond their column, bytes that are no UTF-8, nanoseconds, views, UUIDs, half floats, names that differ in case,
INT96 with digits beyond microseconds, old times of ORC, and all times of ORC where TZ is not UTC.
"""

from __future__ import annotations

import datetime as dt
import random
import string
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from pyspark.sql import types as sql
from reads import parsed

from drainmark.jobs.formats.format import Expected
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark

ROWS, COLUMNS = 40, 60
Kind = tuple[pa.DataType, sql.DataType, Callable[[random.Random], Any]]
"""Arrow's type, the declared one, and what makes a value."""


def whole(bits: int, sign: bool = True) -> Callable[[random.Random], int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if sign else (0, 2**bits - 1)
    return lambda dice: dice.choice([low, high, 0, 1, dice.randint(low, high)])


def text(dice: random.Random) -> str:
    return "".join(dice.choices(string.printable + "äß€𝄞\u2028\0", k=dice.choice([0, 1, 5, 300])))


def day(dice: random.Random) -> dt.date:
    return dt.date.fromordinal(dice.randint(1, dt.date.max.toordinal()))


def moment(first: int, last: int) -> Callable[[random.Random], dt.datetime]:
    def made(dice: random.Random) -> dt.datetime:
        at = dt.datetime(dice.randint(first, last), dice.randint(1, 12), dice.randint(1, 28), tzinfo=dt.UTC)
        return at.replace(tzinfo=None) + dt.timedelta(microseconds=dice.choice([0, 1, dice.randrange(86_400_000_000)]))

    return made


def digits(precision: int, scale: int) -> Callable[[random.Random], Decimal]:
    return lambda dice: Decimal(dice.randint(-(10**precision) + 1, 10**precision - 1)).scaleb(-scale)


def real(dice: random.Random) -> float:
    return dice.choice([0.0, -0.0, 1.5, float("inf"), float("-inf"), 2.0**-149, dice.uniform(-1e9, 1e9)])


def float32(dice: random.Random) -> float:
    return dice.choice([0.0, -0.0, 1.5, float("inf"), 2.0**-149, -(2.0**127)])


BOTH: list[Kind] = [
    (pa.int8(), sql.ByteType(), whole(8)),
    (pa.int16(), sql.IntegerType(), whole(16)),
    (pa.int32(), sql.LongType(), whole(32)),
    (pa.int64(), sql.LongType(), whole(64)),
    (pa.bool_(), sql.BooleanType(), lambda dice: dice.random() < 0.5),
    (pa.float32(), sql.FloatType(), float32),
    (pa.float64(), sql.DoubleType(), real),
    (pa.string(), sql.StringType(), text),
    (pa.binary(), sql.BinaryType(), lambda dice: dice.randbytes(dice.choice([0, 1, 50]))),
    (pa.date32(), sql.DateType(), day),
    (pa.decimal128(9, 2), sql.DecimalType(9, 2), digits(9, 2)),
    (pa.decimal128(38, 10), sql.DecimalType(38, 10), digits(38, 10)),
]
IN_PARQUET: list[Kind] = [
    (pa.int32(), sql.DoubleType(), whole(32)),
    (pa.uint8(), sql.ShortType(), whole(8, sign=False)),
    (pa.uint16(), sql.IntegerType(), whole(16, sign=False)),
    (pa.uint32(), sql.LongType(), whole(32, sign=False)),
    (pa.uint64(), sql.DecimalType(20, 0), whole(64, sign=False)),
    (pa.large_string(), sql.StringType(), text),
    (pa.binary(3), sql.BinaryType(), lambda dice: dice.randbytes(3)),
    (pa.date32(), sql.TimestampNTZType(), day),
    (pa.decimal128(9, 2), sql.DecimalType(18, 4), digits(9, 2)),
    (pa.timestamp("ms", "UTC"), sql.TimestampType(), lambda dice: moment(1, 9999)(dice).replace(microsecond=1000)),
    (pa.timestamp("us", "UTC"), sql.TimestampType(), moment(1, 9999)),
    (pa.timestamp("us"), sql.TimestampNTZType(), moment(1, 9999)),
    (pa.timestamp("us", "Asia/Tokyo"), sql.TimestampNTZType(), moment(1, 9999)),
]
IN_ORC: list[Kind] = [
    # Of other writers than Spark, Spark's reader fails at fractions of a second before 1970.
    (pa.timestamp("us", "UTC"), sql.TimestampType(), moment(1970, 2261)),
    (pa.timestamp("us"), sql.TimestampType(), moment(1970, 2261)),
]
PLAIN: list[Kind] = [kind for kind in BOTH if kind[0] not in (pa.int16(), pa.int32())]
BY_SPARK = {
    "parquet": [*PLAIN, *(kind for kind in IN_PARQUET if kind[0] in (pa.timestamp("us"), pa.timestamp("us", "UTC")))],
    "orc": [
        *PLAIN,
        (pa.timestamp("us", "UTC"), sql.TimestampType(), moment(1678, 2261)),
        (pa.timestamp("us"), sql.TimestampNTZType(), moment(1, 9999)),
    ],
}


def nested(kind: Kind, dice: random.Random, depth: int) -> Kind:
    """Return a list, a map or a struct of a kind, or the kind itself."""
    shape = dice.choice(["list", "map", "struct", "plain"]) if depth else "plain"
    if shape == "plain":
        return kind
    found, declared, made = nested(kind, dice, depth - 1)

    def part(dice: random.Random) -> Any:
        return None if dice.random() < 0.2 else made(dice)

    if shape == "list":
        return pa.list_(found), sql.ArrayType(declared), lambda dice: [part(dice) for _ in range(dice.randrange(4))]
    if shape == "map":
        kinds = pa.map_(pa.string(), found), sql.MapType(sql.StringType(), declared)
        return *kinds, lambda dice: [(f"k{at}", part(dice)) for at in range(dice.randrange(4))]
    fields = sql.StructType().add("a", declared).add("b", sql.LongType())
    return (
        pa.struct([("a", found), ("b", pa.int64())]),
        fields,
        lambda dice: {"a": part(dice), "b": dice.choice([None, 1])},
    )


def made(kinds: list[Kind], seed: int) -> tuple[pa.Table, sql.StructType]:
    """Return a table of random columns, each kind at least once, and their declaration."""
    dice, declared, columns = random.Random(seed), sql.StructType(), {}
    for at in range(COLUMNS):
        found, kind, make = nested(kinds[at % len(kinds)], dice, 0 if at < len(kinds) else 2)
        name, nulls = f"c{at}", dice.choice([0, 0.3, 1])
        columns[name] = pa.array([None if dice.random() < nulls else make(dice) for _ in range(ROWS)], found)
        declared.add(name, kind)
    return pa.table(columns), declared


def texts(rows: pa.Table) -> list[str]:
    """Return the rows as texts, in which NaN is equal to itself."""
    return sorted(map(repr, rows.to_pylist()))


def ours(files: list[Path], name: str, declared: sql.StructType) -> pa.Table:
    expected = Expected(format=name, columns=[(field.name, field.dataType) for field in declared])
    found = [part for path in files for part in parsed(path, expected)]
    assert not any(part.faults for part in found)
    return pa.concat_tables([part.rows for part in found])


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
@pytest.mark.parametrize("name", ["parquet", "orc"])
def test_files_of_arrow_have_the_rows_that_spark_reads(
    engine: SparkEngine, tmp_path: Path, name: str, seed: int
) -> None:
    table, declared = made([*BOTH, *(IN_PARQUET if name == "parquet" else IN_ORC)], seed)
    path, dice = tmp_path / f"a.{name}", random.Random(seed)
    if name == "parquet":
        options = {"data_page_version": dice.choice(["1.0", "2.0"]), "compression": dice.choice(["zstd", "none"])}
        pq.write_table(table, path, row_group_size=15, use_dictionary=seed % 2 > 0, **options)
    else:
        orc.write_table(table, path, compression=dice.choice(["zstd", "zlib", "uncompressed"]))
    spark = engine.session.read.schema(declared).option("orc.proleptic.gregorian.default", "true")
    assert texts(ours([path], name, declared)) == texts(spark.format(name).load(str(path)).toArrow())


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
@pytest.mark.parametrize("name", ["parquet", "orc"])
def test_files_of_spark_have_the_rows_that_spark_reads(
    engine: SparkEngine, tmp_path: Path, name: str, seed: int
) -> None:
    table, declared = made(BY_SPARK[name], seed)
    rows = engine.session.createDataFrame(table, schema=declared)
    rows.coalesce(1).write.format(name).save(str(tmp_path / "written"))
    files = list((tmp_path / "written").glob(f"*.{name}"))
    assert texts(ours(files, name, declared)) == texts(
        engine.session.read.schema(declared).format(name).load(str(tmp_path / "written")).toArrow()
    )
