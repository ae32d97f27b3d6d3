"""State and sink tables: every verb is one guarded Delta commit under a `txnVersion`.

A commit is done if the table's version is at or above its own. So any owner can repeat a publish or a rewind.
Only Drainmark commits to a managed table, and only through the guarded functions of `commits`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.protocol.records.ids import INITIAL_ID, REWOUND_TO, txn_version
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.protocol.rewind_steps import cut_at
from drainmark.jobs.tasks.executor import Here
from drainmark.jobs.tasks.layout import OF_IDS, Layout
from drainmark.resources.delta import commits, delta_tables, file_lists
from drainmark.resources.delta.commits import Act, Published, RegionDeltaTable
from drainmark.resources.delta.keyed import former_files
from drainmark.resources.delta.keyed.keyed_changes import KeyedChanges, Restored
from drainmark.resources.delta.keyed.keyed_merge import Changes, KeyedMerge
from drainmark.resources.delta.log import marked_files
from drainmark.resources.delta.log.commit_log import SoleWriter
from drainmark.resources.delta.merge import arrow_schema, of_ids, up_to
from drainmark.resources.delta.schema_evolution import added_columns, widen
from drainmark.resources.delta.staging import Executors, Staging, all_nullable, verify
from drainmark.resources.delta.table_files import TableFiles
from drainmark.resources.delta.upkeep.upkeep import Upkeep
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.jobs.protocol.records.manifest import RowsOf


class ManagedTable(RegionDeltaTable):
    """One Delta table of a region; it holds no open file between calls.

    Versions are `txn_version(epoch, id)`. A publish carries the version of the checkpoint row that it publishes, also
    if a later owner does it. The caller must publish groups in commit order.

    Args:
        root: folder of the table; a path is one on this machine.
        region: the region that commits; part of the mark and of `txnAppId`.
        writer: the checks of the table's commits, if another object of this process has them; a new object by default.
        layout: of the files that merges write; only statistics by default.
        executors: who does the work of merges; this process by default.

    Attributes:
        files: reads the table's files, visible and staged.
        upkeep: compacts them, and keeps the log short.
    """

    def __init__(
        self,
        root: Path | Folder,
        region: str,
        *,
        writer: SoleWriter | None = None,
        layout: Layout | None = None,
        executors: Executors = lambda size: Here(),
    ) -> None:
        super().__init__(root, region)
        self.writer: SoleWriter | None = writer or SoleWriter(self.folder, region)
        self.files = TableFiles(self.folder, self.writer)
        self.upkeep = Upkeep(self.folder, region, writer=self.writer)
        self._merges = KeyedMerge(folder=self.folder, layout=layout or Layout(has_statistics=True), executors=executors)

    # --- reading ---------------------------------------------------------------------------------------------------

    def is_own(self) -> bool:
        """Say whether there is a table that this region made."""
        return self.exists() and delta_tables.is_own(self._open(), self.region)

    def row_count(self) -> int:
        """Return the number of rows, from the statistics."""
        return sum(file.rows for file in self.files.live())

    def newest_id(self) -> int:
        """Return the largest `_sequence_id`, 0 if there is none; from the statistics if they are exact."""
        return self.files.last_of(self.files.live())

    def read(self, columns: Sequence[str] | None = None, where: pa.compute.Expression | None = None) -> pa.Table:
        """Return the rows for which `where` holds, in no order; reads Parquet, never through `to_pyarrow`."""
        table = self._open()
        files = file_lists.live_files(table, self.folder)
        return marked_files.read(self.folder, files, arrow_schema(table), columns, where)

    # --- committing ------------------------------------------------------------------------------------------------

    def create(
        self,
        schema_json: str,
        *,
        evolves: bool = False,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] = OF_IDS,
    ) -> None:
        """Create the table empty, all columns nullable; accept a table of the region with these columns unchanged.

        Args:
            evolves: also accept a table that lacks some of the columns, in any order: `widen` adds them.
            partition_by, properties: see `delta_tables.create_table`.

        Raises:
            ForeignTable: there is a table or a folder that this region did not make.
            LayoutChanged: the table has other partitions.
            SchemaMismatch: the table has other columns, or a column's type cannot be kept.
        """
        delta_tables.create_table(
            self.folder,
            self.region,
            schema_json,
            compare=_compare(evolves=evolves),
            partition_by=partition_by,
            properties=properties,
            writer=self.writer,
        )

    def widen(self, schema_json: str) -> None:
        """Add the columns that the table lacks; see `schema_evolution.widen`."""
        widen(self.folder, self.region, schema_json, writer=self.writer)

    def publish(self, version: int, files: Sequence[StagedFile]) -> Published:
        """Make staged files visible in one commit; an empty commit for no files.

        Raises:
            AccountingError: a file is missing or has another size.
            CommitOutcomeUnknown, SplitBrain, StoreUnavailable: see `commits.commit`.
        """

        def prepare(table: Any) -> Act:
            verify(self.folder, files)
            return lambda: commits.transact(self.folder, table, self.region, version, adds=files)

        return self._commit("publish", version, prepare)

    def replace(self, version: int, files: Sequence[StagedFile], ids: Collection[int], staging: Staging) -> Published:
        """Make staged files visible and remove the rows of some ids, in one commit.

        Args:
            version: of the checkpoint row that is published.
            ids: ids of the rows that leave; the staged files have no such rows.
            staging: where rewritten files go, with the rows of other ids.
        """

        def prepare(table: Any) -> Act:
            near = [file for file in file_lists.live_files(table, self.folder) if file.may_hold(ids)]
            kept = staging.rewrite([[file] for file in near], arrow_schema(table), ~of_ids(ids))
            verify(self.folder, [*files, *kept])
            return lambda: commits.transact(
                self.folder, table, self.region, version, adds=[*files, *kept], removes=near
            )

        return self._commit("publish", version, prepare)

    def merge(self, version: int, changes: Changes) -> Published:
        """Bring a table with one row for each key up to date: each changed key gets its new row.

        Args:
            version: of the checkpoint row that is published.

        Raises:
            AccountingError, SchemaMismatch: see `GivenRows.at_once`.
        """

        def prepare(table: Any) -> Act:
            return self._merges.replacing(table, changes).commit(table, self.region, version)

        return self._commit("publish", version, prepare)

    def rewind_rows(self, version: int, to: int, staging: Staging, *, restored: Sequence[RowsOf] = ()) -> Published:
        """Remove the rows with ids above `to` from a table of rows: whole files leave, one that straddles is rewritten.

        Args:
            version: of the checkpoint row of the rewind.
            to: the id that stays the last.
            staging: where rewritten files go.
            restored: rows that come back, since the rows that replaced them are removed.
        """

        def prepare(table: Any) -> Act:
            cut = cut_at(file_lists.live_files(table, self.folder), to)
            schema = arrow_schema(table)
            kept = [*staging.rewrite([[file] for file in cut.straddling], schema, up_to(to))]
            for ids, files in restored:
                verify(self.folder, files)
                kept += staging.rewrite([files], schema, of_ids(ids))
            verify(self.folder, kept)
            # Rows that come back were never read from this table by their id: its readers cannot pass over them.
            mark = None if restored else {REWOUND_TO: str(to)}
            return lambda: commits.transact(
                self.folder, table, self.region, version, adds=kept, removes=cut.leaving, mark=mark
            )

        return self._commit("rewind_table", version, prepare)

    def rewind_upsert(self, version: int, restored: Restored) -> Published:
        """Give each key that changed its row back, or delete it if it had none.

        Call this before the history itself is rewound.

        Args:
            version: of the checkpoint row of the rewind.
        """

        def prepare(table: Any) -> Act:
            if restored.to == INITIAL_ID:  # all rows leave, and nothing is read: a damaged file does not hinder it
                leaving = file_lists.live_files(table, self.folder)
                return lambda: commits.transact(self.folder, table, self.region, version, removes=leaving)
            former = former_files.put_back(table, self.folder, self.region, restored.to)
            change = former or self._merges.replacing(table, restored.changes())
            return change.commit(table, self.region, version)

        return self._commit("rewind_table", version, prepare)

    def fence(self, epoch: int) -> None:
        """Let the table take no more commits of older epochs: an older owner gives up a late commit or finds it done.

        Call this after all committed groups are published, and before you delete files that such a commit names.
        """
        version = txn_version(epoch, INITIAL_ID)
        self._commit(
            "compact", version, lambda table: lambda: commits.transact(self.folder, table, self.region, version)
        )

    # --- how -------------------------------------------------------------------------------------------------------

    def _commit(self, verb: str, version: int, prepare: Callable[[Any], Act]) -> Published:
        """Commit, unless the table has this version or a later one."""
        is_done = partial(commits.is_done, region=self.region, version=version, writer=self.writer)

        return commits.commit(
            self.folder,
            verb=verb,
            prepare=lambda table: None if is_done(table) else prepare(table),
            landed=is_done,
            writer=self.writer,
            told=lambda entry: entry.transaction == version,
        )


def examine_table(
    managed: ManagedTable, schema_json: str, *, evolves: bool = False, partition_by: Sequence[str] = ()
) -> None:
    """Check what `ManagedTable.create` checks, and raise what it raises; changes nothing."""
    if managed.exists():
        schema, compare = all_nullable(schema_json), _compare(evolves=evolves)
        delta_tables.require_fit(
            managed.folder,
            managed.region,
            schema,
            compare=compare,
            partition_by=partition_by,
            writer=managed.writer,
        )
    else:
        delta_tables.refuse_foreign_files(managed.folder)


def _compare(*, evolves: bool) -> Callable[[str, str, str], object] | None:
    """Return the check of an existing table's columns: a table that evolves may lack some of them."""
    return (lambda found, wanted, where: added_columns(found, wanted, where=where)) if evolves else None


class KeyedTable(ManagedTable):
    """The visible table of an upsert sink; all its rows can be made anew from its history."""

    def fill(self, version: int, changes: KeyedChanges, *, verb: str = "publish") -> Published:
        """Replace all rows of a table with one row for each key: each changed key has its new row, other keys leave.

        Args:
            version: of the checkpoint row that is carried out.
            verb: names the fail points.
        """

        def prepare(table: Any) -> Act:
            leaving, adds = file_lists.live_files(table, self.folder), self._merges.rebuilt(table, changes)
            return lambda: commits.transact(self.folder, table, self.region, version, adds=adds, removes=leaving)

        return self._commit(verb, version, prepare)


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
                visible, or no rows.
            staging: where new files go.
        """

        def prepare(table: Any) -> Act:
            live = file_lists.live_files(table, self.folder)
            if live and all((file.last_id or 0) <= to for file in live):
                return lambda: commits.transact(self.folder, table, self.region, version)
            return self._swap(table, version, history, newest(), staging)

        return self._commit("rewind_table", version, prepare)

    def _swap(self, table: Any, version: int, history: ManagedTable, newest: RowsOf, staging: Staging) -> Act:
        leaving, (ids, files) = file_lists.live_files(table, self.folder), newest
        parts = [[file] for file in files]
        adds = staging.rewrite(parts, arrow_schema(table), of_ids(ids), source=history.folder)
        return lambda: commits.transact(self.folder, table, self.region, version, adds=adds, removes=leaving)
