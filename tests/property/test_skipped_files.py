"""Engines that skip files, and parts of files, by Drainmark's statistics of them still find all the same rows."""

from __future__ import annotations

import datetime as dt
import functools
import operator
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, Schema
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame

from drainmark.jobs.protocol.records.ids import txn_version
from drainmark.jobs.tasks.layout import Layout
from drainmark.resources.delta import delta_tables, file_lists
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.staging import Staging
from drainmark.resources.spark.session import SparkEngine
from drainmark.resources.storage.folder import LocalFolder

_Z = "z" * 32
TEXTS = st.sampled_from(["", "a", _Z[1:] + "é", _Z + "z", _Z + "\U0010ffff", "\U0010ffff" * 40, "a" * 40, "\ud7ff"])
MICROSECONDS = st.sampled_from([-1, 0, 1, 999, 1000, 1_700_000_000_123_999, -62_135_596_800_000_000, 10**15])
FLOATS = st.sampled_from([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 5e-324, 0.1, 1e300, -3.5])
DECIMALS = st.sampled_from([Decimal("0.00"), Decimal("-0.01"), Decimal("1.10"), Decimal("123456789012345678.91")])
DAYS = st.sampled_from([dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(9999, 12, 31)])
WHOLE = st.sampled_from([0, -1, 2**53 + 1, 2**63 - 1, -(2**63)])


@dataclass(frozen=True)
class Column:
    """A column of odd values.

    Attributes:
        name: its name in SQL.
        spark, datafusion: its type, to cast texts to.
    """

    name: str
    spark: str
    datafusion: str
    values: st.SearchStrategy[Any]


COLUMNS = {
    "text": Column("`text`", "string", "Utf8", TEXTS),
    "flag": Column("`flag`", "boolean", "Boolean", st.booleans()),
    "whole": Column("`whole`", "bigint", "Int64", WHOLE),
    "double": Column("`double`", "double", "Float64", FLOATS),
    "price": Column("`price`", "decimal(20,2)", "Decimal128(20, 2)", DECIMALS),
    "day": Column("`day`", "date", "Date32", DAYS),
    "at": Column("`at`", "timestamp", 'Timestamp(Microsecond, Some("UTC"))', MICROSECONDS),
    "local": Column("`local`", "timestamp_ntz", "Timestamp(Microsecond, None)", MICROSECONDS),
    "a.b": Column("`a.b`", "bigint", "Int64", WHOLE),
    "deep": Column("`deep`.`double`", "double", "Float64", FLOATS),
}
SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("flag", pa.bool_()),
        ("whole", pa.int64()),
        ("double", pa.float64()),
        ("price", pa.decimal128(20, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("a.b", pa.int64()),
        ("deep", pa.struct([("double", pa.float64()), ("list", pa.list_(pa.int32()))])),
        ("_sequence_id", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Predicate:
    """A column compared with a value; None matches nulls."""

    column: str
    operator: str
    value: Any

    def text(self) -> str:
        if isinstance(self.value, int) and self.column in ("at", "local"):
            moment = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=self.value)  # noqa: DTZ001
            return moment.isoformat(timespec="microseconds") + ("Z" if self.column == "at" else "")
        return str(self.value)

    def spark(self) -> str:
        column = COLUMNS[self.column]
        literal = self.text().replace("\\", "\\\\")
        return f"{column.name} {self.operator}" + (
            "" if self.value is None else f" cast('{literal}' as {column.spark})"
        )

    def datafusion(self) -> str:
        column = COLUMNS[self.column]
        name = column.name.replace("`.`", "\"]['").replace("`", '"')
        name = "\"deep\"['double']" if self.column == "deep" else name
        given = "" if self.value is None else f" arrow_cast('{self.text()}', '{column.datafusion}')"
        return f"{name} {self.operator}{given}"

    def arrow(self) -> ds.Expression:
        column = ds.field(self.column)
        if self.value is None:
            return column.is_null() if self.operator == "is null" else ~column.is_null()
        return _COMPARED[self.operator](column, pa.scalar(self.value, SCHEMA.field(self.column).type))

    def holds(self, row: dict[str, Any]) -> bool:
        found = row.get(self.column)
        if self.value is None:
            return (found is None) == (self.operator == "is null")
        return found is not None and _COMPARED[self.operator](found, self.value)


_COMPARED: dict[str, Any] = {
    "=": operator.eq, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge
}  # fmt: skip
_OUT_OF_BOUNDS = ("\U0010ffff", float("nan"), float("inf"), -float("inf"))
"""Values, or letters of a long text, that leave a file without a bound."""


def files() -> st.SearchStrategy[list[list[dict[str, Any]]]]:
    """Return a strategy for files of rows; each column has few of its odd values."""
    fields = {name: st.none() | column.values for name, column in COLUMNS.items() if name != "deep"}
    deep = st.none() | st.fixed_dictionaries({"double": st.none() | FLOATS, "list": st.none() | st.just([1])})
    rows = st.fixed_dictionaries({**fields, "deep": deep})
    return st.lists(st.lists(rows, min_size=1, max_size=3), min_size=1, max_size=4)


def predicates() -> st.SearchStrategy[list[Predicate]]:
    compared = st.sampled_from(sorted(COLUMNS)).flatmap(
        lambda name: st.builds(
            Predicate, st.just(name), st.sampled_from(["=", "<", ">", "<=", ">="]), COLUMNS[name].values
        )
    )
    asked = st.builds(
        Predicate, st.sampled_from(sorted(COLUMNS)), st.sampled_from(["is null", "is not null"]), st.none()
    )
    return st.lists(compared | asked, min_size=8, max_size=16)


def tables(folder: Path, given: Sequence[Sequence[dict[str, Any]]]) -> tuple[Path, Path]:
    """Return a table with Drainmark's statistics of its files, and a table with the same rows but no statistics."""
    told, silent = (folder / uuid.uuid4().hex for _ in range(2))
    for root in (told, silent):
        table = ManagedTable(root, "shop/orders")
        table.create(str(Schema.from_arrow(SCHEMA).to_json()), properties={})
        staged = []
        for number, found in enumerate(given, 1):
            rows = pa.Table.from_pylist([{**row, "_sequence_id": number} for row in found], schema=SCHEMA)
            (file,) = Staging(root, 1, uuid.uuid4().hex, Layout(has_statistics=True)).write(rows, "rows")
            if root is silent:
                path = root / file.path
                path.unlink()
                pq.write_table(rows, path, write_statistics=False, store_schema=False, coerce_timestamps="us")
                file = file_lists.footer(LocalFolder(root), file.path, path.stat().st_size)
            staged.append(file)
        table.publish(txn_version(1, len(staged)), staged)
    return told, silent


def by_deltalake(root: Path, asked: Sequence[Predicate]) -> list[list[int]]:
    query = QueryBuilder().register("t", delta_tables.open_table(LocalFolder(root)))
    found = [query.execute("select _sequence_id from t where " + each.datafusion()) for each in asked]  # noqa: S608
    return [sorted(pa.table(rows)["_sequence_id"].to_pylist()) for rows in found]


def by_spark(root: Path, asked: Sequence[Predicate], engine: SparkEngine) -> list[list[int]]:
    rows = engine.session.read.format("delta").load(str(root))
    parts = [rows.where(each.spark()).selectExpr(f"{number} n", "_sequence_id i") for number, each in enumerate(asked)]
    found: list[list[int]] = [[] for _ in asked]
    for row in functools.reduce(DataFrame.union, parts).collect():
        found[row["n"]].append(row["i"])
    return [sorted(ids) for ids in found]


@pytest.mark.seed("H18")
@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given=files(), asked=predicates())
def test_deltalake_finds_what_it_finds_without_statistics(
    tmp_path: Path, given: list[list[dict[str, Any]]], asked: list[Predicate]
) -> None:
    told, silent = tables(tmp_path, given)
    assert by_deltalake(told, asked) == by_deltalake(silent, asked)


@pytest.mark.seed("H18")
@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given=files(), asked=predicates())
@pytest.mark.seed("B08")
def test_the_dataset_of_deltalake_finds_what_python_finds(
    tmp_path: Path, given: list[list[dict[str, Any]]], asked: list[Predicate]
) -> None:
    """It takes a bound that is missing for null: so a bound is missing only where JSON has none (NaN, infinity)."""
    bounded = [
        [{n: v for n, v in row.items() if not _is_out_of_bounds(v) and n != "deep"} for row in rows] for rows in given
    ]
    dataset = DeltaTable(tables(tmp_path, bounded)[0]).to_pyarrow_dataset()
    for each in [one for one in asked if one.column != "deep" and not _is_out_of_bounds(one.value)]:
        found = dataset.to_table(columns=["_sequence_id"], filter=each.arrow())["_sequence_id"].to_pylist()
        assert sorted(found) == [n for n, rows in enumerate(bounded, 1) for row in rows if each.holds(row)], each


def _is_out_of_bounds(value: Any) -> bool:
    if isinstance(value, str):
        return _OUT_OF_BOUNDS[0] in value
    return isinstance(value, float) and (value != value or value in _OUT_OF_BOUNDS)  # noqa: PLR0124


@pytest.mark.seed("H18")
@pytest.mark.parametrize("values", [[-0.0], [0.0], [-5.0, -0.0], [0.0, 5.0]], ids=str)
def test_a_zero_is_found_whatever_its_sign(tmp_path: Path, values: list[float]) -> None:
    """`deltalake` skips files by an order in which -0.0 is below 0.0, but compares rows by one in which it is not."""
    (root, silent), zeros = tables(tmp_path, [[{"double": value} for value in values]]), ("0.0", "-0.0")
    asked = [Predicate("double", operator, float(zero)) for operator in ("=", "<=", ">=") for zero in zeros]
    assert by_deltalake(root, asked) == by_deltalake(silent, asked)
    assert by_deltalake(root, asked[:2]) == [[1] * values.count(0.0)] * 2


@pytest.mark.slow
@pytest.mark.seed("H18")
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given=files(), asked=predicates())
def test_spark_finds_what_it_finds_without_statistics(
    tmp_path: Path, engine: SparkEngine, given: list[list[dict[str, Any]]], asked: list[Predicate]
) -> None:
    told, silent = tables(tmp_path, given)
    assert by_spark(told, asked, engine) == by_spark(silent, asked, engine)
