"""The files of a version of a Delta table, with their facts."""

from __future__ import annotations

import dataclasses
import functools
import json
import urllib.parse
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.tasks.layout import partition_text
from drainmark.jobs.world import Seam
from drainmark.resources.delta.log.marked_files import adds_at, adds_of, may_have_vectors, vector_files, vector_of
from drainmark.resources.delta.staging import facts
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    import pyarrow as pa


def live_paths(table: Any) -> set[str]:
    """Return the paths of the table's files, relative to it."""
    return set(live_sizes(table))


def live_sizes(table: Any) -> dict[str, int]:
    """Return the bytes of the table's files by path, relative to it."""
    actions = actions_of(table)
    return dict(zip(actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), strict=True))


def kept_paths(table: Any, folder: Folder) -> set[str]:
    """Return the paths of the table's files, and of those with their deletion vectors."""
    return live_paths(table) | (vector_files(adds_of(folder, table)) if may_have_vectors(table) else set())


def marked_paths(table: Any, folder: Folder) -> frozenset[str]:
    """Return the paths of the table's files that have deletion vectors."""
    adds = adds_of(folder, table) if may_have_vectors(table) else {}
    return frozenset(path for path, action in adds.items() if action.get("deletionVector"))


def live_files(table: Any, folder: Folder, among: Collection[str] | None = None) -> tuple[StagedFile, ...]:
    """Return the files of the table's version, or those among some paths, in the order of ids.

    Bounds are exact, but for files with a deletion vector: these have the bounds of all their rows.
    """
    by = partition_columns(table)
    if may_have_vectors(table):
        adds = adds_of(folder, table)
        return _ordered(_file_of(adds[path], folder, by) for path in adds if among is None or path in among)
    found = actions_of(table)
    wanted = ("path", "size_bytes", "num_records", f"min.{SEQUENCE_ID}", f"max.{SEQUENCE_ID}")
    # Other columns take time, and may have a date of a year that Python does not support.
    names = [name for name in (*wanted, *(f"partition.{each}" for each in by)) if name in found.column_names]
    actions = found.select(names).to_pylist()
    return _ordered(_live_file(action, folder, by) for action in actions if among is None or action["path"] in among)


def files_at(table: Any, folder: Folder, version: int) -> tuple[StagedFile, ...]:
    """Return the files of an earlier version of an open `DeltaTable`, with their statistics, in the order of ids.

    Raises:
        FileNotFoundError, ObjectMissing: the log does not reach back to them any more.
    """
    adds, by = adds_at(folder, str(table.metadata().id), version), partition_columns(table)
    return _ordered(_file_of(action, folder, by) for action in adds.values())


def _ordered(files: Iterable[StagedFile]) -> tuple[StagedFile, ...]:
    return tuple(sorted(files, key=lambda file: (file.first_id or 0, file.last_id or 0, file.path)))


def partition_columns(table: Any) -> tuple[str, ...]:
    """Return the columns by which an open `DeltaTable` is partitioned."""
    return tuple(table.metadata().partition_columns)


def actions_of(table: Any) -> pa.Table:
    """Return the actions that added the table's files, with their paths as the folder has them, not the log."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = adds(table)
    paths, at = found.column("path"), found.column_names.index("path")
    if not pc.any(pc.match_substring(paths, "%")).as_py():
        return found
    return found.set_column(at, "path", pa.array(map(urllib.parse.unquote, paths.to_pylist()), pa.string()))


def adds(table: Any) -> pa.Table:
    """Return the actions that added the table's files, with the paths of the log."""
    import pyarrow as pa  # with its `pa.table`, pandas would be imported, too: half of the time of `status`

    return pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()


def _live_file(action: dict[str, Any], folder: Folder, by: Sequence[str]) -> StagedFile:
    first, last = (action.get(f"{bound}.{SEQUENCE_ID}") for bound in ("min", "max"))
    partition = partition_text({name: action[f"partition.{name}"] for name in by})
    if action["num_records"] is None or first is None or last is None:
        return dataclasses.replace(footer(folder, action["path"], action["size_bytes"]), partition=partition)
    return StagedFile(
        path=action["path"],
        size=action["size_bytes"],
        rows=action["num_records"],
        first_id=first,
        last_id=last,
        partition=partition,
    )


def _file_of(action: Mapping[str, Any], folder: Folder, by: Sequence[str]) -> StagedFile:
    """Return a file, from the action that added it as the log has it."""
    known, vector = json.loads(action.get("stats") or "{}"), vector_of(action)
    first, last = (known.get(bound, {}).get(SEQUENCE_ID) for bound in ("minValues", "maxValues"))
    rows, path = known.get("numRecords"), urllib.parse.unquote(action["path"])
    values = action.get("partitionValues") or {}
    partition = partition_text({name: values.get(name) for name in by})
    if rows is None or first is None or last is None:
        file = dataclasses.replace(footer(folder, path, action["size"]), partition=partition)
    else:
        file = StagedFile(path=path, size=action["size"], rows=rows, first_id=first, last_id=last, partition=partition)
    dead = vector.rows if vector is not None else 0
    return dataclasses.replace(file, rows=file.rows - dead, statistics=action.get("stats") or "", vector=vector)


def footer(folder: Folder, path: str, size: int, partition_by: Sequence[str] = ()) -> StagedFile:
    """Return the facts of a file of a table, live or not, from its footer."""
    read = functools.partial(facts, path=path, size=size, partition_by=partition_by)
    return world.across(Seam.STORE_READ, lambda: read(folder.source(path)), folder / path)
