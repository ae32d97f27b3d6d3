"""The process that is killed: it scans, runs or rewinds a region with fail points armed, mostly on a Connect server.

Run with `python -m`, this module is a nursery: it reads one request per line from standard input, forks a child for
each, and reports pids and exit codes on standard output. So a child costs no imports. The nursery itself never opens a
thread, a socket or a table, so a forked child behaves like a new process.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pkgutil
import select
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from drainmark.orchestration.runs.region_runs import region_owner

_POLL_SECONDS = 0.02


def nursery() -> None:
    """Fork a child for each request until standard input ends."""
    _import_all()
    _tell({"ready": True})
    alive: set[int] = set()
    while True:
        readable, _, _ = select.select([sys.stdin.fileno()], [], [], _POLL_SECONDS)
        if readable:
            line = _read_line()
            if not line:
                break
            pid = os.fork()
            if pid == 0:
                _child(json.loads(line))
            alive.add(pid)
            _tell({"started": pid})
        while alive:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            alive.discard(pid)
            _tell({"ended": pid, "code": os.waitstatus_to_exitcode(status)})
    for pid in alive:
        os.kill(pid, signal.SIGKILL)


_IMPORTED = (
    *("deltalake", "obstore", "pyarrow.acero", "pyarrow.csv", "pyarrow.dataset", "pyspark.sql.functions"),
    *("grpc._channel", "pyspark.sql.connect.functions", "pyspark.sql.connect.session"),
)


def _import_all() -> None:
    """Import all modules that children may need, so that they share them: a short-lived child mostly imports."""
    rooms = (
        "jobs",
        "resources",
        "orchestration.html_report",
        "orchestration.runs",
        "orchestration.verbs",
        "orchestration.inspection",
        "orchestration.workplace",
    )
    for room in (importlib.import_module(f"drainmark.{name}") for name in rooms):
        for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            importlib.import_module(module.name)
    for name in ("drainmark.api", "drainmark.orchestration.testing.processing", *_IMPORTED):
        importlib.import_module(name)


def _read_line() -> bytes:
    # Unbuffered: select would not see a line that waits in a buffer.
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return b""
        line += byte
    return line


def _tell(value: dict[str, Any]) -> None:
    os.write(1, json.dumps(value).encode() + b"\n")


# --- one child ----------------------------------------------------------------------------------------------------


def _child(request: dict[str, Any]) -> None:
    """Execute a request and end the process, with the exit codes of the command line."""
    code = 1
    try:
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = Child(request).work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Child:
    """One request: it does `steps` in order, each a list of verb and arguments, until one fails."""

    def __init__(self, request: dict[str, Any]) -> None:
        from drainmark.orchestration.testing.processing import settings_of
        from drainmark.orchestration.workplace.workplace import Workplace

        self.request = request
        more = {"spark_master": request["master"], **request.get("settings", {})}
        self.workplace = Workplace(settings_of(Path(request["home"]), Path(request["root"]), **more))
        if request["master"].startswith("sc://"):  # the test has started this server, so it need not be probed
            from drainmark.resources.spark.session import SparkEngine

            self.workplace.use_engine(SparkEngine(request["master"], {}, self.workplace.home / "spark"))
        self._outcome = Path(request["outcome"])
        self._opened: Any = None

    def work(self) -> int:
        from drainmark.jobs.errors import DrainmarkError
        from drainmark.jobs.failpoints import arm

        arm(self.request.get("failpoints") or "")
        self._say("started", {})
        try:
            for verb, *arguments in self.request["steps"]:
                getattr(self, f"_{verb}")(*arguments)
        except DrainmarkError as error:
            traceback.print_exc()
            facts = {name: str(value) for name, value in error.facts.items()}
            self._say("error", {**error.to_json(), "facts": facts})
            return error.exit_code
        except Exception as error:
            traceback.print_exc()
            self._say("error", {"id": type(error).__name__, "message": str(error)})
            return 1
        self._say("done", {})
        return 0

    @property
    def region(self) -> str:
        return str(self.request["region"])

    @property
    def opened(self) -> Any:
        from drainmark.orchestration.workplace.workplace import open_application

        if self._opened is None:
            application = self.request["app"]
            if topics := self.request.get("topics"):
                from drainmark.jobs.graph.application import load_application
                from drainmark.orchestration.testing.topics import with_topics

                application = with_topics(load_application(application), topics)
            self._opened = open_application(
                application, params=self.request.get("params", {}), inputs=self.request["inputs"]
            )
        return self._opened

    def _scan(self) -> None:
        from drainmark.orchestration.testing.processing import scan

        found = scan(self.workplace, self.opened, self.opened.region(self.region))
        self._say("scan", {"new": len(found.new), "refused": [list(entry) for entry in found.refused]})

    def _run(self, max_group: int | None = None) -> None:
        from drainmark.orchestration.runs.interruption import ending_gracefully
        from drainmark.orchestration.runs.region_runs import region_run
        from drainmark.orchestration.testing.processing import drive

        region = self.opened.region(self.region)
        run = region_run(self.workplace, self.opened, region, report=self._say, max_group=max_group)
        with ending_gracefully(run.interrupted.set):
            drive(run)

    def _rewind(self, to: int, horizon: int = 10_000) -> None:
        from drainmark.orchestration.testing.processing import rewind

        rewind(self.workplace, self.region, to, horizon, report=self._say)

    def _own(self) -> None:
        """Claim and hand over, nothing else, as any command of an operator does."""
        from drainmark.orchestration.workplace.hand_off import owning

        with owning(region_owner(self.workplace, self.region, report=self._say)):
            pass

    def _compact(self) -> None:
        """Compact tables as maintenance does, but from two files on."""
        from drainmark.orchestration.testing.processing import compact

        compact(self.workplace, self.region, report=self._say)

    def _repair(self) -> None:
        """Repair tables that others changed, as `doctor --repair --yes` does."""
        from drainmark.orchestration.verbs.table_repair import mend

        self._say("repaired", mend(self.workplace, self.region).to_json())

    def _skip(self, file: str) -> None:
        from drainmark.orchestration.verbs.interventions import skip

        skip(self.workplace, self.region, file, "not wanted")

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def _say(self, step: str, numbers: Any) -> None:
        with self._outcome.open("a") as file:
            file.write(json.dumps({"step": step, **numbers}, default=str) + "\n")


if __name__ == "__main__":
    nursery()
