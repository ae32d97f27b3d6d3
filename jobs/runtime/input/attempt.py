"""One attempt at a group, as everything that works on it sees it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from drainmark.jobs.runtime.input.executors import GroupExecutor, executors_for

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from drainmark.jobs.runtime.input.inbox import Group
    from drainmark.jobs.runtime.outside import Outside
    from drainmark.resources.spark.session import Engine
    from drainmark.resources.storage.folder import Folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt at a group, with the executor that has its rows.

    Attributes:
        folder: of this machine, for links and copies of the input; it is deleted with the attempt.
        files: the folder for files that tasks write for this attempt; it is deleted with it, too.
    """

    outside: Outside
    group: Group
    executor: GroupExecutor
    folder: Path
    files: Folder

    @classmethod
    def ways(cls, outside: Outside, group: Group, *, size: int, small_bytes: int) -> Iterator[Attempt]:
        """Yield the attempt, by the executor that its input calls for; then, if that is `TooLarge`, by the other one.

        Args:
            size, small_bytes: see `executors_for`.
        """
        folder = outside.store.inbox(group.epoch, group.attempt)
        files = outside.store.task_files(group.epoch, group.attempt, on_disk=outside.engine.shares_disk)
        for executor in executors_for(outside.engine, files, size=size, small_bytes=small_bytes):
            yield cls(outside=outside, group=group, executor=executor, folder=folder, files=files)

    @property
    def engine(self) -> Engine:
        return self.outside.engine

    @property
    def session(self) -> SparkSession:
        return self.outside.engine.session

    def executors(self, *, size: int, small_bytes: int) -> Iterator[GroupExecutor]:
        """Yield the executors of another input of this attempt; see `executors_for`."""
        return executors_for(self.engine, self.files, size=size, small_bytes=small_bytes)

    def by(self, executor: GroupExecutor) -> Attempt:
        """Return the attempt with another executor."""
        return replace(self, executor=executor)
