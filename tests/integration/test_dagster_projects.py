"""A project in a code location of somebody else: the way in, a translator, several projects, the component of `dg`."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path

import dagster as dg
import pytest
from dagster.components.testing import create_defs_folder_sandbox
from hand_runs import engine, without_spark
from harness import opened
from integration.dagster_scene import JOB, REGION, drop, execute, instance_at, write_application

from drainmark.dagster import DrainmarkProjectComponent, DrainmarkTranslator, definitions
from drainmark.jobs.errors import HomeNotFound, UsageError
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.dagster_assets.instance import has_instance, instance_home, remember_instance
from drainmark.orchestration.dagster_assets.runless_events import report
from drainmark.orchestration.dagster_assets.translator import remember_keys
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import load_settings

__all__ = ["engine", "without_spark"]

OF_DAGSTER = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")  # its own loader warns of what it uses itself
TOTALS = dg.AssetKey(["warehouse", "little", "little_totals"])


class Warehouse(DrainmarkTranslator):
    """Puts every key below a prefix; one table has an owner, an upstream asset and a condition."""

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        moved = spec.replace_attributes(key=spec.key.with_prefix("warehouse"))
        if spec.metadata.get("drainmark/operator_kind") != "delta-upsert":
            return moved
        condition = dg.AutomationCondition.eager()
        return moved.merge_attributes(owners=["team:data"], deps=["prices"]).replace_attributes(
            automation_condition=condition, code_version="7"
        )

    def get_pool(self, region: str) -> str | None:
        return f"pool_of_{region.partition('/')[0]}"


def project(folder: Path, name: str = "little.py") -> Path:
    """Make a project of one application, which its settings name from the project's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_application(folder).rename(folder / name)
    (folder / "drainmark.toml").write_text(f'applications = ["{name}"]\n')
    (folder / "inbox").mkdir()
    return folder


@pytest.fixture
def words(tmp_path: Path) -> Path:
    return project(tmp_path / "words")


def test_definitions_bring_no_executor_resource_or_logger(words: Path) -> None:
    """What a location's own jobs run with stays what it was."""
    ours = definitions(words)
    assert (ours.executor, ours.resources, ours.loggers) == (None, {}, {})

    @dg.job
    def mine() -> None: ...

    both = dg.Definitions.merge(ours, dg.Definitions(jobs=[mine], executor=dg.multiprocess_executor))
    repository = both.get_repository_def()
    assert repository.get_job("mine").executor_def.name == "multiprocess"
    assert repository.get_job(JOB).executor_def.name == "in_process"


def test_a_translator_decides_about_keys_owners_dependencies_and_pools(words: Path) -> None:
    repository = definitions(words, translator=Warehouse()).get_repository_def()
    graph = repository.asset_graph
    materialisable = {key for key in graph.get_all_asset_keys() if key.path[0] != "prices"}
    assert {key.path[0] for key in materialisable} == {"warehouse"}
    node = graph.get(TOTALS)
    assert (node.owners, node.code_version, node.automation_condition is None) == (["team:data"], "7", False)
    assert node.parent_keys == {dg.AssetKey("prices"), dg.AssetKey(["warehouse", "little", "state", "totals"])}
    assert node.assets_def.op.pool == "pool_of_little"
    assert {key.asset_key.path[0] for key in graph.asset_check_keys} == {"warehouse"}


def test_what_the_command_line_reports_has_the_keys_of_the_translator(words: Path, without_spark: None) -> None:
    settings = load_settings(words)
    workplace = Workplace(settings)
    translated = definitions(words, translator=Warehouse()).get_repository_def().asset_graph.get_all_asset_keys()
    remember_keys(workplace, REGION, {dg.AssetKey(key.path[1:]): key for key in translated if key.path[1:]})
    drop(words, "a.csv", "a,1\n")
    application = opened(words / "little.py", words / "inbox")
    scan_region(workplace, application.region())
    run = region_run(workplace, application, application.region())
    with instance_at(settings.dagster_home) as instance:
        run.claim()
        report(list(run.groups()), application.region(), workplace, "by hand")
        run.hand_over()
        told = {key for key in instance.all_asset_keys() if instance.fetch_materializations(key, limit=1).records}
        checkpoints = dg.AssetKey(["warehouse", "little", "checkpoints", "rows"])
        assert {TOTALS, checkpoints} <= told
        assert {key.path[0] for key in told} == {"warehouse"}


def test_commands_tell_the_instance_whose_run_was_the_last(words: Path, tmp_path: Path, without_spark: None) -> None:
    """It is anywhere: in a project of somebody else, `DAGSTER_HOME` is not below the home of Drainmark."""
    told = {dg.AssetKey(["little", "checkpoints", "rows"]), dg.AssetKey(["little", "little_totals"])}
    drop(words, "a.csv", "a,1\n")
    with instance_at(tmp_path / "platform") as instance:
        assert execute(definitions(words).get_repository_def(), instance, {"scan": True}).success
        before = {key: len(instance.fetch_observations(key, limit=99).records) for key in told}
        assert invoke(["reset", REGION, "--to-initial", "--yes", "--home", str(words / ".drainmark")]) == 0
        assert invoke(["halt", REGION, "--reason", "a test", "--home", str(words / ".drainmark")]) == 0
        checkpoints, totals = sorted(told, key=lambda key: "checkpoints" not in key.path)
        (rewound,) = instance.fetch_materializations(totals, limit=1).records
        assert rewound.asset_materialization is not None
        assert rewound.asset_materialization.metadata["drainmark/event"].value == "rewind"
        assert len(instance.fetch_observations(checkpoints, limit=99).records) > before[checkpoints]
        judged = instance.event_log_storage.get_latest_asset_check_execution_by_key(
            [key := dg.AssetCheckKey(checkpoints, "not_halted")]
        )
        assert judged[key].status.value == "FAILED"
    assert not (words / ".drainmark" / "dagster").exists()


def test_a_project_that_brings_nothing_says_why(words: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = words / "drainmark.toml"
    settings.write_text("")
    definitions(words)
    assert f"{settings} names no application" in caplog.text
    settings.write_text('applications = ["nope.py"]')
    definitions(words)
    assert "there is no file" in caplog.text
    assert "mend `applications` in drainmark.toml" in caplog.text


def test_a_home_whose_instance_is_gone_tells_its_own(words: Path, tmp_path: Path) -> None:
    settings = load_settings(words)
    with instance_at(tmp_path / "platform") as instance:
        remember_instance(settings, instance)
    assert instance_home(settings) == tmp_path / "platform"
    assert has_instance(settings)
    shutil.rmtree(tmp_path / "platform")
    assert instance_home(settings) == settings.dagster_home
    assert not has_instance(settings)


@pytest.mark.parametrize("note", [b"", b"\n", b"platform\n", b"\xff\n"])
def test_a_note_that_names_no_folder_leads_nowhere(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, note: bytes
) -> None:
    """Least of all to where a command is typed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "platform").mkdir()
    settings = load_settings(words)
    settings.make_home()
    (settings.home / "dagster_home").write_bytes(note)
    assert instance_home(settings) == settings.dagster_home


def test_a_command_is_carried_out_although_nobody_can_say_where_dagster_is(
    words: Path, without_spark: None, capsys: pytest.CaptureFixture[str]
) -> None:
    drop(words, "a.csv", "a,1\n")
    with instance_at(words / "dagster") as instance:
        assert execute(definitions(words).get_repository_def(), instance, {"scan": True}).success
    (note := words / ".drainmark" / "dagster_home").unlink()
    note.mkdir()
    assert invoke(["halt", REGION, "--reason", "a test", "--home", str(words / ".drainmark")]) == 0
    assert "Dagster was not told" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("made", "complaint"),
    [
        (lambda spec: None, "returned None"),
        (lambda spec: spec.replace_attributes(key=["one"]), "gives .* one key, one"),
    ],
)
def test_a_translator_that_is_wrong_is_named(words: Path, made, complaint: str) -> None:  # type: ignore[no-untyped-def]
    class Wrong(DrainmarkTranslator):
        def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
            return made(spec)  # type: ignore[no-any-return]

    with pytest.raises(UsageError, match=complaint):
        definitions(words, translator=Wrong())


def test_a_project_is_found_by_its_folder_or_a_variable_and_not_by_where_dagster_runs(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HomeNotFound, match=r"no drainmark\.toml") as nowhere:
        definitions()
    assert "DRAINMARK_PROJECT" in nowhere.value.remedy
    monkeypatch.setenv("DRAINMARK_PROJECT", str(words))
    assert definitions().get_repository_def().has_job(JOB)
    monkeypatch.setenv("DRAINMARK_PROJECT", str(tmp_path))
    with pytest.raises(UsageError, match=r"which DRAINMARK_PROJECT names") as wrong:
        definitions()
    assert "drainmark init PATH" in wrong.value.remedy


def test_two_projects_are_in_one_location_also_if_their_folders_have_one_name(words: Path, tmp_path: Path) -> None:
    other = project(tmp_path / "team" / "words", "second.py")
    repository = dg.Definitions.merge(definitions(words), definitions(other)).get_repository_def()
    assert {JOB, "second__rows"} <= set(repository.job_names)
    homes = {load_settings(folder).home for folder in (words, other)}
    assert homes == {words / ".drainmark", other / ".drainmark"}
    alerts = {sensor.name for sensor in repository.sensor_defs if sensor.name.startswith("drainmark_halted")}
    assert alerts == {"drainmark_halted_little", "drainmark_halted_second"}


TEMPLATE_VARIABLES = """
import datetime as dt

import dagster as dg


@dg.template_var
def daily() -> dg.FreshnessPolicy:
    return dg.FreshnessPolicy.time_window(fail_window=dt.timedelta(days=1))
"""


@OF_DAGSTER
def test_each_attribute_of_the_yaml_arrives_at_every_asset(words: Path) -> None:
    translation = {
        "key_prefix": "warehouse",
        "group_name": "words",
        "owners": ["team:data"],
        "tags": {"tier": "gold"},
        "deps": ["prices"],
        "automation_condition": "{{ automation_condition.on_cron('@daily') }}",
        "freshness_policy": "{{ daily }}",
        "code_version": "3",
        "kinds": ["table"],
        "description": "{{ spec.group_name }}",
        "metadata": {"cost": 7},
    }
    attributes = {"project": str(words), "pool": "cores", "partitions": "2026-01-31", "translation": translation}
    yaml = {
        "type": "drainmark.dagster.DrainmarkProjectComponent",
        "template_vars_module": ".variables",
        "attributes": attributes,
    }
    with create_defs_folder_sandbox() as sandbox:
        made = sandbox.scaffold_component(DrainmarkProjectComponent, defs_yaml_contents=yaml)
        (made / "variables.py").write_text(TEMPLATE_VARIABLES)
        with sandbox.load_component_and_build_defs(made) as (component, defs):
            assert isinstance(component, DrainmarkProjectComponent)
            graph = defs.resolve_asset_graph()
    tables = {key: graph.get(key) for key in graph.get_all_asset_keys() if key.path[:2] == ["warehouse", "little"]}
    daily = dg.FreshnessPolicy.time_window(fail_window=dt.timedelta(days=1))
    for node in tables.values():
        assert (node.group_name, node.owners, node.tags["tier"]) == ("words", ["team:data"], "gold")
        assert (node.automation_condition, node.freshness_policy) == (dg.AutomationCondition.on_cron("@daily"), daily)
        assert (node.code_version, node.kinds, node.description) == ("3", {"table"}, JOB)
        assert node.metadata["cost"] == 7
        assert dg.AssetKey("prices") in node.parent_keys
    assert TOTALS in tables
    assert dg.AssetKey(["warehouse", "little", "state", "totals"]) in tables[TOTALS].parent_keys, "ours are kept"
    assert tables[TOTALS].metadata["drainmark/region"] == REGION
    made = [node for node in tables.values() if node.is_materializable]
    assert {node.assets_def.op.pool for node in made} == {"cores"}
    assert {node.partitions_def.get_first_partition_key() for node in made} == {"2026-01-31"}


@OF_DAGSTER
def test_a_scaffolded_component_names_its_project(tmp_path: Path) -> None:
    """The path counts from the folder of the YAML file."""
    with create_defs_folder_sandbox() as sandbox:
        project(sandbox.defs_folder_path.parent / "words")
        made = sandbox.scaffold_component(DrainmarkProjectComponent, scaffold_params={"project": "../../words"})
        assert "project: ../../words" in (made / "defs.yaml").read_text()
        with sandbox.load_component_and_build_defs(made) as (_, defs):
            assert defs.get_repository_def().has_job(JOB)
