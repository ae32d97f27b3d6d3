"""Adopted tables, merged and rewound with rows that stay in Spark, since they are too many for one process."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.lazy import F
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.runtime.outside import Engine
from drainmark.jobs.state.keyed_rows import RowsPerKey
from drainmark.jobs.tasks.parquet_files import frame_of_files
from drainmark.resources.delta.adopted.adopted_table import AdoptedTable, merge_clauses, restore_clauses
from drainmark.resources.delta.adopted.spark_commits import SparkCommit, no_rows
from drainmark.resources.delta.commits import Act, Published
from drainmark.resources.delta.large_tables import frames_to_restore
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.merge import KEEP_COLUMN
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class LargeAdoptedTable(AdoptedTable):
    """An adopted table, for one publish or rewind of many rows: the commits of `AdoptedTable`, made from frames.

    Args:
        columns: columns of the history that are visible in the table.
    """

    def __init__(self, root: Folder, region: str, engine: Callable[[], Engine], columns: Sequence[str]) -> None:
        super().__init__(root, region, engine)
        self._columns = columns

    def merge_files(
        self, version: int, history: ManagedTable, files: Sequence[StagedFile], keys: Sequence[str], *, above: int = 0
    ) -> Published:
        """Merge the last row of each key of a history, as `merge` does.

        Args:
            version: of the checkpoint row that is published.
            history: managed table of one row for each id and key that it changed.
            files: of the history, visible or not.
            keys: key columns; nulls are equal.
            above: only rows with ids above this one count.
        """

        def prepare(_: Any, spark: SparkCommit) -> Act:
            rows = self._rows(spark.session, history, [file.path for file in files])
            last = RowsPerKey(tuple(keys)).current(rows.where(F.col(SEQUENCE_ID) > above))
            return lambda: spark.merge(last, keys, merge_clauses(self._columns))

        return self._writer.commit("publish", version, prepare)

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
        def prepare(_: Any, spark: SparkCommit) -> Act:
            def read(paths: Sequence[str]) -> DataFrame:
                return self._rows(spark.session, history, paths)

            found = frames_to_restore(read, history, images, to, keys, since=since)
            if found is None:
                return lambda: spark.append(no_rows(spark.session, self.folder))
            changed, back = found
            gone = RowsPerKey(tuple(keys)).others(changed, back).withColumn(KEEP_COLUMN, F.lit(False))
            source = back.withColumn(KEEP_COLUMN, F.lit(True)).unionByName(gone, allowMissingColumns=True)
            return lambda: spark.merge(source, keys, restore_clauses(columns, to))

        return self._writer.commit("rewind_table", version, prepare)

    def _rows(self, session: SparkSession, history: ManagedTable, paths: Sequence[str]) -> DataFrame:
        from pyspark.sql.types import StructType

        schema = StructType.fromJson(json.loads(history.schema_json()))
        rows = frame_of_files(session, history.folder.place, paths, schema)
        return rows.select(*(F.col(quoted_name(name)) for name in self._columns))
