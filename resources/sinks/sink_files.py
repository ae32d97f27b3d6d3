"""The files of a sink: their names by id, a list of them, and their rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from drainmark.jobs.errors import AccountingError, BadInput
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.protocol.records.addresses import address_of, is_object
from drainmark.jobs.protocol.records.ids import id_of, name_of
from drainmark.jobs.protocol.records.manifest import RegionTable, StagedFile
from drainmark.jobs.tasks.executor import Executor
from drainmark.jobs.tasks.exported_files import ExportTask, shares_of_ids
from drainmark.jobs.tasks.parquet_files import require_here, written_files
from drainmark.jobs.tasks.places import Place
from drainmark.resources.settings import Settings
from drainmark.resources.sinks.file_formats import ENDINGS, bytes_of, rows_of

if TYPE_CHECKING:
    import pyarrow as pa


class Writing(Protocol):
    """The steps by which an owner changes a target. After a later owner came, each raises `Fenced` or has no effect."""

    def staging(self) -> Place:
        """Return the place to which tasks write unpublished files; it is deleted when the owner has finished."""

    def put(self, name: str, inside: str | None, data: bytes) -> None:
        """Write a file, or a folder with one file in it, so that readers see it whole or not at all."""

    def bring(self, staged: str, name: str, inside: str | None) -> None:
        """Publish a staged file as `put` does."""

    def replace(self, name: str, inside: str | None, data: bytes) -> None:
        """Write a file that is there again, with other content; readers see the old one or the new one."""

    def withdraw(self, first: int, last: int, find: Callable[[], Collection[str]]) -> None:
        """Delete the files of ids from `first` to `last` (inclusive); `find` returns their names just before."""

    def readmit(self, ids: Collection[int]) -> None:
        """Take back that some ids were withdrawn: their files are written again."""

    def set_aside(self, names: Collection[str]) -> None:
        """Move files to `_drainmark/aside/`; nothing is overwritten there."""

    def finish(self, note: dict[str, Any]) -> None:
        """Write the note that all steps are done."""


class FileTarget(Protocol):
    """The folder or prefix that holds the files of a sink."""

    @property
    def uri(self) -> str:
        """Return the address, for messages."""

    def names(self) -> Iterator[str]:
        """Yield the names of the files and folders directly in it."""

    def get(self, name: str) -> bytes:
        """Return the content of a file."""

    def note(self) -> dict[str, Any] | None:
        """Return the note of the highest version, None before the first."""

    def begin(self, note: dict[str, Any]) -> None:
        """Create the target with its first note, unless it has a note."""

    def withdrawn(self) -> Callable[[str], bool]:
        """Return a function that says whether a file of this name is going to be deleted."""

    def newest_epoch(self) -> int:
        """Return the newest epoch of an owner that began to write, 0 before the first."""

    def forget_aside(self) -> None:
        """Delete the files that were moved aside, where no reader looks."""

    def writing(self, epoch: int) -> AbstractContextManager[Writing]:
        """Fence owners of earlier epochs; raise `Fenced` if there is a later owner."""


class SinkFiles:
    """The files of one sink in their target, one for each id; it keeps nothing open between calls.

    Args:
        settings: have the root of paths and the access to buckets.
        described: has the folder, the pattern of names, the format and the columns.
    """

    def __init__(self, settings: Settings, described: RegionTable) -> None:
        options = described.options
        self.format: str = options["format"]
        self._described = described
        ending = "" if options["layout"] == "folder" else f".{ENDINGS[self.format]}"
        self._template = f"{options['name']}{ending}"
        self._inside = f"data.{ENDINGS[self.format]}" if options["layout"] == "folder" else None
        self.target = target_of(settings, options["path"], lambda name: id_of(self._template, name))

    def name(self, number: int) -> str:
        """Return the name of the file of an id, or of the folder that holds it."""
        return name_of(self._template, number)

    @property
    def every_id(self) -> bool:
        """Say whether an id without rows has a file, too."""
        return bool(self._described.options.get("every_id"))

    def ids(self) -> Iterator[int]:
        """Yield the ids that have files, in no order."""
        return (number for name in self.target.names() if (number := id_of(self._template, name)) is not None)

    def schema(self) -> pa.Schema:
        """Return the columns of the rows, with `_sequence_id`."""
        from drainmark.resources.sinks.database_columns import arrow_schema

        return arrow_schema(self._described.schema_json, self._described.columns)

    def content(self) -> pa.Schema:
        """Return the columns of the files, without `_sequence_id`: the id is in their names."""
        import pyarrow as pa

        return pa.schema([field for field in self.schema() if field.name != SEQUENCE_ID])

    def rows(self, numbers: Iterable[int]) -> pa.Table:
        """Return the rows of the files of some ids, sorted by id.

        Raises:
            BadInput: a file cannot be read.
        """
        import pyarrow as pa

        schema, content = self.schema(), self.content()
        parts = [schema.empty_table()]
        for number in sorted(numbers):
            rows = self._content_of(number, content)
            parts.append(rows.append_column(SEQUENCE_ID, pa.repeat(pa.scalar(number, pa.int64()), len(rows))))
        return pa.concat_tables([part.select(schema.names) for part in parts])

    def _content_of(self, number: int, content: pa.Schema) -> pa.Table:
        name = self.name(number)
        path = f"{name}/{self._inside}" if self._inside else name
        data = self.target.get(path)
        try:
            return rows_of(data, self.format, content).select(content.names)
        except (ValueError, LookupError, ArithmeticError) as error:  # others wrote, or an earlier version a far date
            msg = f"the file {path} in {self.target.uri} cannot be read as {self.format}: {error}"
            remedy = "correct it by hand, such as a date outside of the years 1 to 9999, then repeat the command"
            raise BadInput(msg, remedy=remedy, file=path) from error

    def put(self, writing: Writing, ids: Collection[int], rows: Iterable[pa.Table]) -> None:
        """Write the files of a group: one for each id that has rows, or with the option `every_id` for each id."""
        import pyarrow as pa
        import pyarrow.compute as pc

        whole = pa.concat_tables([self.schema().empty_table(), *rows], promote_options="permissive")
        present = set(pc.unique(whole.column(SEQUENCE_ID)).to_pylist())
        for number in sorted(ids if self.every_id else present):
            found = whole.filter(pc.field(SEQUENCE_ID) == number).drop_columns([SEQUENCE_ID])
            writing.put(self.name(number), self._inside, bytes_of(found, self.format))

    def replace(self, writing: Writing, number: int, rows: pa.Table) -> None:
        """Write the file of an id again."""
        writing.replace(self.name(number), self._inside, bytes_of(rows.drop_columns([SEQUENCE_ID]), self.format))

    def export(
        self,
        writing: Writing,
        ids: Collection[int],
        source: Place,
        files: Sequence[StagedFile],
        executor: Executor,
    ) -> None:
        """Do the same as `put` with rows in Parquet files, which an executor reads as a stream.

        Args:
            source: the place of `files`.
            files: of the history, in the order of their rows.

        Raises:
            AccountingError: a written file is not in the target, or rows are missing.
            OSError, StoreUnavailable: a file could not be written.
        """
        staging, every_id = writing.staging(), self.every_id
        if not every_id:  # a commit may also publish rows of earlier ids that stages finished late
            ids = {number for file in files for number in range(file.first_id or 0, (file.last_id or 0) + 1)}
        task = ExportTask(
            source=source,
            files=tuple(files),
            schema=self.schema(),
            file_format=self.format,
            every_id=every_id,
            place=staging,
            folder="files",
        )
        written = written_files(executor.run(task, shares_of_ids(ids, files)))
        require_here(staging.stamp, self.target.uri, written)
        expected, found = (sum(file.rows for file in each) for each in (files, written))
        if expected != found:
            msg = f"{expected} rows were to go to {self.target.uri}, and files with {found} were written"
            raise AccountingError(msg, remedy="look whether others write to its tables", rows=found, expected=expected)
        for file in sorted(written, key=lambda file: file.first_id or 0):
            writing.bring(file.name, self.name(file.first_id or 0), self._inside)


def target_of(settings: Settings, path: str, id_in: Callable[[str], int | None]) -> FileTarget:
    """Return the target of a declared path: a prefix of a bucket, or a folder; below `files_root` if it is set."""
    from drainmark.resources.sinks.file_folders import FolderTarget

    if settings.files_root:
        root = Path(settings.files_root.replace("{home}", str(settings.home)))
        return FolderTarget(root / path.replace("{home}", "").replace("://", "/").lstrip("/"))
    if is_object(path):
        from drainmark.resources.sinks.file_buckets import BucketTarget
        from drainmark.resources.storage.object_store import object_store

        bucket, prefix = address_of(path)
        return BucketTarget(object_store(settings), bucket, prefix.rstrip("/"), id_in)
    return FolderTarget(settings.project_root / path.replace("{home}", str(settings.home)))
