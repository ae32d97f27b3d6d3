"""Tables that left the code are dropped: a row names them, then their files go, then a second row forgets them.

The first row is the commit point: whoever owns the region next finishes the work. From the second one on no rewind, no
check and no publish looks for the tables, and a sink of such a name begins with a new table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from drainmark.jobs import world
from drainmark.jobs.errors import DrainmarkError, StoreUnavailable
from drainmark.jobs.failpoints import DropPoint
from drainmark.jobs.runtime.commit.ledger import Ledger
from drainmark.resources.delta import delta_tables
from drainmark.resources.delta.log.commit_log import LOG
from drainmark.resources.storage.folder import Folder


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDrops:
    """The committer of dropped tables."""

    ledger: Ledger

    def drop(self, tables: Mapping[str, str], reason: str) -> None:
        """Drop former tables; everything that is committed is published.

        Args:
            tables: by name, the id of the Delta table to delete; "" for one that stays where it is and is only
                forgotten.
        """
        self.ledger.note_published(dropping=dict(tables), reason=reason)
        world.pass_point(DropPoint.NOTED)
        self.finish()

    def finish(self) -> None:
        """Delete the files of all tables that are being dropped, and forget the tables; may be repeated.

        Raises:
            StoreUnavailable: files could not be deleted; the next owner tries again.
        """
        ledger, dropping = self.ledger, self.ledger.history.dropping
        if not dropping:
            return
        for name, table_id in dropping.items():
            if table_id:
                ledger.refresh()  # an owner that was stopped must not delete what came in the table's place
                delete_table(ledger.outside.store.tables / name, table_id)
        ledger.note_published(forgotten=sorted(dropping))
        ledger.report("drop", {"tables": sorted(dropping)})


def table_id_of(folder: Folder) -> str:
    """Return the id of the Delta table in a folder; "" if there is none that can be opened."""
    if not delta_tables.is_table(folder):
        return ""
    try:
        return str(delta_tables.open_table(folder).metadata().id)
    except DrainmarkError:
        return ""


def delete_table(folder: Folder, table_id: str) -> None:
    """Delete a table: its log first, so that it is gone for every reader at once, and then its files.

    A table with another id has come in its place since, and is left alone, as are tables in folders below.
    """
    if table_id_of(folder) not in ("", table_id):
        return
    folder.delete(LOG)
    world.pass_point(DropPoint.LOG_GONE)
    inner = _tables_below(folder)
    if inner:
        with suppress(OSError):
            folder.remove(list(_beside(folder, inner)))
    else:
        folder.delete("")
    world.pass_point(DropPoint.DELETED)
    if next(_beside(folder, inner), None) is not None:
        msg = f"files of the dropped table {folder} could not be deleted"
        raise StoreUnavailable(msg, remedy="give this user the right to delete there; the next command tries again")


def _tables_below(folder: Folder) -> set[str]:
    """Return the folders of other tables below that of a table without log."""
    parts = (entry.path.partition(f"/{LOG}/") for entry in folder.everything(""))
    return {outer for outer, log, _ in parts if log}


def _beside(folder: Folder, inner: Collection[str]) -> Iterator[str]:
    """Yield the files below a folder that are not in some of its folders."""
    within = tuple(f"{each}/" for each in inner)
    return (entry.path for entry in folder.everything("") if not entry.path.startswith(within))
