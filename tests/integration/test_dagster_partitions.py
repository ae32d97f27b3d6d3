"""Tables in Dagster's partitions, by file and by day: what a run says of them, and what a backfill does."""

from __future__ import annotations

import datetime as dt
import os
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import dagster as dg
import pytest
from hand_runs import engine, without_spark
from harness import opened, rows
from integration.dagster_scene import drop, instance, sent_away
from waiting import SOON, eventually

from drainmark.dagster import DrainmarkTranslator
from drainmark.jobs.errors import UsageError
from drainmark.jobs.runtime.region_run import GroupReport
from drainmark.orchestration.dagster_assets.metadata import MAX_RETRIES_TAG, NOTE_TAG, QUEUED_TAG
from drainmark.orchestration.dagster_assets.partitions import Partitions
from drainmark.orchestration.dagster_assets.runless_events import report
from drainmark.orchestration.dagster_jobs import ops
from drainmark.orchestration.dagster_jobs.factory import build_definitions
from drainmark.orchestration.dagster_jobs.ops import _retries_what_is_queued
from drainmark.orchestration.dagster_jobs.run_monitor import SENSOR_TAG, RegionRuns
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.runs.region_runs import region_owner, region_run
from drainmark.orchestration.verbs.inputs.backfill import Wanted, plan_queue
from drainmark.orchestration.workplace.hand_off import LINGERS, owning
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

__all__ = ["engine", "instance", "without_spark"]

REGION, JOB = "kept/rows", "kept__rows"
TABLES = ("kept_rows", "copies")
COPIES = dg.AssetKey(["kept", "copies"])

APPLICATION = """
import drainmark as dm


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema="k string, v string", settle=0.0))
def rows(scanned):
    return scanned


dm.sink(rows, dm.DeltaAppend("kept_rows"))


@dm.functor
def copies(rows):
    return rows


dm.sink(copies, dm.DeltaAppend("copies"))
"""


class Cut(DrainmarkTranslator):
    def __init__(self, by: str | None) -> None:
        self.by = by

    def get_partitions(self, region: str) -> str | None:
        return self.by


def place_in(folder: Path, text: str = APPLICATION) -> Workplace:
    (folder / "inbox").mkdir(parents=True, exist_ok=True)
    (folder / "kept.py").write_text(text)
    return Workplace(Settings(home=folder / "home", project_root=folder, applications=(str(folder / "kept.py"),)))


def located(place: Workplace, by: str | None) -> dg.RepositoryDefinition:
    return build_definitions(place.settings, place, translator=Cut(by)).get_repository_def()


def run_of(
    repository: dg.RepositoryDefinition,
    instance: dg.DagsterInstance,
    first: str = "",
    last: str = "",
    *,
    run_id: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> dg.ExecuteInProcessResult:
    """Run the region's job; or of its tables what a backfill of the partitions from `first` to `last` runs."""
    if not first:
        return repository.get_job(JOB).execute_in_process(instance=instance, raise_on_error=False)
    ends = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last or first}
    keys = [key for key in repository.asset_graph.materializable_asset_keys if key.path[0] == "kept"]
    job = repository.get_job("__ASSET_JOB")
    return job.execute_in_process(
        instance=instance, tags={**ends, **(tags or {})}, asset_selection=keys, raise_on_error=False, run_id=run_id
    )


@pytest.fixture
def place(tmp_path: Path, without_spark: None) -> Workplace:
    return place_in(tmp_path)


@pytest.fixture
def repository(place: Workplace) -> dg.RepositoryDefinition:
    """Return the code location of a region whose tables have a partition for each file."""
    return located(place, "file")


@pytest.fixture
def begun(repository: dg.RepositoryDefinition, instance: dg.DagsterInstance, tmp_path: Path) -> dg.RepositoryDefinition:
    """Return it after a run that read `a.csv`."""
    drop(tmp_path, "a.csv", "a,1\n")
    assert run_of(repository, instance).success
    return repository


def by_hand(place: Workplace, folder: Path) -> list[GroupReport]:
    """Process what is new without Dagster, which is told of nothing."""
    application = opened(folder / "kept.py", folder / "inbox")
    scan_region(place, application.region())
    run = region_run(place, application, application.region())
    run.claim()
    groups = list(run.groups())
    run.hand_over()
    return groups


def seen(place: Workplace) -> dict[str, list[dict[str, object]]]:
    return {table: sorted(rows(place, REGION, table), key=str) for table in TABLES}


def test_a_backfill_of_two_files_leaves_what_the_command_line_leaves(
    without_spark: None, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """An ordinary run marks the partition of each file in each table; other files are not read again."""
    ours, theirs = place_in(tmp_path / "ours"), place_in(tmp_path / "theirs")
    repository = located(ours, "file")
    for place in (ours, theirs):
        for name in "abc":
            drop(place.settings.project_root, f"{name}.csv", f"{name},1\nall,{name}\n")
    sensor = repository.get_sensor_def(f"{JOB}__sensor")
    with dg.build_sensor_context(instance=instance, repository_def=repository, sensor_name=sensor.name) as context:
        (request,) = sensor.evaluate_tick(context).run_requests or ()
    assert request.partition_key is None, "a run that sensors start takes all that is pending"
    assert run_of(repository, instance).success
    keys = [f"inbox/{name}.csv" for name in "abc"]
    assert instance.get_dynamic_partitions(f"{JOB}__files") == keys
    tables = [key for key in repository.asset_graph.materializable_asset_keys if key.path[0] == "kept"]
    assert {table: sorted(instance.get_materialized_partitions(table)) for table in tables} == dict.fromkeys(
        tables, keys
    )
    plain = located(theirs, None)
    assert run_of(plain, instance).success
    assert plain.asset_graph.get(COPIES).partitions_def is None, "off by default"

    for place in (ours, theirs):
        for name in "ab":
            drop(place.settings.project_root, f"{name}.csv", f"{name},2\nall,{name}2\n")
    result = run_of(repository, instance, keys[0], keys[1])
    assert result.success
    made = [event.partition for event in result.get_asset_materialization_events() if event.asset_key == COPIES]
    assert set(made) == set(keys[:2]), "an event without a partition fails a backfill"
    plan_queue(theirs, REGION, Wanted(pattern=str(tmp_path / "theirs" / "inbox" / "[ab].csv"), again=True)).carry_out(
        theirs
    )
    assert run_of(plain, instance).success
    assert seen(ours) == seen(theirs)
    assert {row["v"] for row in seen(ours)["copies"]} == {"2", "a2", "b2", "1", "c"}
    assert sorted(ours.history(REGION).states) == sorted(theirs.history(REGION).states)

    one = repository.get_job(JOB).execute_in_process(instance=instance, partition_key=keys[2], raise_on_error=False)
    assert one.success, "the region's own job does it, too, and with a file that is as it was"
    assert ours.history(REGION).committed_id == 6


def test_a_backfill_makes_the_run_that_lingers_go(
    without_spark: None, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """What another run made of the files would not count: Dagster would call the backfill failed."""
    place = place_in(tmp_path)
    place.settings = place.settings.model_copy(update={"linger_seconds": 600.0})
    repository = located(place, "file")
    path = drop(tmp_path, "a.csv", "a,1\n")
    job, tags = repository.get_job(JOB), {SENSOR_TAG: f"{JOB}__sensor"}
    stays = threading.Thread(target=lambda: job.execute_in_process(instance=instance, tags=tags), daemon=True)
    stays.start()
    try:
        eventually(lambda: place.registry.load_cursor(REGION, LINGERS), "a run that lingers")
        eventually(lambda: instance.get_materialized_partitions(COPIES), "its events")
        assert stays.is_alive()
        result = run_of(repository, instance, "inbox/a.csv")
        assert result.success
        stays.join(SOON)
        assert not stays.is_alive()
    finally:
        sent_away(place, REGION, stays)
    assert {event.partition for event in result.get_asset_materialization_events()} == {"inbox/a.csv"}
    assert [row.trigger_uri for row in place.history(REGION).states.above(1).values()] == [str(path)]


def test_a_backfill_that_waited_in_vain_for_the_region_fails_and_is_no_attempt(
    place: Workplace, begun: dg.RepositoryDefinition, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With success it would be done for whoever asked for it; a retry waits again."""
    monkeypatch.setattr(ops, "PATIENCE_SECONDS", 0.1)
    with owning(region_owner(place, REGION)):
        result = run_of(begun, instance, "inbox/a.csv")
        assert run_of(begun, instance).success, "what is pending is read by the owner"
    assert not result.success
    assert instance.get_run_by_id(result.run_id).tags[MAX_RETRIES_TAG] != "0"
    history = place.history(REGION)
    assert (history.committed_id, history.attempts) == (1, 0)
    assert run_of(begun, instance, "inbox/a.csv").success


def test_a_backfill_whose_worker_was_killed_behind_the_commit_has_its_events(
    place: Workplace, begun: dg.RepositoryDefinition, instance: dg.DagsterInstance
) -> None:
    """The worker that resumes the run finds all done; without an event the backfill would fail."""
    run = str(uuid.uuid4())
    result = run_of(begun, instance, "inbox/a.csv", run_id=run, tags={QUEUED_TAG: run})
    assert result.success
    assert place.history(REGION).committed_id == 1, "nothing was queued"
    tables = [key for key in begun.asset_graph.materializable_asset_keys if key.path[0] == "kept"]
    made = {(event.asset_key, event.partition) for event in result.get_asset_materialization_events()}
    assert made == {(table, "inbox/a.csv") for table in tables}


def test_a_backfill_of_a_day_reads_the_files_of_that_day(
    place: Workplace, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    today = dt.datetime.now(dt.UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    days = [today - dt.timedelta(days=number) for number in (9, 2, 1, 0)]
    for number, day in enumerate(days):
        at = (day + dt.timedelta(seconds=1)).timestamp()
        os.utime(drop(tmp_path, f"{number}.csv", f"k,{number}\n"), (at, at))
    repository = located(place, days[1].date().isoformat())
    assert run_of(repository, instance).success
    names = [day.date().isoformat() for day in days]
    assert sorted(instance.get_materialized_partitions(COPIES)) == names[1:], (
        "the first file is older than the first day"
    )
    result = run_of(repository, instance, names[1], names[2])
    assert result.success
    history = place.history(REGION)
    again = [Path(history.states[number].trigger_uri or "").name for number in (5, 6)]
    assert (again, history.committed_id) == (["1.csv", "2.csv"], 6)


def test_a_partition_without_a_committed_file_fails_and_changes_nothing(
    place: Workplace, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    repository = located(place, "2026-01-01")
    drop(tmp_path, "a.csv", "a,1\n")
    result = run_of(repository, instance, "2026-01-02")
    assert not result.success
    assert "no committed file" in str(result.all_events)
    assert place.history(REGION).committed_id == 0


def test_partitions_that_are_refused_are_no_attempt_of_the_region(
    place: Workplace, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """The region's own job has its tags from the start, so a run that ends before its claim counts as dead."""
    job = located(place, "2026-01-01").get_job(JOB)
    result = job.execute_in_process(instance=instance, partition_key="2026-01-02", raise_on_error=False)
    assert not result.success
    assert "no committed file" in instance.get_run_by_id(result.run_id).tags[NOTE_TAG]
    region = opened(tmp_path / "kept.py", tmp_path / "inbox").region(REGION)
    RegionRuns(instance=instance, workplace=place, region=region).count_dead(lambda: "its code")
    assert place.history(REGION).last_claim is None


def test_files_of_the_command_line_and_of_before_are_partitions(
    place: Workplace, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """Those from before have no event: nothing says in which table they are."""
    drop(tmp_path, "a.csv", "a,1\n")
    assert run_of(located(place, None), instance).success
    assert run_of(located(place, "file"), instance).success
    assert instance.get_dynamic_partitions(f"{JOB}__files") == ["inbox/a.csv"]
    assert not instance.get_materialized_partitions(COPIES)
    drop(tmp_path, "b.csv", "b,1\n")
    region = opened(tmp_path / "kept.py", tmp_path / "inbox").region()
    report(by_hand(place, tmp_path), region, place, "by hand")
    assert instance.get_dynamic_partitions(f"{JOB}__files") == ["inbox/a.csv", "inbox/b.csv"]
    assert set(instance.get_materialized_partitions(COPIES)) == {"inbox/b.csv"}


def test_files_of_a_killed_run_and_files_in_a_new_instance_are_partitions(
    place: Workplace, begun: dg.RepositoryDefinition, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """Else no run could read them again: a backfill needs a key that Dagster knows."""
    drop(tmp_path, "b.csv", "b,1\n")
    assert len(by_hand(place, tmp_path)) == 1, "it tells nobody of what it committed"
    assert instance.get_dynamic_partitions(f"{JOB}__files") == ["inbox/a.csv"]
    assert run_of(begun, instance).success
    assert instance.get_dynamic_partitions(f"{JOB}__files") == ["inbox/a.csv", "inbox/b.csv"]
    with dg.DagsterInstance.ephemeral() as new:
        assert run_of(begun, new).success
        assert new.get_dynamic_partitions(f"{JOB}__files") == ["inbox/a.csv", "inbox/b.csv"]


def test_a_file_of_a_partition_that_is_gone_is_named(
    place: Workplace, repository: dg.RepositoryDefinition, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    paths = [drop(tmp_path, f"{name}.csv", f"{name},1\n") for name in "ab"]
    assert run_of(repository, instance).success
    paths[0].unlink()
    result = run_of(repository, instance, "inbox/a.csv", "inbox/b.csv")
    assert result.success
    assert [row.trigger_uri for row in place.history(REGION).states.above(2).values()] == [str(paths[1])]
    told = [entry.user_message for entry in instance.all_logs(result.run_id)]
    assert any(f"left out {paths[0]}: it is not there any more" in each for each in told)
    result = run_of(repository, instance, "inbox/a.csv")
    assert not result.success
    assert "none of the files is there any more" in str(result.all_events)


@pytest.mark.parametrize(
    ("chain", "is_queued"),
    [
        ([("FAILURE", "own")], True),
        ([("FAILURE", "own"), ("CANCELED", "inherited")], True),
        ([("SUCCESS", "own")], False),
        ([("SUCCESS", "own"), ("FAILURE", "inherited")], False),  # it failed before it queued anything
        ([("FAILURE", "")], False),
        ([], False),
    ],
)
def test_only_a_retry_of_runs_that_queued_and_failed_queues_nothing(
    instance: dg.DagsterInstance, chain: list[tuple[str, str]], is_queued: bool
) -> None:
    """A re-execution has the tags of its parent."""
    job = dg.GraphDefinition("one").to_job()
    parent, tag = None, ""
    for status, has in chain:
        run = instance.create_run_for_job(
            job, status=dg.DagsterRunStatus[status], parent_run_id=parent, root_run_id=parent
        )
        parent, tag = run.run_id, run.run_id if has == "own" else tag
        instance.add_run_tags(parent, {QUEUED_TAG: tag} if has else {})
    run = instance.create_run_for_job(job, parent_run_id=parent, root_run_id=parent)
    context = cast(dg.OpExecutionContext, SimpleNamespace(instance=instance, run=run))
    assert _retries_what_is_queued(context) is is_queued


def test_a_worker_that_resumes_its_run_queues_nothing_again(instance: dg.DagsterInstance) -> None:
    run = instance.create_run_for_job(dg.GraphDefinition("one").to_job())
    for is_queued in (False, True):
        seen = instance.get_run_by_id(run.run_id)
        context = cast(dg.OpExecutionContext, SimpleNamespace(instance=instance, run=seen))
        assert _retries_what_is_queued(context) is is_queued
        instance.add_run_tags(run.run_id, {QUEUED_TAG: run.run_id})


@pytest.mark.parametrize(
    ("uri", "key"),
    [
        ("/p/inbox/a.csv", "inbox/a.csv"),
        ("/elsewhere/a.csv", "/elsewhere/a.csv"),
        ("s3://bucket/in/a.csv", "s3://bucket/in/a.csv"),
        ("/p/inbox/a...b\nc.csv", "inbox/a%2E%2E%2Eb%0Ac.csv"),
        ("/p/inbox/a%2E%2E%2Eb", "inbox/a%252E%252E%252Eb"),
    ],
)
def test_every_name_of_a_file_is_a_key(uri: str, key: str) -> None:
    partitions = Partitions(region=REGION, by="file", root=Path("/p"))
    assert partitions._file_key(uri) == key
    long = partitions._file_key(f"{uri}{'x' * 600}")
    assert (len(long) < 450, long != partitions._file_key(f"{uri}{'x' * 601}")) == (True, True)


TABLE_READER = """
import drainmark as dm


@dm.consistent(trigger="operator-driven")
@dm.source(dm.TableSource("others"))
def rows(scanned):
    return scanned


dm.sink(rows, dm.DeltaAppend("kept_rows"))
"""


@pytest.mark.parametrize(
    ("by", "text", "complaint"),
    [
        ("daily", APPLICATION, "are to be 'daily'"),
        ("20260131", APPLICATION, "are to be '20260131'"),
        ("file", TABLE_READER, "no file is a trigger"),
        ("2026-01-01", APPLICATION.replace('path="inbox"', 'path="s3://bucket/in"'), "the identity of an object"),
    ],
)
def test_partitions_that_a_region_cannot_have_are_refused(tmp_path: Path, by: str, text: str, complaint: str) -> None:
    place = place_in(tmp_path, text)
    with pytest.raises(UsageError, match=complaint):
        build_definitions(place.settings, place, translator=Cut(by))
