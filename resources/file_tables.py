"""A folder with a file for each sequence id, as a sink (V147).

Nothing tells a file system which of two processes is the later owner; a rename whose source is gone fails. So every
owner works in `_drainmark/work/<epoch>-<uuid>/` and renames from there, both the files and `applied.json`, which has
the version. Who comes later first makes a mark of its epoch, then renames the work folders of earlier epochs away:

- a work folder that was there by then is gone, and nothing can be renamed from it any more;
- one that is made afterwards finds the mark, which its owner looks for after it has made the folder, and is fenced.

A rewind deletes names of ids above N and below its own id. Ids are never used twice, so that a deletion which comes
late finds nothing, and needs no fence.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from jobs.errors import DrainmarkError, Fenced, ForeignTable, Interrupted, SplitBrain
from jobs.failpoints import InjectedFailure
from jobs.graph.operator import SEQUENCE_ID
from jobs.protocol.file_names import id_of, name_of
from jobs.protocol.ids import INITIAL_ID, split_txn_version
from jobs.protocol.manifest import RegionTable
from jobs.runtime.ports import Breach
from jobs.runtime.storage_faults import no_space
from resources.delta_commits import Faults, Published
from resources.file_formats import read_rows, require_format, write_rows
from resources.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

CONTROL = "_drainmark"
_APPLIED = "applied.json"


class FileTable:
    """The folder of one sink; holds nothing open between calls.

    Args:
        settings: say where relative paths begin.
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
        self.folder = folder_of(settings, options["path"])
        self.region = region
        self._described = table
        self._identity = identity
        self._epoch = epoch
        self._pass = faults or (lambda _: None)
        self._format: str = options["format"]
        ending = "" if options["layout"] == "folder" else f".{_ENDINGS[self._format]}"
        self._template = f"{options['name']}{ending}"
        self._inside = f"data.{_ENDINGS[self._format]}" if options["layout"] == "folder" else None
        self._control = self.folder / CONTROL

    # --- reading ---------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Say whether the folder is this sink's."""
        return (self._control / _APPLIED).is_file()

    def txn_version(self) -> int | None:
        """Return the newest version of the region that is in the folder, None before the first."""
        return int(self._applied()["version"]) or None if self.exists() else None

    def delta_version(self) -> int:
        """Return the sequence id that the folder was brought to last: folders number no states."""
        return split_txn_version(self.txn_version() or 0)[1]

    def row_count(self) -> int | None:
        """Return None: nobody has counted."""
        return None

    def newest_id(self) -> int:
        """Return the largest id that has a file, 0 without one."""
        return max(self._ids(), default=INITIAL_ID)

    def read(self, columns: Sequence[str] | None = None, where: pa.compute.Expression | None = None) -> pa.Table:
        """Return the rows of all files for which `where` holds, by id; their ids are in the names.

        Args:
            columns: all by default.
            where: a condition on any of the columns.
        """
        import pyarrow as pa

        schema = self._schema()
        parts = [schema.empty_table()]
        for number in sorted(self._ids()):
            path = self.folder / name_of(self._template, number)
            rows = read_rows(path / self._inside if self._inside else path, self._format, self._content())
            parts.append(rows.append_column(SEQUENCE_ID, pa.repeat(pa.scalar(number, pa.int64()), len(rows))))
        rows = pa.concat_tables([part.select(schema.names) for part in parts])
        rows = rows if where is None else rows.filter(where)
        return rows if columns is None else rows.select(list(columns))

    # --- before anything is committed ------------------------------------------------------------------------------

    def examine(self, schema_json: str) -> None:
        """Check that the format has these columns, and that the folder is no other sink's; changes nothing.

        Raises:
            SchemaMismatch, ForeignTable: say what is in the way.
        """
        require_format(self._content(), self._format)
        if self.folder.exists() and not self.folder.is_dir():
            raise ForeignTable(f"{self.folder} is a file, expected a folder", remedy="choose another path")
        if self.exists():
            self._require_mine()
        elif found := sorted(self._ids()):
            name = name_of(self._template, found[0])
            msg = f"{self.folder} holds files that are named as the sink's are, e.g. {name}, and are not its own"
            raise ForeignTable(msg, remedy="choose another path or name, or move them away")

    def create(self, schema_json: str) -> None:
        """Make the folder and the note of its version; what is as it should be stays so.

        Raises:
            SchemaMismatch, ForeignTable: as `examine`.
        """
        self.examine(schema_json)
        if self.exists():
            return
        with self._storing():
            self._control.mkdir(parents=True, exist_ok=True)
            first = self._control / f"first-{uuid.uuid4().hex}"
            _write(first, self._note(0))
            with contextlib.suppress(FileExistsError):  # another process was faster: what is there decides
                os.link(first, self._control / _APPLIED)
            first.unlink()
            _sync(self._control)
        self._require_mine()

    def breach(self, rows: Iterable[pa.Table]) -> Breach | None:
        """Return None: files take any row of their columns."""
        return None

    # --- committing ------------------------------------------------------------------------------------------------

    def copy(self, version: int, ids: Collection[int], rows: Iterable[pa.Table]) -> Published:
        """Bring in a file for each id of a group.

        Args:
            version: of the checkpoint row that is published.
            ids: of the group.
            rows: with the sink's columns.

        Raises:
            Fenced: a later owner works here.
            StoreUnavailable: the disk is full or cannot be written.
        """

        def act(work: Path) -> None:
            for number, found in self._by_id(ids, rows):
                name = name_of(self._template, number)
                self._bring_in(work / name, found)

        return self._commit("publish", version, act)

    def merge(self, version: int, rows: pa.Table, keys: Sequence[str]) -> NoReturn:
        """Not for files: rows of one key are in many."""
        raise NotImplementedError

    def rewind_upsert(self, *_: Any, **__: Any) -> NoReturn:
        """Not for files."""
        raise NotImplementedError

    def rewind_rows(self, version: int, to: int) -> Published:
        """Delete the files of ids above `to`."""
        own = split_txn_version(version)[1]

        def act(_: Path) -> None:
            for number in sorted(self._ids(), reverse=True):
                if to < number < own:  # later ids are of later owners
                    _remove(self.folder / name_of(self._template, number))
            _sync(self.folder)

        return self._commit("rewind_table", version, act)

    def _by_id(self, ids: Collection[int], rows: Iterable[pa.Table]) -> Iterator[tuple[int, pa.Table]]:
        """Yield each id with its rows in their order; those without rows where they are asked for."""
        import pyarrow as pa
        import pyarrow.compute as pc

        whole = pa.concat_tables([self._schema().empty_table(), *rows], promote_options="permissive")
        present = set(pc.unique(whole.column(SEQUENCE_ID)).to_pylist())
        for number in sorted(ids if self._described.options.get("every_id") else present):
            yield number, whole.filter(pc.field(SEQUENCE_ID) == number).drop_columns([SEQUENCE_ID])

    def _bring_in(self, aside: Path, rows: pa.Table) -> None:
        """Write aside, make it durable, rename: a reader sees all of it or nothing."""
        target = self.folder / aside.name
        if self._inside is not None:
            if target.exists():  # of the same rows: an id is never used twice
                return
            aside.mkdir()
            write_rows(aside / self._inside, self._format, rows)
            _sync(aside)
        else:
            write_rows(aside, self._format, rows)
        os.rename(aside, target)

    def _commit(self, verb: str, version: int, act: Callable[[Path], None]) -> Published:
        """Do it unless the version is at or above mine; the note of the version comes last."""
        done = Published(delta_version=split_txn_version(version)[1], done_before=True)
        if self._is_done(version):
            return done
        try:
            with self._storing(), self._working() as work:
                self._pass(f"{verb}.before_commit")
                if self._is_done(version):
                    return done
                act(work)
                _sync(self.folder)
                _write(work / _APPLIED, self._note(version))
                os.rename(work / _APPLIED, self._control / _APPLIED)
                _sync(self._control)
                self._pass(f"{verb}.after_commit")
        except (DrainmarkError, InjectedFailure) as error:
            if isinstance(error, Interrupted | Fenced) or not self._is_done(version):
                raise
        return Published(delta_version=split_txn_version(version)[1], done_before=False)

    @contextlib.contextmanager
    def _working(self) -> Iterator[Path]:
        """Give a folder to rename from, which is gone once a later owner has come; see the module's docstring."""
        place = self._control / "work"
        mine = place / f"{self._epoch}-{uuid.uuid4().hex}"
        mine.mkdir(parents=True)
        try:
            marks = self._control / "epochs"
            marks.mkdir(exist_ok=True)
            (marks / str(self._epoch)).touch()
            _sync(marks)
            epochs = sorted(int(name) for name in os.listdir(marks))
            if epochs[-1] > self._epoch:
                raise self._fenced(epochs[-1])
            for name in os.listdir(place):
                if name.startswith("dead-") or int(name.partition("-")[0]) < self._epoch:
                    _kill(place / name)
            for epoch in epochs[:-1]:
                (marks / str(epoch)).unlink(missing_ok=True)
            yield mine
        except FileNotFoundError as error:
            if mine.exists():
                raise
            raise self._fenced() from error
        finally:
            shutil.rmtree(mine, ignore_errors=True)

    def _fenced(self, epoch: int | None = None) -> Fenced:
        later = "a later owner" if epoch is None else f"an owner of epoch {epoch}"
        return Fenced(f"{later} of {self.region!r} writes to {self.folder}", epoch=epoch)

    @contextlib.contextmanager
    def _storing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full = no_space(error)
            if full is None:
                raise
            raise full from error

    # --- how -------------------------------------------------------------------------------------------------------

    def _schema(self) -> pa.Schema:
        from resources.database_columns import arrow_schema

        return arrow_schema(self._described.schema_json, self._described.columns)

    def _content(self) -> pa.Schema:
        """Return the columns of the files: the id is in their names."""
        import pyarrow as pa

        return pa.schema([field for field in self._schema() if field.name != SEQUENCE_ID])

    def _ids(self) -> Iterator[int]:
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        return (number for name in names if (number := id_of(self._template, name)) is not None)

    def _note(self, version: int) -> bytes:
        note = {
            "region": self.region, "operator": self._described.operator, "checkpoints": self._identity() or "",
            "version": version, "sequence_id": split_txn_version(version)[1],
        }  # fmt: skip
        return json.dumps(note).encode()

    def _applied(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self._control / _APPLIED).read_bytes())
        except FileNotFoundError:
            msg = f"{self._control / _APPLIED} is gone: what is in the folder cannot be known"
            raise SplitBrain(msg, remedy="restore the folder from a backup, or write to another") from None
        return found

    def _is_done(self, version: int) -> bool:
        return int(self._applied()["version"]) >= version

    def _require_mine(self) -> None:
        found, identity = self._applied(), self._identity()
        if (found["region"], found["operator"]) != (self.region, self._described.operator):
            msg = f"{self.folder} is written by {found['operator']} of region {found['region']!r}: ids must not mix"
            raise ForeignTable(msg, remedy="choose another path")
        if identity is not None and found["checkpoints"] != identity:
            msg = f"{self.folder} was filled by another home's region {self.region!r}, up to {found['sequence_id']}"
            raise ForeignTable(msg, remedy="run there, or choose another path; to begin anew, empty the folder")


def folder_of(settings: Settings, path: str) -> Path:
    """Return the folder of a sink by its path as declared."""
    if settings.files_root:
        return Path(settings.files_root.replace("{home}", str(settings.home)), path.replace("{home}", "").lstrip("/"))
    return settings.project_root / path.replace("{home}", str(settings.home))


_ENDINGS = {"csv": "csv", "json": "json", "parquet": "parquet", "text": "txt"}


def _kill(folder: Path) -> None:
    """Make a folder of a dead owner unusable at once, then delete it."""
    dead = folder if folder.name.startswith("dead-") else folder.with_name(f"dead-{uuid.uuid4().hex}")
    with contextlib.suppress(FileNotFoundError):
        os.rename(folder, dead)
    shutil.rmtree(dead, ignore_errors=True)


def _remove(path: Path) -> None:
    """Delete a file or a folder; of a folder no part is seen alone."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    aside = path.parent / CONTROL / "work" / f"dead-{uuid.uuid4().hex}"
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, aside)
    shutil.rmtree(aside, ignore_errors=True)


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
