"""Part `recovery`: from SIGKILL, in the middle of a backlog, to the first commit of new rows that a reader sees.

All contenders do the job of parts `one` and `bulk` with the same number of files in a trigger, as child processes.
After some commits, the whole process group gets SIGKILL, and the same command is started again at once. The clock runs
from the kill to the first Delta commit to the append sink that adds rows of files that were not committed before. A
commit that only publishes a group committed before the kill does not count, though readers gain rows by it.

- `bare`: `drainmark run` with Spark in the process: a JVM starts anew.
- `peer`: Structured Streaming, two queries; its driver is the JVM, so it starts anew with any cluster.
- `resident`: `drainmark run` on a Connect server that outlives it, as under `drainmark dev`: no JVM dies.

The benchmark checks that the JVM dies on both sides. It notes the JVMs of a program before the kill. A JVM that
survives the kill is a wrong result, and so is a `bare` or `peer` without a JVM.

In the last round each restarted run goes on to its end, and every row is counted: none is lost or doubled.
`recovery_ratio` is bare over peer: in both everything dies. `recovery_ratio_warm` is resident over peer: it shows the
value of a Spark that survives, and does not compare recovery from the same loss.

Part `recovery_periods` shows how the time depends on the period, which is the amount of input to process again (N33,
F23): `resident` again, with other numbers of files in a trigger, as `recovery_seconds_resident_<files>_files`.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar

import psutil
import pyarrow.parquet as pq
from bench_input import Expected, WrongResult, write_files
from bench_results import Figures, spread
from rich.console import Console

from drainmark.orchestration.testing.crash.killing import ChildServer
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

HERE = Path(__file__).parent
REGION = "bench_app/rows"
FILES_A_TRIGGER = 10
OTHER_PERIODS = (1, 50)
"""Files in a trigger (N33); the backlog is large enough for the larger number."""
_COMMITS_BEFORE = 3
_POLL_SECONDS = 0.005
_PATIENCE_SECONDS = 300.0
_DYING_SECONDS = 10.0


@dataclass(slots=True)
class Contender(ABC):
    """One way to run the job, in a home that is new each round.

    Attributes:
        jvms: JVMs that the program had started when it was killed.
        has_jvm: the program starts a JVM of its own.
    """

    inbox: Path
    home: Path
    process: subprocess.Popen[bytes] | None = None
    files: int = FILES_A_TRIGGER
    jvms: list[psutil.Process] = field(default_factory=list)
    has_jvm: ClassVar[bool] = True

    @property
    @abstractmethod
    def table(self) -> Path:
        """Return the folder of the append sink."""

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command for the first start and for the restart."""

    @abstractmethod
    def note(self) -> None:
        """Note the last committed id, or the last version of the table; called right after the kill."""

    @abstractmethod
    def is_new(self, version: int, adds: list[dict[str, object]]) -> bool:
        """Say whether a commit adds rows that were not committed before the kill."""

    def environment(self) -> Mapping[str, str]:
        return os.environ

    def start(self) -> None:
        """Start the program as leader of a process group."""
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                env=dict(self.environment()), cwd=self.home,
            )  # fmt: skip

    def kill(self) -> float:
        """Note the program's JVMs, kill its process group, and return the monotonic time of the kill."""
        is_running = self.process is not None and self.process.poll() is None
        self.jvms = jvms_below(self.process.pid) if self.process is not None and is_running else []
        killed = time.monotonic()
        if self.process is not None:
            if is_running:
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        return killed

    def require_dead(self) -> None:
        """Check that the program had a JVM, if it should, and that every JVM ends within some seconds.

        Raises:
            WrongResult: a JVM survived (it is killed here), or the program had none.
        """
        if self.has_jvm and not self.jvms:
            raise WrongResult(f"{type(self).__name__} had no JVM when it was killed")
        deadline = time.monotonic() + _DYING_SECONDS
        while (alive := [jvm for jvm in self.jvms if is_alive(jvm)]) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        for jvm in alive:
            jvm.kill()
        if alive:
            raise WrongResult(f"{type(self).__name__}: JVM {[jvm.pid for jvm in alive]} outlived SIGKILL to its group")

    def commits(self) -> Iterator[tuple[int, list[dict[str, object]]]]:
        """Yield (version, adds) of each commit so far that adds rows."""
        for path in sorted((self.table / "_delta_log").glob("*.json")):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            if adds := [line["add"] for line in lines if "add" in line and line["add"]["dataChange"]]:
                yield int(path.stem), adds

    def await_commit(self, *, new: bool) -> None:
        """Wait for a commit that adds new rows, or for `_COMMITS_BEFORE` commits of any kind.

        Raises:
            RuntimeError: the program ended before, or no such commit came in time.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            ended = self.process is None or self.process.poll() is not None
            found = list(self.commits())
            if any(self.is_new(*commit) for commit in found) if new else len(found) >= _COMMITS_BEFORE:
                return
            if ended:
                break
            time.sleep(_POLL_SECONDS)
        self.kill()
        msg = f"no commit came: {(self.home / 'log').read_text(errors='replace')[-3000:]}"
        raise RuntimeError(msg)

    def recover(self) -> float:
        """Run, kill and restart the program; return the seconds from the kill to new rows.

        Raises:
            WrongResult: a JVM survived the kill.
        """
        self.start()
        self.await_commit(new=False)
        killed = self.kill()
        self.start()
        self.note()
        self.await_commit(new=True)
        seconds = time.monotonic() - killed
        self.require_dead()
        return seconds

    def finish(self, expected: Expected) -> None:
        """Wait until the restarted run ends, and count the rows.

        Raises:
            WrongResult: the run failed, or rows are lost or doubled.
        """
        code = self.process.wait(_PATIENCE_SECONDS) if self.process is not None else None
        from deltalake import DeltaTable

        ids = [number for path in DeltaTable(str(self.table)).file_uris()
               for number in pq.read_table(path, columns=["id"], partitioning=None)["id"].to_pylist()]  # fmt: skip
        if code != 0 or len(ids) != expected.kept or len(set(ids)) != len(ids):
            msg = f"{type(self).__name__} ended with {code}: {len(ids)} rows, {len(set(ids))} apart, of {expected.kept}"
            raise WrongResult(msg)


@dataclass(slots=True)
class Bare(Contender):
    """`drainmark run` with Spark in the process."""

    committed: int = 0

    @property
    def table(self) -> Path:
        return self.home / "home" / "lake" / "large_rows"

    def command(self) -> list[str]:
        verb = [sys.executable, "-m", "drainmark.orchestration.cli.main", "run", str(HERE / "bench_app.py")]
        return [*verb, "--input", str(self.inbox), "--home", str(self.home / "home"),
                "--max-group", str(self.files)]  # fmt: skip

    def note(self) -> None:
        place = Workplace(Settings(home=self.home / "home", project_root=self.home))
        self.committed = place.history(REGION).committed_id

    def is_new(self, version: int, adds: list[dict[str, object]]) -> bool:
        stats = [json.loads(str(add["stats"])) for add in adds]
        return any(each["minValues"]["_sequence_id"] > self.committed for each in stats)


@dataclass(slots=True)
class Resident(Bare):
    """`drainmark run` on a Connect server that survives the kill."""

    master: str = ""
    has_jvm: ClassVar[bool] = False

    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "DRAINMARK_SPARK_MASTER": self.master}


@dataclass(slots=True)
class Peer(Contender):
    """Structured Streaming, as `recovery_peer.py` runs it."""

    version: int = field(default=-1)

    @property
    def table(self) -> Path:
        return self.home / "large"

    def command(self) -> list[str]:
        program = [sys.executable, str(HERE / "recovery_peer.py")]
        return [*program, str(self.inbox), str(self.home), str(self.files)]

    def note(self) -> None:
        self.version = max(version for version, _ in self.commits())

    def is_new(self, version: int, adds: list[dict[str, object]]) -> bool:
        return version > self.version


Made = Callable[[Path], Contender]
"""Creates a contender with a home."""


def jvms_below(pid: int) -> list[psutil.Process]:
    """Return the JVMs among the children of a process, and among their children."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found += [child] if child.name() == "java" else []
    return found


def is_alive(process: psutil.Process) -> bool:
    """Say whether a process runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def measure(console: Console, *, quick: bool, root: Path, rounds: int) -> Figures:
    """Kill and restart each contender in turns.

    Raises:
        WrongResult: a restarted run lost or doubled rows.
    """

    def made(inbox: Path, master: str) -> Mapping[str, Made]:
        return {
            "resident": partial(Resident, inbox, master=master),
            "bare": partial(Bare, inbox),
            "peer": partial(Peer, inbox),
        }

    seconds = _in_turns(console, made, root, files=80 if quick else 300, rounds=rounds)
    peer = statistics.median(seconds["peer"])
    figures = _seconds(seconds)
    for name, key in (("bare", "recovery_ratio"), ("resident", "recovery_ratio_warm")):
        figures.update(spread(key, [each / peer for each in seconds[name]]))
    return figures


def measure_periods(console: Console, *, quick: bool, root: Path, rounds: int) -> Figures:
    """Measure `resident` with other numbers of files in a trigger; raises the errors of `measure`."""
    periods = OTHER_PERIODS[:1] if quick else OTHER_PERIODS

    def made(inbox: Path, master: str) -> Mapping[str, Made]:
        resident = partial(Resident, inbox, master=master)
        return {f"resident_{files}_files": partial(resident, files=files) for files in periods}

    return _seconds(_in_turns(console, made, root, files=80 if quick else 300, rounds=rounds))


def _in_turns(
    console: Console, made: Callable[[Path, str], Mapping[str, Made]], root: Path, *, files: int, rounds: int
) -> Mapping[str, list[float]]:
    """Return the seconds of each round by contender; in the last round the rows are counted."""
    inbox = root / "input"
    expected, _ = write_files(inbox, files, seed=15)
    server = ChildServer(root / "server")
    server.start()
    contenders = made(inbox, server.master)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    try:
        _once(Resident(inbox, root / "warm", master=server.master))
        for number in range(rounds):
            for name in list(seconds)[:: -1 if number % 2 else 1]:
                contender = contenders[name](root / f"{name}-{number}")
                seconds[name].append(_once(contender, expected if number == rounds - 1 else None))
                console.print(f"[dim]kill to new rows, {name}: {seconds[name][-1]:.2f} s[/dim]")
    finally:
        server.stop()
    return seconds


def _seconds(seconds: Mapping[str, list[float]]) -> Figures:
    figures: Figures = {}
    for name, each in seconds.items():
        figures.update(spread(f"recovery_seconds_{name}", each, digits=2))
    return figures


def _once(contender: Contender, expected: Expected | None = None) -> float:
    try:
        seconds = contender.recover()
        if expected is not None:
            contender.finish(expected)
    finally:
        contender.kill()
    return seconds
