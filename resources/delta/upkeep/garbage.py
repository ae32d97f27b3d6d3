"""Files of a managed table that are no longer needed, for `gc` to delete.

A file stays if the table shows it or has shown it within the last day (a reader may hold that version of the table), or
if a checkpoint row in reach of a rewind names it. Where age alone decides, a day is long enough for every writer, also
by a clock that is hours ahead: with SQLite, or without a registry, nobody notices such a clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import PurePosixPath

from drainmark.jobs.protocol.records.deletion_vectors import is_vector_file
from drainmark.resources.delta import delta_tables, file_lists
from drainmark.resources.delta.log.commit_log import LOG
from drainmark.resources.delta.staging import STAGING_FOLDER
from drainmark.resources.delta.upkeep.log_retention import KEPT_SECONDS, removed_since
from drainmark.resources.storage.folder import PART, FileEntry, Folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """The files of one table that can be deleted.

    Attributes:
        table: its name.
        files: paths relative to the table's folder.
        size: of all of them, bytes.
    """

    table: str
    files: tuple[str, ...] = ()
    size: int = 0


def is_channels(name: str) -> bool:
    """Say whether this is the folder of a region's channels: it has staged files, but no table and no commits."""
    return name.startswith("channels/")


def garbage_of(folder: Folder, name: str, *, named: Set[str], below_epoch: int, now: float) -> Garbage:
    """Return the files of a table that can be deleted.

    Args:
        named: paths that checkpoint rows in reach name.
        below_epoch: files staged under this epoch or a later one may be in use, and are not looked at.
        now: seconds since 1970.
    """
    if is_channels(name):
        dead = list(_staged(folder, named, below_epoch))
    elif delta_tables.is_table(folder):
        table = delta_tables.open_table(folder)
        kept = file_lists.kept_paths(table, folder) | removed_since(folder, now - KEPT_SECONDS) | named
        dead = [*_staged(folder, kept, below_epoch), *_merged(folder, kept, now - KEPT_SECONDS)]
    else:
        return Garbage(table=name)
    files = tuple(sorted(entry.path for entry in dead))
    return Garbage(table=name, files=files, size=sum(entry.size for entry in dead))


def outside_regions(tables: Folder, *, now: float) -> Iterator[Garbage]:
    """Yield the files of autonomous operators that can be deleted, by table; see `AutonomousTable`.

    They stage under epoch 0, which no region has, and no row names their files. So files of failed batches, and of
    changes staged only for a merge, are known by their age: no batch takes a day, and a commit checks its files first.
    Files that merges replaced are beside the log of an application's own table.

    Args:
        tables: the folder of `lake/` and `state/`.
        now: seconds since 1970.
    """
    for name in (name for kind in ("lake", "state") for name in delta_tables.tables_below(tables, kind)):
        folder = tables / name
        dead = [entry for entry in _of_no_epoch(folder) if entry.modified < now - KEPT_SECONDS]
        if delta_tables.is_table(folder):
            table = delta_tables.open_table(folder)
            is_autonomous = delta_tables.application_of(table) is not None
            if not dead and not is_autonomous:
                continue
            kept = file_lists.kept_paths(table, folder) | removed_since(folder, now - KEPT_SECONDS)
            dead = [entry for entry in dead if entry.path not in kept]
            dead += _merged(folder, kept, now - KEPT_SECONDS) if is_autonomous else ()
        files = tuple(sorted(entry.path for entry in dead))
        yield Garbage(table=name, files=files, size=sum(entry.size for entry in dead))


def _of_no_epoch(folder: Folder) -> Iterator[FileEntry]:
    for attempt in folder.names(STAGING_FOLDER):
        if attempt.startswith("0-"):
            yield from folder.everything(f"{STAGING_FOLDER}/{attempt}")


def _staged(folder: Folder, kept: Set[str], below_epoch: int) -> Iterator[FileEntry]:
    """Yield unused files of dead epochs: all files of an attempt, or only its data files if some files are kept."""
    attempts: dict[str, list[FileEntry]] = defaultdict(list)
    for entry in folder.everything(STAGING_FOLDER):
        attempts[PurePosixPath(entry.path).parts[1]].append(entry)
    for attempt, entries in attempts.items():
        epoch = attempt.partition("-")[0]
        if not epoch.isdigit() or int(epoch) >= below_epoch:
            continue
        is_used = any(entry.path in kept for entry in entries)
        yield from (entry for entry in entries if entry.path not in kept and (not is_used or _is_data(entry.path)))


def _merged(folder: Folder, kept: Set[str], before: float) -> Iterator[FileEntry]:
    """Yield data files beside the log that a merge wrote and a later one replaced, or that were never committed; and
    parts of log entries that a crash left."""
    for name, modified in folder.modified("").items():
        if _is_data(name) and name not in kept and modified < before:
            yield FileEntry(name, folder.size(name), modified)
    for name, modified in folder.modified(LOG).items():
        if name.endswith(PART) and modified < before:
            yield FileEntry(f"{LOG}/{name}", folder.size(f"{LOG}/{name}"), modified)


def _is_data(path: str) -> bool:
    """Say whether a path is a data file, a file of deletion vectors, or a part of one that a crash left."""
    name = PurePosixPath(path).name
    is_whole = name.endswith(".parquet") and not name.startswith((".", "_"))
    return is_whole or name.endswith(PART) or is_vector_file(name)
