"""Workers that share only a bucket with the driver: no project, no home, no Drainmark, no disk of another worker.

Plain Python gives the expected rows of the tables.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import canary
import pytest
from clusters import Project, rows_of, standalone, why_not_isolated

import drainmark
from drainmark.resources.delta import delta_tables, file_lists
from drainmark.resources.storage.bucket_folder import BucketFolder
from drainmark.resources.storage.object_store import ObjectStore

slow = pytest.mark.slow
pytestmark = [
    pytest.mark.skipif(bool(why_not_isolated()), reason=why_not_isolated()),
    pytest.mark.timeout(900),  # it shares the machine with other tests
]

ROWS = 400
LINES = {number: [f"k{n % 7},{n}" for n in range(number, number + ROWS)] for number in range(4)}
BAD = "k1,2,3"
"""A line that is not a record of two columns."""

APP = """
import random

import drainmark as dm
from pyspark.sql.functions import udf


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="s3://BUCKET/in", pattern="*.csv", format="csv", schema="k string, n int", settle=0))
def events(scanned):
    return scanned


@dm.functor
def rolled(events):
    def roll(n):
        return n + random.random()

    return dm.select(events, "k", "n", udf(roll, "double").asNondeterministic()("n").alias("roll"))


counts = dm.aggregate(events, name="counts", keys=["k"], values={"rows": dm.count(), "most": dm.max("n")})
dm.sink(counts, dm.DeltaUpsert("counts", keys=["k"]))
dm.sink(rolled, dm.DeltaAppend("left"))
dm.sink(rolled, dm.DeltaAppend("right"), name="right")
dm.sink(events, dm.FileSink("s3://BUCKET/exports", format="json"), name="exports")
"""
"""Counts; two sinks of a function that gives other values at each call; a sink of files."""


@dataclass(frozen=True, slots=True)
class Isolated:
    """A cluster, and the folder `away`, which only the driver sees."""

    master: str
    away: Path
    seen: Path
    """A folder that workers see, too: tests use it to tell them something."""


def hidden_from_workers(away: Path) -> list[Path]:
    """Return the folders that are empty for workers: the folder of the driver, and Drainmark."""
    package = Path(drainmark.__file__).parent
    rooms = {(package / name).resolve() for name in ("jobs", "resources", "orchestration", "sql")}
    return [away, package, *sorted(rooms)]


@pytest.fixture(scope="module")
def isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Isolated]:
    folder = tmp_path_factory.mktemp("isolated")
    away = folder / "away"
    away.mkdir()
    with pytest.MonkeyPatch.context() as patched:
        for name, value in canary.CREDENTIALS.items():
            patched.setenv(name, value)
        with standalone(folder, hidden=hidden_from_workers(away), workers=2) as master:
            yield Isolated(master, away, folder)


@dataclass(frozen=True, slots=True)
class Bucketed:
    """A project on the cluster, with its inputs and tables in its own bucket."""

    project: Project
    store: ObjectStore
    bucket: str

    def put(self, *numbers: int, bad: bool = False) -> None:
        for number in numbers:
            lines = [*LINES[number], *([BAD] if bad else [])]
            self.store.put(f"s3://{self.bucket}", f"in/{number}.csv", "\n".join(lines).encode())

    def run(self, *arguments: str, **variables: str) -> Any:
        """Run a verb that must succeed; return its JSON."""
        ran = self.project.drainmark(*arguments, **variables)
        assert ran.code == 0, ran.told
        return ran.printed

    def rows(self, table: str) -> list[dict[str, Any]]:
        return rows_of(BucketFolder(self.store, f"s3://{self.bucket}", f"tables/lake/{table}"))

    def made_by_tasks(self, table: str) -> bool:
        """Say whether tasks wrote all files of a visible table: a name begins with the numbers of task and attempt."""
        paths = file_lists.live_paths(
            delta_tables.open_table(BucketFolder(self.store, f"s3://{self.bucket}", f"tables/lake/{table}"))
        )
        return bool(paths) and not any(path.rpartition("/")[2].startswith("00000-0-") for path in paths)

    def require(self, *numbers: int) -> None:
        """Check all sinks against plain Python after the files of these numbers."""
        self.require_tables(*numbers)
        self.require_files(*numbers)

    def require_tables(self, *numbers: int) -> None:
        """Check the tables against plain Python after the files of these numbers."""
        pairs = [(key, int(n)) for number in numbers for key, n in (line.split(",") for line in LINES[number])]
        assert {row["k"]: row["rows"] for row in self.rows("counts")} == Counter(key for key, _ in pairs)
        most = {key: max(n for other, n in pairs if other == key) for key, _ in pairs}
        assert {row["k"]: row["most"] for row in self.rows("counts")} == most
        left, right = (self.rows(table) for table in ("left", "right"))
        assert sorted((row["k"], row["n"]) for row in left) == sorted(pairs)
        rolls = [sorted((row["_sequence_id"], row["n"], row["roll"]) for row in rows) for rows in (left, right)]
        assert rolls[0] == rolls[1]

    def require_files(self, *numbers: int) -> None:
        """Check the files of the file sink in the bucket against plain Python."""
        pairs = [(key, int(n)) for number in numbers for key, n in (line.split(",") for line in LINES[number])]
        names = [name for name in self.store.names(f"s3://{self.bucket}", "exports/") if name != "_drainmark"]
        lines = [
            line for name in names for line in self.store.get(f"s3://{self.bucket}", f"exports/{name}").splitlines()
        ]
        assert len(names) == len(numbers)
        assert sorted((row["k"], row["n"]) for row in map(json.loads, lines)) == sorted(pairs)
        assert list(self.store.names(f"s3://{self.bucket}", "exports/_drainmark/staged/")) == []


def in_a_bucket(isolated: Isolated, s3_server: str, app: str) -> Bucketed:
    """Return a project with its own bucket; the name of the bucket replaces `BUCKET` in the application's text."""
    name = uuid.uuid4().hex[:12]
    store = ObjectStore(s3_server)
    store.connection.client.create_bucket(Bucket=name)
    project = Project(isolated.away / name, isolated.master)
    where = {"s3_endpoint_url": s3_server, "tables_url": f"s3://{name}/tables"}
    project.write(app.replace("BUCKET", name), {}, **where, small_group_bytes=0)
    return Bucketed(project, store, name)


@pytest.fixture
def bucketed(isolated: Isolated, s3_server: str, s3_credentials: None) -> Bucketed:
    return in_a_bucket(isolated, s3_server, APP)


@pytest.mark.seed("DX1", "DX2", "DX3", "DX4", "DX5")
def test_a_group_goes_by_tasks(bucketed: Bucketed) -> None:
    """This is the test of clusters in the default run."""
    bucketed.put(0)
    bucketed.put(1, bad=True)
    bucketed.run("run", "app.py")
    bucketed.require(0, 1)
    assert [(row["raw"], row["position"]) for row in bucketed.rows("app_quarantine")] == [(BAD, ROWS + 1)]
    assert bucketed.made_by_tasks("counts")


@slow
@pytest.mark.seed("DX1", "DX2", "DX3", "DX4", "DX5")
def test_a_bucket_is_all_that_they_have_in_common(bucketed: Bucketed) -> None:
    """There are two groups, the second with bad lines; then a rewind, and a run of the second group again."""
    bucketed.put(0, 1)
    bucketed.put(2, 3, bad=True)
    bucketed.run("run", "app.py", "--max-group", "2")
    bucketed.require(0, 1, 2, 3)
    assert sorted((row["raw"], row["position"]) for row in bucketed.rows("app_quarantine")) == [(BAD, ROWS + 1)] * 2
    assert bucketed.made_by_tasks("counts")
    (status,) = bucketed.run("status")
    bucketed.run("reset", "app/events", "--to", str(status["committed_sequence_id"] - 2), "--yes")
    bucketed.require(0, 1)
    assert bucketed.made_by_tasks("counts")
    bucketed.run("run", "app.py")
    bucketed.require(0, 1, 2, 3)


@slow
@pytest.mark.seed("DX1", "DX4")
def test_doctor_tries_the_bucket_and_says_what_they_need_not_share(bucketed: Bucketed) -> None:
    engine = {entry["check"]: entry for entry in bucketed.run("doctor")["checks"] if "engine" in entry["check"]}
    assert {check: entry["verdict"] for check, entry in engine.items()} == {
        "engine": "ok", "engine_ports": "warn", "engine_versions": "ok", "engine_reach": "ok", "engine_group": "ok",
    }  # fmt: skip
    assert f"s3://{bucketed.bucket}" in engine["engine_reach"]["message"]
    assert "disk" in engine["engine_reach"]["message"]
    assert not bucketed.store.connection.client.list_objects_v2(Bucket=bucketed.bucket).get("Contents")


@slow
@pytest.mark.seed("V2", "K20")
@pytest.mark.parametrize("point", ["process.staged", "checkpoint.before_commit", "checkpoint.after_commit",
                                   "publish.before_commit"])  # fmt: skip
def test_a_driver_killed_at_a_step_leaves_what_the_next_one_makes_whole(bucketed: Bucketed, point: str) -> None:
    bucketed.put(0, 1)
    bucketed.run("run", "app.py")
    bucketed.put(2, 3)
    killed = bucketed.project.drainmark("run", "app.py", DRAINMARK_FAILPOINTS=f"{point}:kill")
    assert killed.code == -9, killed.told
    bucketed.run("run", "app.py")
    bucketed.require(0, 1, 2, 3)


@slow
@pytest.mark.seed("DX1")
def test_small_groups_go_by_tasks_as_well(bucketed: Bucketed) -> None:
    """No executor reads a file that the driver fetches, and a row does not fit."""
    settings = bucketed.project.folder / "drainmark.toml"
    settings.write_text(settings.read_text().replace("small_group_bytes = 0\n", ""))
    bucketed.put(0, bad=True)
    bucketed.put(1)
    bucketed.run("run", "app.py")
    bucketed.require(0, 1)
    assert [row["raw"] for row in bucketed.rows("app_quarantine")] == [BAD]


@slow
@pytest.mark.seed("DX1", "DX3")
def test_files_of_this_machine_are_refused_before_anything_is_claimed(bucketed: Bucketed) -> None:
    (bucketed.project.folder / "inbox" / "0.csv").write_text("k,1\n")
    app = bucketed.project.folder / "app.py"
    app.write_text(app.read_text().replace(f"s3://{bucketed.bucket}/in", "inbox"))
    ran = bucketed.project.drainmark("run", "app.py")
    assert (ran.code, ran.error["id"]) == (2, "CLUSTER_REFUSED"), ran.told
    assert "inbox" in ran.error["message"]
    assert "bucket" in ran.error["remedy"]


@slow
@pytest.mark.seed("DX3")
@pytest.mark.parametrize("option", ['"multiLine": "true"', '"lineSep": "\\n"', '"encoding": "ISO-8859-1"'])
def test_objects_that_are_no_plain_lines_are_read_by_tasks_without_s3a(bucketed: Bucketed, option: str) -> None:
    app = bucketed.project.folder / "app.py"
    app.write_text(app.read_text().replace("settle=0", f"settle=0, options={{{option}}}"))
    bucketed.put(0)
    bucketed.run("run", "app.py")
    bucketed.require(0)


@slow
@pytest.mark.seed("DX3")
def test_a_file_done_again_by_other_code_takes_the_place_of_its_rows(bucketed: Bucketed) -> None:
    app = bucketed.project.folder / "app.py"
    text = app.read_text()
    text = text[: text.index("counts = ")] + 'dm.sink(rolled, dm.DeltaAppend("left"))\n'
    app.write_text(text.replace('"roll"))', '"roll")).where("n % 2 = 0")'))
    bucketed.put(0, 1)
    bucketed.run("run", "app.py")
    app.write_text(text)
    bucketed.run("backfill", "app/events", "--input", f"s3://{bucketed.bucket}/in/1.csv", "--again")
    bucketed.run("run", "app.py")
    pairs = {number: [int(line.partition(",")[2]) for line in LINES[number]] for number in (0, 1)}
    expected = [*(n for n in pairs[0] if n % 2 == 0), *pairs[1]]
    assert sorted(row["n"] for row in bucketed.rows("left")) == sorted(expected)
