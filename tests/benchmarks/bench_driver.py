"""How much of a large group passes through the process of the run: bytes that it reads, and its CPU.

The run's process, with Spark's driver, is alone in a network namespace, so the kernel counts each byte by socket; bytes
of files are those that `/proc` counts for both. Workers are outside, and share nothing with it but a bucket. A run over
one line is taken off: imports, jars and the protocol.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import canary
import psutil
from bench_input import WrongResult
from bench_parts import PassedOver
from bench_results import Figures
from clusters import Project, environment, standalone, why_not_isolated
from rich.console import Console

from drainmark.resources.delta import commits
from drainmark.resources.storage.object_store import ObjectStore
from drainmark.resources.storage.s3_folder import S3Folder

_OUTSIDE, _INSIDE = "10.213.47.1", "10.213.47.2"
_FILES, _LINES_A_PIECE = 8, 20_000
_MEGABYTES, _QUICK_MEGABYTES = 500, 16
_SECONDS = 1200
_LINES = {
    "csv": lambda chance, n: f"k{n % 97},{n},{chance.random()},{chance.getrandbits(256):064x}\n",
    "text": lambda chance, n: f"{n} {chance.getrandbits(512):0128x}\n",
    "json": lambda chance, n: (
        f'{{"k": "k{n % 97}", "n": {n}, "x": {chance.random()}, "t": "{chance.getrandbits(256):064x}"}}\n'
    ),
}
_SCHEMAS = {
    "csv": "k string, n bigint, x double, t string",
    "text": None,
    "json": "k string, n bigint, x double, t string",
}

_APP = """
import drainmark as dm


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="s3://{bucket}/in", pattern="*", format="{format}", schema={schema!r}, settle=0))
def rows(scanned):
    return scanned


dm.sink(rows, dm.DeltaAppend("copied"))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """What a run took: bytes by socket and from files, CPU seconds, of the process and Spark's driver; rows left."""

    by_socket: int
    from_files: int
    cpu_seconds: float
    rows: int


def measure(console: Console, *, quick: bool, root: Path) -> Figures:
    """Return driver bytes an input byte, and driver CPU seconds a gigabyte, by format."""
    if why := why_not_isolated() or _why_no_namespace():
        raise PassedOver(why)
    figures: Figures = {}
    with _wire() as namespace, _server() as endpoint:
        os.environ.update(canary.CREDENTIALS)
        root.joinpath("away").mkdir(parents=True)
        with standalone(root / "cluster", hidden=[root / "away"], workers=2, host=_OUTSIDE) as master:
            for form in _LINES:
                size = (_QUICK_MEGABYTES if quick else _MEGABYTES) * 1024 * 1024
                figures |= _of_format(_Place(root, namespace, endpoint, master, form), size, console)
    for name in ("driver_bytes_per_input_byte", "driver_cpu_seconds_per_gb"):
        figures[name] = max(figures[f"{name}_{form}"] for form in _LINES)
    return figures


def _of_format(place: _Place, size: int, console: Console) -> Figures:
    """Measure a group of about so many bytes against one of a line."""
    form, chance = place.form, random.Random(7)
    piece = "".join(_LINES[form](chance, n) for n in range(_LINES_A_PIECE)).encode()
    times = max(1, size // _FILES // len(piece))
    given = len(piece) * times * _FILES
    empty = place.run({"0": piece[: piece.index(b"\n") + 1]}, expected=1)
    files = {str(number): piece * times for number in range(_FILES)}
    found = place.run(files, expected=_LINES_A_PIECE * times * _FILES)
    through = found.by_socket + found.from_files - empty.by_socket - empty.from_files
    cpu = found.cpu_seconds - empty.cpu_seconds
    console.print(
        f"{form}: {given / 2**20:.0f} MB in {_FILES} objects; through the driver {through / 2**20:.2f} MB "
        f"({through / given:.5f} a byte), {cpu:.1f} s of CPU; a group of one line: "
        f"{(empty.by_socket + empty.from_files) / 2**20:.0f} MB, {empty.cpu_seconds:.1f} s",
        highlight=False,
    )
    return {
        f"driver_bytes_per_input_byte_{form}": round(through / given, 5),
        f"driver_cpu_seconds_per_gb_{form}": round(cpu / given * 2**30, 3),
    }


@dataclass(frozen=True, slots=True)
class _Place:
    """Where runs of one format are made."""

    root: Path
    namespace: str
    endpoint: str
    master: str
    form: str

    def run(self, files: Mapping[str, bytes], *, expected: int) -> Passed:
        """Run a group of these files in a project of its own, in one group.

        Raises:
            WrongResult: the run failed, or left another number of rows.
        """
        bucket = f"driver-{uuid.uuid4().hex[:12]}"
        store = ObjectStore(self.endpoint)
        store.connection.client.create_bucket(Bucket=bucket)
        for name, content in files.items():
            store.put(bucket, f"in/{name}", content)
        conf = {"spark.driver.host": _INSIDE, "spark.driver.bindAddress": _INSIDE}
        project = Project(self.root / "away" / bucket, self.master, conf)
        project.write(
            _APP.format(bucket=bucket, format=self.form, schema=_SCHEMAS[self.form]), {},
            s3_endpoint_url=self.endpoint, tables_url=f"s3://{bucket}/tables", small_group_bytes=0,
            max_group_bytes=2 * 2**30,
        )  # fmt: skip
        folder = project.folder
        before = self._received()
        command = ["ip", "netns", "exec", self.namespace, sys.executable, "-m", "drainmark.orchestration.cli.main"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "run", "app.py"], cwd=folder, stdout=log, stderr=log,
                env=environment(_INSIDE),
            )  # fmt: skip
            watched = _Watch(process.pid)
            code = process.wait(_SECONDS)
        read, cpu = watched.end()
        by_socket = self._received() - before
        if code:
            raise WrongResult(f"{self.form}: the run ended with {code}: {(folder / 'log').read_text()[-800:]}")
        lake = S3Folder(store, bucket, "tables/lake/copied")
        rows = sum(file.rows for file in commits.live_files(commits.open_table(lake), lake))
        if rows != expected:
            raise WrongResult(f"{self.form}: {rows} rows instead of {expected}")
        return Passed(by_socket=by_socket, from_files=read, cpu_seconds=cpu, rows=rows)

    def _received(self) -> int:
        """Return the bytes that came to the namespace by any interface, its own loopback among them."""
        command = ["ip", "netns", "exec", self.namespace, "cat", "/proc/net/dev"]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[2:]
        return sum(int(line.partition(":")[2].split()[0]) for line in lines)


class _Watch:
    """Follows a process and its children to their ends: bytes that they read from files, CPU seconds."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen: dict[int, tuple[int, float]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def end(self) -> tuple[int, float]:
        self._over.set()
        self._thread.join()
        return sum(read for read, _ in self._seen.values()), sum(cpu for _, cpu in self._seen.values())

    def _follow(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._pid)
            while not self._over.is_set():
                for process in [root, *root.children(recursive=True)]:
                    with contextlib.suppress(psutil.Error):
                        times = process.cpu_times()
                        self._seen[process.pid] = (process.io_counters().read_chars, times.user + times.system)
                time.sleep(0.05)


def _why_no_namespace() -> str:
    if shutil.which("ip") is None or os.geteuid() != 0:
        return "a network namespace takes `ip` and the rights of root"
    return ""


@contextlib.contextmanager
def _wire() -> Iterator[str]:
    """Make a network namespace with one wire to this one; yield its name."""
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
    """Start an S3 server that both sides of the wire reach; yield its address."""
    program = (
        "import sys\nfrom moto.server import ThreadedMotoServer\n"
        f"server = ThreadedMotoServer(ip_address={_OUTSIDE!r}, port=0, verbose=False)\nserver.start()\n"
        "print(server.get_host_and_port()[1], flush=True)\nsys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        yield f"http://{_OUTSIDE}:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
