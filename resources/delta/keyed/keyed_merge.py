"""The merge by key: the rows of changed keys leave the files that hold them, and new rows are written.

A file is rewritten without these rows; of a table that takes deletion vectors, they are marked if that is cheaper.

A merge of `deltalake` has all rows of these files in memory, orders them in its own way, and writes some wrong bounds.
Here the files get the layout of the sink. They are written beside the log, where `gc` finds files that merges replaced.
If a row moves to another partition, the same commit removes it from the old one, since rows are found by key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import StoreUnavailable
from drainmark.jobs.protocol.records.deletion_vectors import DeletionVector
from drainmark.jobs.protocol.records.ids import ABOVE
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.tasks.executor import Executor, Here, about_equal
from drainmark.jobs.tasks.key_bounds import Bounds, KeyParts, KeySample, bounds_of, joined
from drainmark.jobs.tasks.keyed_files import (
    FileRewrite,
    FindTask,
    FoundRows,
    PartTask,
    ReplaceTask,
    SampleTask,
    SplitFile,
    SplitTask,
    marked,
)
from drainmark.jobs.tasks.layout import Layout
from drainmark.jobs.tasks.parquet_shares import FileShare, RowFile, packed
from drainmark.resources.delta import commits, file_lists
from drainmark.resources.delta.commits import Act
from drainmark.resources.delta.keyed.keyed_changes import GivenRows, KeyedChanges
from drainmark.resources.delta.log import marked_files
from drainmark.resources.delta.merge import KEEP_COLUMN, arrow_schema
from drainmark.resources.delta.staging import Executors, Staging, verify
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    import pyarrow as pa

_FEW_BYTES = 16 * 2**20
"""Changed rows in files of more bytes are merged in parts: all at once take twenty times as many bytes of memory."""

_PART_BYTES = 4 * 2**20
"""About the bytes of changed rows in one part."""

_SENT_BYTES = 2 * 2**20
"""The same limit for changed rows that are sent to tasks."""

_FILE_BYTES = 128 * 2**20
"""About the most bytes of the files that a merge of many changed rows writes."""

_SHARE_BYTES = 16 * 2**20
"""Files are rewritten together up to so many bytes."""

_SMALL_BYTES = 8 * 2**20
"""A file below this size is worth folding: files written here are larger, unless they have few rows."""

_FOLDED_FILES, _FOLDED_BYTES = 8, 64 * 2**20
"""From this number on, small files of a partition are rewritten with its next rows, at most so many bytes of them."""

_MOST_MARKED = 3
"""A file of which one of so many rows or more has left is rewritten."""

_MUCH_OF_TABLE = 8
"""If the changed bytes times this exceed the bytes of the table, its files are not searched for changed keys."""

Changes = GivenRows | KeyedChanges

_Version = tuple[str, DeletionVector | None]
"""A file of a table as one version has it: others may mark more of its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewriting:
    """The result of a rewriting of some files of a table.

    Attributes:
        folder: of the table.
        seen: all files of the table at that time.
        adds: files to add.
        leaving: files to remove.
        above: as for `KeyedChanges`.
    """

    folder: Folder
    seen: frozenset[_Version]
    adds: tuple[StagedFile, ...]
    leaving: tuple[StagedFile, ...]
    above: int | None = None

    def commit(self, opened: Any, region: str, version: int | None) -> Act:
        """Return the commit to the table that was rewritten."""
        mark = None if self.above is None else {ABOVE: str(self.above)}
        return lambda: commits.transact(
            self.folder, opened, region, version, adds=self.adds, removes=self.leaving, mark=mark
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedMerge:
    """Merges into one table with one row for each key.

    Attributes:
        folder: of the table.
        layout: of the new files.
        executors: who does the work.
    """

    folder: Folder
    layout: Layout
    executors: Executors

    def replacing(self, opened: Any, changes: Changes) -> Rewriting:
        """Write files in which all changed keys have their new rows.

        Args:
            opened: the table, which is not refreshed before it commits.
        """
        live = file_lists.live_files(opened, self.folder)
        is_much = changes.size * _MUCH_OF_TABLE > _bytes(live)
        return self._rewriting(opened, live, live, changes, search=not is_much)

    def rebuilt(self, opened: Any, changes: KeyedChanges) -> tuple[StagedFile, ...]:
        """Write files with the new rows of all changed keys; they are to replace all files of the table."""
        return self._rewriting(opened, (), (), changes, search=False).adds

    def following(self, opened: Any, before: Rewriting, changes: Changes) -> Rewriting | None:
        """Adapt the result of `replacing` to a table that others changed meanwhile; only their new files are searched.

        Return None if others removed files that were to leave, or if the commit that failed has landed after all.
        """
        live = file_lists.live_files(opened, self.folder)
        shown = versions_of(live)
        if not shown >= versions_of(before.leaving) or shown & versions_of(before.adds):
            return None
        theirs = [file for file in live if not versions_of([file]) <= before.seen]
        made = self._rewriting(opened, live, theirs, changes.without_rows(), search=True)
        return replace(made, adds=(*before.adds, *made.adds), leaving=(*before.leaving, *made.leaving))

    def _rewriting(
        self, opened: Any, live: Sequence[StagedFile], among: Sequence[StagedFile], changes: Changes, *, search: bool
    ) -> Rewriting:
        executor = self.executors(_bytes(among) + changes.size)
        layout = replace(self.layout, most_partitions=None)  # the rows are committed already
        marks = marked_files.takes_vectors(opened)
        merge = _Merge(self.folder, layout, executor, arrow_schema(opened), changes.keys, marks)
        if isinstance(changes, KeyedChanges) and changes.size > merge.most_bytes:
            adds, leaving = merge.in_parts(opened, among, changes)
        else:
            adds, leaving = merge.at_once(opened, among, changes, search=search)
        verify(self.folder, adds)
        seen = versions_of(live)
        return Rewriting(folder=self.folder, seen=seen, adds=adds, leaving=tuple(leaving), above=changes.above)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedRows:
    """A row for each changed key, for a table that others merge: few are in memory, many in files.

    A key with a new row has it, marked in `KEEP_COLUMN`; a key that has none any more has another row.

    Attributes:
        rows: None if they are in files.
        folder, files: where they are.
    """

    rows: pa.Table | None
    folder: Folder
    files: tuple[StagedFile, ...] = ()

    @property
    def paths(self) -> list[str]:
        return [f"{self.folder.uri}/{file.path}" for file in self.files]

    def discard(self) -> None:
        """Delete the files."""
        _forget(self.folder, self.files)


def changed_rows(changes: Changes, schema: pa.Schema, table: Folder, executors: Executors) -> ChangedRows:
    """Return a row for each changed key, in the columns of `schema`, which are some of the table's."""
    folder = changes.folder if isinstance(changes, KeyedChanges) else table
    merge = _Merge(folder, Layout(most_partitions=None), executors(changes.size), schema, changes.keys)
    if isinstance(changes, KeyedChanges) and changes.size > merge.most_bytes:
        return ChangedRows(rows=None, folder=folder, files=merge.marked_in_parts(changes))
    rows = marked(*changes.at_once(schema, table), changes.keys, KEEP_COLUMN)
    return ChangedRows(rows=rows, folder=folder)


Files = tuple[tuple[StagedFile, ...], Sequence[StagedFile]]
"""Files to add to a table, and files to remove from it."""


@dataclass(frozen=True, slots=True)
class _Merge:
    """One merge, by one executor."""

    folder: Folder
    layout: Layout
    executor: Executor
    schema: pa.Schema
    keys: tuple[str, ...]
    marks: bool = False

    @property
    def most_bytes(self) -> int:
        return _FEW_BYTES if isinstance(self.executor, Here) else _SENT_BYTES

    def at_once(self, opened: Any, among: Sequence[StagedFile], changes: Changes, *, search: bool) -> Files:
        """Mark or rewrite the files with changed keys, and fold small files, with all changed rows in memory.

        Args:
            search: look for the keys in the files; if not, files that may have some by their bounds are rewritten.
        """
        changed, rows = changes.at_once(self.schema, self.folder)
        if not changed.num_rows:
            return (), ()
        keys = changed.select(self.keys)
        near = _near(opened, among, bounds_of(changed, self.keys))
        found = self._found(near, keys) if search else {}
        touched = [file for file in near if file.path in found] if search else near
        marked = [file for file in touched if search and self.marks and _is_marked(file, found[file.path])]
        leaving = [file for file in touched if file not in marked]
        leaving = [*leaving, *self._folded(among, leaving, rows)]
        marked = [file for file in marked if file not in leaving]
        task = ReplaceTask(place=self.folder.place, schema=self.schema, changed=keys, layout=self.layout)
        written = self._staging.made(self.executor, task, _shares(leaving, rows))
        return (*written, *self._marked(marked, found)), [*leaving, *marked]

    def _found(self, files: Sequence[StagedFile], changed: pa.Table) -> dict[str, FoundRows]:
        task = FindTask(place=self.folder.place, changed=changed, marks=self.marks)
        found = (FoundRows(**facts) for facts in self.executor.run(task, [RowFile.of(file) for file in files]))
        return {rows.path: rows for rows in found}

    def _marked(self, files: Sequence[StagedFile], found: Mapping[str, FoundRows]) -> Iterator[StagedFile]:
        """Yield files without the rows found, after their deletion vectors are written, all in one file."""
        if not files:
            return
        dead = [_dead(file) + found[file.path].rows for file in files]
        data = [found[file.path].data for file in files]
        for file, vector in zip(files, marked_files.written(self.folder, data, dead), strict=True):
            yield replace(file, rows=file.rows - found[file.path].rows, vector=vector)

    def _folded(
        self, among: Sequence[StagedFile], leaving: Sequence[StagedFile], rows: pa.Table
    ) -> Iterator[StagedFile]:
        """Yield small files of the partitions that get new rows, if these files are many.

        A file that has more bytes than the others together stays: so rows are rewritten O(log n) times.
        """
        gone = {file.path for file in leaving}
        small = [file for file in among if file.path not in gone and file.size < _SMALL_BYTES]
        if len(small) < _FOLDED_FILES:
            return
        for partition in sorted({partition for partition, _ in self.layout.parts(self.layout.of_rows(rows))}):
            mine = sorted((file for file in small if file.partition == partition), key=lambda file: file.size)
            while len(mine) >= _FOLDED_FILES and mine[-1].size > _bytes(mine[:-1]):
                mine.pop()
            if len(mine) >= _FOLDED_FILES:
                yield from _up_to_bytes(mine)

    def in_parts(self, opened: Any, among: Sequence[StagedFile], changes: KeyedChanges) -> Files:
        """Rewrite all files that may have changed keys, by their bounds, one part of the keys after the other."""
        parts = self._parts(opened, among, changes)
        with self._split(changes, parts) as task:
            if not task.later:
                return (), ()
            leaving = _near(opened, among, joined([file.bounds for file in task.later]))
            files = tuple(RowFile.of(file) for file in leaving)
            others = self._split_files(self.folder, files, parts, self.schema)
            try:
                count = -(-(changes.size + _bytes(leaving)) // _FILE_BYTES)
                shares = about_equal(*_sizes([*task.later, *others]), count)
                return self._staging.made(self.executor, replace(task, others=others), shares), leaving
            finally:
                _forget(self.folder, others)

    def marked_in_parts(self, changes: KeyedChanges) -> tuple[StagedFile, ...]:
        """Write the rows of all changed keys, marked in `KEEP_COLUMN`."""
        parts = KeyParts(keys=self.keys, count=-(-changes.size // _PART_BYTES))
        with self._split(changes, parts) as task:
            shares = [[number] for number in range(parts.count)]
            return self._staging.made(self.executor, replace(task, keep=KEEP_COLUMN), shares)

    def _parts(self, opened: Any, among: Sequence[StagedFile], changes: KeyedChanges) -> KeyParts:
        """Return the parts of the keys: ranges, if more than one file may be written.

        Measured with 15 million keys in three files, against parts by hashes: the next merge of four million keys takes
        0.6 of the CPU time, one of a million neighbouring keys 0.3 to 0.4 of it.
        """
        count = -(-changes.size // _PART_BYTES)
        if changes.size + _bytes(among) <= _FILE_BYTES:
            return KeyParts(keys=self.keys, count=count)
        later = self._sampled(changes.folder, changes.later)
        near = _near(opened, among, joined([sample.bounds for sample in later]))
        others = self._sampled(self.folder, [RowFile.of(file) for file in near])
        return KeyParts.of(self.keys, [(later, count), (others, -(-_bytes(near) // _FILE_BYTES))])

    def _sampled(self, source: Folder, files: Sequence[RowFile]) -> list[KeySample]:
        import pyarrow as pa

        schema = pa.schema([self.schema.field(key) for key in self.keys])
        return [KeySample(**facts) for facts in self.executor.run(SampleTask(), _in_shares(source, files, schema))]

    @contextmanager
    def _split(self, changes: KeyedChanges, parts: KeyParts) -> Iterator[PartTask]:
        """Yield the task that merges parts of the keys, with the changed rows split into these parts."""
        kept = changes.kept(self.schema)
        later = self._split_files(changes.folder, changes.later, parts, kept)
        earlier = None
        if changes.earlier is not None:
            earlier = self._split_files(changes.folder, changes.earlier, parts, kept)
        try:
            yield PartTask(
                place=self.folder.place,
                schema=self.schema,
                keys=self.keys,
                layout=self.layout,
                later=later,
                earlier=earlier,
                deletes=changes.deletes,
            )
        finally:
            _forget(self.folder, [*later, *(earlier or ())])

    def _split_files(
        self, source: Folder, files: Sequence[RowFile], parts: KeyParts, schema: pa.Schema
    ) -> tuple[SplitFile, ...]:
        task = SplitTask(place=self.folder.place.for_an_attempt(), parts=parts)
        return tuple(SplitFile(**facts) for facts in self.executor.run(task, _in_shares(source, files, schema)))

    @property
    def _staging(self) -> Staging:
        return Staging.beside_log(self.folder, self.layout)


def versions_of(files: Sequence[StagedFile]) -> frozenset[_Version]:
    """Return files with the rows that have left them."""
    return frozenset((file.path, file.vector) for file in files)


def _bytes(files: Sequence[StagedFile]) -> int:
    return sum(file.size for file in files)


def _dead(file: StagedFile) -> int:
    return file.vector.rows if file.vector is not None else 0


def _is_marked(file: StagedFile, found: FoundRows) -> bool:
    """Say whether rows are to be marked: until many have left, or the vectors have cost as much as the file.

    Each merge writes the whole vector again, so vectors of merges like this one have cost about half of the size of the
    last one times the number of these merges.
    """
    dead = _dead(file) + found.rows
    spent = len(found.data) * dead // found.rows // 2
    return dead * _MOST_MARKED < _dead(file) + file.rows and spent < file.size


def _shares(files: Sequence[StagedFile], rows: pa.Table) -> list[FileRewrite]:
    """Return files in shares of at most about `_SHARE_BYTES`; the rows are in the last, which has the smallest."""
    shares: list[list[StagedFile]] = []
    for file in sorted(files, key=lambda file: -file.size):
        if not shares or _bytes(shares[-1]) + file.size > _SHARE_BYTES:
            shares.append([])
        shares[-1].append(file)
    if rows.num_rows and not shares:
        shares.append([])
    last = len(shares) - 1
    return [
        FileRewrite(files=tuple(map(RowFile.of, some)), rows=rows if at == last else None)
        for at, some in enumerate(shares)
    ]


def _in_shares(source: Folder, files: Sequence[RowFile], schema: pa.Schema) -> list[FileShare]:
    return [FileShare(files=some, place=source.place, schema=schema) for some in packed(files, _FILE_BYTES)]


def _sizes(files: Sequence[SplitFile]) -> tuple[list[int], list[int]]:
    """Return the parts of the keys that have rows, in their order, and the number of rows of each."""
    rows = Counter[int]()
    for file in files:
        for part, count in zip(file.parts, file.counts, strict=True):
            rows[part] += count
    parts = sorted(rows)
    return parts, [rows[part] for part in parts]


def _up_to_bytes(files: Sequence[StagedFile]) -> Iterator[StagedFile]:
    size = 0
    for file in files:
        size += file.size
        if size > _FOLDED_BYTES:
            return
        yield file


def _forget(folder: Folder, files: Sequence[StagedFile | SplitFile]) -> None:
    """Delete files that are not needed any more; if this fails, `gc` deletes them later."""
    with suppress(OSError, StoreUnavailable):
        folder.remove([file.path for file in files])


def _near(table: Any, files: Sequence[StagedFile], bounds: Bounds) -> list[StagedFile]:
    """Return the files that may have some of the changed keys, by their statistics."""
    import pyarrow as pa
    import pyarrow.compute as pc

    actions = file_lists.actions_of(table)
    near = pa.repeat(True, actions.num_rows)
    for key, (least, greatest) in bounds.items():
        names = (f"min.{key}", f"max.{key}")
        if not set(names) <= set(actions.column_names) or "." in key:
            continue
        low, high = (_readable(actions.column(name).combine_chunks()) for name in names)
        is_above, is_below = pc.greater(low, pa.scalar(greatest, low.type)), pc.less(high, pa.scalar(least, low.type))
        apart = pc.or_kleene(is_above, is_below)
        near = pc.and_(near, pc.invert(pc.fill_null(apart, False)))
    paths = set(actions.column("path").filter(near).to_pylist())
    return [file for file in files if file.path in paths]


def _readable(bounds: pa.Array) -> pa.Array:
    """Return bounds, without texts in which `deltalake` may have another letter: former entries have it escaped."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as kinds

    if not (kinds.is_string(bounds.type) or kinds.is_string_view(bounds.type)):
        return bounds
    texts = bounds.cast(pa.string())
    return pc.if_else(pc.match_substring_regex(texts, r"[\x{10000}-\x{FFFFF}]"), pa.scalar(None, pa.string()), texts)
