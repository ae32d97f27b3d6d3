"""Files that versions of a Delta table added, as this process reads them and as tasks do.

What the log says of a file is looked up once, by this process; a task is told the names of files, and where they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from drainmark.jobs.errors import InputChanged, InputMissing
from drainmark.jobs.errors.environment import SHARE_FOLDERS, ClusterRefused
from drainmark.jobs.operators.sources.slices import Slice
from drainmark.jobs.tasks.file_shares import FileShare, Owner, RowFile
from drainmark.jobs.tasks.parquet_files import facts_of_failure, failure_of


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesSlice(Slice):
    """What a task reads of a slice."""

    share: FileShare


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed(Owner):
    """A table whose versions are read: what is wrong with a file is wrong with the version that added it.

    Attributes:
        seen: the folder in which the run saw all files, for workers that may not; "" for who reads in no such place.
    """

    table: str
    seen: str = ""

    def gone(self, file: RowFile, error: Exception) -> Exception:
        if self.seen:
            msg = f"a worker does not find {file.path} of {self.table}, which the run saw below {self.seen}"
            return ClusterRefused(msg, remedy=SHARE_FOLDERS)
        return missing_version(self.table, file.version, f"its file {file.path} is gone")

    def damaged(self, file: RowFile, said: str) -> Exception:
        return InputChanged(
            f"the file {file.path} of version {file.version} of {self.table} is damaged: {said}",
            remedy="put it back from a backup; or read a copy of the table by another name of the source",
            trigger=f"delta:{self.table}#{file.version}",
        )

    def out_of_reach(self, file: RowFile, error: OSError) -> Exception:
        return failure_of(facts_of_failure(error))


def missing_version(table: str, version: int, why: str) -> InputMissing:
    """Return the error for a version that the log, or the folder, does not have any more."""
    msg = f"version {version} of {table} cannot be read any more: {why}"
    remedy = "keep the log and the files longer than a run is away; to begin behind it: starting_version=… under a new "
    return InputMissing(msg, remedy=f"{remedy}name of the source", triggers=(), trigger=f"delta:{table}#{version}")
