"""Delta tables that operators look things up in: read at one version, beside the stream.

delta-spark reads what lies on a disk. From a bucket the rows come by Arrow, so that no S3A bundle is needed; what that
reader does not know (deletion vectors, column mapping) is refused by name, never read wrongly.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import UsageError
from drainmark.jobs.frames.arrow import frame_of
from drainmark.resources.delta.commits import open_table
from drainmark.resources.storage.folder import S3, Folder
from drainmark.resources.storage.urls import folder_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from drainmark.resources.settings import Settings

_READABLE = frozenset({"timestampNtz", "vacuumProtocolCheck", "v2Checkpoint"})
_PARTITION = "partition."


class LookupTables:
    """The tables by the names that `lookup` takes: below `lake`, an absolute path, or a URI.

    The rows of a table in a bucket are kept until another version of it is read.

    Args:
        settings: say where relative names and buckets are.
        tables: the folder of `lake/`.
    """

    def __init__(self, settings: Settings, tables: Folder) -> None:
        self._settings = settings
        self._tables = tables
        self._kept: dict[str, tuple[int, pa.Table]] = {}

    def version(self, table: str) -> int:
        """Return the newest Delta version.

        Raises:
            SplitBrain: there is no such table.
            StoreUnavailable, StoreRefused: the store does not answer, or not us.
        """
        from deltalake import DeltaTable

        uri, bucket = self._place(table)
        return int((open_table(bucket) if bucket else DeltaTable(uri)).version())

    def read(self, session: SparkSession, table: str, version: int | None) -> DataFrame:
        """Return a table at a version, the newest by default."""
        uri, bucket = self._place(table)
        if bucket is None:
            reader = session.read.format("delta")
            return (reader if version is None else reader.option("versionAsOf", str(version))).load(uri)
        wanted = self.version(table) if version is None else version
        kept = self._kept.get(table)
        if kept is None or kept[0] != wanted:
            kept = self._kept[table] = (wanted, _rows_of(bucket, wanted))
        return frame_of(session, kept[1])  # and not what another stage, at another version, has put there since

    def folder(self, table: str) -> Path | None:
        """Return the folder of a table on this machine, None of one that is elsewhere."""
        place = self._place(table)[0].removeprefix("file://")
        return None if "://" in place else Path(place)

    def _place(self, table: str) -> tuple[str, Folder | None]:
        """Return a table's URI and, where it is in a bucket, its folder."""
        is_named = "://" not in table and not Path(table).is_absolute()
        uri = (self._tables / "lake" / table).uri if is_named else table
        return uri, folder_of(uri, self._settings) if uri.startswith(S3) else None


def _rows_of(folder: Folder, version: int) -> pa.Table:
    import pyarrow as pa

    table = open_table(folder)
    table.load_as_version(version)
    _require_readable(table, folder)
    schema = pa.schema(table.schema())
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    partitioned = table.metadata().partition_columns
    stored = pa.schema([field for field in schema if field.name not in partitioned])
    parts = [_part(folder.read([action["path"]], stored), action, schema) for action in actions]
    return pa.concat_tables([schema.empty_table(), *parts])


def _part(rows: pa.Table, action: dict[str, Any], schema: pa.Schema) -> pa.Table:
    """Return the rows of a file with the columns that its folder's name stands for."""
    import pyarrow as pa

    constants = {name.removeprefix(_PARTITION): value for name, value in action.items() if name.startswith(_PARTITION)}
    columns = [
        pa.array([constants[field.name]] * rows.num_rows, field.type) if field.name in constants else rows[field.name]
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _require_readable(table: Any, folder: Folder) -> None:
    protocol = table.protocol()
    unknown = sorted(set(protocol.reader_features or ()) - _READABLE)
    if unknown or protocol.min_reader_version == 2:  # 2 is column mapping
        what = ", ".join(unknown) or "columnMapping"
        msg = f"the table {folder} uses {what}, which a lookup in a bucket cannot read"
        raise UsageError(msg, remedy="look up a copy without it", table=folder.uri)
