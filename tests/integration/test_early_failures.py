"""A failure before the claim counts as one after it: attempts, HALTED, resume, changed code (E14, AU1, AU2)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import dagster as dg
import pytest
from harness import rows, starts_of_spark
from integration.dagster_scene import JOB, REGION, ROOT, definitions, drop, execute, instance_at, write_application

from drainmark.jobs.errors import DrainmarkError, Halted, NotRowWise, OperatorFailed, SparkLost
from drainmark.jobs.errors.environment import AnalysisTimeout, ApplicationBroken, RunDied
from drainmark.jobs.failpoints import FailPoint, arm, unreached
from drainmark.jobs.protocol.history import Outcome
from drainmark.jobs.runtime.analysis.analysed_plan import analysed_plan
from drainmark.jobs.runtime.region_run import RegionRun
from drainmark.jobs.world import Answer
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.dagster_assets.metadata import REGION_TAG
from drainmark.orchestration.dagster_jobs.factory import build_definitions
from drainmark.orchestration.dagster_jobs.run_monitor import tags_of
from drainmark.orchestration.doctor import repair
from drainmark.orchestration.inspection.status import statuses
from drainmark.orchestration.runs import preparation
from drainmark.orchestration.runs.failures_before_claim import count_failure, count_unopened, unopened
from drainmark.orchestration.runs.interruption import Interruption
from drainmark.orchestration.runs.run_loop import RegionLoop, RunOptions, Watch
from drainmark.orchestration.verbs import interventions
from drainmark.orchestration.workplace.run_processes import on_its_way
from drainmark.orchestration.workplace.workplace import (
    IMPORT_SECONDS,
    Workplace,
    open_application,
    open_in_time,
)
from drainmark.resources.settings import Settings

pytestmark = [pytest.mark.spark]

ALLOWED = 2
RETRIED = {"dagster/auto_retry_run_id": "another"}
WELL = 'F.col("v")'
HANGS = '__import__("waiting").AHEAD.append(3600.0) or '
"""What code does before it begins to hang: its time is over then."""
TELLER = "import json, sys; open(sys.argv[1], 'a').write(json.dumps(json.load(sys.stdin)) + '\\n')"


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with instance_at(tmp_path / "home" / "dagster") as opened:
        yield opened


@pytest.fixture
def place(workplace: Workplace, tmp_path: Path) -> Workplace:
    """Return a home with the run's Spark session, and a command that writes halts to a file."""
    (tmp_path / "inbox").mkdir()
    command = (sys.executable, "-c", TELLER, str(tmp_path / "told.jsonl"))
    changes = {"on_halt": command, "retry_backoff_seconds": 0.0, "linger_seconds": 0.0}
    workplace.settings = workplace.settings.model_copy(update=changes)
    return workplace


def write_with(folder: Path, old: str, new: str) -> Path:
    """Write the application with one text replaced."""
    path = write_application(folder)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new).replace("attempts=1", f"attempts={ALLOWED}"))
    return path


def line_of(path: Path, text: str) -> str:
    """Return the position of a text in a file, as `file:line`."""
    number = next(n for n, line in enumerate(path.read_text().splitlines(), 1) if text in line)
    return f"{path}:{number}"


def loop_over(place: Workplace, path: Path, attempts: int | None = None) -> RegionLoop:
    opened = open_application(str(path))
    return RegionLoop(
        workplace=place, opened=opened, region=opened.region(REGION), options=RunOptions(attempts=attempts),
        interruption=Interruption(), watch=Watch(), run_id=f"cli-{time.monotonic_ns()}",
    )  # fmt: skip


def failed_with(place: Workplace, path: Path, attempts: int | None = None) -> DrainmarkError:
    with pytest.raises(DrainmarkError) as raised:
        loop_over(place, path, attempts).run()
    return raised.value


@pytest.mark.seed("AU1", "V106")
@pytest.mark.parametrize(
    ("broken", "says"),
    [
        pytest.param('F.col("nosuch")', "nosuch", marks=pytest.mark.slow),
        pytest.param('__import__("nosuch_package").v', "nosuch_package", marks=pytest.mark.slow),
        (f"{HANGS}time.sleep(30)", "took longer"),
    ],
    ids=["a misspelt column", "a package that is missing", "an analysis that hangs"],
)
def test_a_run_that_fails_in_its_analysis_is_an_attempt(
    place: Workplace, instance: dg.DagsterInstance, tmp_path: Path, *, ahead: list[float], broken: str, says: str
) -> None:
    assert place.engine.session is not None, "Spark's start is not what is to hang"
    path = write_with(tmp_path, WELL, broken)
    repository = definitions(place, path)
    drop(tmp_path, "0.csv", "a,1\n")
    runs = [execute(repository, instance).run_id for _ in range(ALLOWED + 2)]
    ended = [instance.get_run_by_id(run_id) for run_id in runs]
    assert [run.status for run in ended] == [dg.DagsterRunStatus.FAILURE] * (ALLOWED + 2)
    assert [run.tags["dagster/max_retries"] for run in ended] == ["2", "2", "0", "0"]

    history = place.history(REGION)
    assert history.halt is not None
    assert (history.epoch, history.attempts) == (ALLOWED + 1, ALLOWED), "who finds it halted claims nothing"
    error = history.halt.detail["error"]
    assert history.halt.detail["operator"] == "numbers"
    assert says in error["message"]
    place_in_file = "time.sleep(30)" if says == "took longer" else "@dm.functor"
    assert error["location"] == line_of(path, place_in_file), "where it hangs, or the operator that fails"
    told = [json.loads(text) for text in (tmp_path / "told.jsonl").read_text().splitlines()]
    assert [(event["region"], event["operator"], event["run_id"]) for event in told] == [(REGION, "numbers", runs[2])]
    assert invoke(["status", "--check", "--home", str(place.home)]) == 3

    repair(place)
    assert place.history(REGION).halt is not None

    write_with(tmp_path, WELL, WELL)
    assert execute(repository, instance).success, "changed code needs no operator's word"
    after = place.history(REGION)
    assert (after.halt, after.attempts, after.last_outcome) == (None, 0, Outcome.CLEAN)
    assert [row["v"] for row in rows(place, REGION, "little_numbers")] == [1]


def test_an_analysis_neither_prints_nor_takes_what_others_print(
    place: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has a thread of its own, which goes on after a timeout; standard output belongs to the whole process."""
    frame = place.engine.session.range(3).withColumnRenamed("id", "_sequence_id")
    analyses = [Answer(lambda: {analysed_plan(frame) for _ in range(30)}, "analysis") for _ in range(2)]
    lines = 0
    while not all(analysis.is_there for analysis in analyses):
        print(lines)
        lines += 1
        time.sleep(0.001)
    (plan,) = {text for analysis in analyses for text in analysis.get()}
    assert plan.startswith("Project [id#")
    assert capsys.readouterr().out.splitlines() == [str(number) for number in range(lines)]


@pytest.mark.seed("AU1", "V106")
def test_the_command_line_counts_in_one_process_and_ends_halted(place: Workplace, tmp_path: Path) -> None:
    path = write_with(tmp_path, WELL, 'F.col("nosuch")')
    drop(tmp_path, "0.csv", "a,1\n")
    assert isinstance(failed_with(place, path, attempts=1), OperatorFailed)
    assert place.history(REGION).last_outcome is Outcome.FAILED
    error = failed_with(place, path)
    assert isinstance(error, Halted)
    assert (error.exit_code, error.operator) == (3, "numbers")
    assert place.history(REGION).epoch == ALLOWED + 1, "two more, the third halts"
    assert isinstance(failed_with(place, path), Halted)
    assert place.history(REGION).epoch == ALLOWED + 1

    interventions.resume(place, REGION, "try again")
    assert isinstance(failed_with(place, path, attempts=1), OperatorFailed), "a fresh budget"

    write_with(tmp_path, WELL, 'F.col("nosuch_either")')
    assert isinstance(failed_with(place, path, attempts=ALLOWED), OperatorFailed), "other code counts anew"
    assert place.history(REGION).halt is None
    write_with(tmp_path, WELL, WELL + " ")
    assert loop_over(place, path).run()["outcome"] == "processed"


@pytest.mark.seed("AU1")
def test_a_halt_by_an_operator_outlives_changed_code(place: Workplace, tmp_path: Path) -> None:
    path = write_with(tmp_path, WELL, WELL)
    drop(tmp_path, "0.csv", "a,1\n")
    loop_over(place, path).run()
    interventions.halt(place, REGION, "the disk is to be replaced")
    write_with(tmp_path, WELL, WELL + " ")
    drop(tmp_path, "1.csv", "a,1\n")
    assert isinstance(failed_with(place, path), Halted)


@pytest.mark.seed("AU1", "AU10")
def test_a_first_trial_that_hangs_is_bounded_and_counted(
    place: Workplace, tmp_path: Path, ahead: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The analysis calls no functions of rows; the trial calls them."""
    probe = preparation.probe_first_use

    def hanging(run: RegionRun) -> None:
        threading.Timer(1.0, ahead.append, [3600.0]).start()
        probe(run)

    drop(tmp_path, "0.csv", "a,1\n")
    loop_over(place, write_with(tmp_path, WELL, WELL)).run()  # Spark is warm: its start must not be the part that hangs
    path = write_with(tmp_path, WELL, f'F.udf(lambda v: time.sleep(600) or v, "string")({WELL})')
    for number in (1, 2):
        drop(tmp_path, f"{number}.csv", "a,1\n")
    loop = loop_over(place, path, attempts=1)
    monkeypatch.setattr(preparation, "probe_first_use", hanging)
    with pytest.raises(AnalysisTimeout) as raised:
        loop.run()
    assert "first trial" in raised.value.message
    assert place.history(REGION).last_outcome is Outcome.FAILED


@pytest.mark.slow
@pytest.mark.seed("AU1")
def test_a_first_trial_that_is_refused_is_counted(place: Workplace, tmp_path: Path) -> None:
    path = write_with(tmp_path, "@dm.functor", "@dm.functor(vectorised=True)")
    path.write_text(path.read_text().replace("dm.select(rows,", 'dm.select(rows.dropDuplicates(["k"]),'))
    for number in range(2):
        drop(tmp_path, f"{number}.csv", "a,1\n")
    ended = [failed_with(place, path) for _ in range(ALLOWED + 1)]
    assert [error.exit_code for error in ended] == [2, 2, 3], "a refusal is not tried again in one process"
    halt = place.history(REGION).halt
    assert halt is not None
    assert (halt.detail["operator"], halt.detail["error"]["id"]) == ("numbers", NotRowWise.id)


@pytest.mark.seed("AU1")
def test_a_run_of_the_command_line_that_is_killed_before_its_claim_is_counted_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "inbox").mkdir()
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    starts = starts_of_spark(place)
    path = write_with(tmp_path, WELL, WELL)
    loop_over(place, path).run()
    program = (
        "import os, signal, sys; from pathlib import Path;"
        "from drainmark.orchestration.workplace.workplace import Workplace;"
        "from drainmark.orchestration.workplace.run_processes import on_its_way;"
        "from drainmark.resources.settings import Settings;"
        "home = Path(sys.argv[1]); place = Workplace(Settings(home=home, project_root=home.parent));\n"
        "with on_its_way(place, sys.argv[2], 'killed'): os.kill(os.getpid(), signal.SIGKILL)"
    )
    for _ in range(ALLOWED + 1):
        assert place.history(REGION).halt is None
        subprocess.run([sys.executable, "-c", program, str(place.home), REGION], cwd=ROOT, check=False)
        with suppress(Halted):
            loop_over(place, path)._is_work_there()
    assert isinstance(failed_with(place, path), Halted)
    with on_its_way(place, REGION, "interrupted"):
        pass
    epoch = place.history(REGION).epoch
    assert isinstance(failed_with(place, path), Halted)
    assert place.history(REGION).epoch == epoch
    assert starts == [], "no Spark is wanted to count"
    place.registry.close()


@pytest.mark.seed("AU1", "V106")
@pytest.mark.parametrize(
    ("name", "value"),
    [("spark.driver.memory", "nonsense"), pytest.param("spark.plugins", "com.nosuch.Plugin", marks=pytest.mark.slow)],
)
def test_a_spark_that_does_not_start_is_an_attempt(tmp_path: Path, name: str, value: str) -> None:
    """The process of the tests has a Spark already, so the run needs a process of its own."""
    path = write_with(tmp_path, WELL, WELL)
    drop(tmp_path, "0.csv", "a,1\n")
    settings = f'retry_backoff_seconds = 0.0\nspark = "in-process"\n[spark_conf]\n"{name}" = "{value}"\n'
    (tmp_path / "drainmark.toml").write_text(settings)
    command = [sys.executable, "-m", "drainmark.orchestration.cli.main", "run", str(path), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == Halted.exit_code, ended.stderr
    place = Workplace(Settings(home=tmp_path / ".drainmark", project_root=tmp_path))
    history = place.history(REGION)
    assert (history.epoch, history.attempts) == (ALLOWED + 1, ALLOWED)
    assert history.halt is not None
    error = history.halt.detail["error"]
    assert (error["id"], error["operator"]) == (SparkLost.id, None), "no function is to blame"
    assert error["message"].count(value) == 1, "the cause, and not that there is one, or those of earlier attempts"
    assert "spark_conf" in error["remedy"]


@pytest.mark.slow
@pytest.mark.seed("AU1", "R4")
def test_attempts_and_a_halt_before_a_claim_outlive_the_registry(place: Workplace, tmp_path: Path) -> None:
    path = write_with(tmp_path, WELL, 'F.col("nosuch")')
    drop(tmp_path, "0.csv", "a,1\n")
    engine = place.engine
    for failures in range(1, ALLOWED + 2):
        failed_with(place, path, attempts=1)
        before = statuses(place, REGION)
        place.registry.close()
        for part in place.home.glob("registry.db*"):
            part.unlink()
        place = Workplace(place.settings)
        place.use_engine(engine)
        repair(place, applications=[str(path)])
        (after,) = statuses(place, REGION)
        kept = ("state", "halt_reason", "consecutive_reset_attempts", "epoch", "pending_triggers", "last_error")
        assert {name: after[name] for name in kept} == {name: before[0][name] for name in kept}
        assert after["consecutive_reset_attempts"] == min(failures - 1, ALLOWED)
    assert after["state"] == "HALTED"
    assert isinstance(failed_with(place, path), Halted)
    place.registry.close()


# --- files that cannot be loaded ----------------------------------------------------------------------------------


def sensor_of(repository: dg.RepositoryDefinition, name: str) -> dg.SensorDefinition:
    return next(sensor for sensor in repository.sensor_defs if sensor.name == name)


def tick(repository: dg.RepositoryDefinition, instance: dg.DagsterInstance, name: str) -> dg.SensorResult:
    context = dg.build_sensor_context(instance=instance, repository_def=repository, sensor_name=name)
    result: dg.SensorResult = sensor_of(repository, name)(context)
    return result


@pytest.mark.seed("AU2")
def test_a_broken_file_leaves_the_others_and_says_its_line(
    place: Workplace, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    other = tmp_path / "other.py"
    other.write_text("import drainmark as dm\n\nimport nosuch_package\n")
    place.settings = place.settings.model_copy(update={"applications": (str(write_application(tmp_path)),)})
    settings = place.settings.model_copy(update={"applications": ("little.py", "other.py", "gone.py")})
    repository = build_definitions(settings, place).get_repository_def()
    assert JOB in repository.job_names
    with pytest.raises(ApplicationBroken) as raised:
        tick(repository, instance, "other__broken")
    assert str(raised.value.location) == f"{other}:3"
    assert "nosuch_package" in raised.value.message
    assert f"{other}:3" in raised.value.message
    assert sensor_of(repository, "gone__broken")

    drop(tmp_path, "0.csv", "a,1\n")
    assert execute(repository, instance).success

    assert [str(error) for error in unopened(place, (str(tmp_path / "little.py"), str(other))).values()] == [
        str(raised.value)
    ], "what `status` and `doctor` say"

    other.write_text(write_application(tmp_path).read_text())
    assert "reload" in str(tick(repository, instance, "other__broken").skip_message)


@pytest.mark.slow
@pytest.mark.seed("AU1", "AU2")
def test_runs_of_a_region_whose_file_is_broken_count(
    place: Workplace, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    path = write_with(tmp_path, WELL, WELL)
    drop(tmp_path, "0.csv", "a,1\n")
    assert execute(definitions(place, path), instance).success
    before = place.history(REGION).epoch

    path.write_text(path.read_text() + "\nimport nosuch_package\n")
    repository = definitions(place, path)
    for _ in range(ALLOWED + 1):
        (request,) = tick(repository, instance, f"{JOB}__sensor").run_requests
        assert request.tags[REGION_TAG] == REGION
        ended = repository.get_job(JOB).execute_in_process(instance=instance, raise_on_error=False, tags=request.tags)
        assert not ended.success
        instance.add_run_tags(ended.run_id, RETRIED)
    skipped = tick(repository, instance, f"{JOB}__sensor")
    assert not skipped.run_requests
    assert "HALTED" in skipped.skip_reason.skip_message
    history = place.history(REGION)
    assert history.halt is not None
    assert history.epoch == before + ALLOWED + 1
    assert history.halt.detail["error"]["location"] == line_of(path, "import nosuch_package")
    assert isinstance(count_unopened(place, str(path), ApplicationBroken("again")), Halted), "as `drainmark run` says"

    write_with(tmp_path, WELL, WELL)
    assert execute(definitions(place, path), instance).success
    assert place.history(REGION).halt is None


HANGING = f"import time\n\n{HANGS}time.sleep(600)\n"


@pytest.mark.seed("AU10")
def test_an_import_that_hangs_is_bounded(place: Workplace, tmp_path: Path, ahead: list[float]) -> None:
    path = tmp_path / "slow.py"
    path.write_text(HANGING)
    with pytest.raises(AnalysisTimeout) as raised:
        open_in_time(place.settings, str(path))
    assert str(raised.value.location) == f"{path}:3"


@pytest.mark.seed("AU2", "AU10")
def test_files_that_hang_share_one_time_and_leave_the_others(
    place: Workplace, tmp_path: Path, ahead: list[float]
) -> None:
    allowed = IMPORT_SECONDS
    for name, share in (("first", allowed / 2), ("second", allowed / 4)):
        (tmp_path / f"{name}.py").write_text(HANGING.replace("3600.0", f"{share}"))
    write_application(tmp_path)
    applications = ("first.py", "second.py", "little.py")
    settings = place.settings.model_copy(update={"applications": applications, "analysis_timeout_seconds": allowed})
    repository = build_definitions(settings, place).get_repository_def()
    assert JOB in repository.job_names
    broken = {sensor.name for sensor in repository.sensor_defs if sensor.name.endswith("__broken")}
    assert broken == {"first__broken", "second__broken"}
    errors = unopened(Workplace(settings), [str(tmp_path / name) for name in applications])
    assert [str(error.location) for error in errors.values()] == [f"{tmp_path / n}.py:3" for n in ("first", "second")]
    assert sum(error.facts["seconds"] for error in errors.values()) < allowed


@pytest.mark.seed("AU10")
def test_verbs_end_though_the_file_hangs(
    place: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    ahead: list[float],
) -> None:  # fmt: skip
    path = write_with(tmp_path, WELL, WELL)
    drop(tmp_path, "0.csv", "a,1\n")
    loop_over(place, path).run()
    path.write_text(HANGING)
    for verb in ("graph", "plan", "scan", "run", "history", "status"):
        capsys.readouterr()
        assert invoke([verb, str(path), "--json", "--home", str(place.home)]) == 1, verb
        error = json.loads(capsys.readouterr().err)["error"]
        assert (error["id"], error["location"]) == (AnalysisTimeout.id, f"{path}:3")
    monkeypatch.setenv("DRAINMARK_APPLICATIONS", json.dumps([str(path)]))
    assert invoke(["apps", "--json", "--home", str(place.home)]) == 0
    listed = {entry["reference"]: entry["error"] for entry in json.loads(capsys.readouterr().out)}
    assert f"{path}:3" in listed[str(path)]

    for part in place.home.glob("registry.db*"):
        part.unlink()
    (repaired,) = repair(Workplace(place.settings), applications=[str(path)])
    assert repaired["triggers"]["committed"] == 1, "a repair wants no code"


@pytest.mark.seed("AU2")
def test_a_check_of_a_broken_file_is_unhealthy_and_says_its_line(
    place: Workplace, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_with(tmp_path, WELL, WELL)
    drop(tmp_path, "0.csv", "a,1\n")
    loop_over(place, path).run()
    path.write_text(path.read_text() + "\nimport nosuch_package\n")
    command = ["status", str(path), "--json", "--home", str(place.home)]
    capsys.readouterr()
    assert [invoke(command), invoke([*command, "--check"])] == [1, 3]
    told = capsys.readouterr()
    error = json.loads(told.err.splitlines()[-1])["error"]
    assert error["id"] == ApplicationBroken.id
    assert error["location"] == line_of(path, "import nosuch_package")
    assert "nosuch_package" in error["message"]
    assert [entry["region"] for entry in json.loads(told.out[told.out.rindex("\n[") :])] == [REGION]

    other = tmp_path / "other.py"
    other.write_text("import nosuch_package\n")
    monkeypatch.setenv("DRAINMARK_APPLICATIONS", json.dumps([str(other)]))
    assert invoke(["status", "--check", "--home", str(place.home)]) == 3
    assert f"{other}:1" in capsys.readouterr().err
    assert invoke(["status", "--home", str(place.home)]) == 0


# --- runs that leave no word --------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path

from integration.dagster_scene import definitions, execute, instance_at

from drainmark.orchestration.dagster_jobs.run_monitor import tags_of
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

root = Path(sys.argv[1])
place = Workplace(Settings(home=root / "home", project_root=root))
repository = definitions(place, root / "little.py")
(root / "kills").touch()
with instance_at(place.home / "dagster") as instance:
    execute(repository, instance, tags=tags_of("little/rows", 0))
"""
KILLING = """
import os, signal
if (HERE / "kills").exists():
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.seed("AU1")
def test_a_run_of_dagster_that_is_killed_before_its_claim_is_counted_by_the_next_tick(tmp_path: Path) -> None:
    path = write_application(tmp_path)
    path.write_text(path.read_text().replace("attempts=1", "attempts=0") + KILLING)
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    starts = starts_of_spark(place)
    repository = definitions(place, path)
    drop(tmp_path, "0.csv", "a,1\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    with instance_at(place.home / "dagster") as instance:
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, str(tmp_path)], env=environment, capture_output=True, check=False
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        run = instance.get_runs(limit=1)[0]
        assert run.status is dg.DagsterRunStatus.STARTED, "nobody was there to say that it failed"
        instance.add_run_tags(run.run_id, RETRIED)
        skipped = tick(repository, instance, f"{JOB}__sensor")
        assert instance.get_run_by_id(run.run_id).status is dg.DagsterRunStatus.FAILURE
        assert place.history(REGION).epoch == 1
        assert "HALTED" in skipped.skip_reason.skip_message
        halt = place.history(REGION).halt
        assert halt is not None
        assert halt.detail["error"]["id"] == RunDied.id
        assert run.run_id in halt.detail["error"]["message"]
        assert "is dead" in halt.detail["error"]["message"]
    assert starts == [], "no Spark is wanted to count"
    place.registry.close()


@pytest.mark.seed("AU1")
def test_runs_that_died_before_their_claim_are_counted_by_the_next_tick(
    place: Workplace, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    repository = definitions(place, write_with(tmp_path, WELL, WELL))
    drop(tmp_path, "0.csv", "a,1\n")
    for number in range(ALLOWED + 1):
        tags = tags_of(REGION, ALLOWED)
        run = dg.DagsterRun(job_name=JOB, run_id=f"dead-{number}", tags=tags, status=dg.DagsterRunStatus.STARTED)
        instance.add_run(run)
        instance.report_run_failed(run, "killed for want of memory")
        instance.add_run_tags(run.run_id, RETRIED)
        assert place.history(REGION).halt is None
        skipped = tick(repository, instance, f"{JOB}__sensor")
        assert place.history(REGION).epoch == number + 1
    assert not skipped.run_requests
    assert "HALTED" in skipped.skip_reason.skip_message
    history = place.history(REGION)
    assert history.halt is not None
    assert history.epoch == ALLOWED + 1
    assert "want of memory" in history.halt.detail["error"]["message"]
    tick(repository, instance, f"{JOB}__sensor")
    interventions.resume(place, REGION, "more memory")
    assert tick(repository, instance, f"{JOB}__sensor").run_requests, "each counts once"


@pytest.mark.seed("AU1")
def test_a_failure_that_cannot_be_counted_leaves_no_crash(place: Workplace) -> None:
    """The claim succeeds, but a committed group cannot be published, as a database is away, say: no attempt."""
    for _ in range(ALLOWED + 2):
        arm(f"{FailPoint.ROLL_FORWARD}:raise")
        count_failure(place, REGION, RuntimeError("it died"), allowed=ALLOWED, code="")
        assert unreached() == ()
        assert place.history(REGION).last_outcome is Outcome.INTERRUPTED
    assert (place.history(REGION).attempts, place.history(REGION).halt) == (0, None)
