"""Executors that are other processes: the rows that they compute, the folders that they do not reach, their deaths.

The module has one standalone cluster. Its worker shares the disk of this machine, except one folder: it is empty there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from clusters import Project, standalone, why_not_isolated
from deltalake import write_deltalake

slow = pytest.mark.slow
needs_namespaces = pytest.mark.skipif(bool(why_not_isolated()), reason=why_not_isolated())
ROWS = 1000
FILES = {f"{number}.csv": "".join(f"k{n % 7},{n}\n" for n in range(ROWS)) for number in range(2)}
EXPECTED = sorted((f"k{n % 7}", n) for n in range(ROWS) for _ in FILES)

APP = """
import os
import random
import time
from pathlib import Path

import drainmark as dm
from pyspark.sql.functions import udf

HERE = Path(__file__).parent


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema="k string, n int", settle=0))
def events(scanned):
    return scanned


@dm.functor
def dice(events):
    flag = str(HERE / "deadly")

    def roll(n):
        if os.path.exists(flag):
            with open(f"/proc/{os.getppid()}/stat") as stat:  # of the daemon, whose parent is the executor
                os.kill(int(stat.read().rpartition(")")[2].split()[1]), 9)
            time.sleep(600)  # this process ends with the executor; whoever it has as its parent then must not be next
        if n == 999:  # the last row of each file, which no first trial sees
            time.sleep(1.5)
        return random.random()

    return dm.select(events, "k", "n", udf(roll, "double").asNondeterministic()("n").alias("roll"))


counts = dm.aggregate(events, name="counts", keys=["k"], values={"rows": dm.count()})
dm.sink(counts, dm.DeltaUpsert("counts", keys=["k"]))
dm.sink(dice, dm.DeltaAppend("left"), name="l")
dm.sink(dice, dm.DeltaAppend("right"), name="r")
"""
"""Two sinks of a function that gives other values at each call; counts; an executor that dies if a file is there."""
KILLS_EXECUTOR = APP[APP.index("            with open(") : APP.index("        if n == 999")]
KILLS_ITSELF = "            os.kill(os.getpid(), 9)\n"


@dataclass(frozen=True, slots=True)
class Cluster:
    master: str
    hidden: Path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    hidden = folder / "hidden"
    hidden.mkdir()
    with standalone(folder, hidden=[] if why_not_isolated() else [hidden]) as master:
        yield Cluster(master, hidden)


def project(folder: Path, master: str, app: str = APP) -> Project:
    found = Project(folder, master)
    found.write(app, FILES, small_group_bytes=0)
    return found


def require_whole(found: Project) -> None:
    """Check the tables against plain Python; both sinks of the function must have the same values in each row."""
    left, right = (found.rows(table) for table in ("left", "right"))
    assert sorted((row["k"], row["n"]) for row in left) == EXPECTED
    rolls = [{(row["_sequence_id"], row["n"]): row["roll"] for row in rows} for rows in (left, right)]
    assert len(rolls[0]) == len(EXPECTED)
    assert rolls[0] == rolls[1]
    assert {row["k"]: row["rows"] for row in found.rows("counts")} == Counter(key for key, _ in EXPECTED)


@slow
@pytest.mark.seed("DX1", "DX2", "DX4", "DX5", "H15")
def test_two_executors_that_share_this_disk_do_the_work(cluster: Cluster, tmp_path: Path) -> None:
    """One partition takes seconds: the job of the second sink could find the other executor free, and compute again."""
    found = project(tmp_path / "project", cluster.master)
    ran = found.drainmark("run", "app.py")
    assert ran.code == 0, ran.told
    require_whole(found)


@slow
@needs_namespaces
@pytest.mark.seed("DX1", "DX3")
def test_workers_that_do_not_see_home_are_refused(cluster: Cluster) -> None:
    found = project(cluster.hidden / "project", cluster.master)
    ran = found.drainmark("run", "app.py")
    assert (ran.code, ran.error["id"]) == (2, "CLUSTER_REFUSED"), ran.told
    assert str(found.folder / "home") in ran.error["message"]
    assert not list((found.folder / "home").glob("lake/*/*.parquet"))


@slow
@needs_namespaces
@pytest.mark.seed("DX1", "DX3")
def test_workers_that_see_home_and_not_the_inputs_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    inbox = cluster.hidden / "inbox"
    inbox.mkdir()
    for name, text in FILES.items():
        (inbox / name).write_text(text)
    found = Project(tmp_path / "project", cluster.master)
    found.write(APP.replace('path="inbox"', f'path="{inbox}"'), {}, small_group_bytes=0)
    ran = found.drainmark("run", "app.py")
    assert (ran.code, ran.error["id"]) == (2, "CLUSTER_REFUSED"), ran.told
    assert str(inbox) in ran.error["message"]


OTHERS = """
import drainmark as dm

places = dm.lookup("places")


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema="k string, n int", settle=0))
def events(scanned):
    return scanned


@dm.functor(inputs=[events, places])
def placed(events, places):
    return dm.select(events.join(places, "k", "left"), "k", "n")


dm.sink(placed, dm.DeltaAppend("theirs", adopt=True))
"""
"""Two adopted tables: a lookup reads one, a sink writes to the other."""


def beside_others(folder: Path, cluster: Cluster, hidden: str = "") -> Project:
    """Return a project with both tables; the table `hidden` is a link to a folder that workers do not see."""
    found = project(folder, cluster.master, OTHERS)
    lake = folder / "home" / "lake"
    for table in ("theirs", "places"):
        columns = {"k": pa.array(["k1"]), **({"n": pa.array([1], pa.int32())} if table == "theirs" else {})}
        write_deltalake(cluster.hidden / hidden if table == hidden else lake / table, pa.table(columns))
    if hidden:
        (lake / hidden).symlink_to(cluster.hidden / hidden)
    return found


@slow
@pytest.mark.seed("DX1")
def test_executors_write_to_a_table_of_others_that_all_see(cluster: Cluster, tmp_path: Path) -> None:
    found = beside_others(tmp_path / "project", cluster)
    ran = found.drainmark("run", "app.py")
    assert ran.code == 0, ran.told
    assert sorted((row["k"], row["n"]) for row in found.rows("theirs") if row["_sequence_id"]) == EXPECTED


@needs_namespaces
@pytest.mark.seed("DX1")
@slow
@pytest.mark.parametrize("hidden", ["theirs", "places"])
def test_workers_that_see_home_and_not_a_table_of_others_are_refused(
    cluster: Cluster, tmp_path: Path, hidden: str
) -> None:
    """A link in the lake leads to a disk that the workers do not have: only they would see files that they write."""
    found = beside_others(tmp_path / "project", cluster, hidden)
    lake, place = found.folder / "home" / "lake", cluster.hidden / hidden
    ran = found.drainmark("run", "app.py")
    assert (ran.code, ran.error["id"]) == (2, "CLUSTER_REFUSED"), ran.told
    assert str(lake / hidden) in ran.error["message"]
    assert not list((found.folder / "home").glob("checkpoints/*/*/_delta_log"))
    assert not list(place.glob(".reach*"))


def require_innocence(found: Project, error: str, operator: str | None = None) -> None:
    """Run while the function kills its process, and then without that; the function must not get the blame."""
    (found.folder / "deadly").touch()
    ran = found.drainmark("run", "app.py", "--attempts", "1")
    assert (ran.code, ran.error["id"], ran.error["operator"]) == (1, error, operator), ran.told
    assert "file by file" not in ran.told
    (status,) = found.drainmark("status").printed
    assert (status["last_error"]["id"], status["split"]) == (error, None)
    (found.folder / "deadly").unlink()
    ran = found.drainmark("run", "app.py")
    assert ran.code == 0, ran.told
    require_whole(found)


@slow
@pytest.mark.seed("DX3")
def test_an_executor_that_dies_is_no_fault_of_a_function(cluster: Cluster, tmp_path: Path) -> None:
    require_innocence(project(tmp_path / "project", cluster.master), "ENVIRONMENT_FAILED")


@slow
@pytest.mark.seed("DX3")
def test_a_local_spark_that_dies_is_no_fault_of_a_function(tmp_path: Path) -> None:
    require_innocence(project(tmp_path / "project", "local[2]"), "SPARK_LOST")


@slow
@pytest.mark.seed("DX3")
def test_a_python_worker_that_dies_is_told_with_the_function_that_it_ran(tmp_path: Path) -> None:
    """The worker dies as if the system killed it for lack of memory, for which the function may be the reason."""
    found = project(tmp_path / "project", "local[2]", APP.replace(KILLS_EXECUTOR, KILLS_ITSELF))
    require_innocence(found, "WORKER_DIED", operator="dice")
