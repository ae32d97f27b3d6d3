"""A folder, or a prefix of a bucket, with a file for each sequence id, as a sink (V147).

What keeps late-comers out differs between the two, and stands in `file_folders` and `file_buckets`. Common is: names
hold the id, the note of the version comes after the files, and a rewind takes names of ids above N and below its own.
Ids are never used twice, so that a deletion which comes late finds nothing, and needs no fence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from drainmark.jobs.errors import DrainmarkError, Fenced, ForeignTable, Interrupted, SplitBrain
from drainmark.jobs.failpoints import InjectedFailure
from drainmark.jobs.formats.far_times import RULE, first_far
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.protocol.records.file_names import id_of, name_of
from drainmark.jobs.protocol.records.ids import INITIAL_ID, split_txn_version
from drainmark.jobs.protocol.records.manifest import RegionTable
from drainmark.jobs.runtime.adapters import Breach
from drainmark.resources.delta.commits import Faults, Published
from drainmark.resources.settings import Settings
from drainmark.resources.sinks.file_formats import ENDINGS, bytes_of, require_format, rows_of

if TYPE_CHECKING:
    import pyarrow as pa


class Writing(Protocol):
    """What an owner may do to a place until a later one comes; then each step raises `Fenced`, or does nothing."""

    def put(self, name: str, inside: str | None, data: bytes) -> None:
        """Make a file, or a folder with one file in it, visible at once and whole."""

    def withdraw(self, first: int, last: int, find: Callable[[], Collection[str]]) -> None:
        """Delete the files of ids from first to last, by names found when it is time."""

    def finish(self, note: dict[str, Any]) -> None:
        """Note that all this was done."""


class Place(Protocol):
    """Where the files are."""

    @property
    def uri(self) -> str:
        """Where it is, for messages."""

    def names(self) -> Iterator[str]:
        """Yield the names of the files and folders directly in it."""

    def get(self, name: str) -> bytes:
        """Return what a file holds."""

    def note(self) -> dict[str, Any] | None:
        """Return the note of the highest version, None before the first."""

    def begin(self, note: dict[str, Any]) -> None:
        """Make the place, with its first note, unless it has one."""

    def writing(self, epoch: int) -> AbstractContextManager[Writing]:
        """Keep out owners of earlier epochs; raises `Fenced` where a later one has come."""


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
        options = table.options
        self.region = region
        self._described = table
        self._identity = identity
        self._epoch = epoch
        self._pass = faults or (lambda _: None)
        self._format: str = options["format"]
        ending = "" if options["layout"] == "folder" else f".{ENDINGS[self._format]}"
        self._template = f"{options['name']}{ending}"
        self._inside = f"data.{ENDINGS[self._format]}" if options["layout"] == "folder" else None
        self._place = place_of(settings, options["path"], lambda name: id_of(self._template, name))

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

    def newest_id(self) -> int:
        """Return the largest id that has a file, 0 without one."""
        return max(self._ids(), default=INITIAL_ID)

    def read(
        self, columns: Sequence[str] | None = None, where: pa.compute.Expression | None = None, *,
        upto: int | None = None,
    ) -> pa.Table:  # fmt: skip
        """Return the rows of all files for which `where` holds, by id; their ids are in the names.

        Args:
            columns: all by default.
            where: a condition on any of the columns.
            upto: the last id whose file is read.
        """
        rows = self._rows(number for number in self._ids() if upto is None or number <= upto)
        rows = rows if where is None else rows.filter(where)
        return rows if columns is None else rows.select(list(columns))

    def read_ids(self, ids: Collection[int]) -> pa.Table:
        """Return the rows of some ids, by id; no other file is read."""
        return self._rows(set(ids).intersection(self._ids()))

    def _rows(self, numbers: Iterable[int]) -> pa.Table:
        import pyarrow as pa

        schema = self._schema()
        parts = [schema.empty_table()]
        for number in sorted(numbers):
            name = name_of(self._template, number)
            data = self._place.get(f"{name}/{self._inside}" if self._inside else name)
            rows = rows_of(data, self._format, self._content())
            parts.append(rows.append_column(SEQUENCE_ID, pa.repeat(pa.scalar(number, pa.int64()), len(rows))))
        return pa.concat_tables([part.select(schema.names) for part in parts])

    # --- before anything is committed ------------------------------------------------------------------------------

    def examine(self, schema_json: str) -> None:
        """Check that the format has these columns, and that the place is no other sink's; changes nothing.

        Raises:
            SchemaMismatch, ForeignTable: say what is in the way.
        """
        require_format(self._content(), self._format)
        note = self._place.note()
        if note is not None:
            self._require_mine(note)
        elif found := sorted(self._ids()):
            name = name_of(self._template, found[0])
            msg = f"{self._place.uri} holds files that are named as the sink's are, e.g. {name}, and are not its own"
            raise ForeignTable(msg, remedy="choose another path or name, or move them away")

    def create(self, schema_json: str) -> None:
        """Make the place and the note of its version; what is as it should be stays so.

        Raises:
            SchemaMismatch, ForeignTable: as `examine`.
        """
        self.examine(schema_json)
        if not self.exists():
            self._place.begin(self._note(0))
            self._require_mine(self._noted())

    def breach(self, rows: Iterable[pa.Table], *, replaced: Collection[int] = ()) -> Breach | None:
        """Return a row that JSON lines cannot be written of; all other files take any row of their columns."""
        for table in rows if self._format == "json" else ():
            if (row := first_far(table)) is not None:
                return Breach(rule=RULE, condition=f"row {row}"[:500], rows=1, first_id=row[SEQUENCE_ID])
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
            replaced: none: `replacing.require_replaceable` says why.

        Raises:
            Fenced: a later owner works here.
            StoreUnavailable: the disk is full or cannot be written, the store does not answer.
        """

        def act(writing: Writing) -> None:
            for number, found in self._by_id(ids, rows):
                writing.put(name_of(self._template, number), self._inside, bytes_of(found, self._format))

        return self._commit("publish", version, act)

    def merge(self, version: int, rows: pa.Table, keys: Sequence[str]) -> NoReturn:
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
            withdrawn = sorted((number for number in self._ids() if to < number < own), reverse=True)
            return [name_of(self._template, number) for number in withdrawn]

        return self._commit("rewind_table", version, lambda writing: writing.withdraw(to + 1, own - 1, find))

    def _by_id(self, ids: Collection[int], rows: Iterable[pa.Table]) -> Iterator[tuple[int, pa.Table]]:
        """Yield each id with its rows in their order; those without rows where they are asked for."""
        import pyarrow as pa
        import pyarrow.compute as pc

        whole = pa.concat_tables([self._schema().empty_table(), *rows], promote_options="permissive")
        present = set(pc.unique(whole.column(SEQUENCE_ID)).to_pylist())
        for number in sorted(ids if self._described.options.get("every_id") else present):
            yield number, whole.filter(pc.field(SEQUENCE_ID) == number).drop_columns([SEQUENCE_ID])

    def _commit(self, verb: str, version: int, act: Callable[[Writing], None]) -> Published:
        """Do it unless the version is at or above mine; the note of the version comes last."""
        done = Published(delta_version=split_txn_version(version)[1], done_before=True)
        if self._is_done(version):
            return done
        try:
            with self._place.writing(self._epoch) as writing:
                self._pass(f"{verb}.before_commit")
                if self._is_done(version):
                    return done
                act(writing)
                writing.finish(self._note(version))
                self._pass(f"{verb}.after_commit")
        except (DrainmarkError, InjectedFailure) as error:  # the outcome is unknown until it is read back (H10)
            if isinstance(error, Interrupted | Fenced) or not self._is_done(version):
                raise
        return Published(delta_version=split_txn_version(version)[1], done_before=False)

    # --- how -------------------------------------------------------------------------------------------------------

    def _schema(self) -> pa.Schema:
        from drainmark.resources.sinks.database_columns import arrow_schema

        return arrow_schema(self._described.schema_json, self._described.columns)

    def _content(self) -> pa.Schema:
        """Return the columns of the files: the id is in their names."""
        import pyarrow as pa

        return pa.schema([field for field in self._schema() if field.name != SEQUENCE_ID])

    def _ids(self) -> Iterator[int]:
        return (number for name in self._place.names() if (number := id_of(self._template, name)) is not None)

    def _note(self, version: int) -> dict[str, Any]:
        return {
            "region": self.region, "operator": self._described.operator, "checkpoints": self._identity() or "",
            "version": version, "sequence_id": split_txn_version(version)[1],
        }  # fmt: skip

    def _noted(self) -> dict[str, Any]:
        note = self._place.note()
        if note is None:
            msg = f"the note of what is in {self._place.uri} is gone from _drainmark/: it cannot be known"
            raise SplitBrain(msg, remedy="restore the folder from a backup, or write to another")
        return note

    def _is_done(self, version: int) -> bool:
        return int(self._noted()["version"]) >= version

    def _require_mine(self, found: dict[str, Any]) -> None:
        identity, uri = self._identity(), self._place.uri
        if (found["region"], found["operator"]) != (self.region, self._described.operator):
            msg = f"{uri} is written by {found['operator']} of region {found['region']!r}: ids must not mix"
            raise ForeignTable(msg, remedy="choose another path")
        if identity is not None and found["checkpoints"] != identity:
            msg = f"{uri} was filled by another home's region {self.region!r}, up to {found['sequence_id']}"
            raise ForeignTable(msg, remedy="run there, or choose another path; to begin anew, empty the folder")


def place_of(settings: Settings, path: str, id_in: Callable[[str], int | None]) -> Place:
    """Return the place of a path as declared: `s3://BUCKET/PREFIX`, or a folder."""
    from drainmark.resources.sinks.file_folders import FolderPlace

    if settings.files_root:
        root = Path(settings.files_root.replace("{home}", str(settings.home)))
        return FolderPlace(root / path.replace("{home}", "").replace("://", "/").lstrip("/"))
    if path.startswith("s3://"):
        from drainmark.resources.sinks.file_buckets import BucketPlace
        from drainmark.resources.storage.object_store import object_store

        bucket, _, prefix = path.removeprefix("s3://").partition("/")
        return BucketPlace(object_store(settings), bucket, prefix.rstrip("/"), id_in)
    return FolderPlace(settings.project_root / path.replace("{home}", str(settings.home)))
