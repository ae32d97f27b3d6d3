"""Short Delta logs, however fast commits come, and a record of the files that left a table lately.

Each commit lists the whole log and reads its newest checkpoint, which lists removed files. So the log reaches back a
limited number of versions, and its checkpoints list removed files for an hour. A reader of an old version may hold
removed files for a day: our own files `_removed/<version>.json` list them, where no Delta reader and no vacuum looks.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from drainmark.jobs import world
from drainmark.jobs.errors import ObjectMissing
from drainmark.jobs.tasks.layout import former_statistics, statistics_of
from drainmark.jobs.world import Seam
from drainmark.resources.delta import commits, delta_tables
from drainmark.resources.delta.commits import Act
from drainmark.resources.delta.log.commit_log import (
    LOG,
    LOG_ENTRY,
    SoleWriter,
    checkpoint_path,
    entry_path,
    has_file,
    lines_of,
    newest_checkpoint,
)
from drainmark.resources.delta.log.marked_files import vector_file
from drainmark.resources.storage.folder import PART, Folder

KEPT_SECONDS = 86_400
"""How long a file stays after it left a table."""

LOG_VERSIONS = 500
"""How many versions a log reaches back at most after upkeep; its checkpoint makes older ones unnecessary."""

REMOVED = "_removed"
_FORMER_RECORD = "former"

_RETENTION = "delta.deletedFileRetentionDuration"
FORMER = {_RETENTION: "interval 1 days"}
"""The property of tables of earlier releases, until their first maintenance."""


def maintain(folder: Folder, region: str, *, writer: SoleWriter | None) -> None:
    """Write a checkpoint of Delta's log and delete log files older than a day or `LOG_VERSIONS` versions.

    It first records the files removed since the last checkpoint: after a crash they may be recorded twice, never lost.
    """
    _renew_properties(folder, region, writer)
    table = delta_tables.open_table(folder)
    _remember(folder, int(table.version()))
    world.across(Seam.DELTA_UPKEEP, table.create_checkpoint, folder)
    world.across(Seam.DELTA_UPKEEP, table.cleanup_metadata, folder)
    oldest = table.version() - LOG_VERSIONS
    entries = ((name, LOG_ENTRY.match(name)) for name in folder.names(LOG) if oldest > 0)
    folder.remove([f"{LOG}/{name}" for name, found in entries if found and int(name[:20]) < oldest])
    over = world.now() - KEPT_SECONDS
    folder.remove([f"{REMOVED}/{name}" for name, modified in folder.modified(REMOVED).items() if modified < over])


def _renew_properties(folder: Folder, region: str, writer: SoleWriter | None) -> None:
    """Give a table of an earlier release today's properties, under the version that it has; once in its life."""

    def wanted(table: Any) -> Mapping[str, str]:
        has = table.metadata().configuration
        kept = {_RETENTION: delta_tables.CONFIGURATION[_RETENTION]} if has.get(_RETENTION) == FORMER[_RETENTION] else {}
        return {**kept, **(statistics_of(table.schema().to_json()) if former_statistics(has) else {})}

    def prepare(table: Any) -> Act | None:
        version, properties = commits.txn_version(table, region), wanted(table)
        if version is None or not properties:
            return None
        return lambda: commits.set_properties(folder, table, region, version, properties)

    if wanted(delta_tables.open_table(folder)):
        commits.commit(
            folder,
            verb="compact",
            prepare=prepare,
            landed=lambda table: not wanted(table),
            writer=writer,
        )


def _remember(folder: Folder, version: int) -> None:
    """Record the files removed since the last checkpoint, and the name of the record before."""
    import pyarrow as pa

    newest = newest_checkpoint(folder)
    removes = list(_removed_behind(folder, version, newest))
    if newest is not None and has_file(folder, f"{REMOVED}/{_record(newest)}"):
        former: str | None = _record(newest)
    else:
        former = max((name for name in folder.names(REMOVED) if not name.endswith(PART)), default=None)
        removes += _removes_of_checkpoint(folder, newest) if newest is not None else ()  # another engine made it
    if not removes and former is None:
        return
    content = pa.py_buffer(json.dumps([*removes, {_FORMER_RECORD: former}]).encode())
    try:
        folder.write(f"{REMOVED}/{_record(version)}", content)
    except FileExistsError:  # of a run that crashed here, or of the same version before the table was restored
        folder.write(f"{REMOVED}/{version:020d}-{world.token()}.json", content)


def removed_since(folder: Folder, since: float) -> set[str]:
    """Return the paths that commits removed from a table since a time, at most a day ago.

    They come from the log's newest checkpoint, the commits after it, and the files of `REMOVED` for older commits.

    Args:
        since: seconds since 1970.
    """
    newest = newest_checkpoint(folder)
    removes = list(_removed_behind(folder, int(delta_tables.open_table(folder).version()), newest))
    names = {
        name for name, modified in folder.modified(REMOVED).items() if modified >= since and not name.endswith(PART)
    }
    if newest is not None:
        removes += _removes_of_checkpoint(folder, newest)
        names.add(_record(newest))
    removes += _recorded(folder, names)
    return {
        urllib.parse.unquote(remove["path"])
        for remove in removes
        if (remove.get("deletionTimestamp") or 0) >= since * 1000
    }


def _recorded(folder: Folder, names: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the removes of records, and of those that they name as former ones: a listing may lack these."""
    seen: set[str] = set()
    while names:
        seen.add(name := names.pop())
        try:
            record = json.loads("".join(lines_of(folder, f"{REMOVED}/{name}")))
        except (FileNotFoundError, ObjectMissing):  # nothing had left the table, or it is older than a day
            continue
        for entry in record:
            former = entry.get(_FORMER_RECORD)
            if former is not None and former not in seen:
                names.add(former)
            elif "path" in entry:
                yield entry


def _record(version: int) -> str:
    """Return the name of the record that is made with the checkpoint of a version."""
    return f"{version:020d}.json"


def _removes_of_checkpoint(folder: Folder, version: int) -> list[dict[str, Any]]:
    """Return the files that left the table, from a checkpoint of the log."""
    columns = ["remove.path", "remove.deletionTimestamp", "remove.deletionVector"]
    tables = folder.read_each([checkpoint_path(version)], columns)
    found = (value for rows in tables for value in rows.column("remove").to_pylist() if value and value["path"])
    return [file for action in found for file in _files_of(action)]


def _removed_behind(folder: Folder, version: int, checkpoint: int | None) -> Iterator[dict[str, Any]]:
    """Yield the files that the commits behind a checkpoint removed, by the numbers of versions: a listing may lag."""
    for number in range(version, checkpoint if checkpoint is not None else -1, -1):
        try:
            yield from _removes(lines_of(folder, entry_path(number)))
        except (FileNotFoundError, ObjectMissing):
            return  # the log was cut here: what is older has been recorded


def _removes(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if '"remove"' in line:
            action = json.loads(line).get("remove")
            if action:
                yield from _files_of(action)


def _files_of(action: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the files of a `remove` that nobody needs without it: the data file, and that of its deletion vector."""
    vectors = vector_file(action)
    for path in (action["path"], *((vectors,) if vectors is not None else ())):
        yield {"path": path, "deletionTimestamp": action.get("deletionTimestamp")}
