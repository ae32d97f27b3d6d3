"""A folder, or a prefix of a bucket, with a file for each sequence id, as a sink.

`file_folders` and `file_buckets` fence late owners in different ways. These rules are common to both: names hold the
id; the note of the version is written after the files; and a rewind to N deletes files of ids above N and below its own
id. An id is never used twice, so a late deletion deletes no file of a later owner, and needs no fence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from drainmark.jobs import world
from drainmark.jobs.errors import DrainmarkError, Fenced, ForeignTable, Interrupted
from drainmark.jobs.failpoints import InjectedFailure
from drainmark.jobs.protocol.records.ids import INITIAL_ID, split_txn_version
from drainmark.jobs.protocol.records.manifest import RegionTable, StagedFile
from drainmark.jobs.tasks.executor import Executor
from drainmark.jobs.tasks.judged_rows import unheld
from drainmark.jobs.tasks.places import Place
from drainmark.resources.delta.adopted.constraints import Breach
from drainmark.resources.delta.commits import Published
from drainmark.resources.settings import Settings
from drainmark.resources.sinks.file_folders import FolderTarget
from drainmark.resources.sinks.file_formats import require_format
from drainmark.resources.sinks.sink_files import SinkFiles, Writing
from drainmark.resources.sinks.version_note import SeenVersion, VersionNote

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.resources.delta.keyed.keyed_changes import Restored


class FileReader:
    """The files of one sink."""

    def __init__(self, files: SinkFiles) -> None:
        self._files = files
        self._target = files.target

    def row_count(self) -> int | None:
        """Return None: the rows are not counted."""
        return None

    def rows_above(self, to: int) -> int:
        """Return the number of rows in the files of ids above `to` (exclusive); it reads one file at a time."""
        return sum(self._files.rows([number]).num_rows for number in self._files.ids() if number > to)

    def newest_id(self) -> int:
        """Return the largest id that has a file, 0 without one."""
        return max(self._files.ids(), default=INITIAL_ID)

    def counts(self) -> dict[int, int | None]:
        """Return None by id for each id that has a file: its rows are not counted.

        A file that a rewind noted as withdrawn, and could not delete before it was killed, does not count.
        """
        is_withdrawn = self._target.withdrawn()
        return {number: None for number in self._files.ids() if not is_withdrawn(self._files.name(number))}

    def read(
        self,
        columns: Sequence[str] | None = None,
        where: pa.compute.Expression | None = None,
        *,
        upto: int | None = None,
    ) -> pa.Table:
        """Return the rows for which `where` holds, sorted by id; the names of the files have the ids.

        One file is in memory at a time, beside the rows and columns that are asked for.

        Args:
            columns: all by default.
            where: a condition on any of the columns.
            upto: the last id (inclusive) whose file is read.
        """
        import pyarrow as pa

        def asked(rows: pa.Table) -> pa.Table:
            rows = rows if where is None else rows.filter(where)
            return rows if columns is None else rows.select(list(columns))

        wanted = sorted(number for number in self._files.ids() if upto is None or number <= upto)
        parts = (asked(self._files.rows([number])) for number in wanted)
        return pa.concat_tables([asked(self._files.rows([])), *(part for part in parts if part.num_rows)])

    def read_ids(self, ids: Collection[int]) -> pa.Table:
        """Return the rows of some ids, sorted by id; it reads no other files."""
        return self._files.rows(set(ids).intersection(self._files.ids()))


class FileTable(FileReader):
    """The files of one sink; it keeps nothing open between calls.

    Args:
        settings: have the root of paths and the access to buckets.
        table: has the folder, the pattern of names, the format and the columns.
        region: the region whose rows they hold.
        identity: returns the unique id of the region's checkpoint table, None before that table exists.
        epoch: of the owner; 0 for a caller that only reads.
        seen: as for `Externals.open`.
    """

    judges_by_itself = True

    def __init__(
        self,
        settings: Settings,
        table: RegionTable,
        region: str,
        identity: Callable[[], str | None],
        *,
        epoch: int = 0,
        seen: dict[str, int] | None = None,
    ) -> None:
        self._seen = SeenVersion(table.name, seen)
        super().__init__(SinkFiles(settings, table))
        self._note = VersionNote(self._target, region, table.operator, identity)
        self._epoch = epoch

    @property
    def folder(self) -> Path | None:
        """Return the folder that holds the files; None if they are in a bucket."""
        return self._target.folder if isinstance(self._target, FolderTarget) else None

    # --- reading ---------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Say whether the target has a note of a version: a sink has made it."""
        return self._target.note() is not None

    def txn_version(self) -> int | None:
        """Return the version that the target has reached, None before the first."""
        note = self._target.note()
        self._seen.note(int(note["version"]) if note else 0)
        return int(note["version"]) or None if note else None

    def delta_version(self) -> int:
        """Return the sequence id that the target has reached: folders have no version numbers of their own."""
        return split_txn_version(self.txn_version() or 0)[1]

    def newest_epoch(self) -> int:
        """Return the newest epoch of an owner that wrote, or began to write, to the target; 0 before the first."""
        return max(split_txn_version(self.txn_version() or 0)[0], self._target.newest_epoch())

    # --- before anything is committed ------------------------------------------------------------------------------

    def examine(self, schema_json: str) -> None:
        """Check that the format can hold these columns, and that the target is no other sink's; changes nothing.

        Raises:
            SchemaMismatch, ForeignTable: it does not; the message names the obstacle.
        """
        require_format(self._files.content(), self._files.format)
        note = self._target.note()
        if note is not None:
            self._note.require_mine(note)
        elif found := sorted(self._files.ids()):
            name = self._files.name(found[0])
            msg = f"{self._target.uri} holds files that are named as the sink's are, e.g. {name}, and are not its own"
            raise ForeignTable(msg, remedy="choose another path or name, or move them away")

    def create(self, schema_json: str) -> None:
        """Create the target and the note of its version, unless they exist.

        Raises:
            SchemaMismatch, ForeignTable: as `examine`.
        """
        self.examine(schema_json)
        if not self.exists():
            self._target.begin(self._note.text_of(0))
            self._note.require_mine(self._note.read())

    def breach(self, rows: Iterable[pa.Table], *, replaced: Collection[int] = ()) -> Breach | None:
        """Return the breach of a row that the format cannot hold; None if it can hold all rows."""
        for table in rows if self._files.format != "parquet" else ():
            if (found := unheld(table, self._files.format)) is not None:
                return Breach(**found)
        return None

    # --- committing ------------------------------------------------------------------------------------------------

    def copy(
        self, version: int, ids: Collection[int], rows: Iterable[pa.Table], *, replaced: Collection[int] = ()
    ) -> Published:
        """Write the files of a group: one for each id that has rows, or with `every_id` for each id.

        Args:
            version: of the checkpoint row that is published.
            ids: of the group.
            rows: with the sink's columns.
            replaced: empty: `replacement.require_replaceable` explains why.

        Raises:
            Fenced: a later owner writes to the target.
            StoreUnavailable: the disk is full or read-only, or the store does not answer.
        """

        return self._commit("publish", version, lambda writing: self._files.put(writing, ids, rows))

    def copy_files(
        self,
        version: int,
        ids: Collection[int],
        files: Sequence[StagedFile],
        *,
        source: Place,
        executor: Executor,
    ) -> Published:
        """Do the same as `copy` with rows in files of the sink's history; a bounded number of rows is in memory.

        Args:
            files: in the order of their rows.
            source: the place of `files`.
            executor: who writes.

        Raises:
            AccountingError: a written file is not in the target, or rows are missing.
        """
        return self._commit(
            "publish", version, lambda writing: self._files.export(writing, ids, source, files, executor)
        )

    def merge(self, version: int, rows: Iterable[pa.Table], keys: Sequence[str]) -> NoReturn:
        """Raise NotImplementedError: the rows of a key are in many files."""
        raise NotImplementedError

    def rewind_upsert(self, version: int, restored: Restored) -> NoReturn:
        """Raise NotImplementedError: file sinks have no upsert."""
        raise NotImplementedError

    def rewind_rows(self, version: int, to: int, *, restored: Iterable[pa.Table] = ()) -> Published:
        """Delete the files of ids above `to` and below the id of the rewind; higher ids belong to later owners.

        Args:
            restored: empty, because the rows of a file sink are never replaced.
        """
        own = split_txn_version(version)[1]

        def find() -> list[str]:
            withdrawn = sorted((number for number in self._files.ids() if to < number < own), reverse=True)
            return [self._files.name(number) for number in withdrawn]

        return self._commit("rewind_table", version, lambda writing: writing.withdraw(to + 1, own - 1, find))

    def put_right(
        self,
        version: int,
        rows: Callable[[Collection[int]], Iterable[pa.Table]],
        *,
        written: Collection[int],
        leaving: Collection[int],
        keys: Sequence[str] = (),
    ) -> Published:
        """Write the files of some ids, and move those of others to `_drainmark/aside/`, where no reader looks.

        Args:
            version: above that of the target.
            rows: returns the rows of some ids.
            written: ids whose files are written.
            leaving: ids whose files are moved.
            keys: empty: file sinks have no upsert.
        """

        def act(writing: Writing) -> None:
            writing.readmit(written)
            for number in sorted(written):  # one at a time: all of them may be more than the memory
                self._files.put(writing, [number], rows([number]))
            writing.set_aside([self._files.name(number) for number in sorted(leaving)])

        return self._commit("repair", version, act)

    def erase(self, version: int, ids: Collection[int], where: pa.compute.Expression) -> Published:
        """Write the files of some ids again without the rows for which a condition holds.

        A file without rows is moved aside, unless the sink has one for every id; see `forget_removed`.

        Args:
            version: above that of the target.
        """

        def act(writing: Writing) -> None:
            for number in sorted(ids):
                rows = self._files.rows([number]).filter(~where)
                if rows.num_rows or self._files.every_id:
                    self._files.replace(writing, number, rows)
                else:
                    writing.set_aside([self._files.name(number)])

        return self._commit("erase", version, act)

    def forget_removed(self) -> None:
        """Delete what this, or a repair, moved aside."""
        self._target.forget_aside()

    def _commit(self, verb: str, version: int, act: Callable[[Writing], None]) -> Published:
        """Run `act` and then write the note of `version`, unless the target has reached it already."""
        done = Published(delta_version=split_txn_version(version)[1], done_before=True)
        if self._note.is_reached(version):
            return done
        try:
            with self._target.writing(self._epoch) as writing:
                world.pass_point(f"{verb}.before_commit")
                found = self._note.version()
                if found >= version:
                    return done
                self._seen.require(found, is_repair=verb == "repair")
                act(writing)
                writing.finish(self._note.text_of(version))
                self._seen.note(version)
                world.pass_point(f"{verb}.after_commit")
        except (DrainmarkError, InjectedFailure) as error:  # the outcome is unknown until it is read back
            if isinstance(error, Interrupted | Fenced) or not self._note.is_reached(version):
                raise
        return Published(delta_version=split_txn_version(version)[1], done_before=False)
