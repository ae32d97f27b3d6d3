"""One attempt at a group, as everything that works on it sees it; the choice of the executor that has its rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from drainmark.jobs.runtime.input.executors import GroupExecutor, InMemory, InTasks

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
        executor: has the rows of the input; it is chosen once, when their size is known.
        spark: the executor that takes any input.
        reads_rows: Spark's tasks read the rows of sources that can be read in parts.
        folder: of this machine, for links and copies of the input; it is deleted with the attempt.
        files: the folder for files that tasks write for this attempt; it is deleted with it, too.
    """

    outside: Outside
    group: Group
    executor: GroupExecutor
    spark: GroupExecutor
    reads_rows: bool
    folder: Path
    files: Folder

    @classmethod
    def of(cls, outside: Outside, group: Group, *, size: int, times: int = 1) -> Attempt:
        """Begin an attempt.

        Args:
            size, times: see `for_input`.
        """
        engine, store = outside.engine, outside.store
        files = store.task_files(group.epoch, group.attempt, on_disk=engine.shares_disk)
        spark = InTasks(session=engine.session, place=files.place.for_an_attempt(), keeps_rows=engine.is_local)
        folder = store.inbox(group.epoch, group.attempt)
        begun = cls(
            outside=outside, group=group, executor=spark, spark=spark, reads_rows=True, folder=folder, files=files
        )
        return begun.for_input(size, times=times)

    def for_input(self, size: int, *, times: int = 1) -> Attempt:
        """Return the attempt with the executor for an input of about so many bytes.

        This process does what has at most `small_group_bytes`. If executors do not share its disk, they cannot read
        files that it fetched: then tasks have the rows, but this process still reads those of sources.

        Args:
            times: the factor by which the operators of the region raise that limit.
        """
        is_small = size <= times * self.outside.small_group_bytes
        chosen = self.in_memory() if is_small and self.engine.shares_disk else self.by_tasks()
        return replace(chosen, reads_rows=not is_small)

    def in_memory(self) -> Attempt:
        """Return the attempt with its rows in the memory of this process."""
        return replace(self, executor=InMemory(session=self.session))

    def by_tasks(self) -> Attempt:
        """Return the attempt with its rows by Spark's tasks; also for an input that is `TooLarge` for this process."""
        return replace(self, executor=self.spark)

    @property
    def engine(self) -> Engine:
        return self.outside.engine

    @property
    def session(self) -> SparkSession:
        return self.outside.engine.session

    def release(self) -> None:
        """Free the rows that Spark keeps for the attempt."""
        self.spark.release()
