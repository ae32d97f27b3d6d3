"""Autonomous parts with a source of their own: plain micro-batches of the same operators (V1, V8, V45, V57)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import oracles
import pytest
from integration.dagster_scene import definitions, drop, instance_at

import drainmark as dm
from drainmark import F
from drainmark.jobs.apps import log_watch
from drainmark.jobs.errors import DeclarationError
from drainmark.jobs.errors.environment import AnalysisTimeout
from drainmark.jobs.failpoints import InjectedFailure, arm
from drainmark.jobs.regions.plan import running_parts
from drainmark.jobs.state import keyed_state
from drainmark.jobs.testing.syslog import generate_syslog
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.dagster_assets.metadata import PROCESS_TAG
from drainmark.orchestration.dagster_jobs import sensors
from drainmark.orchestration.dagster_jobs.run_monitor import tag_process
from drainmark.orchestration.inspection.status import statuses
from drainmark.orchestration.runs.part_loop import PartLoop, autonomous_run, run_parts, waiting_parts
from drainmark.orchestration.testing.running import Result
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark

RunApp = Callable[..., Result]
SCHEMA = "k string, n bigint"
FILES = {"1.csv": "a,1\nb,2\n", "2.csv": "a,3\n", "3.csv": "c,4\nb,-2\n"}
EXPECTED = {
    "rows": [("A", 1), ("A", 3), ("B", 2), ("B", -2), ("C", 4)],
    "totals": [("a", 4), ("b", 0), ("c", 4)],
    "newest": [("a", 3), ("b", -2), ("c", 4)],
    "runs": [("a", 1), ("a", 4), ("b", 0), ("b", 2), ("c", 4)],
}


@pytest.fixture(autouse=True)
def _disarmed() -> Any:
    yield
    arm("")


def plain(*, consistent: bool = False) -> Callable[[], None]:
    """Declare append and upsert sinks behind stateless and stateful operators."""

    def plainly() -> None:
        def orders(scanned: Any) -> Any:
            return scanned.drop("source_file")

        read = dm.source(dm.DirectoryScan(path="in", format="csv", schema=SCHEMA))(orders)
        if consistent:
            dm.consistent(trigger="operator-driven")(read)
        loud = dm.functor(lambda orders: dm.select(orders, F.upper("k").alias("k"), "n"), name="loud", inputs=[read])
        totals = dm.aggregate(read, name="by_k", keys=["k"], values={"n": dm.sum("n")})
        dm.sink(loud, dm.DeltaAppend("rows"))
        dm.sink(totals, dm.DeltaUpsert("totals", keys=["k"]))
        dm.sink(read, dm.DeltaUpsert("newest", keys=["k"]))
        dm.sink(totals, dm.DeltaAppend("runs"), name="runs_sink")

    return plainly


def go(result: Result) -> list[PartLoop]:
    return run_parts(result.workplace, result.opened, run_id="test", pause=lambda seconds: None)


def table(result: Result, name: str) -> list[tuple[Any, ...]]:
    found = result.workplace.store("plainly/orders").autonomous(f"lake/{name}")
    return sorted((row["k"], row["n"]) for row in found.read().to_pylist()) if found.exists() else []


def tables(result: Result) -> dict[str, list[tuple[Any, ...]]]:
    return {name: table(result, name) for name in EXPECTED}


@pytest.mark.seed("V14", "V8")
def test_a_part_gives_what_the_region_would_without_its_machinery(run_app: RunApp) -> None:
    """V57: the results are the same; V8: there are no checkpoints, epochs or ids of a region."""
    result = run_app(plain())
    for name, content in FILES.items():  # one file for each batch, as in groups of one
        result.add({name: content})
        (loop,) = go(result)
        assert loop.summary()["files"] == 1
    assert {name: sorted(rows) for name, rows in tables(result).items()} == {
        name: sorted(rows) for name, rows in EXPECTED.items()
    }
    assert not (result.home / "checkpoints").exists()
    assert statuses(result.workplace, None) == []


def test_in_a_region_the_same_operators_give_the_same(run_app: RunApp) -> None:
    result = run_app(plain(consistent=True), FILES, max_group=1)
    for name, rows in EXPECTED.items():
        assert sorted((row["k"], row["n"]) for row in result.sink(name)) == sorted(rows), name


@pytest.mark.slow
def test_a_shipped_application_without_its_region_equals_the_oracle(run_app: RunApp, tmp_path: Path) -> None:
    own, annotation = tmp_path / "log_watch.py", '@dm.consistent(trigger="operator-driven")\n'
    shipped = Path(log_watch.__file__).read_text()
    assert shipped.count(annotation) == 1
    own.write_text(shipped.replace(annotation, ""))
    result = run_app(own)
    assert result.regions == []
    for file in generate_syslog(seed=7, hosts=("combo",), files_per_host=3, lines_per_file=100):
        result.add({file.name: "".join(f"{line}\n" for line in file.lines)})
    go(result)
    files = sorted(result.inbox.folders["lines"].rglob("*.log"))
    for name, expected in oracles.log_watch(files).items():
        found = result.workplace.store("log_watch/lines").autonomous(f"lake/{name}").read().to_pylist()
        assert not oracles.differences(expected, found), name


def test_files_are_taken_once_and_many_at_once(run_app: RunApp) -> None:
    result = run_app(plain(), settings={"small_group_bytes": 0}).add(FILES)
    part = running_parts(result.opened.plan)
    assert waiting_parts(result.workplace, part) == ["plainly/orders"]
    (loop,) = go(result)
    assert loop.summary() | {"seconds": 0} == {
        "part": "plainly/orders", "outcome": "processed", "batches": 1, "files": 3, "lost_files": 0, "rows_in": 5,
        "rows_quarantined": 0, "bytes_in": 21, "rows_out": {"rows": 5, "totals": 3, "newest": 3, "runs": 5},
        "guarantee": "at-most-once", "seconds": 0, "run_id": "test",
    }  # fmt: skip
    assert waiting_parts(result.workplace, part) == []
    assert [loop.reports for loop in go(result)] == [[]]
    assert table(result, "rows") == sorted(EXPECTED["rows"])
    written = result.workplace.store("plainly/orders").autonomous("lake/rows").files.live()
    assert len(written) == 1, "however many tasks wrote the batch"


@dataclass(frozen=True)
class Largest:
    """The largest number of a key since its state was emptied."""

    n: int


def forgetful() -> None:
    """Declare a state of one row for each key, emptied by a zero; the output is the state before the file."""

    @dm.source(dm.DirectoryScan(path="in", format="csv", schema=SCHEMA))
    def orders(scanned: Any) -> Any:
        return scanned.drop("source_file")

    @dm.custom(keys=["k"], state=Largest, output=SCHEMA)
    def before(state: Largest | None, orders: Any) -> tuple[Largest | None, Any]:
        most = int(orders["n"].max())
        told = orders[["k", "n"]].head(1).assign(n=state.n if state is not None else -1)
        return (Largest(max(most, state.n if state is not None else 0)) if most else None), told

    dm.sink(before, dm.DeltaAppend("rows"))


def test_a_state_that_was_emptied_stays_empty_for_the_next_run(
    run_app: RunApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image without rows replaces the image before it."""
    monkeypatch.setattr(keyed_state, "_IMAGE_CHANGE_FILES", 0)
    result = run_app(forgetful)
    for number, content in enumerate(("a,3\n", "a,0\n", "a,5\n")):
        result.add({f"{number}.csv": content})
        go(result)
    rows = result.workplace.store("forgetful/orders").autonomous("lake/rows").read().to_pylist()
    assert sorted(row["n"] for row in rows) == [-1, -1, 3]


@pytest.mark.seed("K13")
def test_what_a_failed_batch_had_in_hand_is_lost_and_never_comes_twice(run_app: RunApp) -> None:
    """V46: autonomous sources do not replay."""
    result = run_app(plain()).add({"1.csv": FILES["1.csv"]})
    arm("process.staged:raise:1")
    with pytest.raises(InjectedFailure):
        go(result)
    result.add({"2.csv": FILES["2.csv"]})
    go(result)
    assert tables(result)["rows"] == [("A", 3)]
    assert tables(result)["totals"] == [("a", 3)]


def test_files_that_are_gone_before_they_are_read_are_counted_as_lost(run_app: RunApp) -> None:
    result = run_app(plain()).add(FILES)
    (plan,) = running_parts(result.opened.plan)
    run = autonomous_run(result.workplace, result.opened, plan, run_id="test")
    taking = run.take

    def gone_once_taken(source: Any, limit: int) -> Any:
        triggers = taking(source, limit)
        for trigger in triggers:
            Path(trigger.uri).unlink()
        return triggers

    run.take = gone_once_taken
    run.begin()
    (report,) = run.batches()
    run.end()
    assert (report.files, report.lost, report.rows_in, report.versions) == (3, 3, 0, {})
    assert report.line.endswith(", 3 files lost")
    result.add({"4.csv": "d,5\n"})
    go(result)
    assert table(result, "totals") == [("d", 5)]


def test_rows_that_cannot_be_read_are_kept_aside(run_app: RunApp) -> None:
    result = run_app(plain()).add({"1.csv": "a,1\nb,2\nc,x\n"})
    (loop,) = go(result)
    assert loop.summary()["rows_quarantined"] == 1
    kept = result.workplace.store("plainly/orders").autonomous("lake/plainly_orders_quarantine").read().to_pylist()
    assert [row["raw"] for row in kept] == ["c,x"]


def test_what_operators_remember_is_written_whole_now_and_then(
    run_app: RunApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drainmark.jobs.state.keyed_state._IMAGE_MINIMUM_ROWS", 1)
    result = run_app(plain())
    for name, content in FILES.items():
        result.add({name: content})
        go(result)
    assert tables(result)["totals"] == EXPECTED["totals"]


def test_two_sources_in_one_part_are_refused(run_app: RunApp) -> None:
    def two() -> None:
        for name in ("left", "right"):
            dm.source(dm.DirectoryScan(path=name))(named(name))
        both = dm.functor(lambda left, right: left.unionByName(right), name="both", inputs=["left", "right"])
        dm.sink(both, dm.DeltaAppend("both"))

    result = run_app(two).add({"left": {"1": "x\n"}, "right": {}})
    with pytest.raises(DeclarationError) as refused:
        go(result)
    assert [(found.rule, found.operator) for found in refused.value.violations] == [("NOT_RUNNABLE", "right")]


def named(name: str) -> Any:
    def read(scanned: Any) -> Any:
        return scanned

    read.__name__ = name
    return read


# --- Dagster and the command line ---------------------------------------------------------------------------------

APPLICATION = """
import drainmark as dm

@dm.autonomous
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema="k string, n bigint", settle=0.0))
def orders(scanned):
    return scanned.drop("source_file")

dm.sink(orders, dm.DeltaAppend("plain_orders"))
"""


def test_dagster_runs_what_has_come(
    workplace: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: list[float]
) -> None:
    """V1: each application has one sensor and one job, beside those of its regions."""
    path = tmp_path / "plain.py"
    path.write_text(APPLICATION)
    repository = definitions(workplace, path)
    sensor = repository.get_sensor_def("plain__autonomous__sensor")
    with instance_at(tmp_path / "home" / "dagster") as instance:

        def tick() -> Any:
            with dg.build_sensor_context(instance=instance, repository_def=repository) as context:
                return sensor.evaluate_tick(context)

        assert tick().skip_message, "there is no folder yet"
        drop(tmp_path, "1.csv", "a,1\nb,2\n")
        assert len(tick().run_requests or ()) == 1
        queued = instance.create_run_for_job(repository.get_job("plain__autonomous"))
        assert queued.run_id in (tick().skip_message or ""), "one run at a time"
        dead = tag_process(queued.run_id)[PROCESS_TAG].rpartition(" ")[0]  # another process, with its number
        instance.add_run_tags(queued.run_id, {PROCESS_TAG: f"{dead} 12345"})
        assert queued.run_id in (tick().skip_message or ""), "it has not begun"
        for kind in (dg.DagsterEventType.RUN_STARTING, dg.DagsterEventType.RUN_START):
            event = dg.DagsterEvent(event_type_value=kind.value, job_name=queued.job_name)
            instance.report_dagster_event(event, run_id=queued.run_id)
        assert "the last run failed" in (tick().skip_message or ""), "its process is dead, and a moment passes"
        monkeypatch.setattr(sensors, "FRUITLESS_BACK_OFF_SECONDS", 0.0)
        assert len(tick().run_requests or ()) == 1
        assert instance.get_run_by_id(queued.run_id).status is dg.DagsterRunStatus.FAILURE
        ended = repository.get_job("plain__autonomous").execute_in_process(instance=instance)
        assert ended.success
        assert PROCESS_TAG in instance.get_run_by_id(ended.run_id).tags
        (event,) = ended.asset_materializations_for_node("plain__autonomous__run")
        assert event.asset_key == dg.AssetKey(["plain", "plain_orders"])
        assert event.metadata["drainmark/rows"].value == 2
        assert tick().run_requests == []

        path.write_text('import time\n\n__import__("waiting").AHEAD.append(3600.0) or time.sleep(600)\n')
        job = repository.get_job("plain__autonomous")
        ended = job.execute_in_process(instance=instance, raise_on_error=False)
        error = ended.failure_data_for_node("plain__autonomous__run").error.cause
        assert error.cls_name == AnalysisTimeout.__name__
        assert f"{path}:3" in error.message


def test_the_command_line_runs_an_application_without_any_region(
    tmp_path: Path, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert engine.session is not None  # the command line's own engine finds this session
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "plain.py"
    path.write_text(APPLICATION)
    (tmp_path / "drainmark.toml").write_text("")
    drop(tmp_path, "1.csv", "a,1\nb,2\n")
    arguments = ["run", str(path), "--home", str(tmp_path / "home"), "--json", "--input", str(tmp_path / "inbox")]
    assert invoke(arguments) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["regions"] == []
    assert (said["autonomous"][0]["files"], said["autonomous"][0]["rows_out"]) == (1, {"plain_orders": 2})
