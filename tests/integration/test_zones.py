"""The zone of the host changes no time: Python that touches rows has UTC, in every process."""

from __future__ import annotations

import datetime as dt
import json
import multiprocessing
import os
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from postgres import new_database, why_not

from drainmark.jobs.errors.environment import ClusterRefused
from drainmark.orchestration.dagster_jobs.ops import _enter_process
from drainmark.orchestration.dagster_jobs.run_slot import RunSlot
from drainmark.resources.spark.executor_reach import Executors, own_python

PROGRAM = Path(__file__).parent / "zoned_app.py"
ZONES = {
    "America/New_York": ("2026-11-01T05:30:00", "2026-11-01T06:30:00", "2026-03-08T07:15:00", "2026-03-08T02:30:00"),
    "Europe/Berlin": ("2026-10-25T00:30:00", "2026-10-25T01:30:00", "2026-03-29T01:15:00", "2026-03-29T02:30:00"),
    "Asia/Kolkata": ("2026-01-01T00:00:00", "1945-10-14T17:00:00", "1945-10-14T18:00:00", "1899-12-31T23:59:59"),
}
"""Both instants of the repeated hour, one behind the missing hour, and the missing hour itself in UTC; and old ones."""


@pytest.mark.parametrize(
    "zone", [zone if zone == "America/New_York" else pytest.param(zone, marks=pytest.mark.slow) for zone in ZONES]
)
@pytest.mark.seed("B13")
def test_times_are_those_of_the_file_in_a_zone_with_summer_time(
    zone: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    times = [*ZONES[zone], "2026-07-01T12:00:00", "2026-01-01T12:00:00"]
    numbered = {str(k): at for k, at in enumerate([*times, *reversed(times)])}
    lines = [f"{k},{at}Z\n" for k, at in numbered.items()]
    files = {"a.csv": lines[0], "b.csv": "".join(lines[1:])}
    groupings = ("one by one", "one group")
    urls = dict.fromkeys(groupings, "")
    if why_not() is None:
        base = request.getfixturevalue("postgres_url")
        urls = {grouping: new_database(base) for grouping in groupings}
    command = [sys.executable, PROGRAM, tmp_path, json.dumps(files), json.dumps(urls)]
    ended = subprocess.run(command, env={**os.environ, "TZ": zone}, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    wanted = {k: dt.datetime.fromisoformat(at + "+00:00").isoformat() for k, at in numbered.items()}
    for grouping, places in json.loads(ended.stdout.splitlines()[-1]).items():
        assert len(places) == 9 + bool(urls[grouping])
        for place, found in places.items():
            assert found == wanted, (grouping, place)


APPLICATION = """
import time
from pyspark.sql.functions import udf
from pyspark.sql.types import TimestampType
import drainmark as dm

assert time.tzname == ("UTC", "UTC"), time.tzname
same = udf(lambda at: at, TimestampType())

@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", format="csv", schema="k int, at timestamp"))
def rows(scanned):
    return scanned

@dm.functor
def through(rows):
    here = rows.collect()
    again = rows.sparkSession.createDataFrame([(row["k"], row["at"]) for row in here], "k int, again timestamp")
    return rows.join(again, "k").withColumn("same", same("again"))

dm.sink(through, dm.DeltaAppend("kept"))
"""


def ran(*arguments: str, tmp_path: Path, zone: str) -> str:
    command = [sys.executable, "-m", "drainmark.orchestration.cli.main", *arguments, "--home", str(tmp_path / "home")]
    ended = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "TZ": zone}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def project(tmp_path: Path, settings: str) -> None:
    (tmp_path / "app.py").write_text(APPLICATION)
    (tmp_path / "drainmark.toml").write_text(settings)
    (tmp_path / "inbox").mkdir()


def test_an_application_is_loaded_by_the_command_line_in_utc(tmp_path: Path) -> None:
    project(tmp_path, "")
    assert "kept" in ran("graph", "app.py", tmp_path=tmp_path, zone="America/New_York")


@pytest.mark.slow
@pytest.mark.parametrize("spark", ["resident", "in-process"])
def test_a_run_of_the_command_line_has_utc_in_its_own_process_and_in_spark(spark: str, tmp_path: Path) -> None:
    project(tmp_path, f'spark = "{spark}"\nspark_idle_seconds = 20\n')
    zone = "Europe/Berlin"
    (tmp_path / "inbox" / "a.csv").write_text("".join(f"{k},{at}Z\n" for k, at in enumerate(ZONES[zone])))
    ran("run", "app.py", tmp_path=tmp_path, zone=zone)
    shown = json.loads(ran("show", "kept", "--json", tmp_path=tmp_path, zone=zone))
    assert len(shown) == len(ZONES[zone])
    for row in shown:
        times = {dt.datetime.fromisoformat(row[name]) for name in ("at", "again", "same")}
        assert times == {dt.datetime.fromisoformat(ZONES[zone][row["k"]] + "+00:00")}


def _zone_of_a_run(answers: Connection) -> None:
    _enter_process(RunSlot())
    answers.send(time.tzname)


def test_a_process_that_a_launcher_makes_for_a_run_has_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    process = spawning.Process(target=_zone_of_a_run, args=(theirs,))
    process.start()
    assert ours.poll(120)
    assert ours.recv() == ("UTC", "UTC")
    process.join()


def test_workers_of_a_server_of_others_have_to_have_utc() -> None:
    executors = Executors(None, "sc://there", are_many=False, are_ours=True)  # type: ignore[arg-type]  # not asked
    fit = replace(own_python(), modules=f"from {executors._archive}")
    executors.require_fit(fit)
    with pytest.raises(ClusterRefused, match="EST/EDT"):
        executors.require_fit(replace(fit, zone="EST/EDT"))
