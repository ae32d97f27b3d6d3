"""State and sink tables: every verb is one guarded Delta commit under a `txnVersion`.

A version at or above mine means done: publishing and rewinding are roll-forward, whoever does it and however often.
Only Drainmark commits to a managed table, here and in `upkeep/`, by the guarded functions alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.protocol.records.ids import INITIAL_ID, txn_version
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.protocol.rewind_steps import cut_at
from drainmark.jobs.runtime.outside import RowsOf
from drainmark.jobs.tasks.layout import Layout
from drainmark.resources.delta import commits
from drainmark.resources.delta.commit_log import SoleWriter
from drainmark.resources.delta.commits import Act, Faults, Published
from drainmark.resources.delta.keyed_rewrite import KeyedRewrite
from drainmark.resources.delta.merge import (
    arrow_schema,
    as_table,
    of_ids,
    require_unique,
    rows_to_restore,
    up_to,
)
from drainmark.resources.delta.schema_evolution import added_columns, widen
from drainmark.resources.delta.staging import Staging, verify
from drainmark.resources.delta.table_files import TableFiles
from drainmark.resources.delta.upkeep.upkeep import Upkeep
from drainmark.resources.delta.visible_layout import OF_IDS
from drainmark.resources.storage.folder import Folder, folder_at

if TYPE_CHECKING:
    import pyarrow as pa


class ManagedTable:
    """One Delta table of a region; holds no open file and no snapshot between calls.

    Versions are `txn_version(epoch, id)`; a publish carries those of the checkpoint row that it publishes, whoever
    does it, and each table takes groups in commit order: the caller's duty.

    Args:
        root: folder of the table; a path is one on this machine.
        region: whose commits these are; part of the mark and of `txnAppId`.
        faults: called around each commit with `publish`, `rewind_table` or `compact` and `.before_commit` or
            `.after_commit`; what it raises after a commit is a lost reply.
        writer: what is known of the table's commits, where another object of this process looked already.
        layout: of the files of a table of one row a key that has one.

    Attributes:
        files: reads the table's files, visible and staged.
        upkeep: compacts them, and keeps the log short.
    """

    def __init__(
        self,
        root: Path | Folder,
        region: str,
        *,
        faults: Faults | None = None,
        writer: SoleWriter | None = None,
        layout: Layout | None = None,
    ) -> None:
        self.folder = folder_at(root)
        self.region = region
        self.writer: SoleWriter | None = writer or SoleWriter(self.folder, region)
        self.files = TableFiles(self.folder)
        self.upkeep = Upkeep(self.folder, region, faults=faults, writer=self.writer)
        self._faults = faults
        self._layout = layout

    # --- reading ---------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Say whether there is a Delta table, anyone's."""
        return commits.is_table(self.folder)

    def is_own(self) -> bool:
        """Say whether there is a table that this region made."""
        return self.exists() and commits.is_own(self._open(), self.region)

    def schema_json(self) -> str:
        """Return the schema as Spark and Delta write it."""
        return str(self._open().schema().to_json())

    def txn_version(self) -> int | None:
        """Return the newest version published, None before the first."""
        return commits.txn_version(self._open(), self.region)

    def delta_version(self) -> int:
        """Return Delta's own version."""
        version: int = self._open().version()
        return version

    def row_count(self) -> int:
        """Return the number of rows, from the statistics."""
        return sum(file.rows for file in self.files.live())

    def newest_id(self) -> int:
        """Return the largest `_sequence_id`, 0 without one; from the statistics."""
        return max((file.last_id or 0 for file in self.files.live()), default=0)

    def read(self, columns: Sequence[str] | None = None, where: pa.compute.Expression | None = None) -> pa.Table:
        """Return the rows for which `where` holds, in no order; reads Parquet, never through `to_pyarrow`."""
        table = self._open()
        paths = [file.path for file in commits.live_files(table, self.folder)]
        return self.folder.read(paths, arrow_schema(table), columns, where)

    # --- committing ------------------------------------------------------------------------------------------------

    def create(
        self,
        schema_json: str,
        *,
        evolves: bool = False,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] = OF_IDS,
    ) -> None:
        """Create the table empty, all columns nullable; one that is the region's with these columns will do.

        Args:
            evolves: one that lacks some of the columns will do too, in whatever order: `widen` adds them.
            partition_by, properties: see `commits.create_table`.

        Raises:
            ForeignTable: there is a table or a folder that this region did not make.
            LayoutChanged: the table has other partitions.
            SchemaMismatch: the table has other columns, or a column's type cannot be kept.
        """
        compare = (lambda found, wanted, where: added_columns(found, wanted, where=where)) if evolves else None
        commits.create_table(
            self.folder, self.region, schema_json, compare=compare, partition_by=partition_by, properties=properties
        )

    def widen(self, schema_json: str) -> None:
        """Add the columns that the table lacks; see `schema_evolution.widen`."""
        widen(self.folder, self.region, schema_json, faults=self._faults, writer=self.writer)

    def publish(self, version: int, files: Sequence[StagedFile]) -> Published:
        """Make staged files visible in one commit; an empty commit for no files.

        Raises:
            AccountingError: a file is missing or has another size.
            CommitOutcomeUnknown, SplitBrain, StoreUnavailable: see `commits.commit`.
        """

        def prepare(table: Any) -> Act:
            verify(self.folder, files)
            return lambda: commits.transact(table, self.region, version, adds=files)

        return self._commit("publish", version, prepare)

    def replace(self, version: int, files: Sequence[StagedFile], ids: Collection[int], staging: Staging) -> Published:
        """Make staged files visible and take back the rows of some ids, in one commit.

        Args:
            version: of the checkpoint row that is published.
            ids: whose rows leave; none of the files has any.
            staging: where files go that had rows of other ids, too.
        """

        def prepare(table: Any) -> Act:
            near = [file for file in commits.live_files(table, self.folder) if file.may_hold(ids)]
            kept = staging.rewrite([[file] for file in near], arrow_schema(table), ~of_ids(ids))
            verify(self.folder, [*files, *kept])
            return lambda: commits.transact(table, self.region, version, adds=[*files, *kept], removes=near)

        return self._commit("publish", version, prepare)

    def merge(self, version: int, rows: pa.Table, keys: Sequence[str]) -> Published:
        """Bring a table of one row a key up to date: `rows` replace the rows of their keys, or are added.

        Args:
            version: of the checkpoint row that is published.
            rows: one row a key, with the table's columns; see `last_per_key`.
            keys: key columns; nulls are equal.

        Raises:
            AccountingError: two rows of one key (Delta would insert both).
            SchemaMismatch: a column is missing, unknown, or of another type.
        """

        def prepare(table: Any) -> Act:
            source = as_table(rows, arrow_schema(table), self.folder)
            require_unique(source, keys, self.folder)
            return self._merging(table, version, keys).upsert(source)

        return self._commit("publish", version, prepare)

    def rewind_rows(self, version: int, to: int, staging: Staging, *, restored: Sequence[RowsOf] = ()) -> Published:
        """Take back the rows of ids above `to` from a table of rows: whole files go, one that straddles is rewritten.

        Args:
            version: of the checkpoint row of the rewind.
            to: the id that stays the last.
            staging: where rewritten files go.
            restored: rows that come back, since what replaced them is taken back.
        """

        def prepare(table: Any) -> Act:
            cut = cut_at(commits.live_files(table, self.folder), to)
            schema = arrow_schema(table)
            kept = [*staging.rewrite([[file] for file in cut.straddling], schema, up_to(to))]
            for ids, files in restored:
                verify(self.folder, files)
                kept += staging.rewrite([files], schema, of_ids(ids))
            verify(self.folder, kept)
            return lambda: commits.transact(table, self.region, version, adds=kept, removes=cut.leaving)

        return self._commit("rewind_table", version, prepare)

    def rewind_upsert(
        self,
        version: int,
        to: int,
        history: ManagedTable,
        keys: Sequence[str],
        columns: Sequence[str],
        *,
        images: Sequence[str] = (),
        since: int | None = None,
    ) -> Published:
        """Give each key that changed after `to` its last row up to `to`, or delete it where there is none.

        To be done before the history itself is rewound.

        Args:
            version: of the checkpoint row of the rewind.
            to: the id that stays the last.
            history: table of one row a changed key and id.
            keys: key columns.
            columns: the columns of the history that are visible here.
            since: keys that changed after this id are looked at; after `to` by default.
            images: Parquet files below the history's folder, with a row a key and its `_sequence_id`, in place of
                changes that were dropped.
        """

        def prepare(table: Any) -> Act:
            source = rows_to_restore(history.folder, images, to, keys, columns, since=since)
            return self._merging(table, version, keys).restore(source)

        return self._commit("rewind_table", version, prepare)

    def fence(self, epoch: int) -> None:
        """Take nothing more of older epochs: what an owner was stopped before committing is given up or done.

        To be done before files are deleted that such a commit names, and once all that is committed is published.
        """
        version = txn_version(epoch, INITIAL_ID)
        self._commit("compact", version, lambda table: lambda: commits.transact(table, self.region, version))

    # --- how -------------------------------------------------------------------------------------------------------

    def _open(self) -> Any:
        return commits.open_table(self.folder)

    def _merging(self, table: Any, version: int, keys: Sequence[str]) -> KeyedRewrite:
        layout = self._layout or Layout(has_statistics=True)
        return KeyedRewrite(table, self.folder, self.region, version, keys, layout)

    def _commit(self, verb: str, version: int, prepare: Callable[[Any], Act]) -> Published:
        """Commit unless it is done."""
        is_done = partial(commits.is_done, region=self.region, version=version)

        return commits.commit(
            self.folder,
            verb=verb,
            prepare=lambda table: None if is_done(table) else prepare(table),
            landed=is_done,
            faults=self._faults,
            writer=self.writer,
        )


def read_at(table: ManagedTable, to: int, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of a table of rows as they were at the consistent state `to`."""
    return table.read(columns, up_to(to))
