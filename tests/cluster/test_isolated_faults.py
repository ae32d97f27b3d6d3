"""Faults of workers that share only a bucket with the run: in the middle of a task, before and after a shuffle.

Plain Python gives the expected rows: no row is lost or doubled, and `gc` takes the files of attempts that came too
late. Runs are drivers of the cluster ("session"), or clients of a Connect server of others on it.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from clusters import Project, connect_server, standalone, why_not_isolated
from fault_proxy import Fault, fault_proxy
from test_isolated import LINES, Bucketed, Isolated, hidden_from_workers, isolated

from drainmark.resources.storage.object_store import ObjectStore

__all__ = ["isolated"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(bool(why_not_isolated()), reason=why_not_isolated()),
]

PATIENCE = 600.0
LATER = 350
"""A number that is in each file, after the rows with which a function is tried before its first group."""
MANY = 40
"""Fewer rows than a file has of a key, but more than the rows with which a function is tried before its first group."""

MISHAP = """
import os
import random
import signal
from dataclasses import dataclass

import drainmark as dm
from pyspark.sql.functions import udf

FLAG = "{flag}"


def parent(pid):
    with open(f"/proc/{{pid}}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])


def mishap(place):
    \"\"\"Do once what the flag says of a place in the program.\"\"\"
    try:
        with open(FLAG) as flag:
            where, what = flag.read().split()
        if where != place:
            return
        os.rename(FLAG, FLAG + ".done")
    except FileNotFoundError:
        return
    executor = parent(os.getppid())  # the daemon's parent
    if what == "kill-executor":
        os.kill(executor, signal.SIGKILL)
    elif what == "decommission":
        os.kill(executor, signal.SIGPWR)
    elif what == "kill-worker":
        os.kill(parent(executor), signal.SIGKILL)
"""
"""The beginning of an application: a function for its tasks in which something may happen once."""

_GRAPH = """

@dataclass
class Seen:
    n: int = 0


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="s3://{bucket}/in", pattern="*.csv", format="csv", schema="k string, n int", settle=0))
def events(scanned):
    return scanned


@dm.functor
def rolled(events):
    def roll(n):
        if n == {later}:
            mishap("map")
        return n + random.random()

    return dm.select(events, "k", "n", udf(roll, "double").asNondeterministic()("n").alias("roll"))


@dm.custom(keys=["k"], state=Seen, output="k string, total int", batch="arrow")
def totals(state, events):
    import pyarrow.compute as pc

    if events.num_rows > {many}:
        mishap("reduce")
    n = (state.n if state else 0) + pc.sum(events["n"]).as_py()
    return Seen(n), events.slice(0, 1).select(["k"]).append_column("total", pc.cast([n], "int32"))


counts = dm.aggregate(events, name="counts", keys=["k"], values={{"rows": dm.count(), "most": dm.max("n")}})
dm.sink(counts, dm.DeltaUpsert("counts", keys=["k"]))
dm.sink(totals, dm.DeltaAppend("totals"))
dm.sink(rolled, dm.DeltaAppend("left"))
dm.sink(rolled, dm.DeltaAppend("right"), name="right")
"""
"""Two sinks of a function that gives other values at each call; a state before a shuffle, and one after it."""

APP = MISHAP + _GRAPH


@dataclass(frozen=True, slots=True)
class Faulty(Bucketed):
    """A project with a fault in its tasks."""

    flag: Path

    def befall(self, place: str, what: str) -> None:
        self.flag.write_text(f"{place} {what}")

    @property
    def done(self) -> Path:
        """Return the file that exists once the fault has happened."""
        return Path(f"{self.flag}.done")

    def require(self, *numbers: int) -> None:
        super(Faulty, self).require_tables(*numbers)  # with its name: a dataclass with slots is another class
        running: dict[str, int] = defaultdict(int)
        expected = []
        for number in numbers:
            pairs = [(key, int(n)) for key, n in (line.split(",") for line in LINES[number])]
            for key in {key for key, _ in pairs}:
                running[key] += sum(n for other, n in pairs if other == key)
                expected.append((key, running[key]))
        assert sorted((row["k"], row["total"]) for row in self.rows("totals")) == sorted(expected)

    def staged(self) -> set[str]:
        """Return the names of all Parquet files below the tables."""
        pages = self.store.connection.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        names = (entry["Key"] for page in pages for entry in page.get("Contents", ()))
        return {name for name in names if name.startswith("tables/") and name.endswith(".parquet")}


Make = Callable[..., Faulty]


@pytest.fixture(params=["session", "connect"])
def faulty(
    request: pytest.FixtureRequest, isolated: Isolated, s3_server: str, s3_credentials: None, tmp_path: Path
) -> Iterator[Make]:
    """Yield a function that makes one project; the test may choose the cluster, the endpoint and settings of Spark.

    A Connect server sees the same folders as the workers.
    """
    with contextlib.ExitStack() as servers:

        def make(
            conf: Mapping[str, str] | None = None, *, master: str | None = None, endpoint: str | None = None
        ) -> Faulty:
            name = uuid.uuid4().hex[:12]
            store = ObjectStore(s3_server)
            store.connection.client.create_bucket(Bucket=name)
            address = master or isolated.master
            if request.param == "connect":
                hidden = hidden_from_workers(isolated.away)
                server = connect_server(tmp_path / "server", hidden=hidden, master=address, conf=conf)
                address = servers.enter_context(server)
            project = Project(isolated.away / name, address, conf or {})
            where = {"s3_endpoint_url": endpoint or s3_server, "tables_url": f"s3://{name}/tables"}
            flag = isolated.seen / f"{name}.flag"
            app = APP.format(bucket=name, flag=flag, later=LATER, many=MANY)
            project.write(app, {}, **where, small_group_bytes=0)
            return Faulty(project, store, name, flag)

        yield make


@pytest.mark.seed("DX3")
@pytest.mark.parametrize("place", ["map", "reduce"])
def test_an_executor_killed_before_or_after_a_shuffle_takes_nothing_along(faulty: Make, place: str) -> None:
    """After a shuffle, the executor's part of the exchange is lost with it, and is made again."""
    found = faulty()
    found.put(0, 1, 2, 3)
    found.befall(place, "kill-executor")
    found.run("run", "app.py")
    assert found.done.exists(), "no executor was killed"
    found.require(0, 1, 2, 3)


@pytest.mark.seed("DX3")
def test_an_executor_that_is_decommissioned_in_a_task_hands_over(faulty: Make) -> None:
    conf = {"spark.decommission.enabled": "true", "spark.storage.decommission.enabled": "true",
            "spark.storage.decommission.shuffleBlocks.enabled": "true"}  # fmt: skip
    found = faulty(conf)
    found.put(0, 1, 2, 3)
    found.befall("reduce", "decommission")
    found.run("run", "app.py")
    assert found.done.exists(), "no executor was decommissioned"
    found.require(0, 1, 2, 3)


@pytest.mark.seed("DX3")
def test_a_worker_killed_in_a_task_leaves_the_other_to_do_it(faulty: Make, isolated: Isolated, tmp_path: Path) -> None:
    with standalone(tmp_path, hidden=hidden_from_workers(isolated.away), workers=2) as master:
        found = faulty(master=master)
        found.put(0, 1, 2, 3)
        found.befall("map", "kill-worker")
        found.run("run", "app.py")
    assert found.done.exists(), "no worker was killed"
    found.require(0, 1, 2, 3)


class Holding:
    """The behaviour of a proxy that holds the first file that a task puts for a sink, and all tries of that file.

    Attributes:
        has_come: set when the request for the file has come.
        let_go: the proxy holds the file until this is set.
        task: the number of the partition.
    """

    def __init__(self, *, until_again: bool = False) -> None:
        self.has_come, self.let_go = threading.Event(), threading.Event()
        self.task = ""
        self._first = ""
        self._until_again = until_again
        self._lock = threading.Lock()

    def choose(self, method: str, path: str, before: int) -> Fault | None:
        if method != "PUT" or "/tables/lake/left/" not in path or not path.endswith(".parquet"):
            return None
        task = path.rpartition("/")[2].partition("-")[0]
        with self._lock:
            self._first = self._first or path
            self.task = self.task or task
        self.has_come.set()
        if path == self._first:
            self.let_go.wait(PATIENCE)
        elif task == self.task and self._until_again:  # another attempt at it
            self.let_go.set()
        return None


@pytest.mark.seed("DX3", "H8")
def test_of_two_attempts_at_one_task_one_counts_and_the_other_is_garbage(faulty: Make, s3_server: str) -> None:
    """The first attempt is slow to put its file, so Spark tries again on another executor; then both files come."""
    conf = {"spark.speculation": "true", "spark.speculation.interval": "100ms", "spark.speculation.quantile": "0.1",
            "spark.speculation.multiplier": "1.1", "spark.speculation.task.duration.threshold": "1s"}  # fmt: skip
    with fault_proxy(s3_server) as proxy:
        holding = Holding(until_again=True)
        proxy.choose = holding.choose
        found = faulty(conf, endpoint=proxy.url)
        found.put(0, 1, 2, 3)
        found.run("run", "app.py")
        assert holding.let_go.is_set(), "no task was tried twice"
        found.require(0, 1, 2, 3)
        left = collected_garbage(found)
        assert any("/left/" in name and f"/{holding.task}-" in name for name in left), left
        found.require(0, 1, 2, 3)


@pytest.mark.seed("DX3", "H7", "H8")
def test_what_a_task_writes_after_its_run_was_taken_over_is_garbage(faulty: Make, s3_server: str) -> None:
    """A file of a killed run comes to the bucket after another run has done the group."""
    with fault_proxy(s3_server) as proxy:
        holding = Holding()
        proxy.choose = holding.choose
        found = faulty(endpoint=proxy.url)
        found.put(0, 1)
        with found.project.killed_run():
            assert holding.has_come.wait(PATIENCE), "no task wrote"
        found.run("run", "app.py")
        found.require(0, 1)
        before = found.staged()
        holding.let_go.set()
        deadline = time.monotonic() + PATIENCE
        while not (late := found.staged() - before):
            assert time.monotonic() < deadline, "what was under way did not come"
            time.sleep(0.1)
        found.require(0, 1)
        assert late <= collected_garbage(found)
        found.put(2)
        found.run("run", "app.py")
        found.require(0, 1, 2)


@pytest.mark.seed("DX3", "H8")
def test_a_bucket_that_is_slow_and_loses_replies_gets_everything_once(faulty: Make, s3_server: str) -> None:
    """Every third put of an object succeeds but is reported as failed; every seventh request is refused once."""
    lost = 0

    def choose(method: str, path: str, before: int) -> Fault | None:
        nonlocal lost
        number = len(proxy.seen)
        if method == "PUT" and number % 3 == 0 and not before and "/tables/" in path:
            lost += 1
            return "lost reply"
        return "503" if number % 7 == 0 and not before else None

    with fault_proxy(s3_server) as proxy:
        proxy.choose = choose
        found = faulty(endpoint=proxy.url)
        found.put(0, 1, 2, 3)
        found.run("run", "app.py")
        found.require(0, 1, 2, 3)
    assert lost > 5


@pytest.mark.seed("DX1", "DX3", "DX4")
@pytest.mark.parametrize("faulty", ["connect"], indirect=True)
@pytest.mark.parametrize("point", ["process.staged", "checkpoint.before_commit", "checkpoint.after_commit"])
def test_a_client_killed_at_a_step_leaves_what_the_next_one_makes_whole(faulty: Make, point: str) -> None:
    """The server goes on. A rewind takes half of the files back. `test_isolated.py` has the same test for drivers."""
    found = faulty()
    found.put(0, 1)
    found.run("run", "app.py")
    (status,) = found.run("status")
    found.put(2, 3)
    killed = found.project.drainmark("run", "app.py", DRAINMARK_FAILPOINTS=f"{point}:kill")
    assert killed.code == -9, killed.told
    found.run("run", "app.py")
    found.require(0, 1, 2, 3)
    found.run("reset", "app/events", "--to", str(status["committed_sequence_id"]), "--yes")
    found.require(0, 1)
    found.run("run", "app.py")
    found.require(0, 1, 2, 3)


def collected_garbage(found: Faulty) -> set[str]:
    """Run `gc`; return the files that it took."""
    before = found.staged()
    collected = found.run("gc", "--yes")
    taken = before - found.staged()
    assert sum(entry["files"] for entry in collected) >= len(taken)
    return taken
