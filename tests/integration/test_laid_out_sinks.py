"""Sinks with partitions and an order, from declaration to readers: both ways of a group, rewound, read by engines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

import drainmark as dm
from drainmark.jobs.errors import DeclarationError, LayoutChanged
from drainmark.orchestration.testing.running import Result, run_app
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark

SCHEMA = "country string, day date, visitor bigint, paid double"


def visits(
    *,
    partition_by: Sequence[str] = ("country", "day"),
    cluster_by: Sequence[str] = ("visitor",),
    are_kept_by_key: bool = True,
) -> dm.Application:
    with dm.application("visits") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="unused", format="csv", schema=SCHEMA, settle=0))
        def lines(scanned: Any) -> Any:
            return scanned

        @dm.functor
        def seen(lines: Any) -> Any:
            return dm.select(lines, "country", "day", "visitor", "paid")

        dm.sink(seen, dm.DeltaAppend("visits", partition_by=partition_by, cluster_by=cluster_by))
        if are_kept_by_key:
            dm.sink(seen, dm.DeltaUpsert("visitors", ["visitor"], partition_by=["country"], cluster_by=["day"]))
            totals = dm.aggregate(seen, keys=["country"], values={"paid": dm.sum("paid")})
            dm.sink(totals, dm.DeltaUpsert("totals", ["country"], partition_by=["country"]))
    return dm.build_application(declared)


FILES = {
    "1.csv": "DE,2024-01-01,1,1.5\nFR,2024-01-01,2,\n,2024-01-02,3,NaN\n",
    "2.csv": 'FR,2024-01-02,1,2.5\nDE,,4,-0.0\n"a/b=c %é",1969-12-31,5,1e300\n',
    "3.csv": 'DE,2024-01-02,5,7\n"",2024-01-02,6,8\n',
}
TABLES = ("visits", "visitors", "totals")


def content(result: Result, engine: SparkEngine, table: str) -> list[tuple[Any, ...]]:
    """Return the rows after a check that Drainmark, Spark and `deltalake` find the same."""
    root = str(result.home / "lake" / table)
    ours = result.arrow(table)
    by_spark = engine.session.read.format("delta").load(root).select(*ours.column_names).toArrow()
    query = QueryBuilder().register("t", DeltaTable(root)).execute("select * from t")
    found, *others = (repr(rows_of(each, ours.column_names)) for each in (ours, by_spark, query))
    assert others == [found, found]
    return rows_of(ours, ours.column_names)


def rows_of(table: Any, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the rows of Arrow data, sorted by their text."""
    return sorted((tuple(row.values()) for row in pa.table(table).select(list(names)).to_pylist()), key=repr)


@pytest.mark.seed("AU8", "H18")
def test_which_way_a_group_takes_changes_nothing_and_a_rewind_takes_it_back(
    engine: SparkEngine, tmp_path: Path
) -> None:
    small = run_app(visits(), FILES, home=tmp_path / "small" / "home")
    large = run_app(visits(), FILES, home=tmp_path / "large" / "home", settings={"small_group_bytes": 0})
    for table in TABLES:
        assert repr(rows(small, table)) == repr(rows(large, table))
    assert [row[1] for row in content(large, engine, "visits")].count(None) == 2
    found = {row[0]: row[1] for row in content(large, engine, "visitors")}
    assert found == {1: "FR", 2: "FR", 3: None, 4: "DE", 5: "DE", 6: None}
    live = large.workplace.store(large.region.name).table("lake/visits").files.live()
    assert len({file.partition for file in live}) == 7

    wanted = {table: repr(large.sink(table, 1)) for table in TABLES}
    large.rewind(1)
    assert {table: repr(large.sink(table)) for table in TABLES} == wanted
    large.workplace.settings = large.workplace.settings.model_copy(update={"small_group_bytes": 1 << 20})
    large.run()  # small groups on the way forward, large ones on the way back
    for table in TABLES:
        assert repr(rows(small, table, ids=False)) == repr(rows(large, table, ids=False))


def rows(result: Result, table: str, *, ids: bool = True) -> list[tuple[Any, ...]]:
    """Return the rows of a sink, sorted by their text."""
    return sorted((tuple(row.values()) for row in result.sink(table, ids=ids)), key=repr)


@pytest.mark.slow
@pytest.mark.seed("AU8")
def test_engines_skip_files(engine: SparkEngine, tmp_path: Path) -> None:
    files = {f"{number}.csv": f"DE,2024-01-0{number},{number},{number}.5\nFR,,{number},NaN\n" for number in range(1, 4)}
    rows_alone = visits(partition_by=["country"], are_kept_by_key=False)
    result = run_app(rows_alone, files, max_group=1, home=tmp_path / "home")
    root = str(result.home / "lake" / "visits")
    table = engine.session.read.format("delta").load(root)
    for condition, opened, rows in (
        ("visitor = 2", 2, 2),
        ("visitor > 2", 2, 2),
        ("country = 'DE'", 3, 3),
        ("country = 'DE' and visitor < 3", 2, 2),
        ("day is not null and visitor = 1", 1, 1),
        ("day >= '2024-01-02'", 2, 2),
        ("paid > 100", 3, 3),  # a NaN is larger than all numbers
        ("paid is null", 0, 0),
    ):
        chosen = table.where(condition)
        assert (len(chosen.inputFiles()), chosen.count()) == (opened, rows), condition
    assert looked_into(root, "visitor = 3 and country = 'DE'") == (1, 1)


def looked_into(root: str, condition: str) -> tuple[int, int]:
    """Return the number of files that `deltalake` opens, and the number of rows that it finds."""
    query = QueryBuilder().register("t", DeltaTable(root))
    rows = pa.table(query.execute(f"select * from t where {condition}")).num_rows  # noqa: S608
    plan = str(pa.table(query.execute(f"explain select * from t where {condition}")).to_pylist())  # noqa: S608
    return plan.count(".parquet"), rows


@pytest.mark.seed("AU8")
@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"partition_by": ["nobody"]}, "LAYOUT_COLUMN"),
        ({"cluster_by": ["nobody"]}, "LAYOUT_COLUMN"),
        ({"partition_by": ["paid"]}, "PARTITION_TYPE"),
        ({"partition_by": ["country", "day", "visitor", "paid"]}, "PARTITION_ALL"),
    ],
)
def test_what_columns_do_not_bear_is_refused(tmp_path: Path, options: dict[str, Any], rule: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        run_app(visits(**{"cluster_by": (), **options}), FILES, home=tmp_path / "home")
    assert rule in {violation.rule for violation in refused.value.violations}


@pytest.mark.slow
@pytest.mark.seed("AU8")
def test_other_partitions_of_a_table_are_refused_and_another_order_is_not(tmp_path: Path) -> None:
    run_app(visits(are_kept_by_key=False), {"1.csv": FILES["1.csv"]}, home=tmp_path / "home")
    others = visits(partition_by=["country"], are_kept_by_key=False)
    with pytest.raises(LayoutChanged) as refused:
        run_app(others, {"2.csv": FILES["2.csv"]}, home=tmp_path / "home")
    assert refused.value.operator == "visits_sink"
    reordered = visits(cluster_by=["paid"], are_kept_by_key=False)
    run_app(reordered, {"3.csv": FILES["3.csv"]}, home=tmp_path / "home")
