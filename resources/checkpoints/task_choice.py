"""The choice between Spark's tasks and this process for a piece of work on the files of a region's tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from drainmark.jobs.errors.environment import ClusterRefused
from drainmark.jobs.tasks.executor import Executor, Here, OnSpark

if TYPE_CHECKING:
    from drainmark.resources.spark.engine import Engine


@dataclass(frozen=True, slots=True)
class TaskChoice:
    """The choice for one region.

    On one machine, tasks use the same disk and cores as this process, take several times as long, and need Spark to be
    started.

    Attributes:
        engine: gives the session; None for a process that only reads.
        small_bytes: tasks do work on more bytes of files than this, if executors are elsewhere.
    """

    engine: Callable[[], Engine] | None
    small_bytes: int

    def is_small(self, size: int) -> bool:
        return size <= self.small_bytes

    def executor(self, size: int, folder: Path | None = None) -> Executor:
        """Return who does work that needs few rows in memory at once.

        Args:
            size: bytes of the files that are read.
            folder: folder of this machine for the output; tasks must reach it.
        """
        if self.engine is None or self.is_small(size) or self.engine().is_local:
            return Here()
        if folder is not None:
            try:
                self.engine().require_outputs([folder])
            except ClusterRefused:
                return Here()
        return OnSpark(self.engine().session)
