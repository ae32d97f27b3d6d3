"""The files of one table that hold rows of a person: found, and written again without these rows.

A file is never changed in its place: other files take its place, and rows of the checkpoint table that name it name
these from then on.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.frames.arrow import filled
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.state.run_files import KEY_HASH, ROWS_A_GROUP
from drainmark.jobs.tasks.layout import NO_LAYOUT
from drainmark.jobs.world import Seam
from drainmark.resources.delta.log.marked_files import whole_pieces
from drainmark.resources.delta.staging import Staging
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    import pyarrow as pa

Renamed = Mapping[str, tuple[StagedFile, ...]]
"""By path of a file, the files in its place; none if all its rows left."""


@dataclass(slots=True)
class Found:
    """The rows of a person in some files of a table.

    Attributes:
        files: those that hold such rows.
        ids: number of rows by `_sequence_id`; a row that is in several files counts in each, and so does a row that has
            left by a deletion vector, since it is still in its file.
    """

    files: list[StagedFile] = field(default_factory=list)
    ids: Counter[int] = field(default_factory=Counter)

    @property
    def rows(self) -> int:
        return sum(self.ids.values())


def search(folder: Folder, files: Iterable[StagedFile], where: pa.compute.Expression, columns: pa.Schema) -> Found:
    """Return the rows for which a condition holds; one row group of a large file is in memory at a time.

    Args:
        columns: those of the condition; in a file that lacks one that came later, it is null.
    """
    found = Found()
    for file in files:
        ids = Counter[int]()
        for rows in whole_pieces(folder, file, list(dict.fromkeys([*columns.names, SEQUENCE_ID]))):
            ids.update(_ids_of(filled(rows, columns).filter(where)))
        if ids:
            found.files.append(file)
            found.ids.update(ids)
    return found


def _ids_of(rows: pa.Table) -> list[int]:
    if SEQUENCE_ID not in rows.column_names:
        return [0] * int(rows.num_rows)
    return [number or 0 for number in rows[SEQUENCE_ID].to_pylist()]


def rewrite(
    folder: Folder,
    staging: Staging,
    files: Iterable[StagedFile],
    schema: pa.Schema,
    where: pa.compute.Expression,
    *,
    as_they_are: bool = False,
) -> dict[str, tuple[StagedFile, ...]]:
    """Write files again without the rows for which a condition holds; return the files in the place of each.

    Args:
        staging: where the new files go.
        schema: the columns of the table.
        as_they_are: the files keep their own columns, their order, their row groups and the entries of their footers,
            as those of a state's runs must.
    """
    written = {}
    for file in files:
        if as_they_are:
            written[file.path] = _run(folder, staging, file, schema, where)
        else:
            written[file.path] = staging.rewrite([[file]], schema, ~where)
    return written


def _run(
    folder: Folder, staging: Staging, file: StagedFile, schema: pa.Schema, where: pa.compute.Expression
) -> tuple[StagedFile, ...]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    metadata = world.across(Seam.STORE_READ, lambda: pq.read_metadata(folder.source(file.path)), folder / file.path)
    notes = {
        name.decode(): value.decode()
        for name, value in (metadata.metadata or {}).items()
        if not name.startswith(b"ARROW:")
    }
    pieces = folder.read_pieces(file.path, file.size)
    rows = pa.concat_tables(filled(rows, schema).filter(~where).select(rows.column_names) for rows in pieces)
    is_sorted = KEY_HASH in rows.column_names
    staging.layout = NO_LAYOUT
    return staging.write(rows, "erased", rows_per_group=ROWS_A_GROUP if is_sorted else None, footer=notes)


def digests(folder: Folder, paths: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield path, bytes and SHA-256 of files; files that are gone are passed over."""
    for path in paths:
        try:
            data = world.across(Seam.STORE_READ, partial(content, folder, path), folder / path)
        except FileNotFoundError:
            continue
        yield {"path": path, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def content(folder: Folder, path: str) -> bytes:
    """Return the bytes of a file."""
    source = folder.source(path)
    if isinstance(source, str):
        with open(source, "rb") as file:
            return file.read()
    found = source.read() if hasattr(source, "read") else source.readall().to_pybytes()
    return bytes(found)
