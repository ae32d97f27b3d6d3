"""Short Delta logs, however fast commits come, and a record of the files that left a table lately.

Each commit lists the whole log and reads its newest checkpoint, which lists removed files. So the log reaches back a
limited number of versions, and its checkpoints list removed files for an hour. A reader of an old version may hold
removed files for a day: our own files `_removed/<version>.json` list them, where no Delta reader and no vacuum looks.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from drainmark.jobs import world
from drainmark.jobs.world import Seam
from drainmark.resources.delta import commits
from drainmark.resources.delta.commit_log import COMMIT_ENTRY, LOG, LOG_ENTRY, SoleWriter, lines_of
from drainmark.resources.delta.commits import Act
from drainmark.resources.storage.folder import PART, Folder

KEPT_SECONDS = 86_400
"""How long a file stays after it left a table."""

LOG_VERSIONS = 500
"""How many versions a log reaches back at most after upkeep; its checkpoint makes older ones unnecessary."""

REMOVED = "_removed"

_RETENTION = "delta.deletedFileRetentionDuration"
FORMER = {_RETENTION: "interval 1 days"}
"""The property of tables of earlier releases, until their first maintenance."""

_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")


def maintain(folder: Folder, region: str, *, writer: SoleWriter | None) -> None:
    """Write a checkpoint of Delta's log and delete log files older than a day or `LOG_VERSIONS` versions.

    It first records the files removed since the last checkpoint: after a crash they may be recorded twice, never lost.
    """
    _renew_retention(folder, region, writer)
    table = commits.open_table(folder)
    _remember(folder, int(table.version()))
    world.across(Seam.DELTA_UPKEEP, table.create_checkpoint, folder)
    world.across(Seam.DELTA_UPKEEP, table.cleanup_metadata, folder)
    oldest = table.version() - LOG_VERSIONS
    entries = ((name, LOG_ENTRY.match(name)) for name in folder.names(LOG) if oldest > 0)
    folder.remove([f"{LOG}/{name}" for name, found in entries if found and int(name[:20]) < oldest])
    over = world.now() - KEPT_SECONDS
    folder.remove([f"{REMOVED}/{name}" for name, modified in folder.modified(REMOVED).items() if modified < over])


def _renew_retention(folder: Folder, region: str, writer: SoleWriter | None) -> None:
    """Give a table of an earlier release the current retention, under the version that it has; once in its life."""
    wanted = commits.CONFIGURATION[_RETENTION]

    def is_former(table: Any) -> bool:
        return bool(table.metadata().configuration.get(_RETENTION) == FORMER[_RETENTION])

    def prepare(table: Any) -> Act | None:
        version = commits.txn_version(table, region)
        if version is None or not is_former(table):
            return None
        properties = commits.properties(region, version)
        return lambda: table.alter.set_table_properties({_RETENTION: wanted}, **properties)

    if is_former(commits.open_table(folder)):
        commits.commit(
            folder,
            verb="compact",
            prepare=prepare,
            landed=lambda table: not is_former(table),
            writer=writer,
        )


def _remember(folder: Folder, version: int) -> None:
    import pyarrow as pa

    log = folder.modified(LOG)
    removes = [remove for name in _after_checkpoint(log) for remove in _removes(lines_of(folder, f"{LOG}/{name}"))]
    newest = _newest_checkpoint(log)
    if newest is not None and f"{newest[:20]}.json" not in folder.names(REMOVED):
        removes += _removes_of_checkpoint(folder, newest)  # of another engine: not recorded yet
    if removes:
        with suppress(FileExistsError):  # written before a crash, for the same commits
            folder.write(f"{REMOVED}/{version:020d}.json", pa.py_buffer(json.dumps(removes).encode()))


def removed_since(folder: Folder, since: float) -> set[str]:
    """Return the paths that commits removed from a table since a time, at most a day ago.

    They come from the log's newest checkpoint, the commits after it, and the files of `REMOVED` for older commits.
    """
    log = folder.modified(LOG)
    newest = _newest_checkpoint(log)
    removes = _removes_of_checkpoint(folder, newest) if newest is not None else []
    for name in _after_checkpoint(log):
        if log[name] >= since:
            removes += _removes(lines_of(folder, f"{LOG}/{name}"))
    for name, modified in folder.modified(REMOVED).items():
        if modified >= since and not name.endswith(PART):
            removes += json.loads("".join(lines_of(folder, f"{REMOVED}/{name}")))
    return {
        urllib.parse.unquote(remove["path"])
        for remove in removes
        if (remove.get("deletionTimestamp") or 0) >= since * 1000
    }


def _newest_checkpoint(names: Iterable[str]) -> str | None:
    return max((name for name in names if _CHECKPOINT.fullmatch(name)), default=None)


def _removes_of_checkpoint(folder: Folder, name: str) -> list[dict[str, Any]]:
    """Return the files that left the table, from a checkpoint of the log."""
    tables = folder.read_each([f"{LOG}/{name}"], ["remove.path", "remove.deletionTimestamp"])
    return [value for rows in tables for value in rows.column("remove").to_pylist() if value and value["path"]]


def _after_checkpoint(names: Iterable[str]) -> list[str]:
    """Return the names of the commits after the newest single-file checkpoint; of all commits if there is none."""
    found = list(names)
    newest = _newest_checkpoint(found)
    after = int(newest[:20]) if newest is not None else -1
    return sorted(name for name in found if (match := COMMIT_ENTRY.fullmatch(name)) and int(match.group(1)) > after)


def _removes(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if '"remove"' in line:
            action = json.loads(line).get("remove")
            if action:
                yield {"path": action["path"], "deletionTimestamp": action.get("deletionTimestamp")}
