"""Whether tasks of Spark do a piece of work on the files of a region's tables, or this process does it."""

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
"""Of files with what has changed: more no process merges by itself, since that takes twenty times as many of memory."""


@dataclass(frozen=True, slots=True)
class TaskChoice:
    """Chooses for one region.

    On one machine tasks do with the same disk and cores what this process does, in several times the time, and Spark
    would be started for it.

    Attributes:
        engine: gives the session; None for a process that only reads.
        small_bytes: work on more bytes of files is for tasks, where executors are elsewhere.
    """

    engine: Callable[[], Engine] | None
    small_bytes: int

    def is_small(self, size: int) -> bool:
        return size <= self.small_bytes

    @property
    def is_elsewhere(self) -> bool:
        return self.engine is not None and not self.engine().is_local

    def streaming(self, size: int, folder: Path | None = None) -> SparkSession | None:
        """Return the session whose tasks do what this process would do with few rows in memory; None for this process.

        Args:
            size: bytes of the files that are read.
            folder: of this machine, to which is written: tasks must reach it.
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
        """Return the session whose tasks merge what has changed into a table; None where this process does it.

        Args:
            changed: bytes of the files with what has changed, all of which this process would have in memory.
            table: bytes of the table's files.
        """
        session = self.streaming(changed + table)
        if session is None and self.engine is not None and changed > MUCH_BYTES:
            with suppress(JavaMissing):  # what is committed is brought up all the same, if with more memory
                session = self.engine().session
        return session
