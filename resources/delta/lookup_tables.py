"""Delta tables for lookups: read at one version, beside the stream.

delta-spark reads tables on a disk. Arrow reads tables in a bucket, so that no S3A bundle is needed: this process reads
a small table and keeps its rows, tasks read a large one. A feature that Arrow's reader does not know (deletion vectors,
column mapping) is refused by name, never read wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import StoreRefused, StoreUnavailable, UnknownName, UsageError
from drainmark.jobs.errors.spark_faults import NOT_REACHED
from drainmark.jobs.frames.arrow import frame_of
from drainmark.jobs.frames.tags import arrow_schema, spark_type
from drainmark.jobs.graph.application import nearest
from drainmark.jobs.protocol.records.addresses import is_object
from drainmark.jobs.tasks.parquet_files import frame_of_shares
from drainmark.jobs.tasks.parquet_shares import FileErrors, FileShare, RowFile, packed, rows_of
from drainmark.resources.delta.delta_tables import is_table, open_table, tables_below
from drainmark.resources.delta.file_lists import actions_of
from drainmark.resources.storage.bucket_folder import folder_of
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from drainmark.resources.settings import Settings

_READABLE = frozenset({"timestampNtz", "vacuumProtocolCheck", "v2Checkpoint"})
_PARTITION = "partition."
_FILE = "file://"
KEPT_BYTES, _SHARE_BYTES = 16 * 2**20, 32 * 2**20
"""Tasks read a table with more bytes of files than the first number, each task at most about the second number."""


class LookupTables:
    """The tables by the names that `lookup` takes: a name below `lake`, an absolute path, or a URI.

    The rows of a small table in a bucket are kept until another version of it is read.

    Args:
        settings: give the places of relative names and of buckets.
        tables: the folder of `lake/`.
    """

    def __init__(self, settings: Settings, tables: Folder) -> None:
        self._settings = settings
        self._tables = tables
        self._kept: dict[str, tuple[int, StoredTable, pa.Table | None]] = {}

    def version(self, table: str) -> int:
        """Return the newest Delta version.

        Raises:
            SplitBrain: there is no such table.
            StoreUnavailable, StoreRefused: the store does not answer, or refuses this process.
        """
        from deltalake import DeltaTable

        uri, bucket = self._place(table)
        return int((open_table(bucket, is_ours=False) if bucket else DeltaTable(uri)).version())

    def is_made(self, table: str) -> bool:
        """Say whether there is such a table; of one where only Spark can look, that there is: Spark then tells.

        Raises:
            StoreUnavailable, StoreRefused: the store does not answer, or refuses this process.
        """
        bucket, path = self._place(table)[1], self.folder(table)
        if bucket is None and path is None:
            return True
        return is_table(bucket or folder_of(str(path), self._settings))

    def missing(self, table: str) -> UnknownName:
        """Return the error of a table that is not made."""
        return no_such_table(table, self._place(table)[0], self._tables, self._settings)

    def read(self, session: SparkSession, table: str, version: int | None) -> DataFrame:
        """Return a table at a version, the newest by default."""
        uri, bucket = self._place(table)
        if bucket is None:
            reader = session.read.format("delta")
            return (reader if version is None else reader.option("versionAsOf", str(version))).load(uri)
        wanted = self.version(table) if version is None else version
        kept = self._kept.get(table)
        if kept is None or kept[0] != wanted:
            stored = StoredTable.of(bucket, wanted)
            kept = self._kept[table] = wanted, stored, stored.read() if stored.size <= KEPT_BYTES else None
        _, stored, rows = kept  # `_kept` may already have another version, for another stage
        return stored.frame(session) if rows is None else frame_of(session, rows, stored.type)

    def folder(self, table: str) -> Path | None:
        """Return the folder of a table on this machine, None if the table is elsewhere."""
        place = self._place(table)[0].removeprefix(_FILE)
        return None if "://" in place else Path(place)

    def _place(self, table: str) -> tuple[str, Folder | None]:
        """Return a table's URI and, if it is in a bucket, its folder."""
        uri = (self._tables / "lake" / table).uri if _is_named(table) else table
        return uri, folder_of(uri, self._settings) if is_object(uri) else None


def no_such_table(table: str, uri: str, tables: Folder, settings: Settings) -> UnknownName:
    """Return the error of a table that is not there; the remedy names the nearest of those beside it.

    Args:
        table: by the names that `lookup` takes.
        uri: its address.
        tables: the folder of `lake/`.
    """
    remedies = (_nearest(table, tables, settings), "make it first: its columns are not known before")
    return UnknownName(f"there is no Delta table {uri}", remedy="; or ".join(filter(None, remedies)), table=uri)


def _nearest(table: str, tables: Folder, settings: Settings) -> str:
    """Return the remedy of a name of which there is no table; "" if none is known, or their folder cannot be listed."""
    above = "" if _is_named(table) else f"{table.rstrip('/').rpartition('/')[0]}/"
    try:
        place = folder_of(above.removeprefix(_FILE), settings) if above else tables / "lake"
        names = place.names() if above else (path.removeprefix("lake/") for path in tables_below(tables, "lake"))
        known = [f"{above}{name}" for name in names if is_table(place / name)]
    except (OSError, StoreRefused, StoreUnavailable, UsageError):  # the last one: beside a bucket is no folder
        return ""
    return nearest(table, known, below=above) if known else ""


def _is_named(table: str) -> bool:
    return "://" not in table and not Path(table).is_absolute()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTable:
    """One version of a table in a bucket.

    Attributes:
        folder: of the table.
        schema_json: Spark's JSON of its schema.
        files: of the version.
    """

    folder: Folder
    schema_json: str
    files: tuple[RowFile, ...]

    @classmethod
    def of(cls, folder: Folder, version: int) -> StoredTable:
        """Return a version of a table, from its log.

        Raises:
            UsageError: the table uses a feature that Arrow's reader does not know.
        """
        table = open_table(folder, is_ours=False)
        table.load_as_version(version)
        require_readable(table, folder, _READABLE, "a lookup in a bucket", "look up a copy without it")
        return cls(folder=folder, schema_json=table.schema().to_json(), files=files_of(table))

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def type(self) -> StructType:
        return spark_type(self.schema_json)

    def read(self) -> pa.Table:
        """Return the rows.

        Raises:
            ValueError: a file is gone, or damaged.
        """
        import pyarrow as pa

        schema = arrow_schema(self.type)
        rows = rows_of(self.files, self.folder.source, schema, LookedUp(self.folder.uri))
        return pa.Table.from_batches(rows, schema)

    def frame(self, session: SparkSession) -> DataFrame:
        """Return the rows as a frame that tasks read; no row comes to this process or to Spark's driver.

        Spark takes the output of tasks for small and would broadcast it; the hint makes each join sort and merge.
        """
        place, schema, owner = self.folder.place, arrow_schema(self.type), LookedUp(self.folder.uri)
        shares = [
            FileShare(files=files, place=place, schema=schema, owner=owner)
            for files in packed(self.files, _SHARE_BYTES)
        ]
        return frame_of_shares(session, shares, self.type).hint("merge")


def files_of(table: Any) -> tuple[RowFile, ...]:
    """Return all files of the version of an open `DeltaTable`."""
    actions = actions_of(table)
    names = [name for name in actions.column_names if name.startswith(_PARTITION)]
    return tuple(
        RowFile(version=table.version(), path=row["path"], size=row["size_bytes"], constants=_constants(row, names))
        for row in actions.select(["path", "size_bytes", *names]).to_pylist()
    )


@dataclass(frozen=True, slots=True)
class LookedUp(FileErrors):
    """A table for lookups, as the owner of files: a fault in a file is a fault of the table, not of a trigger."""

    table: str

    def gone(self, file: RowFile, error: Exception) -> Exception:
        return ValueError(f"{self.table} cannot be looked up: its file {file.path} is gone")

    def damaged(self, file: RowFile, said: str) -> Exception:
        return ValueError(f"{self.table} cannot be looked up: its file {file.path} is damaged: {said}")

    def out_of_reach(self, file: RowFile, error: OSError) -> Exception:
        return StoreUnavailable(f"{NOT_REACHED}: {self.table}: {error}", remedy="look at the store")


def _constants(action: Mapping[str, Any], names: Sequence[str]) -> dict[str, str | None]:
    """Return the partition columns of a file with their values."""
    return {name.removeprefix(_PARTITION): _text(action[name]) for name in names}


def _text(value: Any) -> str | None:
    """Return the value of a partition column as the log writes it."""
    if isinstance(value, bytes):
        raise UsageError("a table with partitions by bytes cannot be looked up", remedy="look up a copy without them")
    return None if value is None else str(value)


def require_readable(table: Any, folder: Folder, known: Set[str], reader: str, remedy: str) -> None:
    """Check that a table has only features that a reader of its files knows.

    Raises:
        UsageError: it has others; the error names them.
    """
    protocol = table.protocol()
    unknown = sorted(set(protocol.reader_features or ()) - known)
    if unknown or protocol.min_reader_version == 2:  # 2 is column mapping
        what = ", ".join(unknown) or "columnMapping"
        raise UsageError(f"the table {folder} uses {what}, which {reader} cannot read", remedy=remedy, table=folder.uri)
