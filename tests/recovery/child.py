"""The process that is killed: connects to the Connect server, scans, runs or rewinds a region, with fail points armed.

Started as a nursery (`python child.py`), it reads a request a line from standard input, forks a child for each, and
tells pids and ends on standard output: a child then costs no imports. The nursery itself never opens a thread, a
socket or a table, so that what it forks is as good as a new process.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
import time
import traceback
import uuid
from pathlib import Path
from typing import Any

_POLL_SECONDS = 0.02


def nursery() -> None:
    """Fork a child a request until standard input ends."""
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


def _import_all() -> None:
    """Import what a run imports, so that children share it."""
    for name in (
        "deltalake",
        "jobs.runtime.run",
        "orchestration.assembly",
        "pyarrow.parquet",
        "pyspark.sql.connect.session",
        "resources.lease",
        "resources.region_store",
        "resources.registry",
    ):
        importlib.import_module(name)


def _read_line() -> bytes:
    # Unbuffered: a line that waits in a buffer would be invisible to select.
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return b""
        line += byte
    return line


def _tell(value: dict[str, Any]) -> None:
    os.write(1, json.dumps(value).encode() + b"\n")


# --- one child -----------------------------------------------------------------------------------------------------


def _child(request: dict[str, Any]) -> None:
    """Carry a request out and end the process, by the exit codes of the command line (design.md §6)."""
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
    """One request: `steps` in order, each a list of verb and arguments, until one fails."""

    def __init__(self, request: dict[str, Any]) -> None:
        from orchestration.assembly import Workplace
        from resources.settings import Settings

        self.request = request
        home = Path(request["home"])
        self.workplace = Workplace(
            Settings(
                home=home,
                project_root=Path(request["root"]),
                spark_master=request["master"],
                registry_url=f"sqlite:///{home / 'registry.db'}",
                **request.get("settings", {}),
            )
        )
        self._outcome = Path(request["outcome"])
        self._opened: Any = None

    def work(self) -> int:
        from jobs.errors import DrainmarkError
        from jobs.failpoints import arm

        arm(request_text(self.request, "failpoints"))
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
        from orchestration.assembly import open_application

        if self._opened is None:
            self._opened = open_application(
                self.request["app"], params=self.request.get("params", {}), inputs=self.request["inputs"]
            )
        return self._opened

    def _scan(self) -> None:
        from orchestration.assembly import scan_region
        from orchestration.declared import remember

        region = self.opened.region(self.region)
        remember(self.workplace, self.opened, region)
        found = scan_region(self.workplace, region)
        self._say("scan", {"new": len(found.new), "refused": [list(entry) for entry in found.refused]})

    def _run(self, max_group: int | None = None) -> None:
        from orchestration.assembly import region_run

        run = region_run(
            self.workplace, self.opened, self.opened.region(self.region), report=self._say, max_group=max_group
        )
        signal.signal(signal.SIGTERM, lambda *_: run.interrupted.set())
        error: BaseException | None = None
        try:
            run.claim()
            for _ in run.groups():
                pass
        except BaseException as raised:
            error = raised
            raise
        finally:
            run.hand_over(error)

    def _rewind(self, to: int, horizon: int = 10_000) -> None:
        from orchestration.assembly import owning

        with owning(self.workplace.owner(self.region, report=self._say)) as owner:
            owner.rewind(to, horizon)

    def _own(self) -> None:
        """Claim and hand over, nothing else: what any verb of an operator begins with."""
        from orchestration.assembly import owning

        with owning(self.workplace.owner(self.region, report=self._say)):
            pass

    def _compact(self) -> None:
        """Compact every table of rows and the checkpoint table as maintenance does, only earlier."""
        from jobs.protocol.manifest import TableRole
        from orchestration.assembly import owning

        with owning(self.workplace.owner(self.region, report=self._say)) as owner:
            store = self.workplace.store(self.region)
            for table in owner.history.tables:
                if table.role is not TableRole.UPSERT:
                    target = store.table(table.name)
                    staging = store.staging(table.name, owner.epoch, uuid.uuid4().hex)
                    target.compact(target.txn_version() or 0, staging, files_at_least=2)
            store.checkpoint.compact(files_at_least=2)

    def _skip(self, file: str) -> None:
        from orchestration.operations import skip

        skip(self.workplace, self.region, file, "not wanted")

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def _say(self, step: str, numbers: Any) -> None:
        with self._outcome.open("a") as file:
            file.write(json.dumps({"step": step, **numbers}, default=str) + "\n")


def request_text(request: dict[str, Any], name: str) -> str:
    """Return an optional text of a request."""
    return str(request.get(name) or "")


if __name__ == "__main__":
    nursery()
