"""Processes that a test starts in order to kill them: requests to the nursery of `child`, and their ends."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

KILLED = -signal.SIGKILL
WAIT_SECONDS = 180.0


@dataclass(slots=True)
class Ended:
    """The end of a child.

    Attributes:
        code: exit code; negative for a signal.
        events: that the child reported, in order, each with a `step`.
    """

    code: int
    events: list[dict[str, Any]]
    log: str

    @property
    def error(self) -> dict[str, Any]:
        """Return the error that ended the child; {} if there was none."""
        return next((event for event in self.events if event["step"] == "error"), {})

    def steps(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["step"] == name]

    def __str__(self) -> str:
        return f"exit {self.code}, error {self.error}, steps {[e['step'] for e in self.events]}\n{self.log[-3000:]}"


@dataclass(slots=True)
class ChildExit:
    """The exit of one child. It does not depend on the pid, which another process may get later.

    Attributes:
        code: exit code, negative for a signal; None while the child lives.
    """

    code: int | None = None
    has_come: threading.Event = field(default_factory=threading.Event)

    def come(self, code: int) -> None:
        self.code = code
        self.has_come.set()


class Ends:
    """The starts and ends of children, in the order in which the nursery reports them."""

    def __init__(self) -> None:
        self._alive: dict[int, ChildExit] = {}

    def started(self, pid: int) -> ChildExit:
        self._alive[pid] = ChildExit()
        return self._alive[pid]

    def ended(self, pid: int, code: int) -> None:
        self._alive.pop(pid).come(code)


@dataclass(slots=True)
class Running:
    """A running child."""

    pid: int
    end: ChildExit
    outcome: Path
    log: Path

    def wait(self, seconds: float = WAIT_SECONDS) -> Ended:
        """Wait for the child and return its end; a child that does not end in time is killed and fails the test."""
        self.end.has_come.wait(seconds)
        code = self.end.code
        if code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.end.has_come.wait(5)
            msg = f"the child did not end within {seconds:g} s: {self.events()}\n{self.log_text()[-2000:]}"
            raise AssertionError(msg)
        return Ended(code=code, events=self.events(), log=self.log_text())

    def events(self) -> list[dict[str, Any]]:
        if not self.outcome.exists():
            return []
        return [json.loads(line) for line in self.outcome.read_text().splitlines()]

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def signal(self, number: int) -> None:
        if not self.end.has_come.is_set():  # otherwise another process may have the pid now
            os.kill(self.pid, number)

    def await_stopped(self, seconds: float = WAIT_SECONDS) -> None:
        """Wait until SIGSTOP has stopped the child."""
        self._await(lambda: self._state() == "T", seconds, "was not stopped")

    def await_step(self, name: str, seconds: float = WAIT_SECONDS) -> None:
        """Wait until the child has reported a step."""
        self._await(lambda: any(event["step"] == name for event in self.events()), seconds, f"did not reach {name}")

    def _await(self, condition: Any, seconds: float, complaint: str) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline or self._state() in ("Z", "X", ""):
                if condition():
                    return
                msg = f"the child {complaint}: {self.events()}\n{self.log_text()[-3000:]}"
                raise AssertionError(msg)
            time.sleep(0.02)

    def _state(self) -> str:
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return ""


class Nursery:
    """The process that forks children (see `child`); it starts at once. `close` ends it and all its children."""

    def __init__(self) -> None:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "DRAINMARK_"))},
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "drainmark.orchestration.testing.crash.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        self._requests = cast("IO[bytes]", self._process.stdin)
        self._answers = cast("IO[bytes]", self._process.stdout)
        self._started: queue.Queue[tuple[int, ChildExit]] = queue.Queue()
        self._count = 0
        threading.Thread(target=self._listen, daemon=True, name="nursery").start()

    def close(self) -> None:
        self._requests.close()
        self._process.wait(10)

    def start(self, request: Mapping[str, Any], folder: Path) -> Running:
        """Start a child; its log and its events are written to the folder.

        Args:
            request: `home`, `root`, `master`, `app`, `inputs`, `region`, `steps`, and as needed `params`, `settings`,
                `failpoints` (as `arm` takes them).
        """
        self._count += 1
        outcome, log = (folder / f"child-{self._count}.{kind}" for kind in ("events", "log"))
        line = json.dumps({**request, "outcome": str(outcome), "log": str(log)})
        self._requests.write(line.encode() + b"\n")
        self._requests.flush()
        pid, end = self._started.get(timeout=60)
        return Running(pid=pid, end=end, outcome=outcome, log=log)

    def _listen(self) -> None:
        ends = Ends()
        for line in self._answers:
            told = json.loads(line)
            if "started" in told:
                self._started.put((told["started"], ends.started(told["started"])))
            elif "ended" in told:
                ends.ended(told["ended"], told["code"])


def codes(ended: Sequence[Ended]) -> list[int]:
    return [child.code for child in ended]
