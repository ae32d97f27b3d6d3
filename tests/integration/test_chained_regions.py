"""A region that reads the table of another one gets its rows in the order that they had there, in any grouping (A2)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import drainmark as dm
from drainmark.orchestration.testing.running import Result

pytestmark = pytest.mark.spark

RunApp = Callable[..., Result]
FILES = 4
SMALL, LARGE = {"small_group_bytes": 1 << 30}, {"small_group_bytes": 0}
TABLES = ("plain", "laid_out", "exploded", "summed")


def first() -> None:
    @dm.consistent(trigger="operator-driven")
    @dm.source(dm.DirectoryScan(path="inbox", format="csv", schema="k string, n bigint"))
    def rows(scanned: Any) -> Any:
        return scanned

    @dm.functor
    def twice(rows: Any) -> Any:
        return rows.selectExpr("k", "explode(array(n, -n)) as n", "_sequence_id", "_position")

    dm.sink(rows, dm.DeltaAppend("plain"))
    dm.sink(rows, dm.DeltaAppend("laid_out", partition_by=["k"], cluster_by=["n"]))
    dm.sink(twice, dm.DeltaAppend("exploded"))
    summed = dm.aggregate(rows, keys=["k", "n"], values={"times": dm.count()}, name="summed_by_n")
    dm.sink(summed, dm.DeltaAppend("summed"))


def reading(name: str, table: str) -> Any:
    def start(scanned: Any) -> Any:
        return scanned

    start.__name__ = name
    return dm.consistent(trigger="operator-driven")(dm.source(dm.TableSource(table))(start))


def second() -> None:
    for table in TABLES:
        dm.sink(start := reading(f"of_{table}", table), dm.DeltaUpsert(f"last_{table}", keys=["k"]))
        dm.sink(start, dm.DeltaAppend(f"again_{table}"))


def third() -> None:
    dm.sink(reading("third", "again_exploded"), dm.DeltaUpsert("last_third", keys=["k"]))


def content(chosen: random.Random) -> str:
    """Return rows of few keys; the largest number of a key is seldom its last."""
    return "".join(f"{chosen.choice('xyz')},{chosen.randrange(50)}\n" for _ in range(chosen.randrange(1, 40)))


def files() -> Mapping[str, str]:
    chosen = random.Random(7)
    return {f"{number:03d}.csv": content(chosen) for number in range(FILES)}


def wanted() -> dict[str, dict[str, int]]:
    """Return the number in the last row of each key, by table; an aggregate's rows are in the order of their values."""
    last: dict[str, dict[str, int]] = {"plain": {}, "exploded": {}, "summed": {}}
    for text in files().values():
        of_file: dict[str, list[int]] = {}
        for line in text.splitlines():
            key, _, number = line.partition(",")
            of_file.setdefault(key, []).append(int(number))
        for key, numbers in of_file.items():
            last["plain"][key], last["exploded"][key], last["summed"][key] = numbers[-1], -numbers[-1], max(numbers)
    return {**last, "laid_out": last["plain"], "third": last["exploded"]}


@pytest.mark.parametrize(
    ("upstream", "downstream"),
    [
        pytest.param((3, LARGE), (1, SMALL), id="by tasks, then in this process"),
        pytest.param((FILES, SMALL), (2, LARGE), id="in this process, then by tasks"),
    ],
)
@pytest.mark.slow
def test_the_last_row_of_a_key_is_the_same_in_any_grouping_of_a_chain(
    run_app: RunApp, tmp_path: Path, upstream: tuple[int, Any], downstream: tuple[int, Any]
) -> None:
    run_app(first, files(), home=tmp_path / "home", max_group=upstream[0], settings=upstream[1])
    found = {}
    for app in (second, third):
        result = run_app(app, home=tmp_path / "home", max_group=downstream[0], settings=downstream[1]).run()
        for table in TABLES if app is second else ("third",):
            found[table] = {row["k"]: row["n"] for row in result.sink(f"last_{table}")}
    assert found == wanted()


def test_the_last_file_has_the_last_word(run_app: RunApp, tmp_path: Path) -> None:
    """Spark reads the larger file first."""
    two = {"1.csv": "x,1\n", "2.csv": "x,3\n" * 50 + "x,2\n"}
    run_app(rows_alone, two, home=tmp_path / "home", settings=LARGE)
    found = run_app(last_alone, home=tmp_path / "home", settings=LARGE).run().sink("last")
    assert [row["n"] for row in found] == [2]


def rows_alone() -> None:
    @dm.consistent(trigger="operator-driven")
    @dm.source(dm.DirectoryScan(path="inbox", format="csv", schema="k string, n bigint"))
    def rows(scanned: Any) -> Any:
        return scanned

    dm.sink(rows, dm.DeltaAppend("plain"))


def last_alone() -> None:
    dm.sink(reading("of_plain", "plain"), dm.DeltaUpsert("last", keys=["k"]))
