"""The changes of a table that delta-spark writes are those that Delta's own reader of its feed gives."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import drainmark as dm
from drainmark.jobs.errors import Halted, InputChanged
from drainmark.orchestration.testing.running import Result
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark

RunApp = Callable[..., Result]
WAYS: dict[str, dict[str, int]] = {"small": {"small_group_bytes": 1 << 30}, "large": {"small_group_bytes": 0}}
ON = "tblproperties (delta.enableChangeDataFeed = true)"


class Table:
    """A table of others, written by delta-spark."""

    def __init__(self, engine: SparkEngine, path: Path) -> None:
        self.session, self.path = engine.session, path
        self.name = f"delta.`{path}`"

    def do(self, *statements: str) -> None:
        for statement in statements:
            self.session.sql(statement.replace("TABLE", self.name)).collect()

    def make(self, properties: str = ON) -> None:
        self.do(
            f"create table TABLE (id bigint, name string, at timestamp, p string) using delta partitioned by (p)"
            f" {properties}",
            "insert into TABLE values (1, 'a', timestamp'2020-01-01 00:00:00', 'x y'), (2, 'b', null, null)",
        )

    @property
    def version(self) -> int:
        return int(DeltaTable(str(self.path)).version())

    def feed(self, first: int) -> Counter[tuple[Any, ...]]:
        """Return the changes from a version on, by Delta's own reader."""
        read = self.session.read.format("delta").option("readChangeFeed", "true").option("startingVersion", first)
        names = ("id", "name", "at", "p", "_change_type", "_commit_version")
        return Counter(tuple(row[name] for name in names) for row in read.load(str(self.path)).toArrow().to_pylist())


@pytest.fixture
def table(engine: SparkEngine, tmp_path: Path) -> Table:
    return Table(engine, tmp_path / "others")


def reading(table: Table, **more: Any) -> Callable[[], None]:
    def followed() -> None:
        @dm.consistent(trigger="operator-driven", max_consecutive_reset_attempts=0)
        @dm.source(dm.TableSource(str(table.path), changes=True, **more))
        def changes(scanned: Any) -> Any:
            return scanned

        dm.sink(changes, dm.DeltaAppend("seen"))

    return followed


def seen(result: Result) -> Counter[tuple[Any, ...]]:
    names = ("id", "name", "at", "p", "_change_type", "_commit_version")
    return Counter(tuple(row[name] for name in names) for row in result.sink("seen"))


CHANGES = (
    "update TABLE set name = 'c' where id = 1",
    "insert into TABLE values (3, 'd', null, 'z%/'), (4, 'e', null, 'x y')",
    "delete from TABLE where id = 2",
    "merge into TABLE t using (select 4 as id union all select 5) s on t.id = s.id"
    " when matched then update set name = 'merged' when not matched then insert (id, name) values (s.id, 'new')",
    "delete from TABLE where p = 'z%/'",
    "optimize TABLE",
    "alter table TABLE add column extra int",
    "insert overwrite TABLE values (9, 'over', timestamp'2020-01-01 00:00:00', 'q', 1)",
)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.seed("CD4")
def test_the_changes_are_those_of_deltas_own_reader(run_app: RunApp, table: Table, way: str) -> None:
    table.make()
    result = run_app(reading(table), settings=WAYS[way]).run()
    first = table.version
    whole = seen(result)
    assert {key[4:] for key in whole} == {("insert", first)}
    assert sum(whole.values()) == 2
    table.do(*CHANGES[:3])
    result.run()
    table.do(*CHANGES[3:6])
    result.run()
    wanted = table.feed(first + 1)
    assert {key[4] for key in wanted} == {"insert", "delete", "update_preimage", "update_postimage"}
    assert seen(result) == whole + wanted
    moments = {row["_commit_timestamp"] for row in result.sink("seen")}
    assert all(abs(moment - dt.datetime.now(dt.UTC)) < dt.timedelta(hours=1) for moment in moments)
    states = len([each for each in result.history if each["kind"] == "state"])
    assert states == 6, "the whole table, and each version that changed rows"
    result.rewind(2)
    assert max(key[5] for key in seen(result)) == first + 1
    result.run()
    assert seen(result) == whole + wanted


def copying(table: Table) -> Callable[[], None]:
    def followed() -> None:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.TableSource(str(table.path), changes=True))
        def changes(scanned: Any) -> Any:
            return scanned

        copied = dm.apply_changes(
            changes,
            keys=["id"],
            sequence_by="_commit_version",
            apply_as_deletes="_change_type in ('delete', 'update_preimage')",
            columns=["id", "name"],
            name="copied",
        )
        dm.sink(copied, dm.DeltaUpsert("copy", keys=["id"]))

    return followed


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.seed("CD4")
def test_a_version_that_replaces_rows_of_keys_replaces_them_in_a_copy(run_app: RunApp, table: Table, way: str) -> None:
    """Delta writes the changes of one version in any order: here the inserts come before the deletes."""
    table.make()
    result = run_app(copying(table), settings=WAYS[way]).run()
    for statement in (
        "insert into TABLE replace where id <= 2 values (1, 'again', null, 'x y'), (2, 'too', null, null)",
        "update TABLE set id = id + 1",
    ):
        table.do(statement)
        result.run()
        there = table.session.read.format("delta").load(str(table.path)).collect()
        wanted = {row["id"]: row["name"] for row in there}
        assert {row["id"]: row["name"] for row in result.sink("copy")} == wanted


@pytest.mark.slow
def test_columns_that_come_and_tables_that_are_replaced(run_app: RunApp, table: Table) -> None:
    table.make()
    first = table.version
    table.do(*CHANGES)
    result = run_app(reading(table, starting_version=first + 1)).run()
    assert seen(result) == table.feed(first + 1)


def test_versions_without_a_feed_are_refused(run_app: RunApp, table: Table, tmp_path: Path) -> None:
    table.make("")
    with pytest.raises(InputChanged) as caught:
        run_app(reading(table)).run()
    assert "delta.enableChangeDataFeed" in str(caught.value.remedy)
    table.do(f"alter table TABLE set {ON}")
    result = run_app(reading(table)).run()
    assert sum(seen(result).values()) == 2
    table.do("update TABLE set name = 'c'", "alter table TABLE unset tblproperties (delta.enableChangeDataFeed)")
    result.run()
    table.do("delete from TABLE where id = 1")
    with pytest.raises(InputChanged):
        result.run()
    assert len(result.sink("seen")) == 6
    with pytest.raises(InputChanged):
        run_app(reading(table, starting_version=1)).run()


def test_a_feed_that_was_vacuumed_is_missing(run_app: RunApp, table: Table) -> None:
    table.make()
    result = run_app(reading(table)).run()
    table.do("update TABLE set name = 'c'")
    for path in table.path.glob("_change_data/**/*.parquet"):
        path.unlink()
    with pytest.raises(Halted) as caught:
        result.run()
    assert "_change_data" in str(caught.value)
