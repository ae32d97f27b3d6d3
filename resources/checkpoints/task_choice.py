"""The choice between Spark's tasks and this process for a piece of work on the files of a region's tables."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from drainmark.jobs.errors import JavaMissing
from drainmark.jobs.errors.environment import ClusterRefused
from drainmark.jobs.runtime.outside import Engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MUCH_BYTES = 16 * 2**20
"""No process merges changed files of more bytes by itself, since that takes twenty times as many bytes of memory."""


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

    @property
    def is_elsewhere(self) -> bool:
        return self.engine is not None and not self.engine().is_local

    def streaming(self, size: int, folder: Path | None = None) -> SparkSession | None:
        """Return the session for work by tasks that needs few rows in memory at once; None if this process does it.

        Args:
            size: bytes of the files that are read.
            folder: folder of this machine for the output; tasks must reach it.
        """
        if self.engine is None or self.is_small(size) or not self.is_elsewhere:
            return None
        if folder is not None:
            try:
                self.engine().require_outputs([folder])
            except ClusterRefused:
                return None
        return self.engine().session

    def merging(self, changed: int, table: int) -> SparkSession | None:
        """Return the session for a merge of changed rows into a table by tasks; None if this process does it.

        Args:
            changed: bytes of the files with the changed rows; this process would have all of them in memory.
            table: bytes of the table's files.
        """
        session = self.streaming(changed + table)
        if session is None and self.engine is not None and changed > MUCH_BYTES:
            with suppress(JavaMissing):  # committed rows must be published: this process does it, with more memory
                session = self.engine().session
        return session
