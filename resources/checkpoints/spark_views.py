"""Sinks as frames of Spark, for `dm.view`: at the last committed state, or at an earlier one."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from drainmark.jobs.errors import UsageError
from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.tags import SEQUENCE_ID, spark_type
from drainmark.jobs.lazy import F
from drainmark.jobs.protocol.records.ids import INITIAL_ID, split_txn_version
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.state.keyed_rows import RowsPerKey
from drainmark.resources.checkpoints.as_of import (
    RegionReader,
    TablePart,
    adopted_version,
    committed_files,
    parts_at,
    reader_of,
)
from drainmark.resources.delta import commits, delta_tables
from drainmark.resources.delta.table_files import TableFiles

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from drainmark.resources.settings import Settings


def view_of(session: SparkSession, settings: Settings, table: str, at: int | dt.datetime | None = None) -> DataFrame:
    """Return the frame for `dm.view`.

    The version of the table is chosen before the region's facts are read, so these are never older than the table.
    """
    reader = reader_of(settings, table)
    found = reader.named(table)
    if found.external:
        raise UsageError(f"{found.name!r} is no Delta table", remedy="read it with dm.read, or where it is")
    if at is not None:
        return _at(session, reader, found, reader.id_of(at) or INITIAL_ID)
    folder = reader.store.table(found.name).folder
    opened = delta_tables.open_table(folder)
    visible = session.read.format("delta").option("versionAsOf", opened.version()).load(folder.uri)
    if found.role is not TableRole.UPSERT:
        return visible
    shown = split_txn_version(commits.txn_version(opened, reader.store.region) or 0)[1]
    rows = _changes(session, RegionReader.of(reader.store), found, shown)
    if rows is None:
        return visible
    newest = RowsPerKey(found.keys).current(rows).select(*(quoted_name(name) for name in found.columns))
    changed = rows.select(*(quoted_name(key) for key in found.keys))
    same = [visible[quoted_name(key)].eqNullSafe(changed[quoted_name(key)]) for key in found.keys]
    return visible.join(changed, on=same, how="left_anti").unionByName(newest)


def _at(session: SparkSession, reader: RegionReader, table: RegionTable, at: int) -> DataFrame:
    """Return the rows that a table had at a state."""
    reader.require_state(table, at)
    if table.adopted and table.role is TableRole.APPEND:
        return _adopted_at(session, reader, table, at)
    name = table.history or table.name
    files = reader.store.table(name).files
    if table.role is TableRole.OVERWRITE:
        reader.require_kept(table, at)
        ids, near = files.newest(committed_files(reader.store, reader.history, name), at, deletes=table.deletes)
        parts = [TablePart(near, ids=ids)]
    else:
        parts = parts_at(reader.store, reader.history, name, at)
    rows = _frame(session, files, parts, spark_type(reader.named(name).schema_json))
    if table.role is TableRole.UPSERT:
        rows = RowsPerKey(table.keys).current(rows)
    columns = table.columns if table.role in (TableRole.UPSERT, TableRole.OVERWRITE) else ()
    return rows.select(*(quoted_name(column) for column in columns or table.column_names))


def _adopted_at(session: SparkSession, reader: RegionReader, table: RegionTable, at: int) -> DataFrame:
    """Return a region's rows of an adopted table, with those of groups that are not published yet."""
    opened, staged = adopted_version(reader.store, reader.history, table.name)
    folder, columns = reader.store.adopted(table.name).folder, [quoted_name(column) for column in table.column_names]
    visible = session.read.format("delta").option("versionAsOf", opened.version()).load(folder.uri)
    rows = visible.where(F.col(SEQUENCE_ID) <= at).select(*columns)
    if not staged:
        return rows
    newer = _frame(session, TableFiles(folder), [TablePart(staged, at)], spark_type(table.schema_json))
    return rows.unionByName(newer.select(*columns))


def _frame(session: SparkSession, files: TableFiles, parts: Sequence[TablePart], schema: StructType) -> DataFrame:
    """Return the rows of some files that count."""
    frames = [files.frame(session, part.files, schema).where(_counts(part)) for part in parts if part.files]
    return reduce(lambda left, right: left.unionByName(right), frames or [session.createDataFrame([], schema)])


def _counts(part: TablePart) -> Column:
    """Return `TablePart.condition` for Spark."""
    place = F.col(SEQUENCE_ID)
    if part.to is None:
        return place.isin(*part.ids)
    return (place <= part.to) & ~place.isin(*part.without) if part.without else place <= part.to


def _changes(session: SparkSession, reader: RegionReader, table: RegionTable, after: int) -> DataFrame | None:
    """Return the rows of a history with ids above `after`, published or not; None if no file has such rows."""
    name = table.history or ""
    committed = committed_files(reader.store, reader.history, name)
    wanted = [file for file in committed if (file.last_id or INITIAL_ID) > after]
    if not wanted:
        return None
    frame = reader.store.table(name).files.frame(session, wanted, spark_type(reader.named(name).schema_json))
    return frame.where(F.col(SEQUENCE_ID) > after)
