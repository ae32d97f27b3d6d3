"""Tables that others made, with features that `deltalake` cannot write: published through delta-spark.

They have the verbs of `ManagedTable` and its rule: a commit is done if the table's `txnVersion` is at or above its own.
`deltalake` reads the log; it can open such tables and starts no JVM. Spark commits, one writer JVM at a time.
Every commit is read back, since delta-spark reports a skipped one as a success.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import AdoptionRefused, SchemaMismatch
from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.tags import SEQUENCE_ID, spark_type
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.tasks.executor import Here
from drainmark.resources.delta.adopted.constraints import REGION_PROPERTY, Breach, Terms
from drainmark.resources.delta.adopted.spark_commits import FEATURES, FIND_LOST_REPLIES, SparkCommit, session_settings
from drainmark.resources.delta.adopted.spark_writer import SparkWriter
from drainmark.resources.delta.commits import Act, Published, RegionDeltaTable
from drainmark.resources.delta.keyed.keyed_changes import KeyedChanges, Restored
from drainmark.resources.delta.keyed.keyed_merge import ChangedRows, Changes, changed_rows
from drainmark.resources.delta.merge import KEEP_COLUMN, arrow_schema
from drainmark.resources.delta.staging import STAGING_FOLDER, Executors, Staging, verify
from drainmark.resources.storage.folder import Folder, LocalFolder

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from drainmark.resources.spark.session import Engine


class AdoptedTable(RegionDeltaTable):
    """One Delta table that others made and may write to; their rows have no `_sequence_id`.

    Spark is started by the first commit, not before: a table that is up to date needs none.

    Args:
        root: folder of the table; a path is one on this machine.
        region: the region that commits.
        engine: gives the session, at the first commit.
        executors: who makes the rows of a merge; this process by default.
    """

    def __init__(
        self,
        root: Path | Folder,
        region: str,
        engine: Callable[[], Engine],
        *,
        executors: Executors = lambda size: Here(),
    ) -> None:
        super().__init__(root, region)
        self._executors = executors
        self._writer = SparkWriter(self.folder, region, engine)

    # --- reading ---------------------------------------------------------------------------------------------------

    def is_own(self) -> bool:
        """Say whether the table is there, and the region has published to it."""
        return self.exists() and self.txn_version() is not None

    def row_count(self) -> int:
        """Return the number of rows, those of others included."""
        return int(selected(self._open(), "count(*) as n").column("n")[0].as_py())

    def rows_above(self, to: int) -> int:
        """Return the number of rows with ids above `to`."""
        where = f"{SEQUENCE_ID} > {int(to)}"
        return int(selected(self._open(), "count(*) as n", where=where).column("n")[0].as_py())

    def newest_id(self) -> int:
        """Return the largest `_sequence_id`, 0 if there is none."""
        return int(selected(self._open(), f"max({SEQUENCE_ID}) as n").column("n")[0].as_py() or 0)

    def read(
        self,
        columns: Sequence[str] | None = None,
        where: pa.compute.Expression | None = None,
        opened: Any = None,
    ) -> pa.Table:
        """Return the rows for which `where` holds, in no order; those of others included.

        Args:
            columns: all by default.
            where: a condition on these columns and `_sequence_id`.
            opened: the table at a version, as `deltalake` opened it; the newest by default.
        """
        import pyarrow as pa

        opened = self._open() if opened is None else opened
        schema = arrow_schema(opened)
        names = list(columns) if columns is not None else schema.names
        found = list(dict.fromkeys([*names, SEQUENCE_ID])) if where is not None else names
        rows = selected(opened, ", ".join('"' + name.replace('"', '""') + '"' for name in found))
        rows = rows.cast(pa.schema([pa.field(name, schema.field(name).type) for name in found]))
        return (rows if where is None else rows.filter(where)).select(names)

    # --- adopting --------------------------------------------------------------------------------------------------

    def examine(self, schema_json: str, *, merged: bool) -> Terms:
        """Check that the table takes rows of a schema; changes nothing.

        Args:
            schema_json: of the rows, with `_sequence_id`.
            merged: rows are merged by key; then a constraint may name only columns that the rows have.

        Raises:
            AdoptionRefused: it does not, or cannot be adopted; the message gives the reason.
        """
        terms = self._terms(schema_json)
        if merged and terms.checks:
            rows = self._writer.session.createDataFrame([], spark_type(schema_json))
            rule = terms.undecidable(rows)
            if rule is not None:
                msg = f"{self.folder} has {rule}, which names columns that the stream does not have"
                remedy = "add those columns to the stream: a merge cannot be checked without them"
                raise AdoptionRefused(msg, remedy=remedy, table=self.folder.uri)
        return terms

    def create(self, schema_json: str) -> None:
        """Adopt the table: add `_sequence_id` and the region's name, unless the table has them.

        Raises:
            AdoptionRefused: there is no table, or it cannot be adopted.
            WriterBusy: another JVM writes to it.
        """
        terms = self._terms(schema_json)
        if terms.has_ids and terms.region == self.region:
            return
        session = self._writer.session
        with self._writer.alone(session), self._adopting(), session_settings(session, {FIND_LOST_REPLIES: "true"}):
            if not terms.has_ids:
                session.sql(f"ALTER TABLE {_sql_name(self.folder)} ADD COLUMNS ({SEQUENCE_ID} BIGINT)")
            if terms.region is None:
                session.sql(
                    f"ALTER TABLE {_sql_name(self.folder)} SET TBLPROPERTIES ('{REGION_PROPERTY}' = '{self.region}')"
                )
        self._terms(schema_json)  # another region may have done the same at the same moment

    @contextmanager
    def _adopting(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if FEATURES not in str(error):
                raise
            found = re.search(r"\[[A-Z_.]+\] .*", str(error))
            msg = f"{self.folder} cannot be adopted: {found[0][:500] if found else FEATURES}"
            remedy = "take the features away (ALTER TABLE … DROP FEATURE …), or write to a table of another name"
            raise AdoptionRefused(msg, remedy=remedy, table=self.folder.uri) from error

    def breach(self, rows: DataFrame) -> Breach | None:
        """Return the first of the table's current checks that staged rows break, or None."""
        return Terms.of(self._open(), str(self.folder)).breach(rows)

    def _terms(self, schema_json: str) -> Terms:
        if not isinstance(self.folder, LocalFolder):
            msg = f"{self.folder} is in an object store, where only tables that Drainmark made are written"
            raise AdoptionRefused(msg, remedy="write to a table of another name, without adopt=True")
        if not self.exists():
            msg = f"there is no Delta table {self.folder} to adopt"
            raise AdoptionRefused(msg, remedy="create it first, or leave adopt=True out", table=self.folder.uri)
        terms = Terms.of(self._open(), str(self.folder))
        terms.require(schema_json, self.region)
        return terms

    # --- committing ------------------------------------------------------------------------------------------------

    def publish(self, version: int, files: Sequence[StagedFile]) -> Published:
        """Append the rows of staged files in one commit, an empty one for no files; then delete the files.

        Raises:
            AccountingError: a staged file is missing or has another size; or committed files or rows are not on this
                disk, and then the staged files stay.
            TableRefused: the table's maker changed it since the rows were checked.
            CommitOutcomeUnknown, SplitBrain, StoreUnavailable: see `spark_commits.commit`.
            WriterBusy: another JVM writes to the table.
        """

        def prepare(_: Any, spark: SparkCommit) -> Act:
            verify(self.folder, files)
            return lambda: spark.append(self._writer.staged(spark.session, files))

        done = self._writer.commit("publish", version, prepare, staged=files)
        _discard_staged(self.folder, version, files)
        return done

    def merge(self, version: int, changes: Changes) -> Published:
        """Bring the table up to date by MERGE: new rows replace the rows of their keys, or are added; gone keys leave.

        A row that others wrote with such a key becomes the region's, or leaves. Columns that the rows lack keep their
        values.

        Args:
            version: of the checkpoint row that is published.

        Raises:
            AccountingError: two rows have the same key; or a committed file is not on this disk.
            SchemaMismatch: a column is unknown, or of another type.
            TableRefused, CommitOutcomeUnknown, SplitBrain, StoreUnavailable, WriterBusy: as `publish`.
        """

        deletes = isinstance(changes, KeyedChanges) and changes.deletes
        clauses = restore_clauses(changes.columns) if deletes else merge_clauses(changes.columns)
        return self._merge("publish", version, lambda: changes, clauses)

    def rewind_rows(self, version: int, to: int, staging: Staging | None = None) -> Published:
        """Delete the rows with ids above `to`; rows without an id stay.

        Args:
            version: of the checkpoint row of the rewind.
            to: the id that stays the last.
            staging: not needed here.
        """

        def prepare(_: Any, spark: SparkCommit) -> Act:
            text = f"DELETE FROM {_sql_name(self.folder)} WHERE {SEQUENCE_ID} > {int(to)}"  # noqa: S608
            return lambda: spark.run(text)

        return self._writer.commit("rewind_table", version, prepare)

    def rewind_upsert(self, version: int, restored: Restored) -> Published:
        """Give each key that changed its row back, or delete it if it had none.

        Rows with which others replaced the region's rows stay.

        Args:
            version: of the checkpoint row of the rewind.
        """
        clauses = restore_clauses(restored.columns, restored.to)
        return self._merge("rewind_table", version, restored.changes, clauses)

    # --- how -------------------------------------------------------------------------------------------------------

    def _merge(self, verb: str, version: int, changes: Callable[[], Changes], clauses: str) -> Published:
        """Merge a row for each changed key, by clauses that tell from `KEEP_COLUMN` whether it is a new one."""
        made: list[ChangedRows] = []

        def prepare(opened: Any, spark: SparkCommit) -> Act:
            found = changes()
            schema = _columns_of(opened, found.columns, self.folder)
            made.append(changed_rows(found, schema, self.folder, self._executors))
            source = made[-1].rows
            if source is None:
                source = spark.session.read.parquet(*made[-1].paths)
            return lambda: spark.merge(source, found.keys, clauses)

        try:
            return self._writer.commit(verb, version, prepare)
        finally:
            for rows in made:
                rows.discard()


def _sql_name(folder: Folder) -> str:
    return f"delta.{quoted_name(folder.uri)}"


def _discard_staged(folder: Folder, version: int, files: Sequence[StagedFile]) -> None:
    """Delete published files, since the table has their rows, and files of older epochs: groups are taken in order."""
    attempts = {"/".join(file.path.split("/")[:2]) for file in files}
    epochs = ((name, name.partition("-")[0]) for name in folder.names(STAGING_FOLDER))
    dead = {f"{STAGING_FOLDER}/{name}" for name, epoch in epochs if epoch.isdigit() and int(epoch) < version >> 32}
    for attempt in attempts | dead:
        folder.delete(attempt)


def _columns_of(opened: Any, names: Sequence[str], table: Folder) -> pa.Schema:
    """Return some columns of an open table, without the metadata of column mapping."""
    import pyarrow as pa

    schema = arrow_schema(opened)
    unknown = sorted(set(names) - set(schema.names))
    if unknown:
        msg = f"rows for {table} have columns that it does not have: {', '.join(unknown)}"
        raise SchemaMismatch(msg, columns=tuple(unknown))
    return pa.schema([pa.field(name, schema.field(name).type) for name in names])


def merge_clauses(columns: Sequence[str]) -> str:
    """Return the clauses of a MERGE in which rows of these columns replace the rows of their keys, or are added."""
    return f"WHEN MATCHED THEN UPDATE SET {_set(columns)} WHEN NOT MATCHED THEN INSERT {_insert(columns)}"


def restore_clauses(columns: Sequence[str], to: int | None = None) -> str:
    """Return the clauses of a MERGE that gives keys new rows, or deletes them.

    Args:
        to: rows of the table with ids up to this one (inclusive), and rows of others, stay; None for no such rows.
    """
    mine = f"target.{SEQUENCE_ID} > {int(to)}" if to is not None else "true"
    keep = f"source.{KEEP_COLUMN}"
    return (
        f"WHEN MATCHED AND {mine} AND {keep} THEN UPDATE SET {_set(columns)} "
        f"WHEN MATCHED AND {mine} AND NOT {keep} THEN DELETE "
        f"WHEN NOT MATCHED AND {keep} THEN INSERT {_insert(columns)}"
    )


def _set(columns: Sequence[str]) -> str:
    return ", ".join(f"target.{quoted_name(name)} = source.{quoted_name(name)}" for name in columns)


def _insert(columns: Sequence[str]) -> str:
    names = [quoted_name(name) for name in columns]
    return f"({', '.join(names)}) VALUES ({', '.join(f'source.{name}' for name in names)})"


def selected(opened: Any, columns: str, *, where: str = "true") -> pa.Table:
    """Return the rows that `deltalake`'s engine selects; it supports deletion vectors and column mapping.

    Args:
        opened: the table as `deltalake` opened it.
        columns, where: SQL.
    """
    import pyarrow as pa
    from deltalake import QueryBuilder

    query = f"select {columns} from adopted where {where}"  # noqa: S608
    rows = pa.table(QueryBuilder().register("adopted", opened).execute(query).read_all())
    return pa.Table.from_arrays(rows.columns, names=rows.column_names)  # without the metadata of column mapping
