"""Files of a managed table that nobody needs any more; `gc` deletes them, and nothing else does (H8, H30, D5).

A file stays while the table shows it, while it showed it within the last day (a reader may hold that version of the
table), and while a checkpoint row names it that somebody may go back to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import PurePosixPath

from resources import delta_commits
from resources.locations import Entry, Folder
from resources.log_keeping import KEPT_SECONDS, removed_since
from resources.staging import STAGING_FOLDER

_MERGED_SECONDS = 3600  # a merge writes beside the log and commits within seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """What can be deleted of one table.

    Attributes:
        table: its name.
        files: paths relative to the table's folder.
        size: of all of them, bytes.
    """

    table: str
    files: tuple[str, ...] = ()
    size: int = 0


def garbage_of(folder: Folder, name: str, *, named: Set[str], below_epoch: int, now: float) -> Garbage:
    """Find the files of a table that can go.

    Args:
        named: paths that checkpoint rows in reach name.
        below_epoch: what is staged under this epoch or a later one may be at work and is not looked at.
        now: seconds since 1970.
    """
    if not delta_commits.is_table(folder):
        return Garbage(table=name)
    table = delta_commits.open_table(folder)
    kept = delta_commits.live_paths(table) | removed_since(folder, now - KEPT_SECONDS) | named
    dead = [*_staged(folder, kept, below_epoch), *_merged(folder, kept, now - _MERGED_SECONDS)]
    files = tuple(sorted(entry.path for entry in dead))
    return Garbage(table=name, files=files, size=sum(entry.size for entry in dead))


def _staged(folder: Folder, kept: Set[str], below_epoch: int) -> Iterator[Entry]:
    """Yield what dead epochs staged: whole attempts, and single data files of those of which something is kept."""
    attempts: dict[str, list[Entry]] = defaultdict(list)
    for entry in folder.everything(STAGING_FOLDER):
        attempts[PurePosixPath(entry.path).parts[1]].append(entry)
    for attempt, entries in attempts.items():
        epoch = attempt.partition("-")[0]
        if not epoch.isdigit() or int(epoch) >= below_epoch:
            continue
        is_used = any(entry.path in kept for entry in entries)
        yield from (entry for entry in entries if entry.path not in kept and (not is_used or _is_data(entry.path)))


def _merged(folder: Folder, kept: Set[str], before: float) -> Iterator[Entry]:
    """Yield data files beside the log: what merges wrote and replaced since, or never committed."""
    for name, modified in folder.modified("").items():
        if _is_data(name) and name not in kept and modified < before:
            yield Entry(name, folder.size(name), modified)


def _is_data(path: str) -> bool:
    name = PurePosixPath(path).name
    return name.endswith(".parquet") and not name.startswith((".", "_"))
