"""The files that versions of a Delta table added, for reading in this process and in tasks.

This process reads the table's log, once; a task gets the names of the files, and their place.
"""

from __future__ import annotations

from dataclasses import dataclass

from drainmark.jobs.errors import InputChanged, InputMissing
from drainmark.jobs.errors.environment import SHARE_FOLDERS, ClusterRefused
from drainmark.jobs.operators.sources.slices import ANEW, Slice
from drainmark.jobs.tasks.file_shares import FileShare, Owner, RowFile
from drainmark.jobs.tasks.parquet_files import facts_of_failure, failure_of


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesSlice(Slice):
    """The part of a slice that one task reads."""

    share: FileShare


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed(Owner):
    """A table that is read version by version: the error for a file is the error for the version that added it.

    Attributes:
        seen: the folder in which the run saw all files, if the reader is a worker that may not see them; otherwise "".
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
            remedy=f"put it back from a backup; or read a copy of the table {ANEW}",
            trigger=f"delta:{self.table}#{file.version}",
        )

    def out_of_reach(self, file: RowFile, error: OSError) -> Exception:
        return failure_of(facts_of_failure(error))


def missing_version(table: str, version: int, why: str) -> InputMissing:
    """Return the error for a version that the log, or the folder, no longer has."""
    msg = f"version {version} of {table} cannot be read any more: {why}"
    remedy = "keep the log and the files longer than a run is away; to begin behind it: starting_version=… "
    return InputMissing(msg, remedy=f"{remedy}{ANEW}", triggers=(), trigger=f"delta:{table}#{version}")
