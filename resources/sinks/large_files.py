"""A sink of files, for a group of more rows than a process should hold: they are streamed, by tasks where there are."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.tasks.places import Place
from drainmark.resources.delta.commits import Published
from drainmark.resources.sinks.file_tables import FileTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class LargeFiles:
    """A sink of files, for one publish.

    Attributes:
        source: where the sink's history has its files.
        session: whose tasks write; this process without one.
    """

    target: FileTable
    source: Place
    session: SparkSession | None

    def copy_files(self, version: int, ids: Collection[int], files: Sequence[StagedFile]) -> Published:
        """Bring in a file for each id of a group, of rows in files of the history; see `FileTable.copy_files`."""
        return self.target.copy_files(version, ids, self.source, files, self.session)
