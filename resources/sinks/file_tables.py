"""A folder, or a prefix of a bucket, with a file for each sequence id, as a sink.

What keeps late-comers out differs between the two, and stands in `file_folders` and `file_buckets`. Common is: names
hold the id, the note of the version comes after the files, and a rewind takes names of ids above N and below its own.
Ids are never used twice, so that a deletion which comes late finds nothing, and needs no fence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from drainmark.jobs.errors import DrainmarkError, Fenced, ForeignTable, Interrupted
from drainmark.jobs.failpoints import InjectedFailure
from drainmark.jobs.protocol.records.ids import INITIAL_ID, split_txn_version
from drainmark.jobs.protocol.records.manifest import RegionTable, StagedFile
from drainmark.jobs.runtime.outside import Breach
from drainmark.jobs.tasks.judged_rows import unheld
from drainmark.jobs.tasks.places import Place
from drainmark.resources.delta.commits import Faults, Published
from drainmark.resources.settings import Settings
from drainmark.resources.sinks.file_folders import FolderPlace
from drainmark.resources.sinks.file_formats import require_format
from drainmark.resources.sinks.sink_files import SinkFiles, Writing
from drainmark.resources.sinks.version_note import VersionNote

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


class FileTable:
    """The files of one sink; holds nothing open between calls.

    Args:
        settings: say where paths begin, and how to reach buckets.
        table: says which folder, which names, which format, and the columns.
        region: whose rows these are.
        identity: gives what tells the region's checkpoint table from any other, None before there is one.
        epoch: of the owner; 0 for whoever only looks.
        faults: as for `ManagedTable`.
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
        faults: Faults | None = None,
    ) -> None:
        self._files = SinkFiles(settings, table)
        self._place = self._files.place
        self._note = VersionNote(self._place, region, table.operator, identity)
        self._epoch = epoch
        self._pass = faults or (lambda _: None)

    @property
    def folder(self) -> Path | None:
        """Return the folder on this machine that the files are in; None where they are in a bucket."""
        return self._place.folder if isinstance(self._place, FolderPlace) else None

    # --- reading ---------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Say whether the place is this sink's."""
        return self._place.note() is not None

    def txn_version(self) -> int | None:
        """Return the newest version of the region that is in the place, None before the first."""
        note = self._place.note()
        return int(note["version"]) or None if note else None

    def delta_version(self) -> int:
        """Return the sequence id that the place was brought to last: folders number no states."""
        return split_txn_version(self.txn_version() or 0)[1]

    def row_count(self) -> int | None:
        """Return None: nobody has counted."""
        return None

    def rows_above(self, to: int) -> int:
        """Return the number of rows in the files of ids above one, of which one at a time is read."""
        return sum(self._files.rows([number]).num_rows for number in self._files.ids() if number > to)

    def newest_id(self) -> int:
        """Return the largest id that has a file, 0 without one."""
        return max(self._files.ids(), default=INITIAL_ID)

    def read(
        self,
        columns: Sequence[str] | None = None,
        where: pa.compute.Expression | None = None,
        *,
        upto: int | None = None,
    ) -> pa.Table:
        """Return the rows of all files for which `where` holds, by id; their ids are in the names.

        Args:
            columns: all by default.
            where: a condition on any of the columns.
            upto: the last id whose file is read.
        """
        rows = self._files.rows(number for number in self._files.ids() if upto is None or number <= upto)
        rows = rows if where is None else rows.filter(where)
        return rows if columns is None else rows.select(list(columns))

    def read_ids(self, ids: Collection[int]) -> pa.Table:
        """Return the rows of some ids, by id; no other file is read."""
        return self._files.rows(set(ids).intersection(self._files.ids()))

    # --- before anything is committed ------------------------------------------------------------------------------

    def examine(self, schema_json: str) -> None:
        """Check that the format has these columns, and that the place is no other sink's; changes nothing.

        Raises:
            SchemaMismatch, ForeignTable: say what is in the way.
        """
        require_format(self._files.content(), self._files.format)
        note = self._place.note()
        if note is not None:
            self._note.require_mine(note)
        elif found := sorted(self._files.ids()):
            name = self._files.name(found[0])
            msg = f"{self._place.uri} holds files that are named as the sink's are, e.g. {name}, and are not its own"
            raise ForeignTable(msg, remedy="choose another path or name, or move them away")

    def create(self, schema_json: str) -> None:
        """Make the place and the note of its version; what is as it should be stays so.

        Raises:
            SchemaMismatch, ForeignTable: as `examine`.
        """
        self.examine(schema_json)
        if not self.exists():
            self._place.begin(self._note.text_of(0))
            self._note.require_mine(self._note.read())

    def breach(self, rows: Iterable[pa.Table], *, replaced: Collection[int] = ()) -> Breach | None:
        """Return the first row that the format cannot hold."""
        for table in rows if self._files.format != "parquet" else ():
            if (found := unheld(table, self._files.format)) is not None:
                return Breach(**found)
        return None

    # --- committing ------------------------------------------------------------------------------------------------

    def copy(
        self, version: int, ids: Collection[int], rows: Iterable[pa.Table], *, replaced: Collection[int] = ()
    ) -> Published:
        """Bring in a file for each id of a group.

        Args:
            version: of the checkpoint row that is published.
            ids: of the group.
            rows: with the sink's columns.
            replaced: none: `replacement.require_replaceable` says why.

        Raises:
            Fenced: a later owner works here.
            StoreUnavailable: the disk is full or cannot be written, the store does not answer.
        """

        return self._commit("publish", version, lambda writing: self._files.put(writing, ids, rows))

    def copy_files(
        self,
        version: int,
        ids: Collection[int],
        files: Sequence[StagedFile],
        *,
        source: Place,
        session: SparkSession | None = None,
    ) -> Published:
        """As `copy`, of rows in files of the sink's history, of which a bounded number is in memory.

        Args:
            files: in the order of their rows.
            source: where they are.
            session: whose tasks write; this process without one.

        Raises:
            AccountingError: what was written is not here, or not all of it.
        """
        return self._commit(
            "publish", version, lambda writing: self._files.export(writing, ids, source, files, session)
        )

    def merge(self, version: int, rows: Iterable[pa.Table], keys: Sequence[str]) -> NoReturn:
        """Not for files: rows of one key are in many."""
        raise NotImplementedError

    def rewind_upsert(self, *_: Any, **__: Any) -> NoReturn:
        """Not for files."""
        raise NotImplementedError

    def rewind_rows(self, version: int, to: int, *, restored: Iterable[pa.Table] = ()) -> Published:
        """Delete the files of ids above `to`; those above the rewind's own are of later owners.

        Args:
            restored: none, as nothing is ever replaced.
        """
        own = split_txn_version(version)[1]

        def find() -> list[str]:
            withdrawn = sorted((number for number in self._files.ids() if to < number < own), reverse=True)
            return [self._files.name(number) for number in withdrawn]

        return self._commit("rewind_table", version, lambda writing: writing.withdraw(to + 1, own - 1, find))

    def _commit(self, verb: str, version: int, act: Callable[[Writing], None]) -> Published:
        """Do it unless the version is at or above mine; the note of the version comes last."""
        done = Published(delta_version=split_txn_version(version)[1], done_before=True)
        if self._note.is_reached(version):
            return done
        try:
            with self._place.writing(self._epoch) as writing:
                self._pass(f"{verb}.before_commit")
                if self._note.is_reached(version):
                    return done
                act(writing)
                writing.finish(self._note.text_of(version))
                self._pass(f"{verb}.after_commit")
        except (DrainmarkError, InjectedFailure) as error:  # the outcome is unknown until it is read back
            if isinstance(error, Interrupted | Fenced) or not self._note.is_reached(version):
                raise
        return Published(delta_version=split_txn_version(version)[1], done_before=False)
