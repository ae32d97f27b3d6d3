"""Files of one attempt, written below a table's root where no reader looks, and the facts of their footers.

A staged file becomes visible when a commit names it and never before (design.md §1.2, H8). What a checkpoint row
says of it is read from its own footer, never from the group that it belongs to (H18).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.errors import AccountingError, SchemaMismatch
from jobs.protocol.manifest import StagedFile

if TYPE_CHECKING:
    import pyarrow as pa

STAGING_FOLDER = "_staged"
SEQUENCE_COLUMN = "_sequence_id"

_REFUSED_TYPES = ("void", "interval", "string collate")


class Staging:
    """The folder `<table_root>/_staged/<epoch>-<attempt>/` of one attempt, made at the first write, never reused.

    Args:
        table_root: root of the table whose files these will be.
        epoch: of the owner that stages.
        attempt: uuid of the attempt; two attempts never share a folder, so a zombie's files stay apart (H8).
    """

    def __init__(self, table_root: Path, epoch: int, attempt: str) -> None:
        self.table_root = table_root
        self.folder = table_root / STAGING_FOLDER / f"{epoch}-{attempt}"

    def path(self, subdirectory: str) -> Path:
        """Return the folder a Spark job is to write; its parents exist, itself it does not have to."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / subdirectory

    def write(self, table: pa.Table, stem: str) -> tuple[StagedFile, ...]:
        """Write `table` as one Parquet file and return its facts; no file for no rows.

        Columns keep their order. Timestamps are stored as microseconds (finer ones are cut off, as Spark does). The
        file is on the disk (fsync) when this returns. A stem that is taken gets a number: nothing is overwritten.

        Raises:
            AccountingError: `_sequence_id` has nulls.
            SchemaMismatch: a column has no type (Spark's void).
        """
        import pyarrow.parquet as pq

        if table.num_rows == 0:
            return ()
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._free_path(stem)
        with path.open("xb") as sink:
            pq.write_table(
                _writable(table),
                sink,
                compression="zstd",
                store_schema=False,
                coerce_timestamps="us",
                allow_truncated_timestamps=True,
            )
            sink.flush()
            os.fsync(sink.fileno())
        _sync_folder(self.folder)
        return (facts(self.table_root, path),)

    def describe(self, subdirectory: str) -> tuple[StagedFile, ...]:
        """Return the files with rows that a Spark job left below `subdirectory`, by path; () if there is none.

        Hidden files (`_SUCCESS`, `.crc`, what a task left in `_temporary`) are no output.

        Raises:
            AccountingError: a file's `_sequence_id` has nulls.
        """
        folder = self.folder / subdirectory
        paths = sorted(path for path in folder.rglob("*.parquet") if not _is_hidden(path.relative_to(folder)))
        described = (facts(self.table_root, path) for path in paths)
        return tuple(file for file in described if file.rows)

    def discard(self) -> None:
        """Delete what this attempt staged; only for an attempt that no commit names."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _free_path(self, stem: str) -> Path:
        path, taken = self.folder / f"{stem}.parquet", 0
        while path.exists():
            taken += 1
            path = self.folder / f"{stem}-{taken}.parquet"
        return path


def facts(table_root: Path, path: Path) -> StagedFile:
    """Return a Parquet file's size, rows and bounds of `_sequence_id`, exact, from its footer (H18).

    Raises:
        AccountingError: `_sequence_id` has nulls; such rows belong to no consistent state.
    """
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(path)
    first, last = _bounds(path, metadata)
    return StagedFile(
        path=path.relative_to(table_root).as_posix(),
        size=path.stat().st_size,
        rows=metadata.num_rows,
        first_id=first,
        last_id=last,
    )


def verify(table_root: Path, files: Iterable[StagedFile], *, schema_json: str | None = None) -> None:
    """Check, before a commit names them, that staged files exist with their size and have the table's columns.

    Args:
        table_root: root that the files' paths are relative to.
        files: what an attempt staged.
        schema_json: the table's schema; without it columns are not looked at.

    Raises:
        AccountingError: a file is missing or has another size.
        SchemaMismatch: a file's columns differ in names, types or order (H17: Delta would not notice).
    """
    for file in files:
        path = table_root / file.path
        try:
            size = path.stat().st_size
        except FileNotFoundError as error:
            msg = f"staged file {path} is gone"
            raise AccountingError(
                msg, remedy="nobody may clean _staged folders but Drainmark", path=file.path
            ) from error
        if size != file.size:
            msg = f"staged file {path} has {size} bytes, expected {file.size}"
            raise AccountingError(msg, path=file.path, size=size, expected=file.size)
        if schema_json is not None:
            compare_schemas(schema_of_file(path), schema_json, where=str(path))


# --- schemas, as Spark and Delta write them ------------------------------------------------------------------------


def all_nullable(schema_json: str) -> str:
    """Return a schema with every level nullable and without metadata: how managed tables store it (H17).

    Raises:
        SchemaMismatch: a column has a type that Delta tables cannot keep (void, intervals, collated strings).
    """
    schema = json.loads(schema_json)
    for column in schema["fields"]:
        _refuse(column["name"], column["type"], column.get("metadata") or {})
    return json.dumps(_nullable(schema))


def schema_of_file(path: Path) -> str:
    """Return the schema of a Parquet file in Delta's JSON, from its footer."""
    import pyarrow.parquet as pq
    from deltalake import Schema

    return str(Schema.from_arrow(pq.read_schema(path)).to_json())


def compare_schemas(found_json: str, expected_json: str, *, where: str) -> None:
    """Check that two schemas have the same names and types in the same order, whatever may be null.

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
    msg = f"the columns of {where} differ from what is expected: {what}"
    raise SchemaMismatch(
        msg,
        remedy="cast the columns, or write to a table of another name",
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
    """Spark's JSON of a type with every `nullable`, `containsNull` and `valueContainsNull` true, metadata empty."""
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
    return {
        "type": "map",
        "keyType": _nullable(kind["keyType"]),
        "valueType": _nullable(kind["valueType"]),
        "valueContainsNull": True,
    }


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


# --- Parquet -------------------------------------------------------------------------------------------------------


def _bounds(path: Path, metadata: Any) -> tuple[int | None, int | None]:
    names = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    if SEQUENCE_COLUMN not in names or metadata.num_rows == 0:
        return None, None
    index = names.index(SEQUENCE_COLUMN)
    chunks = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
    if all(chunk is not None and chunk.has_min_max and chunk.has_null_count for chunk in chunks):
        nulls = sum(chunk.null_count for chunk in chunks)
        first, last = min(chunk.min for chunk in chunks), max(chunk.max for chunk in chunks)
    else:
        first, last, nulls = _bounds_of_rows(path)
    if nulls:
        msg = f"{nulls} of {metadata.num_rows} rows in {path} have no {SEQUENCE_COLUMN}"
        raise AccountingError(msg, remedy="keep _sequence_id in every output (dm.select does)", rows=nulls)
    return first, last


def _bounds_of_rows(path: Path) -> tuple[int | None, int | None, int]:
    """A column of nulls only has no bounds in the footer, nor has what a foreign writer left out."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    column = pq.read_table(path, columns=[SEQUENCE_COLUMN], partitioning=None).column(0)
    bounds = pc.min_max(column)
    return bounds["min"].as_py(), bounds["max"].as_py(), column.null_count


def _writable(table: pa.Table) -> pa.Table:
    """Cast what Parquet, or Spark reading it, does not know: views and dictionaries of strings."""
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


def _is_hidden(relative: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in relative.parts)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
