"""A Delta sink as a frame at the last committed state, also while its table lags: for `dm.view`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from drainmark.jobs.errors import UsageError
from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.lazy import F
from drainmark.jobs.protocol.records.ids import INITIAL_ID, split_txn_version
from drainmark.jobs.protocol.records.manifest import TableRole
from drainmark.jobs.state.keyed_rows import RowsPerKey
from drainmark.resources.checkpoints.as_of import RegionReader, committed_files, owner_of, table_named
from drainmark.resources.delta import commits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from drainmark.jobs.protocol.records.manifest import RegionTable
    from drainmark.resources.settings import Settings


def view_of(session: SparkSession, settings: Settings, table: str) -> DataFrame:
    """Return the frame for `dm.view`.

    The version of the table is chosen before the region's facts are read, so these are never older than the table.
    """
    region = owner_of(settings, table)
    reader = RegionReader(settings, region)
    found = table_named(reader.history, table, region)
    if found.external:
        raise UsageError(f"{found.name!r} is no Delta table", remedy="read it with dm.read, or where it is")
    folder = reader.store.table(found.name).folder
    opened = commits.open_table(folder)
    visible = session.read.format("delta").option("versionAsOf", opened.version()).load(folder.uri)
    if found.role is not TableRole.UPSERT:
        return visible
    shown = split_txn_version(commits.txn_version(opened, region) or 0)[1]
    rows = _changes(session, RegionReader(settings, region), found, shown)
    if rows is None:
        return visible
    changed = RowsPerKey(found.keys).current(rows).select(*(quoted_name(name) for name in found.columns))
    same = [visible[quoted_name(key)].eqNullSafe(changed[quoted_name(key)]) for key in found.keys]
    return visible.join(changed, on=same, how="left_anti").unionByName(changed)


def _changes(session: SparkSession, reader: RegionReader, table: RegionTable, after: int) -> DataFrame | None:
    """Return the rows of a history with ids above `after`, published or not; None if no file has such rows."""
    from pyspark.sql.types import StructType

    history, name = reader.history, table.history or ""
    committed = committed_files(reader.store, history, name)
    wanted = [file for file in committed if (file.last_id or INITIAL_ID) > after]
    if not wanted:
        return None
    schema = StructType.fromJson(json.loads(table_named(history, name, reader.store.region).schema_json))
    return reader.store.table(name).files.frame(session, wanted, schema).where(F.col(SEQUENCE_ID) > after)
