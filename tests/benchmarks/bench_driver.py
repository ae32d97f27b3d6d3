"""The share of a large group that passes through the process of the run: the bytes that it reads, and its CPU.

The run's process, with Spark's driver, is alone in a network namespace, so the kernel counts every byte that comes by
socket; `/proc` counts the bytes that both read from files. Workers are outside the namespace and share only a bucket
with it; for the kinds `folder_…` they share a folder instead. The figures are those of two groups late in a run, from
commit to commit: the first groups pay for imports, jars, the claim and cold code, and the last one reads no group
ahead. The CPU seconds of executors and their Python workers are counted as well: divided by the driver's, they give the
number of busy cores at which a driver of one core would be the limit.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import canary
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from bench_input import WrongResult
from bench_parts import PassedOver
from bench_results import Figures
from clusters import Project, environment, standalone, why_not_isolated
from rich.console import Console

from drainmark.resources.delta import delta_tables, file_lists
from drainmark.resources.storage.bucket_folder import BucketFolder
from drainmark.resources.storage.folder import Folder, LocalFolder
from drainmark.resources.storage.object_store import ObjectStore

_OUTSIDE, _INSIDE = "10.213.47.1", "10.213.47.2"
_FILES, _GROUPS, _MEASURED, _LINES_A_PIECE = 8, 5, 2, 20_000
_MEGABYTES, _QUICK_MEGABYTES = 500, 16
_SECONDS = 1200
_WATCH_SECONDS = 0.2
_LEAST_SECONDS = 0.01
_LINES = {
    "csv": lambda chance, n: f"k{n % 97},{n},{chance.random()},{chance.getrandbits(256):064x}\n",
    "text": lambda chance, n: f"{n} {chance.getrandbits(512):0128x}\n",
    "json": lambda chance, n: (
        f'{{"k": "k{n % 97}", "n": {n}, "x": {chance.random()}, "t": "{chance.getrandbits(256):064x}"}}\n'
    ),
}
_SCHEMA = "k string, n bigint, x double, t string"
_KINDS = (
    *(("bucket", form) for form in ("csv", "text", "json", "parquet")),
    *(("folder", form) for form in ("csv", "parquet")),
)

_APP = """
import drainmark as dm


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="{path}", pattern="*", format="{format}", schema={schema!r}, settle=0))
def rows(scanned):
    return scanned


dm.sink(rows, dm.DeltaAppend("copied"))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """The cost of a run since its start.

    Attributes:
        through: bytes that the process with the driver read by socket and from files.
        cpu_seconds: CPU seconds of that process and its children, the JVM of the driver among them.
        workers_seconds: CPU seconds of executors, and of their Python workers.
    """

    through: int
    cpu_seconds: float
    workers_seconds: float


def measure(console: Console, *, quick: bool, root: Path) -> Figures:
    """Return driver bytes for an input byte, driver CPU seconds for a gigabyte, and the driver's limit, by kind."""
    if why := why_not_isolated() or _why_no_namespace():
        raise PassedOver(why)
    figures: Figures = {}
    with _wire() as namespace:
        os.environ.update(canary.CREDENTIALS)
        root.joinpath("away").mkdir(parents=True)
        with standalone(root / "cluster", hidden=[root / "away"], workers=2, host=_OUTSIDE) as master:
            for store, form in _KINDS:
                size = (_QUICK_MEGABYTES if quick else _MEGABYTES) * 1024 * 1024
                with _server() as endpoint:  # one for each kind, because it keeps its objects in memory
                    place = _Place(root, namespace, endpoint, master, store, form)
                    figures |= _of_kind(place, size, console)
    kinds = [_name(*kind) for kind in _KINDS]
    for name in ("driver_bytes_per_input_byte", "driver_cpu_seconds_per_gb"):
        figures[name] = max(figures[f"{name}_{kind}"] for kind in kinds)
    figures["driver_limit_cores"] = min(figures[f"driver_limit_cores_{kind}"] for kind in kinds)
    return figures


def _name(store: str, form: str) -> str:
    return form if store == "bucket" else f"{store}_{form}"


def _of_kind(place: _Place, size: int, console: Console) -> Figures:
    """Measure the `_MEASURED` groups before the last of `_GROUPS` groups of about `size` bytes each."""
    piece, repeated = _pieces(place.form)
    times = max(1, size // _FILES // len(piece))
    content, rows = repeated(times), _LINES_A_PIECE * times * _FILES
    given, name = len(content) * _FILES * _MEASURED, _name(place.store, place.form)
    begun, ended = place.run(content, rows)
    through, cpu = ended.through - begun.through, ended.cpu_seconds - begun.cpu_seconds
    cores = (ended.workers_seconds - begun.workers_seconds) / max(cpu, _LEAST_SECONDS)
    console.print(
        f"{name}: {_MEASURED} of {_GROUPS} groups, {given / 2**20:.0f} MB; through the driver "
        f"{through / 2**20:.2f} MB ({through / given:.5f} a byte), {cpu:.2f} s of CPU, {cores:.0f} times as much in "
        f"the workers; all before them: {begun.through / 2**20:.1f} MB, {begun.cpu_seconds:.1f} s",
        highlight=False,
    )
    return {
        f"driver_bytes_per_input_byte_{name}": round(through / given, 5),
        f"driver_cpu_seconds_per_gb_{name}": round(cpu / given * 2**30, 3),
        f"driver_limit_cores_{name}": round(cores, 1),
    }


def _pieces(form: str) -> tuple[bytes, Callable[[int], bytes]]:
    """Return a file of `_LINES_A_PIECE` lines, and a function that repeats these lines in one file."""
    chance = random.Random(7)
    if form != "parquet":
        piece = b"".join(_LINES[form](chance, n).encode() for n in range(_LINES_A_PIECE))
        return piece, lambda times: piece * times
    numbers = range(_LINES_A_PIECE)
    rows = pa.table(
        {
            "k": [f"k{n % 97}" for n in numbers],
            "n": list(numbers),
            "x": [chance.random() for _ in numbers],
            "t": [f"{chance.getrandbits(256):064x}" for _ in numbers],
        }
    )
    return _parquet(rows, 1), lambda times: _parquet(rows, times)


def _parquet(rows: pa.Table, times: int) -> bytes:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, rows.schema, compression="none", use_dictionary=False) as writer:
        for _ in range(times):
            writer.write_table(rows)
    return sink.getvalue()


@dataclass(frozen=True, slots=True)
class _Place:
    """The folders, namespace, endpoint and cluster for runs of one kind."""

    root: Path
    namespace: str
    endpoint: str
    master: str
    store: str
    form: str

    def run(self, content: bytes, rows: int) -> tuple[Passed, Passed]:
        """Run groups of `_FILES` files with this content; return the cost before and after the measured ones.

        Args:
            rows: of a group.

        Raises:
            WrongResult: the run failed, or left another number of rows, or another number of commits than groups.
        """
        name = f"driver-{uuid.uuid4().hex[:12]}"
        folder, tables, more = self._given(name, {f"{n:03}": content for n in range(_GROUPS * _FILES)})
        conf = {"spark.driver.host": _INSIDE, "spark.driver.bindAddress": _INSIDE}
        project = Project(folder, self.master, conf)
        schema = None if self.form == "text" else _SCHEMA
        path = f"s3://{name}/in" if self.store == "bucket" else str(self.root / "given" / name)
        app = _APP.format(path=path, format=self.form, schema=schema)
        project.write(app, {}, small_group_bytes=0, max_group_bytes=2 * 2**30, max_group_triggers=_FILES, **more)
        command = ["ip", "netns", "exec", self.namespace, sys.executable, "-m", "drainmark.orchestration.cli.main"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "run", "app.py"], cwd=folder, stdout=log, stderr=log,
                env=environment(_INSIDE),
            )  # fmt: skip
            watched = _Watch(process.pid)
            code = process.wait(_SECONDS)
        watched.end()
        if code:
            raise WrongResult(f"{self.form}: the run ended with {code}: {(folder / 'log').read_text()[-800:]}")
        lake = tables / "lake/copied"
        copied = delta_tables.open_table(lake)
        found = sum(file.rows for file in file_lists.live_files(copied, lake))
        moments = sorted(entry["timestamp"] / 1000 for entry in copied.history())[1:]  # the first one made the table
        if found != rows * _GROUPS or len(moments) != _GROUPS:
            raise WrongResult(f"{self.form}: {found} rows in {len(moments)} commits, not {rows} in each of {_GROUPS}")
        return watched.at(moments[-2 - _MEASURED]), watched.at(moments[-2])

    def _given(self, name: str, files: Mapping[str, bytes]) -> tuple[Path, Folder, Mapping[str, Any]]:
        """Put files into the input folder or bucket; return the project's folder, the tables' folder, and settings."""
        if self.store == "folder":
            inbox = self.root / "given" / name
            inbox.mkdir(parents=True)
            for each, content in files.items():
                (inbox / each).write_bytes(content)
            folder = self.root / "shared" / name
            return folder, LocalFolder(folder / "home"), {}
        store = ObjectStore(self.endpoint)
        store.connection.client.create_bucket(Bucket=name)
        for each, content in files.items():
            store.put(f"s3://{name}", f"in/{each}", content)
        more = {"s3_endpoint_url": self.endpoint, "tables_url": f"s3://{name}/tables"}
        return self.root / "away" / name, BucketFolder(store, f"s3://{name}", "tables"), more


class _Watch:
    """A thread that watches a process with its children, and Spark's workers, until the process ends."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen: dict[int, tuple[int, float]] = {}
        self._worked: dict[int, float] = {}
        self._passed: list[tuple[float, Passed]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def at(self, moment: float) -> Passed:
        """Return the cost up to a moment, in seconds since 1970."""
        return next(passed for seen, passed in reversed(self._passed) if seen <= moment)

    def _follow(self) -> None:
        while not self._over.wait(_WATCH_SECONDS):
            with contextlib.suppress(OSError, psutil.Error):
                self._look()

    def _look(self) -> None:
        root = psutil.Process(self._pid)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                self._seen[process.pid] = (process.io_counters().read_chars, times.user + times.system)
        for process in _executors():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                self._worked[process.pid] = times.user + times.system
        passed = Passed(
            through=_received(self._pid) + sum(read for read, _ in self._seen.values()),
            cpu_seconds=sum(cpu for _, cpu in self._seen.values()),
            workers_seconds=sum(self._worked.values()),
        )
        self._passed.append((time.time(), passed))


def _executors() -> Iterator[psutil.Process]:
    """Yield the executors of Spark's workers, and their child processes."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.name() == "java" and "org.apache.spark.deploy.worker.Worker" in process.cmdline():
                yield from process.children(recursive=True)


def _received(pid: int) -> int:
    """Return the bytes that the namespace of a process received on any interface, its own loopback included."""
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    return sum(int(line.partition(":")[2].split()[0]) for line in lines)


def _why_no_namespace() -> str:
    if shutil.which("ip") is None or os.geteuid() != 0:
        return "a network namespace takes `ip` and the rights of root"
    return ""


@contextlib.contextmanager
def _wire() -> Iterator[str]:
    """Make a network namespace, linked to this one by a veth pair; yield its name."""
    name = f"dm{uuid.uuid4().hex[:8]}"

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    try:
        ip("netns", "add", name)
        ip("link", "add", f"{name}o", "type", "veth", "peer", "name", f"{name}i")
        ip("link", "set", f"{name}i", "netns", name)
        ip("addr", "add", f"{_OUTSIDE}/30", "dev", f"{name}o")
        ip("link", "set", f"{name}o", "up")
        for device in ("lo", f"{name}i"):
            ip("-n", name, "link", "set", device, "up")
        ip("-n", name, "addr", "add", f"{_INSIDE}/30", "dev", f"{name}i")
    except subprocess.CalledProcessError as error:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        raise PassedOver(f"no network namespace: {error.stderr.decode().strip()}") from error
    try:
        yield name
    finally:
        subprocess.run(["ip", "link", "del", f"{name}o"], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@contextlib.contextmanager
def _server() -> Iterator[str]:
    """Start an S3 server that both namespaces reach; yield its address."""
    program = Path(__file__).parents[1] / "moto_server.py"
    process = subprocess.Popen(
        [sys.executable, str(program), _OUTSIDE, "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        yield f"http://{_OUTSIDE}:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
