"""Dagster: the contents of the code location, and the results that one run of a region leaves behind."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from hand_runs import engine, without_spark
from harness import opened, rows
from integration.dagster_scene import (
    JOB,
    REGION,
    ROOT,
    definitions,
    drop,
    events,
    execute,
    instance_at,
    write_application,
)
from waiting import eventually

from drainmark.jobs.protocol.history import Outcome
from drainmark.jobs.runtime.region_run import GroupReport
from drainmark.orchestration.dagster_assets.assets import checkpoint_key, table_assets
from drainmark.orchestration.dagster_assets.checks import NOT_HALTED, build_checks
from drainmark.orchestration.dagster_assets.metadata import (
    END_TAG,
    IDS_TAG,
    NOTE_TAG,
    REGION_TAG,
    START_TAG,
    WITHDRAWN_TAG,
)
from drainmark.orchestration.dagster_assets.runless_events import report
from drainmark.orchestration.dagster_jobs.factory import build_definitions
from drainmark.orchestration.dagster_jobs.run_endings import note, tag_begun
from drainmark.orchestration.dagster_jobs.run_slot import run_slot
from drainmark.orchestration.runs.region_runs import region_owner, region_run
from drainmark.orchestration.workplace.workplace import Workplace, open_application
from drainmark.resources.settings import Settings

__all__ = ["engine", "without_spark"]

CHECKPOINTS = dg.AssetKey(["little", "checkpoints", "rows"])


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with instance_at(tmp_path / "home" / "dagster") as opened:
        yield opened


@pytest.fixture
def repository(workplace: Workplace, tmp_path: Path) -> dg.RepositoryDefinition:
    (tmp_path / "inbox").mkdir(exist_ok=True)
    return definitions(workplace, write_application(tmp_path))


SIGNS = """
import drainmark as dm


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned):
    return scanned


for number, name in enumerate(("orders/eu", "orders_eu", "orders-eu")):
    dm.sink(lines, dm.DeltaAppend(name), name=f"sink_{number}")
"""


def test_tables_whose_names_differ_in_a_sign_alone_are_assets_of_their_own(tmp_path: Path) -> None:
    """Dagster knows outputs by letters, digits and underscores."""
    path = tmp_path / "signs.py"
    path.write_text(SIGNS)
    settings = Settings(home=tmp_path / "home", project_root=tmp_path, applications=(str(path),))
    assert build_definitions(settings).get_repository_def().has_job("signs__lines")
    assets = {asset.table: asset.output for asset in table_assets(open_application(str(path)).region())}
    assert [assets[f"lake/{name}"] for name in ("orders/eu", "orders_eu", "orders-eu")] == [
        "lake_orders_eu", "lake_orders_eu_2", "lake_orders_eu_3",
    ]  # fmt: skip


READER = """
import drainmark as dm


@dm.consistent(trigger="operator-driven")
@dm.source(dm.TableSource("orders/eu"))
def read(scanned):
    return scanned


dm.sink(read, dm.DeltaAppend("read_again"))
"""


def test_a_region_that_reads_the_table_of_another_one_stands_behind_it(tmp_path: Path) -> None:
    applications = {"reader": READER, "signs": SIGNS}
    for name, text in applications.items():
        (tmp_path / f"{name}.py").write_text(text)
    chosen = tuple(str(tmp_path / f"{name}.py") for name in applications)  # the reader is loaded first
    settings = Settings(home=tmp_path / "home", project_root=tmp_path, applications=chosen)
    graph = build_definitions(settings).get_repository_def().asset_graph
    node = graph.get(dg.AssetKey(["reader", "source", "read"]))
    assert node.parent_keys == {dg.AssetKey(["signs", "orders", "eu"])}


def test_loading_the_code_location_starts_nothing() -> None:
    code = (
        "import sys; from drainmark.orchestration.definitions import defs; repository = defs().get_repository_def();"
        "print(*sorted(repository.job_names)); print('pyspark' in sys.modules, 'deltalake' in sys.modules)"
    )
    environment = {**os.environ, "DRAINMARK_APPLICATIONS": '["enron_ds", "log_watch", "word_count"]'}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    jobs, modules = done.stdout.strip().splitlines()
    assert {"enron_ds__messages", "log_watch__lines", "word_count__lines"} <= set(jobs.split())
    assert modules == "False False"


def test_importing_the_definitions_reads_nothing(tmp_path: Path) -> None:
    code = "import drainmark.orchestration.definitions"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env={"PYTHONPATH": str(ROOT), "PATH": ""})


def test_the_asset_graph_shows_starts_ends_ports_and_what_vectorises(repository: dg.RepositoryDefinition) -> None:
    graph = repository.asset_graph
    nodes = {key.to_user_string(): graph.get(key) for key in graph.get_all_asset_keys()}
    assert {name for name, node in nodes.items() if START_TAG in node.tags} == {"little/source/rows"}
    assert {name for name, node in nodes.items() if END_TAG in node.tags} == {
        "little/little_numbers", "little/little_totals",
    }  # fmt: skip
    shown = nodes["little/state/totals"].metadata
    assert shown["drainmark/operator_kind"] == "aggregate"
    assert "(consistent data)" in shown["drainmark/ports"]
    assert shown["drainmark/vectorises"]
    assert nodes["little/checkpoints/rows"].metadata["drainmark/starts"] == "rows"


def test_a_region_has_a_job_a_sensor_assets_and_checks(repository: dg.RepositoryDefinition) -> None:
    keys = {key.to_user_string() for key in repository.asset_graph.get_all_asset_keys()}
    assert {
        "little/source/rows",
        "little/checkpoints/rows",
        "little/state/totals",
        "little/little_numbers",
        "little/little_totals",
        "little/little_quarantine",
    } <= keys
    job = repository.get_job(JOB)
    assert [node.name for node in job.graph.nodes] == [f"{JOB}__run"], "one op, which any executor can run"
    assert job.tags[REGION_TAG] == REGION
    assert job.tags["dagster/max_retries"] == "1"
    assert job.tags["dagster/retry_strategy"] == "ALL_STEPS"
    assert job.executor_def.name == "in_process"
    sensor = next(sensor for sensor in repository.sensor_defs if sensor.name == f"{JOB}__sensor")
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    node = repository.asset_graph.get(dg.AssetKey(["little", "little_totals"]))
    assert node.group_name == JOB
    assert node.parent_keys == {dg.AssetKey(["little", "state", "totals"])}
    assert {key.name for key in repository.asset_graph.asset_check_keys if key.asset_key.path[0] == "little"} == {
        "at_committed_id",
        "not_halted",
        "rewind_horizon",
        "quarantine_ratio",
    }


def test_a_schedule_takes_the_place_of_the_sensor(workplace: Workplace, tmp_path: Path) -> None:
    repository = definitions(workplace, write_application(tmp_path, ', schedule="*/5 * * * *"'))
    assert [schedule.cron_schedule for schedule in repository.schedule_defs] == ["*/5 * * * *"]
    assert not any(sensor.name.startswith(JOB) for sensor in repository.sensor_defs)


@pytest.mark.seed("N30", "V182")
def test_a_run_leaves_an_event_a_table_and_group(
    repository: dg.RepositoryDefinition, instance: dg.DagsterInstance, workplace: Workplace, tmp_path: Path
) -> None:
    for number in range(3):
        drop(tmp_path, f"{number}.csv", f"a,{number}\nb,1\n")
    result = execute(repository, instance, {"max_group": 2})
    assert result.success
    assert instance.get_run_by_id(result.run_id).tags[IDS_TAG] == "1..3"
    assert {row["k"]: row["total"] for row in rows(workplace, REGION, "little_totals")} == {"a": 3, "b": 3}

    made = [event.step_materialization_data.materialization for event in
            events(instance, result.run_id, dg.DagsterEventType.ASSET_MATERIALIZATION)]  # fmt: skip
    numbers = [event for event in made if event.asset_key.path[-1] == "little_numbers"]
    ids = [(event.metadata["drainmark/first_sequence_id"].value, event.metadata["drainmark/sequence_id"].value)
           for event in numbers]  # fmt: skip
    assert ids == [(1, 2), (3, 3)]
    assert [event.metadata["dagster/row_count"].value for event in numbers] == [4, 6]
    assert [event.metadata["drainmark/triggers"].value for event in numbers] == [2, 1]
    assert numbers[0].metadata["drainmark/first_trigger"].value.endswith("0.csv")
    assert [column.name for column in numbers[0].metadata["dagster/column_schema"].schema.columns][-1] == "v"
    assert numbers[0].tags["dagster/data_version"] == "1.2"
    assert len(made) == 2 * 5, "five tables, two groups, and no empty event"
    for name in ("process", "drain", "checkpoint", "publish"):
        assert isinstance(numbers[0].metadata[f"drainmark/{name}_seconds"].value, float)

    observed = [event.asset_observation_data.asset_observation for event in
                events(instance, result.run_id, dg.DagsterEventType.ASSET_OBSERVATION)]  # fmt: skip
    told = [event.asset_key.path[1] for event in observed if "drainmark/at_work" not in event.metadata]
    assert told == ["source", "source", "checkpoints"], "besides what is at work, where a group takes long"
    shown = [event.metadata for event in made if event.asset_key == CHECKPOINTS]
    assert [each["drainmark/attempts"].value for each in shown] == [0, 0]
    assert [each["drainmark/pending_triggers"].value for each in shown][-1] == 0
    assert all(each[f"drainmark/{name}_per_second"].value > 0 for each in shown for name in ("files", "rows"))
    assert all(each["drainmark/oldest_pending_seconds"].value >= 0 for each in shown)
    table = observed[-1].metadata["groups"].value
    assert "| 1..2 | `inbox/0.csv` | `inbox/1.csv` | 4 |" in table
    assert "groups: 2, triggers: 3" in table
    checks = {event.event_specific_data.check_name: event.event_specific_data.passed for event in
              events(instance, result.run_id, dg.DagsterEventType.ASSET_CHECK_EVALUATION)}  # fmt: skip
    assert checks == dict.fromkeys(["at_committed_id", "not_halted", "rewind_horizon", "quarantine_ratio"], True)
    assert workplace.history(REGION).last_outcome is Outcome.CLEAN


def test_run_config_is_that_of_the_command_line(
    repository: dg.RepositoryDefinition, instance: dg.DagsterInstance, workplace: Workplace, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    drop(elsewhere, "0.csv", "a,2\n")
    config = {"parameters": {"factor": 10}, "inputs": {"rows": str(elsewhere / "inbox")}}
    assert execute(repository, instance, config).success
    assert [row["total"] for row in rows(workplace, REGION, "little_totals")] == [20]


@pytest.mark.slow
def test_a_run_from_the_asset_page_tags_itself(
    repository: dg.RepositoryDefinition, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    drop(tmp_path, "0.csv", "a,1\n")
    job = repository.get_job("__ASSET_JOB")
    selection = [dg.AssetKey(["little", name]) for name in ("little_numbers", "little_totals", "little_quarantine")]
    selection += [dg.AssetKey(["little", "state", "totals"]), dg.AssetKey(["little", "checkpoints", "rows"])]
    result = job.execute_in_process(instance=instance, asset_selection=selection, raise_on_error=False)
    assert result.success
    tags = instance.get_run_by_id(result.run_id).tags
    assert tags[REGION_TAG] == REGION
    assert tags["dagster/max_retries"] == "1"


def test_a_run_that_finds_its_region_owned_ends_success(
    repository: dg.RepositoryDefinition, instance: dg.DagsterInstance, workplace: Workplace, tmp_path: Path
) -> None:
    drop(tmp_path, "0.csv", "a,1\n")
    owner = region_owner(workplace, REGION, run_id="somebody")
    owner.claim()
    result = execute(repository, instance)
    assert result.success
    assert "owned by pid" in instance.get_run_by_id(result.run_id).tags[NOTE_TAG]
    assert workplace.history(REGION).committed_id == 0
    owner.release(Outcome.CLEAN)
    assert execute(repository, instance).success
    assert workplace.history(REGION).committed_id == 1


def test_a_run_that_halts_is_not_retried(
    repository: dg.RepositoryDefinition, instance: dg.DagsterInstance, workplace: Workplace, tmp_path: Path
) -> None:
    poison = drop(tmp_path, "0.csv", "a,poison\n")
    first = execute(repository, instance)
    assert not first.success
    tags = instance.get_run_by_id(first.run_id).tags
    assert tags["dagster/will_retry"] == "true"
    assert "invalid literal" in tags[NOTE_TAG]
    second = execute(repository, instance)
    tags = instance.get_run_by_id(second.run_id).tags
    assert not second.success
    assert tags["dagster/max_retries"] == "0"
    assert tags["dagster/will_retry"] == "false"
    assert workplace.history(REGION).halt is not None
    third = execute(repository, instance)
    assert instance.get_run_by_id(third.run_id).tags["dagster/max_retries"] == "0"
    assert workplace.history(REGION).last_outcome is Outcome.CLEAN, "a halted run hands over"

    owner = region_owner(workplace, REGION)
    owner.claim()
    owner.halts.resume("mended")
    owner.release(Outcome.CLEAN)
    poison.write_text("a,7\n")
    assert execute(repository, instance).success
    assert [row["total"] for row in rows(workplace, REGION, "little_totals")] == [7]


def test_a_run_that_is_executed_again_does_not_say_what_its_parent_has_done(
    repository: dg.RepositoryDefinition, instance: dg.DagsterInstance
) -> None:
    """Dagster's page copies the tags of the run."""
    parent = {NOTE_TAG: "region is halted", IDS_TAG: "1..3", WITHDRAWN_TAG: "3"}
    result = execute(repository, instance, tags=parent)
    assert result.success
    tags = instance.get_run_by_id(result.run_id).tags
    assert [tags[name] for name in parent] == ["", "", ""]


def test_an_op_does_not_empty_what_another_op_of_its_run_has_noted(instance: dg.DagsterInstance) -> None:
    """A run may have several regions; what a context knows of the tags is as old as its process, or as the op."""

    @dg.op(out=dg.Out(dg.Nothing))
    def one(context):  # type: ignore[no-untyped-def]
        tag_begun(context, {})
        note(context, "one is halted")

    @dg.op(ins={"one": dg.In(dg.Nothing)})
    def two(context):  # type: ignore[no-untyped-def]
        tag_begun(context, {})

    @dg.job
    def both() -> None:
        two(one())

    result = both.execute_in_process(instance=instance, tags={NOTE_TAG: "of the parent", IDS_TAG: "1..3"})
    tags = instance.get_run_by_id(result.run_id).tags
    assert (tags[NOTE_TAG], tags[IDS_TAG]) == ("one is halted", "")


@pytest.mark.slow
@pytest.mark.seed("DX3")
def test_a_split_is_said_once_in_the_log_of_the_run(
    repository: dg.RepositoryDefinition, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    for number, value in enumerate(("1", "2", "poison")):
        drop(tmp_path, f"{number}.csv", f"a,{value}\n")
    ended = execute(repository, instance)
    logged = [entry for entry in instance.all_logs(ended.run_id) if entry.dagster_event is None]
    said = [entry for entry in logged if "file by file" in entry.user_message or entry.user_message.startswith("split")]
    assert [(entry.level, entry.user_message.split()[3]) for entry in said] == [(logging.WARNING, "3")]
    assert "invalid literal" in said[0].user_message


def test_terminate_finishes_the_group_and_costs_no_attempt(
    repository: dg.RepositoryDefinition, instance: dg.DagsterInstance, workplace: Workplace, tmp_path: Path
) -> None:
    for number in range(3):
        drop(tmp_path, f"{number}.csv", "a,1\n")
    (tmp_path / "hold").touch()

    def interrupt_in_the_group() -> None:
        try:
            eventually((tmp_path / "held").exists)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)
        finally:
            (tmp_path / "hold").unlink()

    thread = threading.Thread(target=interrupt_in_the_group)
    thread.start()
    result = execute(repository, instance, {"max_group": 1})
    thread.join()
    assert not result.success
    history = workplace.history(REGION)
    assert history.committed_id == 1, "the group could commit in time"
    assert history.last_outcome is Outcome.INTERRUPTED
    assert execute(repository, instance).success
    assert workplace.history(REGION).attempts == 0
    assert workplace.history(REGION).committed_id == 3


def test_a_run_whose_op_ends_before_the_hand_over_is_handed_over(
    repository: dg.RepositoryDefinition, workplace: Workplace, tmp_path: Path
) -> None:
    application = opened(tmp_path / "little.py", tmp_path / "inbox")
    log = logging.getLogger(__name__)
    with run_slot(log) as slot:
        slot.open(region_run(workplace, application, application.region())).claim()
    assert workplace.history(REGION).last_outcome is Outcome.INTERRUPTED
    with run_slot(log) as slot:
        slot.open(region_run(workplace, application, application.region())).claim()
        slot.finish()
    assert workplace.history(REGION).last_outcome is Outcome.CLEAN


def test_the_command_line_reports_to_the_asset_pages(
    workplace: Workplace, repository: dg.RepositoryDefinition, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    group = GroupReport(
        rows_quarantined=0,
        region=REGION, first_id=4, last_id=5, first_uri="inbox/4.csv", last_uri="inbox/5.csv", epoch=2, rows_in=7,
        bytes_in=70, rows_out={"lake/little_numbers": 6}, versions={"lake/little_numbers": 9}, process_seconds=0.1,
        drain_seconds=0.2, checkpoint_seconds=0.3, publish_seconds=0.4,
    )  # fmt: skip
    plan = open_application(str(tmp_path / "little.py")).region()
    elsewhere = Workplace(Settings(home=tmp_path / "nowhere", project_root=tmp_path))
    report([group], plan, elsewhere, "by hand")
    report([group], plan, workplace, "by hand")
    event = instance.get_latest_materialization_event(dg.AssetKey(["little", "little_numbers"]))
    assert event is not None
    materialization = event.asset_materialization
    assert materialization is not None
    assert materialization.metadata["drainmark/rows"].value == 6
    assert materialization.metadata["drainmark/delta_version"].value == 9
    assert materialization.metadata["drainmark/run_id"].value == "by hand"
    assert not (tmp_path / "nowhere").exists()
    check = dg.AssetCheckKey(checkpoint_key(plan), NOT_HALTED)
    assert instance.event_log_storage.get_asset_check_execution_history(check, limit=1), "or it is Not Evaluated"


def test_settings_name_the_applications_in_place_of_the_examples(tmp_path: Path) -> None:
    write_application(tmp_path)
    settings = Settings(home=tmp_path / "home", project_root=tmp_path, applications=("./little.py",))
    repository = definitions(Workplace(settings), tmp_path / "little.py")
    assert JOB in repository.job_names
    assert "word_count__lines" not in repository.job_names, "it would read the same inbox"


def test_one_check_can_be_run_alone(workplace: Workplace, tmp_path: Path, instance: dg.DagsterInstance) -> None:
    region = open_application(str(write_application(tmp_path))).region(None)
    selection = dg.AssetSelection.checks(dg.AssetCheckKey(checkpoint_key(region), NOT_HALTED))
    result = dg.materialize([build_checks(workplace, region)], selection=selection, instance=instance)
    assert [evaluation.check_name for evaluation in result.get_asset_check_evaluations()] == [NOT_HALTED]
