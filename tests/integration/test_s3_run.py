"""Whole runs with every table in a bucket of S3 or Azure: those of a disk, also after a kill (D3, H10)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import azurite
import canary
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from harness import opened, run_once, settle, sinks

from drainmark.jobs.state import keyed_state
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.checkpoints.as_of import read_at
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine
from drainmark.resources.storage.bucket_folder import BucketFolder
from drainmark.resources.storage.object_store import ObjectStore

pytestmark = pytest.mark.spark

REGION = "shop/lines"
TABLES = ("words", "counts")
APPLICATION = """
import drainmark as dm
from pyspark.sql import DataFrame
from pyspark.sql import functions as F


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    return scanned


stop_words = dm.lookup("stop_words")


@dm.functor(vectorised=True)
def words(lines: DataFrame, stop_words: DataFrame) -> DataFrame:
    found = dm.select(lines, F.explode(F.split("value", " ")).alias("word"))
    return found.join(stop_words, "word", "left_anti")


counts = dm.aggregate(words, keys=["word"], values={"count": dm.count()})
dm.sink(words, dm.DeltaAppend("words"))
dm.sink(counts, dm.DeltaUpsert("counts", keys=["word"]))
"""


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """Return a folder with six files of a few words."""
    folder = tmp_path / "inbox"
    folder.mkdir()
    for number in range(6):
        words = " ".join(f"w{number * step % 7} the" for step in range(1, 9))
        (folder / f"{number}.txt").write_text(words)
    settle(folder)
    (tmp_path / "shop.py").write_text(APPLICATION)
    return folder


@pytest.fixture(params=["s3", "azure"])
def bucket(request: pytest.FixtureRequest, s3_server: str, s3_credentials: None) -> BucketFolder:
    """Return a prefix of its own in a bucket."""
    store = ObjectStore(s3_server)
    if request.param == "azure":
        return BucketFolder(store, request.getfixturevalue("azure"), uuid4().hex)
    store.connection.client.create_bucket(Bucket="lake")
    return BucketFolder(store, "s3://lake", uuid4().hex)


Placed = Callable[..., tuple[Workplace, Workplace]]


@pytest.fixture
def placed(tmp_path: Path, engine: SparkEngine, bucket: BucketFolder) -> Iterator[Placed]:
    """Yield a function that opens two homes, with tables beside it and in the bucket, each with a lookup table."""
    opened_homes: list[Workplace] = []

    def open_both(**more: Any) -> tuple[Workplace, Workplace]:
        far = {"tables_url": bucket.uri, "s3_endpoint_url": bucket.store.connection.endpoint_url}
        for name, where in (("near", {}), ("far", far)):
            place = Workplace(Settings(home=tmp_path / name, project_root=tmp_path, **where, **more))
            place.use_engine(engine)
            opened_homes.append(place)
            target = place.tables / "lake" / "stop_words"
            stop_words = pa.table({"word": ["the"], "kind": ["article"]})
            options = target.storage_options()
            write_deltalake(target.uri, stop_words, storage_options=options, partition_by=["kind"])
        near_place, far_place = opened_homes
        return near_place, far_place

    yield open_both
    for place in opened_homes:
        place.registry.close()


def both(near: Workplace, far: Workplace) -> tuple[Any, Any]:
    """Return the sinks of both homes."""
    return sinks(near, REGION, TABLES, ids=True), sinks(far, REGION, TABLES, ids=True)


@pytest.mark.seed("D3", "H29")
@pytest.mark.parametrize("is_large", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_in_a_bucket_leaves_the_tables_that_one_on_a_disk_leaves(
    inbox: Path, placed: Placed, bucket: BucketFolder, is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small outputs are written by one put, large ones by tasks; tasks read a large state."""
    if is_large:
        monkeypatch.setattr(keyed_state, "MEMORY_STATE_BYTES", 0)
        monkeypatch.setattr(keyed_state, "_IMAGE_MINIMUM_ROWS", 5)
    near, far = placed(**({"small_group_bytes": 0} if is_large else {}))
    application = opened(inbox.parent / "shop.py", inbox)
    for place in (near, far):
        run_once(place, application, max_group=3 if is_large else 6)
    expected, found = both(near, far)
    assert found == expected
    assert far.history(REGION).committed_id == 6
    assert far.known_regions() == (REGION,)
    assert not {"checkpoints", "state", "lake"} & {entry.name for entry in far.home.iterdir()}

    for place in (near, far):
        with owning(region_owner(place, REGION)) as owner:
            assert owner.rewind(2, 10_000) == 4
    expected, found = both(near, far)
    assert found == expected
    for place in (near, far):
        run_once(place, application, max_group=4)
    expected, found = both(near, far)
    assert found == expected
    assert_same_at(2, near, far, monkeypatch)
    keys = assert_no_canary(inbox.parent, bucket)
    assert any("/rows/" in key for key in keys) is is_large


def assert_same_at(number: int, near: Workplace, far: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the results of `dm.read`, which finds the bucket by the settings."""
    expected = read_at("shop", "counts", at=number, home=str(near.home))
    monkeypatch.setenv("DRAINMARK_TABLES_URL", far.settings.tables_url)
    monkeypatch.setenv("DRAINMARK_S3_ENDPOINT_URL", str(far.settings.s3_endpoint_url))
    assert read_at("shop", "counts", at=number, home=str(far.home)).to_pylist() == expected.to_pylist()
    assert expected.num_rows


def assert_no_canary(folder: Path, bucket: BucketFolder) -> list[str]:
    """Assert that no file or object that the runs left has the credentials (Z5); return the keys."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    secrets = [secret.encode() for secret in (*canary.ALL, azurite.KEY)]
    assert not [path for path in files for secret in secrets if secret in path.read_bytes()]
    keys = [found.key for page in bucket.store.pages(bucket.bucket, bucket.prefix) for found in page]
    assert keys
    assert not [key for key in keys for secret in secrets if secret in bucket.store.get(bucket.bucket, key)]
    return keys


@pytest.mark.seed("H10", "H3")
@pytest.mark.recovery
@pytest.mark.parametrize("point", ["checkpoint.after_commit", "publish.after_commit", "checkpoint.before_commit"])
def test_a_run_killed_around_a_commit_is_finished_by_the_next(
    inbox: Path, placed: Placed, bucket: BucketFolder, point: str
) -> None:
    near, far = placed()
    source = str(inbox.parent / "shop.py")
    application = opened(source, inbox)
    run_once(near, application, max_group=2)

    environment = {
        **os.environ,
        "DRAINMARK_TABLES_URL": bucket.uri,
        "DRAINMARK_S3_ENDPOINT_URL": str(bucket.store.connection.endpoint_url),
        "DRAINMARK_FAILPOINTS": f"{point}:kill:2",
    }
    command = [sys.executable, "-m", "drainmark.orchestration.cli.main"]
    run = ["run", source, "--input", str(inbox), "--max-group", "2", "--home", str(far.home)]
    assert subprocess.run([*command, *run], env=environment, check=False, timeout=180).returncode == -signal.SIGKILL

    run_once(far, application, max_group=2)

    assert sinks(far, REGION, TABLES) == sinks(near, REGION, TABLES)
    del environment["DRAINMARK_FAILPOINTS"]
    told = subprocess.run(
        [*command, "status", "--json", "--home", str(far.home)], env=environment, check=True, capture_output=True
    )
    (status,) = json.loads(told.stdout)
    assert (status["region"], status["pending_triggers"]) == (REGION, 0)


class Moto:
    """A server that can be killed. Its objects are in memory, so they are copied into the next server."""

    def __init__(self) -> None:
        self.port = 0
        self._start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _start(self) -> None:
        program = Path(__file__).parents[1] / "moto_server.py"
        command = [sys.executable, str(program), "127.0.0.1", str(self.port)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def kill(self, bucket: str) -> Callable[[], None]:
        """Kill the server; return a function that starts it again, with the same objects."""
        store = ObjectStore(self.url)
        held = {found.key: store.get(bucket, found.key) for page in store.pages(bucket) for found in page}
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

        def start() -> None:
            self._start()
            again = ObjectStore(self.url)
            again.connection.client.create_bucket(Bucket=bucket.removeprefix("s3://"))
            for key, body in held.items():
                again.put(bucket, key, body)

        return start


@pytest.fixture
def moto() -> Iterator[Moto]:
    server = Moto()
    yield server
    server.process.kill()
    server.process.wait()


@pytest.mark.seed("D13", "R2")
@pytest.mark.recovery
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("s3_credentials")
@pytest.mark.parametrize("point", ["checkpoint.before_commit", "publish.before_commit"])
def test_a_store_that_is_killed_under_a_run_costs_no_attempt_and_no_row(
    inbox: Path, tmp_path: Path, engine: SparkEngine, moto: Moto, point: str
) -> None:
    store = ObjectStore(moto.url)
    store.connection.client.create_bucket(Bucket="lake")
    folder = BucketFolder(store, "s3://lake", "tables")
    far = {"tables_url": folder.uri, "s3_endpoint_url": moto.url}
    near, place = (
        Workplace(Settings(home=tmp_path / name, project_root=tmp_path, **where))
        for name, where in (("near", {}), ("far", far))
    )
    for each in (near, place):
        each.use_engine(engine)
        target = each.tables / "lake" / "stop_words"
        rows = pa.table({"word": ["the"], "kind": ["article"]})
        write_deltalake(target.uri, rows, storage_options=target.storage_options())
    source = str(inbox.parent / "shop.py")
    run_once(near, opened(source, inbox), max_group=2)
    environment = {
        **os.environ,
        "DRAINMARK_TABLES_URL": folder.uri,
        "DRAINMARK_S3_ENDPOINT_URL": moto.url,
        "DRAINMARK_FAILPOINTS": f"{point}:stop:2",
    }
    command = [sys.executable, "-m", "drainmark.orchestration.cli.main", "run", source, "--input", str(inbox)]
    options = ["--max-group", "2", "--home", str(place.home), "--attempts", "1", "--json"]
    run = subprocess.Popen([*command, *options], env=environment, stderr=subprocess.PIPE, text=True)
    try:
        os.waitid(os.P_PID, run.pid, os.WSTOPPED)
        start = moto.kill("s3://lake")
        run.send_signal(signal.SIGCONT)
        _, told = run.communicate(timeout=400)
    finally:
        run.kill()
    assert (run.returncode, json.loads(told.splitlines()[-1])["error"]["id"]) == (1, "STORE_UNAVAILABLE"), told
    start()

    run_once(place, opened(source, inbox), max_group=2)

    assert sinks(place, REGION, TABLES) == sinks(near, REGION, TABLES)
    assert place.history(REGION).attempts == 0
    for each in (near, place):
        each.registry.close()
