"""A large visible table lags behind its history; every reader, rewind and owner still finds the right rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from followed import follow
from hand_runs import engine, without_spark
from harness import verbs
from integration.two_regions import BY_HAND, REGION, reading, write_orders

import drainmark as dm
from drainmark.jobs.errors import Interrupted
from drainmark.jobs.runtime.commit.publish import visible_tables
from drainmark.orchestration.dagster_assets.checks import judgements
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.orchestration.testing.session import shared_engine
from drainmark.orchestration.workplace.declaration import remember
from drainmark.orchestration.workplace.workplace import Opened, Workplace
from drainmark.resources.checkpoints.as_of import RegionReader, read_at

__all__ = ["BY_HAND", "engine", "without_spark"]

TABLE = "two_customers"
FILES = 5


@pytest.fixture(autouse=True)
def always_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat each table as large and slow: once it exists, it waits for the end of the run."""
    monkeypatch.setattr(visible_tables, "PROMPT_BYTES", 0)
    monkeypatch.setattr(visible_tables, "_QUICK_SECONDS", -1.0)
    monkeypatch.setattr(visible_tables, "_WORK_PER_SECOND", 1e9)


@pytest.fixture
def application(tmp_path: Path) -> Opened:
    for number in range(FILES):
        write_orders(tmp_path, number)
    return reading(tmp_path)


@contextmanager
def at_work(place: Workplace, application: Opened, groups: int) -> Iterator[Any]:
    """Yield a run that has published this many groups of one file, and has not ended."""
    region = application.region(REGION)
    scan_region(place, region)
    remember(place, application, region)
    run = region_run(place, application, region, max_group=1, max_triggers=groups)
    run.claim()
    for _ in run.groups():
        pass
    yield run


def visible(place: Workplace) -> list[dict[str, Any]]:
    return sorted(RegionReader(place.settings, REGION).visible(TABLE).to_pylist(), key=str)


def committed(place: Workplace, at: int | None = None) -> list[dict[str, Any]]:
    return sorted(read_at(REGION, TABLE, at=at, home=str(place.home)).to_pylist(), key=str)


def lags(place: Workplace) -> dict[str, int]:
    return dict(place.history(REGION).lags)


@pytest.mark.seed("H29")
def test_a_table_lags_until_the_run_ends(workplace: Workplace, application: Opened) -> None:
    with at_work(workplace, application, 3) as run:
        assert visible(workplace) == committed(workplace, 1), "the first group alone"
        assert committed(workplace) == committed(workplace, 3)
        assert lags(workplace) == {f"lake/{TABLE}": 1}
        run.hand_over()
    assert lags(workplace) == {}
    assert visible(workplace) == committed(workplace, 3)


@pytest.mark.seed("H29", "F23")
def test_the_first_state_of_a_run_waits_for_no_large_table(workplace: Workplace, application: Opened) -> None:
    with at_work(workplace, application, 1) as run:
        run.hand_over()
    with at_work(workplace, application, 2) as run:
        assert lags(workplace) == {f"lake/{TABLE}": 1}
        assert committed(workplace) == committed(workplace, 3)
        assert visible(workplace) == committed(workplace, 1)
        run.hand_over()
    assert (lags(workplace), visible(workplace)) == ({}, committed(workplace, 3))


@pytest.mark.slow
@pytest.mark.seed("H29")
def test_a_table_lags_for_its_longest_at_most(
    workplace: Workplace, application: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visible_tables, "MAX_LAG_SECONDS", 0.0)
    with at_work(workplace, application, 3) as run:
        assert visible(workplace) == committed(workplace, 3)
        assert lags(workplace) == {}
        run.hand_over()


@pytest.mark.spark
@pytest.mark.seed("H29")
def test_who_reads_meanwhile_finds_what_is_committed(
    workplace: Workplace, application: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    with at_work(workplace, application, 3) as run:
        verb, expected = verbs(workplace.home, capsys), committed(workplace, 3)
        assert visible(workplace) != expected
        assert sorted(verb("show", TABLE), key=str) == expected
        frame = dm.view(shared_engine().session, TABLE, home=str(workplace.home))
        assert sorted(frame.toArrow().to_pylist(), key=str) == expected
        (status,) = verb("status", REGION)
        assert status["lags"] == {f"lake/{TABLE}": 1}
        assert (status["committed_sequence_id"], status["published_sequence_id"]) == (3, 1)
        run.hand_over(KeyboardInterrupt())
    said = " ".join(each.description for each in judgements(workplace, application.region(REGION)))
    assert f"lake/{TABLE} at 3" in follow(said, "publish", workplace.home)
    assert visible(workplace) == expected
    assert verb("status", REGION)[0]["lags"] == {}
    assert sorted(dm.view(shared_engine().session, TABLE, home=str(workplace.home)).toArrow().to_pylist(), key=str) == (
        expected
    )


@pytest.mark.slow
@pytest.mark.seed("H29")
def test_an_interrupted_run_brings_it_up(workplace: Workplace, application: Opened) -> None:
    with at_work(workplace, application, 3) as run:
        run.hand_over(Interrupted("stopped", remedy="start it again"))
    assert (lags(workplace), visible(workplace)) == ({}, committed(workplace, 3))
