"""What a table still holds after rows have left it: files that no version shows, and a log with bounds of columns."""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Any

from drainmark.jobs import world
from drainmark.jobs.failpoints import ErasePoint
from drainmark.jobs.world import Seam
from drainmark.resources.delta import commits
from drainmark.resources.delta.commit_log import LOG, LOG_ENTRY, SoleWriter
from drainmark.resources.delta.commits import Act
from drainmark.resources.delta.upkeep.log_retention import REMOVED
from drainmark.resources.storage.folder import Folder

_RETENTION = "delta.deletedFileRetentionDuration"
_AT_ONCE = "interval 0 seconds"


def unneeded(folder: Folder, kept: Set[str]) -> list[str]:
    """Return the files below a table's folder, beside its log, that are not among those that are kept.

    Folders whose names begin with an underscore have what Drainmark notes itself, but for staged files.
    """
    found = [entry.path for entry in folder.everything("")]
    data = (path for path in found if not path.startswith("_") or path.startswith("_staged/"))
    return sorted(path for path in data if path not in kept)


def forget_log(folder: Folder, region: str, version: int | None, *, writer: SoleWriter | None) -> None:
    """Leave a log that begins with the version of the table: no earlier entry, no file that left, no bounds of one.

    Delta keeps the removes of an hour in its checkpoints, with the values of their partitions: not in this one. Readers
    of earlier versions fail from now on.

    Args:
        version: the txnVersion that the table has; None for a table without one.
    """
    _retain(folder, region, version, _AT_ONCE, writer)
    world.sleep(0.01)  # removes must be older than no time at all
    table = commits.open_table(folder)
    newest = int(table.version())
    world.across(Seam.DELTA_UPKEEP, table.create_checkpoint, folder)
    world.pass_point(ErasePoint.LOG)
    names = [name for name in folder.names(LOG) if _is_before(name, newest)]
    folder.remove([f"{LOG}/{name}" for name in names])
    folder.remove([f"{REMOVED}/{name}" for name in folder.names(REMOVED)])
    _retain(folder, region, version, commits.CONFIGURATION[_RETENTION], writer)


_OTHERS = re.compile(r"\d{20}\.(crc|compacted\.json)|\.\d{20}.*\.crc")


def _is_before(name: str, newest: int) -> bool:
    found = LOG_ENTRY.match(name) or _OTHERS.fullmatch(name)
    number = re.search(r"\d{20}", name)
    return bool(found and number and int(number.group()) < newest)


def _retain(folder: Folder, region: str, version: int | None, wanted: str, writer: SoleWriter | None) -> None:
    """Set for how long the log names files that left, in a commit under the version that the table has."""

    def has(table: Any) -> bool:
        return bool(table.metadata().configuration.get(_RETENTION) == wanted)

    def prepare(table: Any) -> Act | None:
        if has(table):
            return None
        properties = commits.properties(region, version)
        return lambda: table.alter.set_table_properties({_RETENTION: wanted}, **properties)

    commits.commit(folder, verb="erase", prepare=prepare, landed=has, writer=writer)
