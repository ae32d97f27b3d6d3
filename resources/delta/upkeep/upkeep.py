"""The upkeep of a managed table: few files, so that every commit is fast, a short log, and unchanged rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.resources.delta import commits, delta_tables, file_lists
from drainmark.resources.delta.log.commit_log import SoleWriter
from drainmark.resources.delta.merge import arrow_schema
from drainmark.resources.delta.staging import Staging
from drainmark.resources.delta.table_files import TableFiles
from drainmark.resources.delta.upkeep import log_retention
from drainmark.resources.storage.folder import Folder


class Upkeep:
    """The upkeep of one table between groups; each step is optional, and any owner of the region can do it.

    Args:
        folder: of the table.
        region: the region that commits.
        writer: as for `ManagedTable`; None if others may commit.
    """

    def __init__(self, folder: Folder, region: str, *, writer: SoleWriter | None) -> None:
        self._folder = folder
        self._region = region
        self._writer = writer
        self._files = TableFiles(folder)

    def compact(self, version: int, staging: Staging, *, files_at_least: int = 64, horizon_id: int = 0) -> bool:
        """Rewrite each run of small files, adjacent by id, as one file; the rows stay unchanged.

        This is for tables of rows. A run is of one partition. If the table has an order, the rows of a run are sorted,
        and may become several files. The commit requires that the table still has `version`, and keeps it.

        Args:
            version: the version that the table has.
            staging: where the new files go; they live there until compacted or rewound again.
            files_at_least: shorter runs are left alone.
            horizon_id: no file gets both ids up to this one and ids above it, so that whole files can be dropped.

        Returns:
            Whether anything was rewritten; also False if the table has another version.
        """
        opened = delta_tables.open_table(self._folder)
        if commits.txn_version(opened, self._region) != version:
            return False
        live = file_lists.live_files(opened, self._folder)
        runs = runs_to_compact(live, files_at_least, horizon_id)
        if not runs:
            return False
        rewritten = staging.rewrite(runs, arrow_schema(opened))
        return commits.replace(
            self._folder,
            self._region,
            version,
            replaced=[file for run in runs for file in run],
            rewritten=rewritten,
            writer=self._writer,
        )

    def drop(self, version: int, through: int) -> bool:
        """Remove the files in which all ids are at most `through`: an image has those of their rows that count.

        As in a compaction, the commit requires that the table still has `version`, and keeps it.

        Returns:
            Whether there were such files; also False if the table has another version.
        """
        leaving = self._files.up_to(through)
        return bool(leaving) and commits.replace(
            self._folder,
            self._region,
            version,
            replaced=leaving,
            rewritten=(),
            writer=self._writer,
        )

    def maintain(self) -> None:
        """Write a checkpoint of Delta's log and delete old log files, as a separate step; see `log_retention`."""
        log_retention.maintain(self._folder, self._region, writer=self._writer)


SMALL_FILE_BYTES = 32 * 2**20
_LARGEST_RUN_BYTES = 4 * SMALL_FILE_BYTES
_WORTH_IT_BYTES = 2 * SMALL_FILE_BYTES
_WORTH_IT_FILES = 8


def runs_to_compact(files: Iterable[StagedFile], files_at_least: int, horizon_id: int) -> list[tuple[StagedFile, ...]]:
    """Return runs of small neighbours, without first files that have more rows than the rest of their run.

    So old rows are rewritten O(log n) times, not with every run.

    Args:
        files_at_least: shorter runs are left alone, unless they add up to a large file.
        files, horizon_id: as for `small_neighbours`.
    """
    runs = small_neighbours(files, horizon_id)
    for run in runs:
        while len(run) >= files_at_least and run[0].rows > sum(file.rows for file in run[1:]):
            del run[0]
    return [tuple(run) for run in runs if _is_worth_it(run, files_at_least)]


def small_neighbours(files: Iterable[StagedFile], horizon_id: int = 0) -> list[list[StagedFile]]:
    """Return runs of small files of one partition that follow each other; each has at most the bytes for one file.

    Args:
        files: in the order of their ids.
        horizon_id: no run has both ids up to this one and ids above it.
    """
    partitions: dict[str, list[StagedFile]] = defaultdict(list)
    for file in files:
        partitions[file.partition].append(file)
    return [run for some in partitions.values() for run in _small_neighbours(some, horizon_id) if run]


def _small_neighbours(files: Iterable[StagedFile], horizon_id: int) -> list[list[StagedFile]]:
    runs: list[list[StagedFile]] = [[]]
    for file in files:
        is_beyond = (file.first_id or 0) > horizon_id
        if file.size >= SMALL_FILE_BYTES or (not is_beyond and (file.last_id or 0) > horizon_id):
            runs.append([])
            continue
        run = runs[-1]
        crosses = bool(run) and ((run[-1].first_id or 0) > horizon_id) != is_beyond
        if crosses or _bytes(run) + file.size > _LARGEST_RUN_BYTES:
            runs.append(run := [])
        run.append(file)
    return runs


def _is_worth_it(run: list[StagedFile], files_at_least: int) -> bool:
    """Say whether a run has enough files or bytes; files of some megabytes fill a run before they are many."""
    return len(run) >= max(files_at_least, 2) or (len(run) >= _WORTH_IT_FILES and _bytes(run) >= _WORTH_IT_BYTES)


def _bytes(files: Iterable[StagedFile]) -> int:
    return sum(file.size for file in files)
