"""Tables that hold the rows of one id: a publish puts the newest in the place of all that is there, in one commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from drainmark.resources.delta import commits
from drainmark.resources.delta.commits import Act, Published
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.merge import arrow_schema, as_table
from drainmark.resources.delta.staging import Staging

if TYPE_CHECKING:
    import pyarrow as pa


class OverwrittenTable(ManagedTable):
    """The visible table of an overwrite sink; what it held before is in its history."""

    def overwrite(self, version: int, rows: pa.Table | None, staging: Staging) -> Published:
        """Put `rows` in the place of all that the table holds, in one commit.

        Args:
            version: of the checkpoint row that is published.
            rows: with the table's columns; None leaves none.
            staging: where their file goes.
        """
        return self._commit("publish", version, lambda table: self._swap(table, version, rows, staging))

    def rewind_overwrite(
        self, version: int, to: int, rows: Callable[[], pa.Table | None], staging: Staging
    ) -> Published:
        """Put the rows of the last id up to `to` in the place of those of a later one.

        Args:
            version: of the checkpoint row of the rewind.
            to: the id that stays the last.
            rows: gives the rows of the last id up to `to`, None without any; asked only where later ones are visible.
            staging: where their file goes.
        """

        def prepare(table: Any) -> Act:
            live = commits.live_files(table, self.folder)
            if all((file.last_id or 0) <= to for file in live):
                return lambda: commits.transact(table, self.region, version)
            return self._swap(table, version, rows(), staging)

        return self._commit("rewind_table", version, prepare)

    def _swap(self, table: Any, version: int, rows: pa.Table | None, staging: Staging) -> Act:
        leaving = commits.live_files(table, self.folder)
        adds = () if rows is None else staging.write(as_table(rows, arrow_schema(table), self.folder), "whole")
        return lambda: commits.transact(table, self.region, version, adds=adds, removes=leaving)
