"""A process that waits for a run and has made all imports of a run except the author's code."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

IDLE_SECONDS = 900.0
"""Seconds after which an unused spare ends; it holds about 200 MB."""

_ANSWER_SECONDS = 10.0
_READY, _STALE, _TAKEN = "ready", "stale", "taken"

_IMPORTS = (
    "drainmark.orchestration.dagster_jobs.factory",
    "drainmark.orchestration.runs.idle_wait",
    "drainmark.resources.spark.resident.access",
    "pyspark.sql.connect.session",
    "pyspark.sql.connect.functions",
    "pandas",
    "pyarrow.parquet",
    "deltalake",
    "sqlmodel",
)


@dataclass(frozen=True, slots=True)
class Spare:
    """The spare process, and the connection to it."""

    process: BaseProcess
    connection: Connection

    @classmethod
    def start(cls) -> Spare:
        spawning = multiprocessing.get_context("spawn")
        ours, theirs = spawning.Pipe()
        process = spawning.Process(target=wait, args=(theirs,), name="spare run", daemon=False)
        process.start()
        theirs.close()
        return cls(process, ours)

    def is_ready(self) -> bool:
        """Say whether it has made its imports and waits. If not, the default launch is faster than waiting for it."""
        try:
            return self.connection.poll() and self.connection.recv() == _READY and self.process.is_alive()
        except (EOFError, OSError):
            return False

    def give(self, order: str) -> bool:
        """Have it execute a run; return False if it cannot, and then it never will."""
        try:
            self.connection.send(order)
            if self.connection.poll(_ANSWER_SECONDS) and self.connection.recv() == _TAKEN:
                return True
        except (EOFError, OSError):
            pass
        self.process.kill()  # it might still take the order, and the run must not begin twice
        self.process.join()
        return False


def wait(connection: Connection) -> None:
    """Make the imports, wait for an order, and execute its run."""
    order = None
    with suppress(KeyboardInterrupt, EOFError, OSError):  # the daemon has ended
        from drainmark.orchestration.dagster_jobs.dagster_internals import execute

        order = _order(connection)
    if order is not None:
        execute(order)


def _order(connection: Connection) -> str | None:
    for name in _IMPORTS:
        with suppress(ImportError):  # an optional dependency
            importlib.import_module(name)
    before = _stamps()
    connection.send(_READY)
    if not connection.poll(IDLE_SECONDS):
        return None
    order = str(connection.recv())
    is_stale = _stamps() != before
    connection.send(_STALE if is_stale else _TAKEN)
    connection.close()
    return None if is_stale else order


def _stamps() -> dict[str, int]:
    """Return the modification times of modules that are not installed, because a changed module must be loaded anew."""
    found = {}
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path and "site-packages" not in path and not path.startswith(sys.base_prefix):
            with suppress(OSError):
                found[path] = os.stat(path).st_mtime_ns
    return found
