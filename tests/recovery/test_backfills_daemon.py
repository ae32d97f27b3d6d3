"""Dagster's Backfills page: its mutation, the real daemon, code server and run workers, for partitions of regions.

Runs linger for longer than the test waits, so that a run owns each region when its backfill begins.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus
from hand_runs import engine, without_spark
from recovery.served_location import Location, served

from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import load_settings

__all__ = ["engine", "without_spark"]

pytestmark = [pytest.mark.recovery, pytest.mark.timeout(1800)]

TODAY = dt.datetime.now(dt.UTC).replace(hour=0, minute=0, second=0, microsecond=0)
DAYS = [(TODAY - dt.timedelta(days=number)).date().isoformat() for number in (2, 1, 0)]
RUNNING = (BulkActionStatus.REQUESTED, BulkActionStatus.FAILING)

APPLICATION = """
import drainmark as dm


@dm.consistent(trigger="operator-driven", max_consecutive_reset_attempts=1)
@dm.source(
    dm.DirectoryScan(
        path="in/{name}", pattern="*.csv", format="csv", schema="k string, v string", settle=0.0, on_change="ignore"
    )
)
def rows(scanned):
    return scanned


dm.sink(rows, dm.DeltaAppend("{name}_rows"))


@dm.functor
def copies(rows):
    if any(row["v"] == "poison" for row in rows):
        raise ValueError("poison")
    return rows


dm.sink(copies, dm.DeltaAppend("{name}_copies"))
"""
NAMES = ("kept", "daily", "spoilt")

LOCATION = f"""
import json
import time
from pathlib import Path

import dagster as dg

from drainmark.dagster import DrainmarkTranslator, definitions

HERE = Path(__file__).parent
FILES = dg.DynamicPartitionsDefinition(name="kept__rows__files")


class Cut(DrainmarkTranslator):
    def get_partitions(self, region):
        return {DAYS[0]!r} if region == "daily/rows" else "file"


def note(file, value):
    with (HERE / file).open("a") as notes:
        notes.write(json.dumps(value) + "\\n")


@dg.asset(deps=[["kept", "kept_copies"]], partitions_def=FILES)
def each(context):
    note("each.jsonl", context.partition_key)


@dg.asset(deps=[["kept", "kept_copies"]], partitions_def=FILES, backfill_policy=dg.BackfillPolicy.single_run())
def together(context):
    time.sleep(12)  # longer than two ticks of the region's sensor, while the process of the region's op is gone
    note("together.jsonl", [list(context.partition_keys), context.run_id])


defs = dg.Definitions.merge(
    definitions(project=HERE, translator=Cut()), dg.Definitions(assets=[each, together])
)
"""

LAUNCH = """
mutation Launch($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}
"""


def drop(location: Location, name: str, file: str, value: str, day: str = DAYS[2]) -> None:
    """Write a file, of a day."""
    path = location.drop(f"in/{name}/{file}.csv", f"{file},{value}\nall,{file}{value}\n")
    at = dt.datetime.fromisoformat(day).replace(tzinfo=dt.UTC).timestamp() + 1
    os.utime(path, (at, at))


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Location]:
    root = tmp_path_factory.mktemp("partitions")
    for name in NAMES:
        (root / "in" / name).mkdir(parents=True)
    applications = {name: APPLICATION.format(name=name) for name in NAMES}
    with served(root, LOCATION, applications, settings="linger_seconds = 3000.0\n", has_pages=True) as found:
        for name in NAMES:
            for file, day in zip("abc", DAYS, strict=True):
                drop(found, name, file, "1", day)
        for name in NAMES:
            found.wait_for(lambda name=name: len(found.rows(f"{name}/rows", f"{name}_copies")) == 6, f"rows of {name}")
            found.wait_for(lambda name=name: len(materialized(found, name)) == 3, f"partitions of {name}")
        yield found


def tables_of(name: str) -> list[list[str]]:
    return [
        [name, *table]
        for table in (["checkpoints", "rows"], [f"{name}_rows"], [f"{name}_copies"], [f"{name}_quarantine"])
    ]


def materialized(location: Location, name: str) -> set[str]:
    return set(location.instance.get_materialized_partitions(dg.AssetKey([name, f"{name}_copies"])))


def launch(location: Location, assets: Sequence[Sequence[str]], partitions: Sequence[str]) -> str:
    """Launch a backfill as the page does; return its id."""
    params = {"assetSelection": [{"path": list(path)} for path in assets], "partitionNames": list(partitions)}
    answer = location.graphql(LAUNCH, params=params)["launchPartitionBackfill"]
    assert answer["__typename"] == "LaunchBackfillSuccess", answer
    return str(answer["backfillId"])


def ended(location: Location, backfill: str) -> BulkActionStatus:
    def status() -> BulkActionStatus | None:
        found = location.instance.get_backfill(backfill)
        return None if found is None or found.status in RUNNING else found.status

    return location.wait_for(status, "the end of a backfill")


def notes(location: Location, file: str) -> list[Any]:
    path = location.root / file
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def contents(place: Workplace, name: str) -> dict[str, list[str]]:
    """Return the rows of a region's tables, without their ids: files that are not neighbours are runs of their own."""
    found = {}
    for table in (f"{name}_rows", f"{name}_copies"):
        read = place.store(f"{name}/rows").table(f"lake/{table}").read().to_pylist()
        found[table] = sorted(f"{row['k']} {row['v']}" for row in read)
    return found


def by_command_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Return what `drainmark backfill --again` leaves of the same files."""
    (folder / "in" / "kept").mkdir(parents=True)
    (folder / "kept.py").write_text(APPLICATION.format(name="kept"))
    (folder / "drainmark.toml").write_text('applications = ["kept.py"]\n')
    monkeypatch.chdir(folder)
    for values in ("111", "212"):
        for file, value in zip("abc", values, strict=True):
            (folder / "in" / "kept" / f"{file}.csv").write_text(f"{file},{value}\nall,{file}{value}\n")
        if values == "212":
            assert invoke(["backfill", "kept", "--input", "in/kept/[ac].csv", "--again"]) == 0
        assert invoke(["run", "kept.py"]) == 0
    return contents(Workplace(load_settings(project=folder)), "kept")


def test_backfills_of_files_of_days_and_of_assets_behind_them(
    location: Location, without_spark: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are asked for at once: the daemon looks for backfills every thirty seconds."""
    files = ["in/kept/a.csv", "in/kept/c.csv"]
    for file in "ac":
        drop(location, "kept", file, "2")
    for file, day in zip("ab", DAYS, strict=False):
        drop(location, "daily", file, "2", day)
    drop(location, "spoilt", "a", "poison")
    ours = launch(location, [*tables_of("kept"), ["each"], ["together"]], files)
    days = launch(location, tables_of("daily"), DAYS[:2])
    alone = launch(location, [["each"]], ["in/kept/b.csv"])
    bad = launch(location, tables_of("spoilt"), ["in/spoilt/a.csv"])

    assert ended(location, ours) is BulkActionStatus.COMPLETED_SUCCESS
    assert ended(location, days) is BulkActionStatus.COMPLETED_SUCCESS
    assert ended(location, alone) is BulkActionStatus.COMPLETED_SUCCESS
    assert contents(location.place, "kept") == by_command_line(tmp_path, monkeypatch)
    assert contents(location.place, "daily")["daily_copies"] == sorted(
        ["a 2", "all a2", "b 2", "all b2", "c 1", "all c1"]
    )
    assert location.history("kept/rows").committed_id == 5
    assert sorted(notes(location, "each.jsonl")) == ["in/kept/a.csv", "in/kept/b.csv", "in/kept/c.csv"]
    made = notes(location, "together.jsonl")
    assert sorted(keys for keys, _ in made) == [[file] for file in files], "each in the run of its file"
    for _, run in made:
        assert location.instance.get_run_by_id(run).status is dg.DagsterRunStatus.SUCCESS, "nobody reaped it"
    runs = location.instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": ours}))
    assert {run.status for run in runs} == {dg.DagsterRunStatus.SUCCESS}

    assert ended(location, bad) is BulkActionStatus.COMPLETED_FAILED
    _remedied(location, bad)


def _remedied(location: Location, backfill: str) -> None:
    """Do what the run of a backfill says that failed, once its file is mended."""
    runs = location.instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": backfill}))
    assert {run.status for run in runs} == {dg.DagsterRunStatus.FAILURE}
    assert len(runs) == 2, "it was retried once, and then the region halted"
    assert contents(location.place, "spoilt")["spoilt_copies"] == sorted(f"{k} {v}" for k, v in _of_ones()), "as before"
    (failure,) = location.instance.all_logs(runs[0].run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    assert failure.dagster_event is not None
    told = failure.dagster_event.step_failure_data.user_failure_data
    assert told is not None
    assert str(location.root / "in" / "spoilt" / "a.csv") in told.metadata["drainmark/trigger"].value
    assert "drainmark resume spoilt/rows" in told.metadata["drainmark/remedy"].value
    drop(location, "spoilt", "a", "3")
    assert invoke(["resume", "spoilt/rows", "--home", str(location.place.home)]) == 0
    location.wait_for(
        lambda: "a 3" in contents(location.place, "spoilt")["spoilt_copies"], "the mended file to take its place"
    )


def _of_ones() -> list[tuple[str, str]]:
    return [pair for file in "abc" for pair in ((file, "1"), ("all", f"{file}1"))]
