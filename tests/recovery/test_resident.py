"""The resident Spark: its token; a kill of the server, of its keeper or of its owner; and the runs on it then.

One server with its own home serves the module; the last tests kill it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import strangers
from followed import follow
from graphs import log_watch
from harness import state_shown
from scene import Scene
from waiting import eventually

from drainmark.jobs.errors import SparkLost
from drainmark.jobs.errors.spark_faults import lost_engine
from drainmark.jobs.protocol.records.checkpoint_row import RowKind
from drainmark.orchestration.doctor.machine import resident_spark
from drainmark.orchestration.testing.crash.children import Nursery
from drainmark.orchestration.workplace.spark_choice import make_engine
from drainmark.orchestration.workplace.workplace import open_application
from drainmark.resources.processes import process_started
from drainmark.resources.settings import Settings
from drainmark.resources.spark.resident.access import ResidentServer
from drainmark.resources.spark.resident.files import Access
from drainmark.resources.spark.resident.keeper import CLIENT_GRACE_SECONDS

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
SPARK = {"spark": "resident", "spark_master": "local[1]", "spark_conf": {"spark.driver.memory": "1g"}}
WAIT_SECONDS = 90.0

APPLICATION = '''
"""A Python function that waits, in Spark's workers, while a file lies beside the application."""
from __future__ import annotations

import os
import time
from pathlib import Path

import drainmark as dm
from drainmark import F

HERE = Path(__file__).parent


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="in", pattern="*.txt", format="text", settle=0.0))
def lines(scanned):
    return scanned


def waited(value: str, here: str) -> str:
    while Path(here, "hold").exists():
        Path(here, "held").write_text(str(os.getpid()))
        time.sleep(0.05)
    return value


above = lines  # or a buffered edge


@dm.functor(inputs=[above])
def slow(lines):
    return dm.select(lines, F.udf(waited, "string")(F.col("value"), F.lit(str(HERE))).alias("line"))


counts = dm.aggregate(slow, keys=["line"], values={"count": dm.count()}, name="counts")
dm.sink(counts, dm.DeltaUpsert("waiting_counts", keys=["line"]))
dm.sink(slow, dm.DeltaAppend("waiting_lines"))
'''


def server_of(home: Path, **more: Any) -> ResidentServer:
    """Return the home's server, as a run finds it."""
    settings = Settings(home=home, project_root=home.parent, **{**SPARK, **more})
    return make_engine(settings, is_service=False).server


def owner_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("resident") / "home"


@pytest.fixture(scope="module")
def owner() -> Iterator[subprocess.Popen[bytes]]:
    process = owner_process()
    yield process
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def server(home: Path, owner: subprocess.Popen[bytes]) -> ResidentServer:
    found = server_of(home)
    found.wait(owner=owner.pid)
    return found


def waiting_scene(nursery: Nursery, home: Path, folder: Path, name: str = "waiting", *, stages: bool = False) -> Scene:
    """Return a scene of three files; its queries wait until its file `hold` is gone.

    Args:
        stages: the queries are those of a second stage.
    """
    text = APPLICATION.replace("waiting_", f"{name}_")
    cut = text.replace("= lines  #", "= dm.buffered(lines, batches=4)  #")
    (folder / f"{name}.py").write_text(cut if stages else text)
    scene = Scene(
        nursery=nursery, master="local[1]", folder=folder, home=home, app=str(folder / f"{name}.py"),
        region=f"{name}/lines", inputs=(str(folder / "in"),), settings=SPARK,
        oracle=lambda files: {}, sinks=(f"{name}_counts", f"{name}_lines"),
    )  # fmt: skip
    for number in range(3):
        scene.add(folder / "in" / f"{number}.txt", f"line {number}\n")
    (folder / "hold").touch()
    return scene


def up(server: ResidentServer) -> Access | None:
    access = server.files.access()
    return access if access is not None and access.is_up else None


def query(server: ResidentServer, token: str | None = None, *, rows: str = "select('id')") -> int:
    """Run a query in a new process: the process of the tests has a session of another kind."""
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from dataclasses import replace\n"
        "from drainmark.resources.spark.resident.files import ServerFiles\n"
        "from drainmark.resources.spark.resident.access import connect\n"
        "from drainmark.jobs.errors.spark_faults import lost_engine\n"
        "access = replace(ServerFiles(Path(sys.argv[1])).access(), token=sys.argv[2])\n"
        f"try: print(connect(access).range(7).{rows}.toArrow().num_rows)\n"
        "except Exception as error: print(lost_engine(error), file=sys.stderr); sys.exit(3)\n"
    )
    folder, token = server.files.folder, token or server.wait().token
    ended = subprocess.run(
        [sys.executable, "-c", code, str(folder), token], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return int(ended.stdout)


def test_only_who_has_the_token_may_use_it(server: ResidentServer) -> None:
    """The token is only in files of mode 0600, and on no command line."""
    access = server.wait()
    assert query(server) == 7
    with pytest.raises(AssertionError, match="Invalid authentication token"):
        query(server, "another")
    for process in psutil.process_iter(["cmdline"]):
        assert access.token not in " ".join(process.info["cmdline"] or ())
    files = [path for path in server.files.folder.rglob("*") if path.is_file()]
    holders = [path for path in files if access.token in path.read_text(errors="replace")]
    assert {path.name for path in holders} == {"access.json", "server.conf"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in holders} == {0o600}
    listening = psutil.Process(access.pid).net_connections(kind="tcp")
    assert {c.laddr.ip.removeprefix("::ffff:") for c in listening if c.status == psutil.CONN_LISTEN} == {"127.0.0.1"}


def test_none_of_its_ports_reads_what_a_stranger_sends(server: ResidentServer) -> None:
    """The token guards one port of three: Spark's own transport deserialises Java objects."""
    jvm = psutil.Process(server.wait().pid)
    assert query(server, rows="mapInArrow(lambda batches: batches, 'id long')") == 7
    found = {each.pid: strangers.conversations(each) for each in (jvm, *forkers(jvm))}
    assert not any(found.values()), found


def test_two_owners_share_one(server: ResidentServer, home: Path) -> None:
    before = server.wait()
    second = owner_process()
    shared = server_of(home).wait(owner=second.pid)
    assert (shared.pid, shared.starts) == (before.pid, before.starts)
    assert second.pid in server.files.owners()
    second.kill()
    second.wait()
    assert second.pid not in server.files.owners()
    assert up(server), "its other owner lives"


@pytest.mark.slow
def test_what_sessions_ran_python_functions_leaves_no_process(server: ResidentServer) -> None:
    """Spark alone would keep a process of 50 MB for each session for as long as the server lives."""
    jvm = psutil.Process(server.wait().pid)
    for _ in range(2):
        assert query(server, rows="mapInArrow(lambda batches: batches, 'id long')") == 7
    assert forkers(jvm)
    eventually(lambda: not forkers(jvm), "the end of what forks the workers")
    assert query(server, rows="mapInArrow(lambda batches: batches, 'id long')") == 7


def forkers(jvm: psutil.Process) -> list[psutil.Process]:
    found = []
    for child in jvm.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it ends at this moment
            found += [child] if "python_daemon" in " ".join(child.cmdline()) else []
    return found


@pytest.mark.recovery
def test_a_run_on_it_gives_the_golden_result(
    server: ResidentServer, home: Path, nursery: Nursery, tmp_path: Path
) -> None:
    scene = replace(log_watch(nursery, "local[1]", tmp_path), home=home, settings=SPARK)
    before = server.wait()
    scene.run_well()
    scene.assert_golden()
    assert server.wait().pid == before.pid
    assert not (home / "spark" / "driver.log").exists(), "no JVM of its own was started"


@pytest.mark.seed("V65", "V75", "T4", "AU3", "E11")
@pytest.mark.parametrize("state", ["PROCESSING", pytest.param("DRAINING", marks=pytest.mark.recovery)])
def test_a_server_killed_in_a_group_costs_an_attempt_and_no_row(
    server: ResidentServer, home: Path, nursery: Nursery, tmp_path: Path, state: str
) -> None:
    """The run fails as SPARK_LOST and tries no smaller groups. The next run finds a new server; each row comes once.

    A region of stages drains while its second stage computes.
    """
    name = f"waiting_{state.lower()}"
    scene = waiting_scene(nursery, home, tmp_path, name, stages=state == "DRAINING")
    plan = open_application(scene.app).region()
    child = scene.start()
    eventually((tmp_path / "held").exists, "a query that waits")
    before = server.wait()
    eventually(lambda: state_shown(scene.place, plan) == state, state)
    os.kill(before.pid, signal.SIGKILL)
    (tmp_path / "hold").unlink()
    ended = child.wait()
    assert ended.code == 1
    assert ended.events[-1]["id"] == SparkLost.id
    assert [event["state"] for event in ended.steps("state")][-2:] == [state, "UNHEALTHY"], "HEALTH_LOST, and no reset"
    assert state_shown(scene.place, plan) == "UNHEALTHY"
    assert scene.history.committed_id == 0
    scene.run_well()
    assert state_shown(scene.place, plan) == "STARTED"
    assert [row["line"] for row in sorted(scene.rows(f"{name}_lines"), key=lambda row: row["line"])] == [
        "line 0", "line 1", "line 2",
    ]  # fmt: skip
    assert {row["count"] for row in scene.rows(f"{name}_counts")} == {1}
    scene.assert_ids_visible()
    scene.assert_each_file_once()
    scene.assert_nothing_left()
    assert scene.attempts_at_claims() == [0, 1]
    claims = [row for row in scene.checkpoint_rows() if row.kind is RowKind.CLAIM]
    assert len(claims) == 2
    after = server.wait()
    assert (after.pid, after.port, after.token) != (before.pid, before.port, before.token)
    assert after.starts == before.starts + 1


@pytest.mark.recovery
def test_what_a_killed_run_left_running_is_ended_by_the_next(
    server: ResidentServer, home: Path, tmp_path: Path
) -> None:
    """The query of a dead client goes on in the server until the next owner interrupts it after its claim."""
    (tmp_path / "left.py").write_text(APPLICATION.replace("waiting_", "left_"))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.txt").write_text("line\n")
    spark = 'spark = "resident"\nspark_master = "local[1]"\n[spark_conf]\n"spark.driver.memory" = "1g"\n'
    (tmp_path / "drainmark.toml").write_text(spark)
    (tmp_path / "hold").touch()
    environment = {**os.environ, "DRAINMARK_HOME": str(home), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "drainmark.orchestration.cli.main", "run", "left.py"]
    first = subprocess.Popen(command, cwd=tmp_path, env=environment)
    worker = int(eventually(lambda: (tmp_path / "held").exists() and (tmp_path / "held").read_text(), "a held query"))
    first.kill()
    first.wait()
    time.sleep(1)
    assert process_started(worker) is not None, "the query goes on without its client"
    second = subprocess.Popen(command, cwd=tmp_path, env=environment)
    try:
        eventually(lambda: process_started(worker) is None, "the end of the query")
        assert second.poll() is None
    finally:
        (tmp_path / "hold").unlink()
    assert second.wait(WAIT_SECONDS) == 0
    assert server.wait().pid > 0


@pytest.mark.recovery
def test_it_is_started_anew_when_its_keeper_is_killed(server: ResidentServer, owner: subprocess.Popen[bytes]) -> None:
    """The server dies with its keeper; the next process that needs it starts both."""
    before = server.wait()
    os.kill(before.keeper, signal.SIGKILL)
    eventually(lambda: process_started(before.pid) != before.started, "the end of the server")
    after = server.wait(owner=owner.pid)
    assert after.keeper != before.keeper
    assert query(server) == 7


def test_it_is_stopped_as_the_doctor_says(server: ResidentServer, home: Path) -> None:
    before = server.wait()
    (finding,) = resident_spark(home)
    assert str(before.pid) in follow(finding.message, "sparks", home)
    assert process_started(before.pid) != before.started
    assert process_started(before.keeper) != before.keeper_started
    assert server.files.access() is None


def test_it_ends_with_its_owner(server: ResidentServer, owner: subprocess.Popen[bytes]) -> None:
    before = server.wait(owner=owner.pid)
    owner.kill()
    owner.wait()
    eventually(lambda: process_started(before.pid) != before.started, "the end of the server")
    eventually(lambda: process_started(before.keeper) != before.keeper_started, "the end of its keeper")
    assert server.files.access() is None, "neither address nor token is left"


@pytest.mark.recovery
def test_its_owner_does_not_take_it_from_another_run(nursery: Nursery, tmp_path: Path) -> None:
    """`drainmark dev` ends while `drainmark run` is in a group. The group goes on; the server ends after the run."""
    home = tmp_path / "home"
    server = server_of(home)
    first = owner_process()
    before = server.wait(owner=first.pid)
    scene = waiting_scene(nursery, home, tmp_path)
    child = scene.start()
    eventually((tmp_path / "held").exists, "a query that waits")
    first.kill()
    first.wait()
    time.sleep(CLIENT_GRACE_SECONDS + 5)
    found = up(server)
    assert found is not None
    assert (found.pid, found.starts) == (before.pid, before.starts)
    (tmp_path / "hold").unlink()
    ended = child.wait()
    assert ended.code == 0, ended
    scene.assert_each_file_once()
    eventually(lambda: process_started(before.keeper) != before.keeper_started, "the end of its keeper")
    assert process_started(before.pid) != before.started


@pytest.mark.recovery
def test_it_ends_when_nobody_uses_it_and_starts_again(tmp_path: Path) -> None:
    server = server_of(tmp_path / "home", spark_idle_seconds=15.0)  # a process that asks needs some to start
    before = server.wait()
    assert query(server) == 7
    eventually(lambda: process_started(before.keeper) != before.keeper_started, "the end of its keeper")
    assert process_started(before.pid) != before.started
    after = server.wait()
    assert after.pid != before.pid
    os.kill(after.keeper, signal.SIGTERM)
    eventually(lambda: process_started(after.pid) != after.started, "the end of the server")


@pytest.mark.recovery
def test_what_cannot_start_says_why(tmp_path: Path) -> None:
    server = server_of(tmp_path / "home", spark_conf={"spark.driver.memory": "nonsense"})
    with pytest.raises(SparkLost, match="nonsense"):
        server.wait(seconds=60)
    os.kill(server.files.access().keeper, signal.SIGTERM)


def test_a_file_of_another_boot_is_not_trusted(tmp_path: Path) -> None:
    pid = os.getpid()
    access = Access(keeper=pid, keeper_started=process_started(pid) or "", boot="another", pid=pid)
    assert not access.is_kept
    assert not access.is_up


def test_an_error_of_a_query_is_no_lost_server() -> None:
    assert lost_engine(ValueError("UNAVAILABLE")) is None
    assert isinstance(lost_engine(SparkLost("gone")), SparkLost)
