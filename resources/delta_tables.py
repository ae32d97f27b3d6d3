"""State and sink tables: every verb is one guarded Delta commit under a `txnVersion` (design.md §3.2, §3.4).

A version at or above mine means done: publishing and rewinding are roll-forward, whoever does it and however often.
Only Drainmark, and only this module, commits to a managed table (H6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.errors import AccountingError, SchemaMismatch
from jobs.protocol.manifest import StagedFile
from jobs.state.keyed_rows import key_codes, last_per_key, read_parquet
from resources import delta_commits
from resources.delta_commits import Act, Faults, Published
from resources.staging import SEQUENCE_COLUMN, Staging, verify

if TYPE_CHECKING:
    import pyarrow as pa

SMALL_FILE_BYTES = 32 * 2**20
_KEEP_COLUMN = "_drainmark_keep"


class ManagedTable:
    """One Delta table of a region; holds no open file and no snapshot between calls.

    Versions are `txn_version(epoch, id)`; a publish carries those of the checkpoint row that it publishes, whoever
    does it, and each table takes groups in commit order (H3): the caller's duty.

    Args:
        root: folder of the table.
        region: whose commits these are; part of the mark and of `txnAppId`.
        faults: called around each commit with `publish`, `rewind_table` or `compact` and `.before_commit` or
            `.after_commit`; what it raises after a commit is a lost reply.
    """

    def __init__(self, root: Path, region: str, *, faults: Faults | None = None) -> None:
        self.root = root
        self.region = region
        self._faults = faults

    # --- reading ---------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Say whether there is a Delta table, anyone's."""
        return delta_commits.is_table(self.root)

    def schema_json(self) -> str:
        """Return the schema as Spark and Delta write it."""
        return str(self._open().schema().to_json())

    def txn_version(self) -> int | None:
        """Return the newest version published, None before the first."""
        return delta_commits.txn_version(self._open(), self.region)

    def delta_version(self) -> int:
        """Return Delta's own version."""
        version: int = self._open().version()
        return version

    def row_count(self) -> int:
        """Return the number of rows, from the statistics."""
        return sum(file.rows for file in self.live_files())

    def live_files(self) -> tuple[StagedFile, ...]:
        """Return the visible files in the order of their ids."""
        return delta_commits.live_files(self._open(), self.root)

    def file_uris(self) -> tuple[str, ...]:
        """Return the paths of the visible files, for a reader of Parquet (H34)."""
        return tuple(str(self.root / file.path) for file in self.live_files())

    def read(self, columns: Sequence[str] | None = None, where: pa.compute.Expression | None = None) -> pa.Table:
        """Return the rows for which `where` holds, in no order; reads Parquet, never through `to_pyarrow` (H34)."""
        table = self._open()
        paths = [self.root / file.path for file in delta_commits.live_files(table, self.root)]
        return read_parquet(paths, _arrow_schema(table), columns, where)

    # --- committing ------------------------------------------------------------------------------------------------

    def create(self, schema_json: str) -> None:
        """Create the table empty, all columns nullable; one that is the region's with these columns will do.

        Raises:
            ForeignTable: there is a table or a folder that this region did not make.
            SchemaMismatch: the table has other columns, or a column's type cannot be kept.
        """
        delta_commits.create_table(self.root, self.region, schema_json)

    def publish(self, version: int, files: Sequence[StagedFile]) -> Published:
        """Make staged files visible in one commit; an empty commit for no files.

        Raises:
            AccountingError: a file is missing or has another size.
            CommitOutcomeUnknown, SplitBrain, StoreUnavailable: see `delta_commits.commit`.
        """

        def prepare(table: Any) -> Act:
            verify(self.root, files)
            return lambda: delta_commits.transact(table, self.region, version, adds=files)

        return self._commit("publish", version, prepare)

    def merge(self, version: int, rows: pa.Table, keys: Sequence[str]) -> Published:
        """Bring a table of one row a key up to date: `rows` replace the rows of their keys, or are added.

        Args:
            version: of the checkpoint row that is published.
            rows: one row a key, with the table's columns; see `last_per_key`.
            keys: key columns; nulls are equal (H5).

        Raises:
            AccountingError: two rows of one key (Delta would insert both).
            SchemaMismatch: a column is missing, unknown, or of another type.
        """

        def prepare(table: Any) -> Act:
            source = _as_table(rows, _arrow_schema(table), self.root)
            _require_unique(source, keys, self.root)
            return lambda: self._upsert(table, version, source, keys)

        return self._commit("publish", version, prepare)

    def rewind_rows(self, version: int, to: int, staging: Staging) -> Published:
        """Take back the rows of ids above `to` from a table of rows: whole files go, one that straddles is rewritten.

        Args:
            version: of the checkpoint row of the rewind.
            to: the id that stays the last.
            staging: where rewritten files go.
        """

        def prepare(table: Any) -> Act:
            leaving = [file for file in delta_commits.live_files(table, self.root) if (file.last_id or 0) > to]
            schema = _arrow_schema(table)
            kept: list[StagedFile] = []
            for file in leaving:
                if (file.first_id or 0) <= to:
                    rows = read_parquet([self.root / file.path], schema, None, _up_to(to))
                    kept += staging.write(rows, f"rewound-{to}")
            verify(self.root, kept)
            return lambda: delta_commits.transact(table, self.region, version, adds=kept, removes=leaving)

        return self._commit("rewind_table", version, prepare)

    def rewind_upsert(
        self,
        version: int,
        to: int,
        history: ManagedTable,
        keys: Sequence[str],
        columns: Sequence[str],
        *,
        images: Sequence[Path] = (),
    ) -> Published:
        """Give each key that changed after `to` its last row up to `to`, or delete it where there is none.

        To be done before the history itself is rewound.

        Args:
            version: of the checkpoint row of the rewind.
            to: the id that stays the last.
            history: table of one row a changed key and id.
            keys: key columns.
            columns: the columns of the history that are visible here.
            images: Parquet files with a row a key and its `_sequence_id`, in place of changes that were dropped.
        """

        def prepare(table: Any) -> Act:
            source = _rows_to_restore(history, images, to, keys, columns)
            return lambda: self._restore(table, version, source, keys)

        return self._commit("rewind_table", version, prepare)

    def compact(self, version: int, staging: Staging, *, files_at_least: int = 64, horizon_id: int = 0) -> bool:
        """Rewrite runs of small files, adjacent by id, as one file each; the rows stay as they are.

        For tables of rows. The commit demands that the table still has `version`, and carries it on (H7).

        Args:
            version: the version that the table has.
            staging: where the new files go; they live there until compacted or rewound again.
            files_at_least: shorter runs are left alone.
            horizon_id: no file gets rows from both sides of it, so that whole files can be dropped.

        Returns:
            Whether anything was rewritten; False too when the table has another version.
        """
        opened = self._open()
        if delta_commits.txn_version(opened, self.region) != version:
            return False
        live = delta_commits.live_files(opened, self.root)
        runs = _runs_to_compact(live, files_at_least, horizon_id)
        if not runs:
            return False
        schema = _arrow_schema(opened)
        rewritten = [
            file
            for run in runs
            for file in staging.write(
                read_parquet([self.root / old.path for old in run], schema), f"compacted-{run[0].first_id}"
            )
        ]
        return delta_commits.replace(
            self.root,
            self.region,
            version,
            replaced=[file for run in runs for file in run],
            rewritten=rewritten,
            faults=self._faults,
        )

    def maintain(self) -> None:
        """Write a checkpoint of Delta's log and delete log files older than a day; a step of its own (H10)."""
        delta_commits.maintain(self.root)

    # --- how -------------------------------------------------------------------------------------------------------

    def _open(self) -> Any:
        return delta_commits.open_table(self.root)

    def _commit(self, verb: str, version: int, prepare: Callable[[Any], Act]) -> Published:
        """Commit unless the table's version is at or above mine: then it is done, or a later owner undid it."""

        def is_done(table: Any) -> bool:
            found = delta_commits.txn_version(table, self.region)
            return found is not None and found >= version

        return delta_commits.commit(
            self.root,
            verb=verb,
            prepare=lambda table: None if is_done(table) else prepare(table),
            landed=is_done,
            faults=self._faults,
        )

    def _upsert(self, table: Any, version: int, source: pa.Table, keys: Sequence[str]) -> None:
        before = table.version()
        if source.num_rows:
            values = _values(source.column_names)
            merger = self._merger(table, version, source, keys)
            merger.when_matched_update(values).when_not_matched_insert(values).execute()
        self._commit_empty(table, version, before)

    def _restore(self, table: Any, version: int, source: pa.Table, keys: Sequence[str]) -> None:
        before = table.version()
        if source.num_rows:
            values = _values([name for name in source.column_names if name != _KEEP_COLUMN])
            keep = f"source.{_KEEP_COLUMN}"
            merger = self._merger(table, version, source, keys).when_matched_update(values, predicate=keep)
            merger = merger.when_matched_delete(predicate=f"NOT {keep}")
            merger.when_not_matched_insert(values, predicate=keep).execute()
        self._commit_empty(table, version, before)

    def _commit_empty(self, table: Any, version: int, before: int) -> None:
        """A merge that changes nothing commits nothing: the version must rise all the same (H4)."""
        if table.version() == before:
            delta_commits.transact(table, self.region, version)

    def _merger(self, table: Any, version: int, source: pa.Table, keys: Sequence[str]) -> Any:
        # Without the parentheses the parser takes "a IS NOT DISTINCT FROM (b AND …)".
        same = " AND ".join(f"(target.{_quoted(key)} IS NOT DISTINCT FROM source.{_quoted(key)})" for key in keys)
        return table.merge(
            source,
            same,
            source_alias="source",
            target_alias="target",
            **delta_commits.properties(self.region, version),
        )


def read_at(table: ManagedTable, to: int, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of a table of rows as they were at the consistent state `to`."""
    return table.read(columns, _up_to(to))


# --- rows ----------------------------------------------------------------------------------------------------------


def _rows_to_restore(
    history: ManagedTable, images: Sequence[Path], to: int, keys: Sequence[str], columns: Sequence[str]
) -> pa.Table:
    """Each key with a row above `to`: its last row up to `to` marked keep, or the key alone, not keep.

    One file at a time is in memory, beside the changed keys and what is found for them.
    """
    import numpy as np
    import pyarrow as pa

    opened = delta_commits.open_table(history.root)
    schema = pa.schema([_arrow_schema(opened).field(name) for name in columns])
    live = delta_commits.live_files(opened, history.root)
    above = [history.root / file.path for file in live if (file.last_id or 0) > to] + list(images)
    below = [history.root / file.path for file in live if (file.first_id or 0) <= to] + list(images)
    changed = last_per_key(read_parquet(above, schema, None, _above(to)), keys)
    found = schema.empty_table()
    if changed.num_rows:
        for path in below:
            rows = read_parquet([path], schema, None, _up_to(to))
            of_rows, of_changed = key_codes([rows, changed], keys)
            mine = rows.filter(pa.array(np.isin(of_rows, of_changed)))
            found = last_per_key(pa.concat_tables([found, mine]), keys)
    of_changed, of_found = key_codes([changed, found], keys)
    gone = changed.filter(pa.array(~np.isin(of_changed, of_found)))
    return pa.concat_tables(
        [
            rows.append_column(_KEEP_COLUMN, pa.repeat(keep, rows.num_rows))
            for rows, keep in ((found, True), (gone, False))
        ]
    )


def _require_unique(rows: pa.Table, keys: Sequence[str], root: Path) -> None:
    import numpy as np

    doubles = rows.num_rows - len(np.unique(key_codes([rows], keys)[0]))
    if doubles:
        msg = f"{doubles} of {rows.num_rows} rows to merge into {root} repeat a key ({', '.join(keys)})"
        raise AccountingError(msg, rows=doubles)


def _as_table(rows: pa.Table, schema: pa.Schema, root: Path) -> pa.Table:
    import pyarrow as pa

    if set(rows.column_names) != set(schema.names) or len(rows.column_names) != len(schema.names):
        differing = sorted(set(rows.column_names) ^ set(schema.names))
        msg = f"rows for {root} have the columns {rows.column_names}, expected {schema.names}"
        raise SchemaMismatch(msg, columns=tuple(differing))
    try:
        return rows.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        msg = f"rows for {root} do not fit its columns: {error}"
        raise SchemaMismatch(msg, columns=tuple(schema.names)) from error


def _runs_to_compact(files: Iterable[StagedFile], files_at_least: int, horizon_id: int) -> list[tuple[StagedFile, ...]]:
    """Runs of small neighbours, each without a first file that outweighs the rest: old rows are rewritten O(log n)
    times, not with every run."""
    runs: list[list[StagedFile]] = [[]]
    for file in files:
        is_beyond = (file.first_id or 0) > horizon_id
        if file.size >= SMALL_FILE_BYTES or (not is_beyond and (file.last_id or 0) > horizon_id):
            runs.append([])
            continue
        run = runs[-1]
        if run and (
            ((run[-1].first_id or 0) > horizon_id) != is_beyond or _bytes(run) + file.size > SMALL_FILE_BYTES * 4
        ):
            runs.append(run := [])
        run.append(file)
    for run in runs:
        while len(run) >= files_at_least and run[0].rows > sum(file.rows for file in run[1:]):
            del run[0]
    return [tuple(run) for run in runs if len(run) >= max(files_at_least, 2)]


def _bytes(files: Iterable[StagedFile]) -> int:
    return sum(file.size for file in files)


def _arrow_schema(table: Any) -> pa.Schema:
    import pyarrow as pa

    return pa.schema(table.schema())


def _up_to(to: int) -> pa.compute.Expression:
    import pyarrow.compute as pc

    return pc.field(SEQUENCE_COLUMN) <= to


def _above(to: int) -> pa.compute.Expression:
    import pyarrow.compute as pc

    return pc.field(SEQUENCE_COLUMN) > to


def _quoted(column: str) -> str:
    escaped = column.replace("`", "``")
    return f"`{escaped}`"


def _values(columns: Iterable[str]) -> dict[str, str]:
    return {_quoted(column): f"source.{_quoted(column)}" for column in columns}
