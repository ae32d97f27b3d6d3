"""What a table still holds after rows have left it: files that no version shows, and a log with bounds of columns."""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Any

from drainmark.jobs import world
from drainmark.jobs.failpoints import ErasePoint
from drainmark.jobs.protocol.records.deletion_vectors import is_vector_file
from drainmark.jobs.world import Seam
from drainmark.resources.delta import commits, delta_tables
from drainmark.resources.delta.commits import Act
from drainmark.resources.delta.log.commit_log import LOG, LOG_ENTRY, SoleWriter
from drainmark.resources.delta.staging import STAGING_FOLDER
from drainmark.resources.delta.upkeep.log_retention import REMOVED
from drainmark.resources.storage.folder import PART, Folder

_RETENTION = "delta.deletedFileRetentionDuration"
_AT_ONCE = "interval 0 seconds"


def unneeded(folder: Folder, kept: Set[str], *, through: int) -> list[str]:
    """Return the files of a table's folder that are not among those that are kept.

    Data files lie beside the log or are staged. Other folders below may be tables of their own.

    Args:
        through: the last epoch (inclusive) whose staged files are returned: a later owner may need its own.
    """
    staged = (entry.path for entry in folder.everything(STAGING_FOLDER) if _epoch_of(entry.path) <= through)
    beside = (name for name in folder.modified("") if name.endswith((".parquet", PART)) or is_vector_file(name))
    return sorted(path for path in (*staged, *beside) if path not in kept)


def _epoch_of(path: str) -> int:
    """Return the epoch in the name of an attempt's folder; 0 for another name."""
    epoch = path.split("/")[1].partition("-")[0]
    return int(epoch) if epoch.isdigit() else 0


def forget_log(folder: Folder, region: str, *, writer: SoleWriter | None) -> None:
    """Leave a log that begins with the version of the table: no earlier entry, no file that left, no bounds of one.

    Delta keeps the removes of an hour in its checkpoints, with the values of their partitions: not in this one. Readers
    of earlier versions fail from now on.
    """
    _retain(folder, region, _AT_ONCE, writer)
    world.sleep(0.01)  # removes must be older than no time at all
    table = delta_tables.open_table(folder)
    newest = int(table.version())
    world.across(Seam.DELTA_UPKEEP, table.create_checkpoint, folder)
    world.pass_point(ErasePoint.LOG)
    names = [name for name in folder.names(LOG) if name.endswith(PART) or _is_before(name, newest)]
    folder.remove([f"{LOG}/{name}" for name in names])
    folder.remove([f"{REMOVED}/{name}" for name in folder.names(REMOVED)])
    _retain(folder, region, delta_tables.CONFIGURATION[_RETENTION], writer)


_OTHERS = re.compile(r"\d{20}\.(crc|compacted\.json)|\.\d{20}.*\.crc")


def _is_before(name: str, newest: int) -> bool:
    found = LOG_ENTRY.match(name) or _OTHERS.fullmatch(name)
    number = re.search(r"\d{20}", name)
    return bool(found and number and int(number.group()) < newest)


def _retain(folder: Folder, region: str, wanted: str, writer: SoleWriter | None) -> None:
    """Set for how long the log names files that left, in a commit under the version that the table has."""

    def has(table: Any) -> bool:
        return bool(table.metadata().configuration.get(_RETENTION) == wanted)

    def prepare(table: Any) -> Act | None:
        if has(table):
            return None
        version = commits.txn_version(table, region) or 0  # 0: nothing came yet
        return lambda: commits.set_properties(folder, table, region, version, {_RETENTION: wanted})

    commits.commit(folder, verb="erase", prepare=prepare, landed=has, writer=writer)
