"""Files of one attempt, written below a table's root where no reader looks, and the facts of their footers.

A staged file becomes visible when a commit names it, and never before. The facts of a file in
a checkpoint row come from its own footer, never from the group that it belongs to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.errors import AccountingError, SchemaMismatch, StoreUnavailable
from drainmark.jobs.errors.environment import FilesLost
from drainmark.jobs.frames.tags import SEQUENCE_ID, SOURCE_FILE
from drainmark.jobs.protocol.records.manifest import STAGED, StagedFile
from drainmark.jobs.state.keyed_rows import RowsPerKey
from drainmark.jobs.tasks.column_statistics import ColumnStatistics
from drainmark.jobs.tasks.executor import Executor, Here, Share, Task
from drainmark.jobs.tasks.judged_rows import Giver
from drainmark.jobs.tasks.keyed_files import RewriteTask
from drainmark.jobs.tasks.layout import NO_LAYOUT, Layout
from drainmark.jobs.tasks.parquet_files import (
    WrittenFile,
    parquet_writer,
    require_few,
    require_here,
    rows_per_group,
    write_files,
    written_files,
)
from drainmark.jobs.tasks.parquet_shares import RowFile
from drainmark.jobs.tasks.sorted_runs import RunWriter
from drainmark.jobs.world import Seam
from drainmark.resources.delta.log import marked_files
from drainmark.resources.storage.folder import Folder, LocalFolder, folder_at

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

STAGING_FOLDER = STAGED.rstrip("/")

Executors = Callable[[int], Executor]
"""Returns who does work on so many bytes of files."""

_REFUSED_TYPES = ("void", "interval", "string collate")
_FILE_BYTES = 256 * 2**20
"""Size in memory of the sorted rows that make one file."""

_FEW_BYTES = 32 * 2**20
"""Up to this size of files, this process has all rows in memory at once; it streams the rows of larger ones."""

_HANDS_OFF = "only Drainmark may change _staged folders"


class Staging:
    """The folder `<table>/_staged/<epoch>-<attempt>/` of one attempt, made at the first write, never reused.

    Args:
        table: folder of the table that the files are for; a path is one on this machine.
        epoch: of the owner that stages.
        attempt: uuid of the attempt; two attempts never share a folder, so a zombie's files stay apart.
        layout: the order and partitions of the rows in the files.
        executors: who rewrites files; this process by default.
    """

    def __init__(
        self,
        table: Path | Folder,
        epoch: int,
        attempt: str,
        layout: Layout = NO_LAYOUT,
        *,
        executors: Executors = lambda size: Here(),
    ) -> None:
        self.folder = folder_at(table)
        self.layout = layout
        self._executors = executors
        self._prefix = f"{STAGING_FOLDER}/{epoch}-{attempt}/"

    @classmethod
    def beside_log(cls, table: Folder, layout: Layout) -> Staging:
        """Return the place for files of a merge, the same as `deltalake` uses; `gc` knows unused ones by their age."""
        staging = cls(table, 0, "", replace(layout, most_partitions=None))
        staging._prefix = f"part-{world.token()}-"
        return staging

    def write(
        self,
        table: pa.Table,
        stem: str,
        *,
        rows_per_group: int | None = None,
        footer: Mapping[str, str] | None = None,
    ) -> tuple[StagedFile, ...]:
        """Write `table` as one Parquet file and return its facts; no file for no rows.

        With a layout it writes one file for each partition, or several if the layout has an order and the rows are
        many. Columns keep their order. Timestamps are stored as microseconds (finer ones are cut off, as Spark does).
        The file is durable when this returns. A stem that is taken gets a number: nothing is overwritten.

        Args:
            rows_per_group: of the file's row groups; by default they have about `ROW_GROUP_BYTES` each.
            footer: texts to keep in the file's footer, by name.

        Raises:
            AccountingError: `_sequence_id` has nulls.
            SchemaMismatch: a column has no type (Spark's void).
            StoreUnavailable: the object store does not take it.
            TooManyPartitions: the rows are of more partitions than one group may write to.
        """
        if table.num_rows == 0:
            return ()
        group_rows = rows_per_group or self.layout.rows_a_group
        parts = list(self.layout.parts(self.layout.of_rows(_writable(table))))
        require_few(self.layout, {partition for partition, _ in parts})
        return tuple(
            replace(self._write_one(rows, stem, group_rows, footer or {}), partition=partition)
            for partition, part in parts
            for rows in (_in_files(part) if self.layout.order else (part,))
        )

    def _write_one(self, rows: pa.Table, stem: str, group_rows: int | None, footer: Mapping[str, str]) -> StagedFile:
        import pyarrow as pa

        statistics = ""
        if self.layout.has_statistics:
            known = ColumnStatistics(rows.schema)
            known.add(rows)
            statistics = known.to_json()
        sink = pa.BufferOutputStream()
        with parquet_writer(sink, rows.schema, is_shown=bool(statistics), unique=self.layout.unique) as writer:
            writer.write_table(rows, row_group_size=group_rows or rows_per_group(rows))
            if footer:
                writer.add_key_value_metadata(dict(footer))
        data = sink.getvalue()
        path, mark = self._write_new(stem, data)
        written = replace(facts(pa.BufferReader(data), path, data.size), mark=mark, statistics=statistics)
        if written.rows != rows.num_rows:
            msg = f"{rows.num_rows} rows were written, and {path} of {self.folder} has {written.rows}"
            raise AccountingError(msg, remedy=_HANDS_OFF, rows=written.rows, expected=rows.num_rows)
        return written

    def write_frame(self, frame: DataFrame, subdirectory: str, giver: Giver | None = None) -> tuple[StagedFile, ...]:
        """Have Spark's tasks write a frame below `subdirectory`, and return the facts of the files, by path.

        Raises:
            OperatorFailed: a text is not UTF-8, and the rows have a giver; see `write_files`.
            FilesLost: a file that a task wrote is not here, because executors wrote to another disk.
            AccountingError: a row has no `_sequence_id`.
            StoreUnavailable: the object store does not take them.
            TooManyPartitions: the rows are of more partitions than one group may write to.
        """
        place, folder = self.folder.place, f"{self._prefix}{subdirectory}"
        return self._staged(lambda: write_files(frame, place, folder, layout=self.layout, giver=giver))

    def rewrite(
        self,
        parts: Sequence[Sequence[StagedFile]],
        schema: pa.Schema,
        where: pa.compute.Expression | None = None,
        *,
        source: Folder | None = None,
    ) -> tuple[StagedFile, ...]:
        """Rewrite rows of files of a table, the rows of each part together; a part without rows makes no file.

        Args:
            parts: files, visible or not.
            schema: columns of the new files.
            where: condition for rows that stay; all by default.
            source: folder of the files; that of this table by default.

        Raises:
            AccountingError, StoreUnavailable: as `write_frame`.
        """
        parts, layout = [part for part in parts if part], replace(self.layout, most_partitions=None)
        size, source = sum(file.size for part in parts for file in part), source or self.folder
        executor = self._executors(size) if parts else Here()
        if isinstance(executor, Here) and size <= _FEW_BYTES:
            return tuple(
                file
                for part in parts
                for file in self.write(
                    marked_files.read(source, part, schema, where=where), f"rewritten-{part[0].first_id}"
                )
            )
        task = RewriteTask(
            source=source.place,
            place=self.folder.place,
            folder=f"{self._prefix}rewritten",
            schema=schema,
            where=where,
            layout=layout,
        )
        shares = [tuple(map(RowFile.of, part)) for part in parts]
        return self.made(executor, task, shares)

    def made(self, executor: Executor, task: Task[Share], shares: Sequence[Share]) -> tuple[StagedFile, ...]:
        """Have a task write files below the table's folder, and return their facts, by path.

        Raises:
            AccountingError, StoreUnavailable: as `write_frame`.
        """
        write = partial(executor.run, task, shares)
        return self._staged(lambda: written_files(world.across(Seam.STORE_WRITE, write, self.folder)))

    def write_run(
        self, rows: DataFrame, per_key: RowsPerKey, hashed: Sequence[str], size: int, *, is_oldest: bool
    ) -> tuple[StagedFile, ...]:
        """Have Spark's tasks write changes of a keyed state as a run (see `RunWriter`).

        Raises:
            AccountingError, StoreUnavailable: as `write_frame`.
        """
        return self._staged(lambda: self._runs(per_key, hashed, is_oldest).flush(rows, size))

    def write_sorted(
        self, rows: pa.Table, per_key: RowsPerKey, hashed: Sequence[str], *, is_oldest: bool
    ) -> tuple[StagedFile, ...]:
        """Write changes of a keyed state, sorted by their hash, as a run (see `RunWriter`).

        Raises:
            AccountingError, StoreUnavailable: as `write_frame`.
        """

        def write() -> list[WrittenFile]:
            file = self._runs(per_key, hashed, is_oldest).write([rows])
            return [file] if file is not None else []

        return self._staged(write)

    def merge_runs(
        self,
        session: SparkSession,
        files: Sequence[StagedFile],
        per_key: RowsPerKey,
        hashed: Sequence[str],
        *,
        is_oldest: bool,
    ) -> tuple[StagedFile, ...]:
        """Have Spark's tasks write files of runs as one run (see `RunWriter`).

        Raises:
            AccountingError, StoreUnavailable: as `write_frame`.
        """
        writer, size = self._runs(per_key, hashed, is_oldest), sum(file.size for file in files)
        return self._staged(lambda: writer.merge(session, [file.path for file in files], size))

    def _runs(self, per_key: RowsPerKey, hashed: Sequence[str], is_oldest: bool) -> RunWriter:
        return RunWriter(
            place=self.folder.place,
            folder=f"{self._prefix}run",
            per_key=per_key,
            hashed=tuple(hashed),
            is_oldest=is_oldest,
        )

    def _staged(self, write: Callable[[], list[WrittenFile]]) -> tuple[StagedFile, ...]:
        """Return the facts of the files that tasks write, after a check that this process finds the files."""
        try:
            written = write()
        except (OSError, StoreUnavailable) as error:
            if isinstance(self.folder, LocalFolder):
                raise
            raise self.folder.failure("write to", error) from None
        marks = {file.name: file.mark for file in written}

        def stamp(path: str) -> tuple[int, str]:
            if marks[path]:  # `verify` compares it before the commit: reading it here, too, would read it twice
                return self.folder.size(path), marks[path]
            size, marks[path] = self.folder.stamp(path)
            return size, marks[path]

        require_here(stamp, str(self.folder), written)
        for file in written:
            _require_ids(file.without_id, file.rows, file.name)
        return tuple(
            StagedFile(
                path=file.name,
                size=file.size,
                rows=file.rows,
                first_id=file.first_id,
                last_id=file.last_id,
                mark=marks[file.name],
                partition=file.partition,
                statistics=file.statistics,
            )
            for file in written
        )

    def discard(self) -> None:
        """Delete the files of this attempt; only for an attempt that no commit names."""
        self.folder.delete(self._prefix.rstrip("/"))

    def _write_new(self, stem: str, data: pa.Buffer) -> tuple[str, str]:
        """Write a file under a name that is free; return its path and its mark."""
        path, taken = f"{self._prefix}{stem}.parquet", 0
        while True:
            try:
                return path, self.folder.write(path, data)
            except FileExistsError:
                taken += 1
                path = f"{self._prefix}{stem}-{taken}.parquet"


def facts(source: Any, path: str, size: int, partition_by: Sequence[str] = ()) -> StagedFile:
    """Return a Parquet file's size, number of rows and exact bounds of `_sequence_id`, from its footer.

    Args:
        source: the file as pyarrow opens it.
        path: of the file, relative to its table.
        size: of the file, in bytes.
        partition_by: of the table; the partition of the file is read from its rows.

    Raises:
        AccountingError: `_sequence_id` has nulls; such rows belong to no consistent state.
    """
    import pyarrow.parquet as pq

    with pq.ParquetFile(source) as file:
        first, last = _bounds(path, file)
        rows, partition = file.metadata.num_rows, ""
        if partition_by and rows:
            partition = Layout(partition_by=tuple(partition_by)).values_of(file.read_row_group(0, list(partition_by)))
        return StagedFile(path=path, size=size, rows=rows, first_id=first, last_id=last, partition=partition)


def _require_ids(nulls: int, rows: int, path: str) -> None:
    if nulls:
        msg = f"{nulls} of {rows} rows in {path} have no {SEQUENCE_ID}"
        raise AccountingError(msg, remedy="keep _sequence_id in every output (dm.select does)", rows=nulls)


def verify(table: Path | Folder, files: Iterable[StagedFile]) -> None:
    """Check, before a commit names them, that staged files are unchanged since they were written.

    A file of this process is compared by its size and its mark, a file that a checkpoint row names by its size only.

    Args:
        table: folder of the table; the files' paths are relative to it.
        files: files that an attempt staged.

    Raises:
        FilesLost: a file is missing, has another size, or is another file.
        StoreUnavailable: the object store does not answer.
    """
    folder = folder_at(table)
    for file in files:
        try:
            size, mark = folder.stamp(file.path) if file.mark else (folder.size(file.path), "")
        except FileNotFoundError as error:
            msg = f"the unpublished file {file.path} of {folder} is gone"
            raise FilesLost(msg, remedy=_HANDS_OFF, path=file.path) from error
        if size != file.size:
            msg = f"the unpublished file {file.path} of {folder} has {size} bytes, expected {file.size}"
            raise FilesLost(msg, remedy=_HANDS_OFF, path=file.path, size=size, expected=file.size)
        if mark != file.mark:
            msg = f"the unpublished file {file.path} of {folder} is not the file that was written"
            raise FilesLost(msg, remedy=_HANDS_OFF, path=file.path)


# --- schemas, as Spark and Delta write them -----------------------------------------------------------------------


def nullable_schema(schema_json: str) -> str:
    """Return the JSON of a Spark schema, or of a type, with every level nullable and no metadata."""
    return json.dumps(_nullable(json.loads(schema_json)), sort_keys=True)


def all_nullable(schema_json: str) -> str:
    """Return a schema with every level nullable and without metadata, as managed tables store it.

    Raises:
        SchemaMismatch: a column has a type that Delta tables cannot keep (void, intervals, collated strings).
    """
    schema = json.loads(schema_json)
    for column in schema["fields"]:
        _refuse(column["name"], column["type"], column.get("metadata") or {})
    return json.dumps(_nullable(schema))


def compare_schemas(found_json: str, expected_json: str, *, where: str) -> None:
    """Check that two schemas have the same names and types in the same order; they may differ in nullability.

    Raises:
        SchemaMismatch: they differ; `columns` names the columns that do.
    """
    found, expected = (_columns(text) for text in (found_json, expected_json))
    if found == expected:
        return
    have, want = dict(found), dict(expected)
    texts = {name: f"{name}: {_said(have.get(name))}, expected {_said(want.get(name))}" for name in have | want}
    differing = [name for name in texts if have.get(name) != want.get(name)]
    what = "; ".join(texts[name] for name in differing) or f"order: {', '.join(have)}, expected {', '.join(want)}"
    msg = f"the columns of {where} differ from the expected ones: {what}"
    is_left_out = SOURCE_FILE in have and SOURCE_FILE not in want
    keep = 'name "source_file" in columns= of dm.apply_changes, which else leaves it out; or ' if is_left_out else ""
    raise SchemaMismatch(
        msg,
        remedy=f"{keep}cast the columns, or write to a table of another name",
        columns=tuple(differing) or tuple(want),
    )


def _columns(schema_json: str) -> list[tuple[str, str]]:
    return [
        (column["name"], json.dumps(column["type"], sort_keys=True))
        for column in _nullable(json.loads(schema_json))["fields"]
    ]


def _said(kind: str | None) -> str:
    return "missing" if kind is None else kind.strip('"')


def _nullable(kind: Any) -> Any:
    """Return Spark's JSON of a type, with `nullable`, `containsNull`, `valueContainsNull` true and empty metadata."""
    if not isinstance(kind, dict):
        return kind
    shape = kind["type"]
    if shape == "struct":
        fields = [
            {"name": field["name"], "type": _nullable(field["type"]), "nullable": True, "metadata": {}}
            for field in kind["fields"]
        ]
        return {"type": "struct", "fields": fields}
    if shape == "array":
        return {"type": "array", "elementType": _nullable(kind["elementType"]), "containsNull": True}
    if shape == "map":
        inside = {part: _nullable(kind[part]) for part in ("keyType", "valueType")}
        return {"type": "map", **inside, "valueContainsNull": True}
    return kind  # a type of a program of the author


def _refuse(column: str, kind: Any, metadata: dict[str, Any]) -> None:
    if isinstance(kind, dict):
        for field in kind.get("fields", ()):
            _refuse(f"{column}.{field['name']}", field["type"], field.get("metadata") or {})
        for part in ("elementType", "keyType", "valueType"):
            if part in kind:
                _refuse(column, kind[part], {})
    elif kind.startswith(_REFUSED_TYPES) or "__COLLATIONS" in metadata:
        shown = "collated string" if "__COLLATIONS" in metadata else kind
        msg = f"column {column!r} has the type {shown}, which a Delta table cannot keep"
        raise SchemaMismatch(msg, remedy=f"cast {column} to a plain type, e.g. string", columns=(column,))


# --- Parquet ------------------------------------------------------------------------------------------------------


def _in_files(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield sorted rows in pieces of a bounded size, one for each file, so that each file has narrow bounds."""
    size = max(1, int(rows.num_rows) * _FILE_BYTES // max(1, int(rows.nbytes)))
    for start in range(0, rows.num_rows, size):
        yield rows.slice(start, size)


def _bounds(path: str, file: Any) -> tuple[int | None, int | None]:
    metadata = file.metadata
    names = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    if SEQUENCE_ID not in names or metadata.num_rows == 0:
        return None, None
    index = names.index(SEQUENCE_ID)
    chunks = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
    if all(chunk is not None and chunk.has_min_max and chunk.has_null_count for chunk in chunks):
        nulls = sum(chunk.null_count for chunk in chunks)
        first, last = min(chunk.min for chunk in chunks), max(chunk.max for chunk in chunks)
    else:
        first, last, nulls = _bounds_of_rows(file)
    _require_ids(nulls, metadata.num_rows, path)
    return first, last


def _bounds_of_rows(file: Any) -> tuple[int | None, int | None, int]:
    """Return bounds and number of nulls from the rows: footers lack them for a column of nulls, or by their writer."""
    import pyarrow.compute as pc

    column = file.read(columns=[SEQUENCE_ID]).column(0)
    bounds = pc.min_max(column)
    return bounds["min"].as_py(), bounds["max"].as_py(), column.null_count


def _writable(table: pa.Table) -> pa.Table:
    """Cast types that Parquet, or Spark reading it, does not know: views of strings and bytes, and dictionaries."""
    import pyarrow as pa

    def plain(field: pa.Field) -> pa.Field:
        if pa.types.is_null(field.type):
            msg = f"column {field.name!r} has no type: every value is null"
            raise SchemaMismatch(msg, remedy=f"cast {field.name} to the type it should have", columns=(field.name,))
        if pa.types.is_string_view(field.type):
            return field.with_type(pa.string())
        if pa.types.is_binary_view(field.type):
            return field.with_type(pa.binary())
        if pa.types.is_dictionary(field.type):
            return field.with_type(field.type.value_type)
        return field

    schema = pa.schema([plain(field) for field in table.schema])
    return table if schema == table.schema else table.cast(schema)
