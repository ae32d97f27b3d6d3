"""Files of which some rows have left their table by deletion vectors: what the log says of them, and their rows.

`deltalake` reads such tables, and checks out their versions, but it neither tells the vectors of files nor commits any.
So the adds of a version come from the log itself. They are kept from call to call, since only new entries are read.
"""

from __future__ import annotations

import functools
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.errors import ObjectMissing
from drainmark.jobs.frames.arrow import typed
from drainmark.jobs.protocol.records.deletion_vectors import IN_A_FILE, DeletionVector, in_one_file
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.tasks.parquet_shares import dead_rows, without
from drainmark.resources.delta.log.commit_log import actions_at, checkpoint_path, entry_path, newest_checkpoint
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    import pyarrow as pa

FEATURE = "deletionVectors"
ENABLED = "delta.enableDeletionVectors"
APPEND_ONLY = "delta.appendOnly"

Adds = Mapping[str, Mapping[str, Any]]
"""The `add` actions of a version, by path relative to the table."""

_Stamp = tuple[int, str]


@functools.lru_cache(maxsize=64)
def _last_look(uri: str, table_id: str) -> list[tuple[int, _Stamp, Adds]]:
    """Return the place for this process's last look at a table: a version, the stamp of its log entry, and its adds.

    An older copy of a table may have been put back since: then there is no such entry, or another one.
    """
    return []


def may_have_vectors(table: Any) -> bool:
    """Say whether files of an open `DeltaTable` may have deletion vectors."""
    return FEATURE in (table.protocol().reader_features or ())


def takes_vectors(table: Any) -> bool:
    """Say whether writers may mark rows of an open `DeltaTable` by deletion vectors."""
    return may_have_vectors(table) and is_set(table.metadata().configuration, ENABLED)


def is_set(configuration: Mapping[str, str], name: str) -> bool:
    """Say whether a property of a table is true, in whatever letters."""
    return str(configuration.get(name)).lower() == "true"


def is_append_only(configuration: Mapping[str, str]) -> bool:
    """Say whether no row may leave a table with these properties."""
    return is_set(configuration, APPEND_ONLY)


def adds_of(folder: Folder, table: Any) -> Adds:
    """Return the adds of the version of an open `DeltaTable`; see `adds_at`."""
    return adds_at(folder, str(table.metadata().id), int(table.version()))


def adds_at(folder: Folder, table_id: str, version: int) -> Adds:
    """Return the adds of a version of a table.

    Raises:
        FileNotFoundError, ObjectMissing: the log does not reach back to them any more.
    """
    last = _last_look(folder.uri, table_id)
    try:
        before, stamp, adds = last[0] if last else (version + 1, None, {})
        if before > version or folder.stamp(entry_path(before)) != stamp:
            raise FileNotFoundError(entry_path(before))
        adds = _later(folder, before, adds, version)
    except (FileNotFoundError, ObjectMissing):
        adds = _later(folder, *_of_checkpoint(folder, version), version)
    with suppress(FileNotFoundError, ObjectMissing):  # a log may begin with a checkpoint
        last[:] = [(version, folder.stamp(entry_path(version)), adds)]
    return adds


def _later(folder: Folder, before: int, known: Adds, version: int) -> Adds:
    adds = dict(known)
    for number in range(before + 1, version + 1):
        actions = actions_at(folder, number)
        for action in (action["remove"] for action in actions if "remove" in action):
            adds.pop(urllib.parse.unquote(action["path"]), None)
        for action in (action["add"] for action in actions if "add" in action):
            adds[urllib.parse.unquote(action["path"])] = action
    return adds


def _of_checkpoint(folder: Folder, version: int) -> tuple[int, Adds]:
    """Return the version of the log's newest checkpoint up to a version, and its adds; (-1, {}) without any."""
    newest = newest_checkpoint(folder, version)
    if newest is None:
        return -1, {}
    adds = {}
    for rows in folder.read_each([checkpoint_path(newest)], ["add"]):
        for action in rows.column("add").to_pylist():
            if action is not None and action["path"] is not None:
                action["partitionValues"] = dict(action["partitionValues"] or ())
                adds[urllib.parse.unquote(action["path"])] = action
    return newest, adds


def vector_of(action: Mapping[str, Any]) -> DeletionVector | None:
    """Return the vector of an action, None for none."""
    found = action.get("deletionVector")
    return DeletionVector.of_log(found) if found else None


def vector_file(action: Mapping[str, Any]) -> str | None:
    """Return the path of the file with the vector of an action, relative to the table; None without a file there.

    Other programs may have put the vector into the log, or elsewhere.
    """
    found = action.get("deletionVector")
    return DeletionVector.of_log(found).path if found and found["storageType"] == IN_A_FILE else None


def vector_files(adds: Adds) -> set[str]:
    """Return the paths of the files with the vectors of adds, relative to the table."""
    return {path for action in adds.values() if (path := vector_file(action)) is not None}


def written(folder: Folder, data: Sequence[bytes], counts: Sequence[int]) -> list[DeletionVector]:
    """Write vectors to one new file beside the log, and return their places.

    Args:
        counts: numbers of rows in the vectors.
    """
    import pyarrow as pa

    while True:
        content, vectors = in_one_file(data, counts, world.token())
        with suppress(FileExistsError):  # a store that has lost its first answer says this of our own file
            folder.write(vectors[0].path, pa.py_buffer(content))
            return vectors


# --- rows ---------------------------------------------------------------------------------------------------------


def pieces(folder: Folder, file: StagedFile, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield the rows of a file that have not left its table, as `Folder.read_pieces` does."""
    dead = dead_rows(file.vector, folder.place.opened)
    return without(whole_pieces(folder, file, columns), dead)


def whole_pieces(folder: Folder, file: StagedFile, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield the rows of a file, also those that have left its table, with the values of its partition (text)."""
    import pyarrow as pa

    for rows in folder.read_pieces(file.path, file.size, columns):
        found = rows
        for name, text in file.constants.items():
            if name not in rows.column_names and (columns is None or name in columns):
                found = found.append_column(name, pa.repeat(pa.scalar(text, pa.string()), rows.num_rows))
        yield found


def is_plain(file: StagedFile) -> bool:
    """Say whether a file has all columns and rows of the table: one that others wrote lacks those of its partition."""
    return file.vector is None and not file.constants


def read(
    folder: Folder,
    files: Iterable[StagedFile],
    schema: pa.Schema,
    columns: Sequence[str] | None = None,
    where: pa.compute.Expression | None = None,
) -> pa.Table:
    """Return the rows of files that have not left their table, as `Folder.read` does."""
    import pyarrow as pa

    files = list(files)
    found = folder.read([file.path for file in files if is_plain(file)], schema, columns, where)
    parts = [found]
    for file in (file for file in files if not is_plain(file)):
        for rows in pieces(folder, file):
            some = typed(rows, schema) if where is None else typed(rows, schema).filter(where)
            parts.append(some.select(found.column_names))
    return pa.concat_tables(parts)
