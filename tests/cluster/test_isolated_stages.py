"""A region in stages on workers that share only a bucket with the run, and before that on cores of this machine.

Plain Python gives the expected rows of the tables.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from clusters import Project, rows_of, why_not_isolated
from test_isolated import Isolated, isolated

from drainmark.resources.storage.bucket_folder import BucketFolder
from drainmark.resources.storage.object_store import ObjectStore

__all__ = ["isolated"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2000),
    pytest.mark.skipif(bool(why_not_isolated()), reason=why_not_isolated()),
]

ROWS = 300
LINES = {number: [(f"k{n % 7}", n) for n in range(number, number + ROWS)] for number in range(4)}
LATER = 250
"""A number that is in each file, after the rows with which a function is tried before its first group."""
PATIENCE = 600.0

APP = """
import os
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

import drainmark as dm

LIMIT, HELD = (Path(__file__).parent / name for name in ("limit", "held"))


@dm.consistent(trigger="operator-driven", alignment="ALIGNMENT")
@dm.source(dm.DirectoryScan(path="s3://BUCKET/in", pattern="*.csv", format="csv", schema="k string, n int", settle=0))
def events(scanned):
    return scanned


@dm.functor(inputs=[dm.buffered(events, keys=["k"])])
def nth(events):
    def number(batches):
        seen, is_whole = Counter(), False  # a first trial sees less
        for batch in batches:
            is_whole = is_whole or LATER in batch["n"].to_pylist()
            numbers = []
            for key in batch["k"].to_pylist():
                seen[key] += 1
                numbers.append(seen[key])
            yield batch.append_column("nth", pa.array(numbers, pa.int64()))
        if is_whole and os.path.exists("FLAG"):
            os.unlink("FLAG")  # once
            with open(f"/proc/{os.getppid()}/stat") as stat:  # of the daemon, whose parent is the executor
                os.kill(int(stat.read().rpartition(")")[2].split()[1]), 9)

    rows = dm.select(events, "k", "n")
    return rows.mapInArrow(number, StructType([*rows.schema.fields, StructField("nth", LongType())]))


class Slow(dm.StateHandler):
    place = 0

    def process(self, rows, context):
        rows = rows.sort_by("n")
        is_whole = rows.num_rows == ROWS  # a first trial sees less
        while is_whole and LIMIT.exists() and rows["n"][0].as_py() >= int(LIMIT.read_text()):
            HELD.touch()
            time.sleep(0.05)
        first, self.place = self.place, self.place + rows.num_rows
        return rows.add_column(0, "place", pa.array(range(first, self.place), pa.int64()))

    def checkpoint(self, checkpoint):
        checkpoint.write(self.place)

    def reset(self, checkpoint):
        self.place = checkpoint.read(int)

    def reset_to_initial_state(self):
        self.place = 0


slow = dm.operator(Slow, output="place bigint, k string, n int, nth bigint", name="slow",
                   inputs=[dm.buffered(nth, batches=1)])
counts = dm.aggregate(slow, name="counts", keys=["k"], values={"rows": dm.count(), "most": dm.max("nth")})
dm.sink(nth, dm.DeltaAppend("numbered"))
dm.sink(slow, dm.DeltaAppend("placed"))
dm.sink(counts, dm.DeltaUpsert("counts", keys=["k"]))
"""
"""A key's rows get right numbers only if they come on one partition, in order; tests may hold the last stage."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A project with its inputs and tables in its own bucket, on one Spark after another."""

    isolated: Isolated
    project: Project
    store: ObjectStore
    bucket: str

    def on(self, master: str) -> None:
        """Let the project go on with another Spark."""
        path = self.project.folder / "drainmark.toml"
        lines = path.read_text().splitlines()
        kept = [line for line in lines if not line.startswith('"spark_master"')]
        path.write_text("\n".join([f'"spark_master" = "{master}"', *kept]) + "\n")

    def kill_midway(self, files: int, is_so: Callable[[], bool]) -> None:
        """Run until the last stage has done so many files in total and hangs; then kill the run and its Spark."""
        limit, held = (self.project.folder / name for name in ("limit", "held"))
        held.unlink(missing_ok=True)
        limit.write_text(str(files))
        with self.project.killed_run() as run:
            deadline = time.monotonic() + PATIENCE
            while not (held.exists() and is_so()):
                told = (self.project.folder / "run.log").read_text()[-3000:]
                assert run.poll() is None, told
                assert time.monotonic() < deadline, told
                time.sleep(0.2)
        limit.unlink()

    def told(self, *arguments: str) -> Any:
        """Run a verb that must succeed; return its JSON."""
        ran = self.project.drainmark(*arguments)
        assert ran.code == 0, ran.told
        return ran.printed

    @property
    def in_flight(self) -> int:
        """Return the committed number of batches in flight."""
        return int(self.told("status")[0]["inflight_batches"])

    def rows(self, table: str) -> list[dict[str, Any]]:
        return rows_of(BucketFolder(self.store, f"s3://{self.bucket}", f"tables/lake/{table}"))

    def finish(self) -> None:
        """Run to the end, and compare all tables with plain Python."""
        self.told("run", "app.py")
        numbered, placed = [], []
        for lines in LINES.values():
            seen: Counter[str] = Counter()
            for key, n in lines:
                seen[key] += 1
                numbered.append((key, n, seen[key]))
                placed.append((len(placed), key, n, seen[key]))
        assert sorted((row["k"], row["n"], row["nth"]) for row in self.rows("numbered")) == sorted(numbered)
        assert sorted((row["place"], row["k"], row["n"], row["nth"]) for row in self.rows("placed")) == placed
        found = {row["k"]: (row["rows"], row["most"]) for row in self.rows("counts")}
        keys = Counter(key for key, _, _ in numbered)
        assert found == {key: (keys[key], max(nth for k, _, nth in numbered if k == key)) for key in keys}
        assert self.in_flight == 0


@pytest.fixture
def staged(isolated: Isolated, s3_server: str, s3_credentials: None) -> Callable[[str], Staged]:
    def make(alignment: str) -> Staged:
        name = uuid.uuid4().hex[:12]
        store = ObjectStore(s3_server)
        store.connection.client.create_bucket(Bucket=name)
        for number, lines in LINES.items():
            store.put(f"s3://{name}", f"in/{number}.csv", "".join(f"{key},{n}\n" for key, n in lines).encode())
        conf = {"spark.sql.adaptive.coalescePartitions.enabled": "false"}
        project = Project(isolated.away / name, isolated.master, conf)
        app = (
            APP.replace("== ROWS", f"== {ROWS}")
            .replace("LATER", str(LATER))
            .replace("BUCKET", name)
            .replace("ALIGNMENT", alignment)
        )
        settings = {"s3_endpoint_url": s3_server, "tables_url": f"s3://{name}/tables", "small_group_bytes": 0}
        project.write(app.replace("FLAG", str(isolated.seen / f"{name}.flag")), {}, **settings)
        return Staged(isolated, project, store, name)

    return make


@pytest.mark.seed("F6", "F24", "AU9")
@pytest.mark.parametrize("alignment", ["aligned", "unaligned"])
def test_what_is_in_flight_moves_from_one_core_to_four_and_to_a_cluster(
    staged: Callable[[str], Staged], alignment: str
) -> None:
    found = staged(alignment)

    def has_come(done: int) -> bool:
        """Say whether the last stage has done so many files, as committed."""
        committed = len(found.told("history", "app/events"))
        if alignment == "aligned":
            return committed == done
        return committed == len(LINES) and found.in_flight == len(LINES) - done

    for done, cores in enumerate((1, 4), 1):
        found.on(f"local[{cores}]")
        found.kill_midway(done, partial(has_come, done))
    found.on(found.isolated.master)
    found.finish()


@pytest.mark.seed("AU9", "DX3")
@pytest.mark.parametrize("alignment", ["aligned", "unaligned"])
def test_an_executor_killed_in_the_middle_of_a_stage_loses_and_doubles_nothing(
    staged: Callable[[str], Staged], alignment: str
) -> None:
    """The executor's part of the exchange, which brings the rows of a key together, is lost with it."""
    found = staged(alignment)
    flag = found.isolated.seen / f"{found.bucket}.flag"
    flag.touch()
    found.finish()
    assert not flag.exists(), "no executor was killed"
