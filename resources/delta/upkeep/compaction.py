"""Compaction: few live files keep every commit fast, and each row is copied seldom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from drainmark.jobs.protocol.records.manifest import StagedFile

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
