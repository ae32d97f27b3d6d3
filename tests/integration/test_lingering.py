"""Runs that stay for the next file: the files that they take, and the reasons to end. Real instances and runs."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from hand_runs import NoSpark, engine, without_spark
from integration.dagster_scene import (
    JOB,
    REGION,
    definitions,
    drop,
    execute,
    instance_at,
    sent_away,
    write_application,
)
from sqlalchemy.exc import OperationalError
from waiting import SOON, eventually

from drainmark.jobs import world
from drainmark.jobs.errors import Owned
from drainmark.jobs.protocol.history import Outcome
from drainmark.orchestration.dagster_assets.checks import AT_COMMITTED_ID, NOT_HALTED, QUARANTINE_RATIO, REWIND_HORIZON
from drainmark.orchestration.dagster_jobs import pulse
from drainmark.orchestration.dagster_jobs.run_monitor import SENSOR_TAG
from drainmark.orchestration.discovery import source_watch
from drainmark.orchestration.discovery.source_watch import SourceWatch
from drainmark.orchestration.inspection.status import history_entries, statuses
from drainmark.orchestration.runs.idle_wait import CodeFiles, Lingering
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.verbs import interventions
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace import hand_off
from drainmark.orchestration.workplace.hand_off import ASKED, Requests
from drainmark.orchestration.workplace.workplace import Workplace, open_application

__all__ = ["engine", "without_spark"]

FOR_EVER = 600.0
CHECKPOINTS = dg.AssetKey(["little", "checkpoints", "rows"])
QUARANTINE = dg.AssetKey(["little", "little_quarantine"])


@pytest.fixture
def place(tmp_path: Path, workplace: Workplace) -> Workplace:
    (tmp_path / "inbox").mkdir()
    workplace.settings = workplace.settings.model_copy(update={"linger_seconds": FOR_EVER})
    return workplace


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with instance_at(tmp_path / "home" / "dagster") as opened:
        yield opened


class Running:
    """A run of the region's job, in a thread, as a sensor starts it."""

    def __init__(self, place: Workplace, instance: dg.DagsterInstance, path: Path) -> None:
        self.result: dg.ExecuteInProcessResult | None = None
        repository = definitions(place, path)

        def work() -> None:
            self.result = execute(repository, instance, tags={SENSOR_TAG: f"{JOB}__sensor"})

        self.thread = threading.Thread(target=work, daemon=True)
        self.thread.start()

    def end(self) -> dg.ExecuteInProcessResult:
        self.thread.join(SOON)
        assert not self.thread.is_alive(), "the run lingers on"
        assert self.result is not None
        return self.result


@pytest.fixture
def running(
    workplace: Workplace, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Path], Running]]:
    """Yield a function that starts a run of an application; at the end of the test none is left."""
    monkeypatch.setattr(hand_off, "PATIENCE_SECONDS", SOON)
    made: list[Running] = []

    def start(path: Path) -> Running:
        made.append(Running(workplace, instance, path))
        return made[-1]

    yield start
    for run in made:
        (workplace.settings.project_root / "hold").unlink(missing_ok=True)
        sent_away(workplace, REGION, run.thread)


def committed(place: Workplace) -> int:
    return place.history(REGION).committed_id


def test_a_run_takes_what_comes_and_makes_way_for_a_reset(
    place: Workplace, instance: dg.DagsterInstance, tmp_path: Path, running: Callable[[Path], Running]
) -> None:
    """One run, an id for each file; status shows it as idle; `reset --to` ends it, and no attempt is counted (E14)."""
    drop(tmp_path, "0.csv", "a,1\n")
    run = running(write_application(tmp_path))
    for number in (1, 2):
        eventually(lambda number=number: committed(place) == number, f"id {number}")
        drop(tmp_path, f"{number}.csv", "a,1\n")
    eventually(lambda: committed(place) == 3, "id 3")
    (status,) = eventually(lambda: [s for s in statuses(place, REGION) if s["is_idle"]], "an idle run")
    assert status["state"] == "STARTED"
    eventually(lambda: statuses(place, REGION)[0]["published_sequence_id"] == 3, "the note of what was published")
    assert all(entry["checkpoint_seconds"] for entry in history_entries(place, REGION))
    newest = instance.get_latest_materialization_event(CHECKPOINTS)
    assert newest is not None
    assert {verdict(instance, check) for check in (NOT_HALTED, REWIND_HORIZON, AT_COMMITTED_ID)} == {
        (newest.run_id, "SUCCEEDED")
    }, "else they read Not Evaluated"
    done = interventions.reset(place, plan_reset(place, REGION, RewindTarget(to=1)))
    assert done["requeued"] == 2
    result = run.end()
    assert result.success
    history = place.history(REGION)
    assert history.last_outcome is Outcome.CLEAN
    assert history.attempts == 0
    made = [event for event in result.all_events if event.event_type is dg.DagsterEventType.ASSET_MATERIALIZATION]
    assert len([e for e in made if e.asset_key.path[-1] == "little_numbers"]) == 3, "events come group by group"


@pytest.mark.seed("NU3")
def test_what_is_processed_is_observed_while_it_is(
    place: Workplace, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    running: Callable[[Path], Running],
) -> None:  # fmt: skip
    monkeypatch.setattr(pulse, "SECONDS", 0.2)
    (tmp_path / "hold").touch()
    path = drop(tmp_path, "0.csv", "a,1\n")
    run = running(write_application(tmp_path))

    def seen() -> list[dict[str, Any]]:
        found = [record.asset_observation for record in instance.fetch_observations(CHECKPOINTS, limit=50).records]
        told = [{name: value.value for name, value in each.metadata.items()} for each in found if each is not None]
        return [each for each in told if each.get("drainmark/at_work_seconds", 0) >= 0.2]

    newest = eventually(seen, "what is at work")[0]
    (tmp_path / "hold").unlink()
    assert (newest["drainmark/at_work"], newest["drainmark/at_work_id"], newest["drainmark/state"]) == (
        1,
        1,
        "PROCESSING",
    )
    assert newest["drainmark/at_work_files"] == str(path.resolve())
    assert newest["drainmark/pending_triggers"] == 1
    assert newest["drainmark/oldest_pending_seconds"] > 0
    eventually(lambda: committed(place) == 1, "id 1")
    interventions.halt(place, REGION, "enough")
    assert not run.end().success


def verdict(instance: dg.DagsterInstance, check: str) -> tuple[str, str] | None:
    """Return the run ("" without one) and the status of a check's newest verdict; None if it has no verdict."""
    asset = QUARANTINE if check in (QUARANTINE_RATIO, AT_COMMITTED_ID) else CHECKPOINTS
    key = dg.AssetCheckKey(asset, check)
    found = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
    return (found[0].run_id, found[0].status.value) if found else None


@pytest.mark.seed("NU3")
def test_verdicts_change_with_what_comes_a_halt_is_obeyed_and_resume_needs_no_patience(
    place: Workplace, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    running: Callable[[Path], Running],
) -> None:  # fmt: skip
    monkeypatch.setattr(pulse, "SECONDS", 0.2)
    monkeypatch.setattr(pulse, "VERDICT_SECONDS", 0.2)
    drop(tmp_path, "0.csv", "a,1\n")
    run = running(write_application(tmp_path))
    first = eventually(lambda: verdict(instance, QUARANTINE_RATIO), "a verdict on the first file")
    assert first[1] == "SUCCEEDED"
    drop(tmp_path, "1.csv", "a,1,2\n")
    eventually(lambda: verdict(instance, QUARANTINE_RATIO) == (first[0], "FAILED"), "a verdict on the second file")
    assert verdict(instance, NOT_HALTED) == (first[0], "SUCCEEDED")
    assert run.thread.is_alive(), "it is the same run, which stays"
    assert committed(place) == 2
    assert interventions.halt(place, REGION, "bad prices")["by"] == "owner"
    assert not run.end().success
    told_of_halt = verdict(instance, NOT_HALTED)
    assert told_of_halt is not None
    assert told_of_halt[1] == "FAILED"
    (told,) = [each for each in instance.fetch_observations(CHECKPOINTS, limit=20).records
               if "drainmark/event" in each.asset_observation.metadata]  # fmt: skip
    assert told.asset_observation.metadata["drainmark/reason"].value == "bad prices", "left by the run that halted"
    interventions.resume(place, REGION, "mended")
    assert place.history(REGION).halt is None


@pytest.mark.slow
def test_a_run_a_trigger_never_lingers(place: Workplace, tmp_path: Path, running: Callable[[Path], Running]) -> None:
    drop(tmp_path, "0.csv", "a,1\n")
    run = running(write_application(tmp_path, ', runs="per_trigger"'))
    assert run.end().success


def test_a_run_that_no_sensor_started_never_lingers(
    place: Workplace, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    drop(tmp_path, "0.csv", "a,1\n")
    assert execute(definitions(place, write_application(tmp_path)), instance).success


# --- its decisions ------------------------------------------------------------------------------------------------


@pytest.fixture
def lingering(place: Workplace, tmp_path: Path) -> Lingering:
    opened = open_application(str(write_application(tmp_path)))
    region = opened.region(REGION)
    return Lingering(
        region=REGION, registry=place.registry, watch=SourceWatch(workplace=place, region=region), seconds=FOR_EVER,
        until=time.monotonic() + FOR_EVER, interrupted=threading.Event(),
        requests=Requests(place.registry, REGION), code=CodeFiles(opened, tmp_path),
    )  # fmt: skip


def in_a_moment(action: Callable[[], Any]) -> None:
    threading.Timer(0.5, action).start()


def test_a_new_file_is_more(lingering: Lingering, place: Workplace, tmp_path: Path) -> None:
    in_a_moment(lambda: drop(tmp_path, "0.csv", "a,1\n"))
    assert lingering.has_more()
    assert place.registry.pending_count(REGION) == 1


def test_an_interruption_and_a_request_to_halt_are_for_the_run_to_obey(lingering: Lingering, place: Workplace) -> None:
    place.registry.progress.request_halt(REGION, "enough")
    assert lingering.has_more()
    lingering.interrupted.set()
    assert lingering.has_more()


def test_it_goes_when_it_is_asked_to(lingering: Lingering, place: Workplace) -> None:
    in_a_moment(lambda: place.registry.save_cursor(REGION, ASKED, "please"))
    assert not lingering.has_more()
    assert "asked" in lingering.why


def test_it_goes_when_its_code_is_another_one(lingering: Lingering, tmp_path: Path) -> None:
    in_a_moment(lambda: os.utime(tmp_path / "little.py", (1, 1)))
    assert not lingering.has_more()
    assert "little.py" in lingering.why


def test_it_goes_when_nothing_came_when_its_time_is_over_and_when_another_run_waits(lingering: Lingering) -> None:
    lingering.seconds = 0.1
    assert not lingering.has_more()
    assert "nothing came" in lingering.why
    lingering.seconds, lingering.until = FOR_EVER, time.monotonic()
    assert not lingering.has_more()
    assert "over" in lingering.why
    lingering.until += FOR_EVER
    lingering.is_in_the_way = lambda: True
    lingering._seldom_at = 0.0
    assert not lingering.has_more()
    assert "turn" in lingering.why


@pytest.mark.seed("V126")
def test_it_stays_while_the_thread_of_a_start_lives(lingering: Lingering) -> None:
    lingering.seconds, lives_until = 0.1, time.monotonic() + 0.6
    lingering.hosts_threads = lambda: time.monotonic() < lives_until
    assert not lingering.has_more()
    assert time.monotonic() > lives_until
    assert "nothing came" in lingering.why
    lingering.hosts_threads, lingering.until = lambda: True, time.monotonic() + 0.3
    assert not lingering.has_more()
    assert "over" in lingering.why, "new code is taken up, and pages of runs stay short"


@pytest.mark.seed("V126")
def test_its_time_is_over_however_much_keeps_coming(lingering: Lingering, place: Workplace, tmp_path: Path) -> None:
    """A thread that never rests has more pending at every look; the next run takes it."""
    drop(tmp_path, "0.csv", "a,1\n")
    assert lingering.has_more()
    lingering.hosts_threads, lingering.until = lambda: True, time.monotonic()
    assert not lingering.has_more()
    assert "over" in lingering.why
    assert place.registry.pending_count(REGION) == 1


def test_a_storage_that_does_not_answer_and_a_folder_that_cannot_be_read_fail_no_run(
    lingering: Lingering, tmp_path: Path
) -> None:
    """The work of the run is done: Dagster is asked again soon, and the sensor reports the folder's error."""
    asked = []

    def locked() -> bool:
        asked.append(time.monotonic())
        raise OperationalError("SELECT 1", {}, sqlite3.OperationalError("database is locked"))

    lingering.is_in_the_way = locked
    in_a_moment(lambda: drop(tmp_path, "0.csv", "a,1\n"))
    assert lingering.has_more()
    assert asked

    def unreadable() -> int:
        raise OSError(errno.EIO, "Input/output error")

    lingering.watch = SimpleNamespace(look=unreadable)  # type: ignore[assignment]
    assert not lingering.has_more()
    assert "Input/output error" in lingering.why


def test_a_folder_at_rest_is_not_scanned(lingering: Lingering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look costs only a stat; a change in the folder is still seen at once."""
    monkeypatch.setattr(source_watch, "RESCAN_SECONDS", SOON)
    watch = lingering.watch
    drop(tmp_path, "0.csv", "a,1\n")
    time.sleep(0.2)
    assert watch.look() == 1
    scanned_at = watch._scanned_at
    for _ in range(3):
        time.sleep(0.05)
        assert watch.look() == 0
    assert watch._scanned_at == scanned_at
    drop(tmp_path, "1.csv", "a,1\n")
    assert eventually(watch.look, "the second file") == 1


def test_a_verb_does_not_wait_for_a_run_that_does_not_linger(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Workplace(place.settings)
    other.use_engine(NoSpark())
    owner = region_owner(place, REGION, run_id="at-work")
    owner.claim()
    monkeypatch.setattr(world, "sleep", lambda seconds: pytest.fail("it waits"))
    with pytest.raises(Owned):
        interventions.resume(other, REGION, "please")
    assert other.registry.load_cursor(REGION, ASKED) is None, "it was not even asked"
    owner.release(Outcome.CLEAN)
    other.registry.close()
