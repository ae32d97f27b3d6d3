"""Tables that hold the rows of one id: a publish replaces all rows by those of the newest id, in one commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from drainmark.resources.delta import commits
from drainmark.resources.delta.commits import Act, Published
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.merge import arrow_schema, of_ids
from drainmark.resources.delta.staging import Staging

if TYPE_CHECKING:
    from drainmark.jobs.protocol.records.manifest import RowsOf


class OverwrittenTable(ManagedTable):
    """The visible table of an overwrite sink; its earlier rows are in its history."""

    def overwrite(self, version: int, history: ManagedTable, newest: RowsOf, staging: Staging) -> Published:
        """Replace all rows of the table by rows of a history, in one commit.

        Args:
            version: of the checkpoint row that is published.
            newest: ids, and files of the history, visible or not, that have their rows; without files, no rows stay.
            staging: where new files go.
        """
        return self._commit("publish", version, lambda table: self._swap(table, version, history, newest, staging))

    def rewind_overwrite(
        self, version: int, to: int, history: ManagedTable, newest: Callable[[], RowsOf], staging: Staging
    ) -> Published:
        """Replace the rows of an id after `to` by the rows of the last id up to `to`.

        Args:
            version: of the checkpoint row of the rewind.
            to: the id that stays the last.
            newest: returns the last id up to `to` and the files that have its rows; called only if later ids are
                visible.
            staging: where new files go.
        """

        def prepare(table: Any) -> Act:
            live = commits.live_files(table, self.folder)
            if all((file.last_id or 0) <= to for file in live):
                return lambda: commits.transact(table, self.region, version)
            return self._swap(table, version, history, newest(), staging)

        return self._commit("rewind_table", version, prepare)

    def _swap(self, table: Any, version: int, history: ManagedTable, newest: RowsOf, staging: Staging) -> Act:
        leaving, (ids, files) = commits.live_files(table, self.folder), newest
        parts = [[file] for file in files]
        adds = staging.rewrite(parts, arrow_schema(table), of_ids(ids), source=history.folder)
        return lambda: commits.transact(table, self.region, version, adds=adds, removes=leaving)
