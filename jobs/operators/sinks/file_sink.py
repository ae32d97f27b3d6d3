"""`sink(stream, FileSink(path, …))`: a file, or a folder, for each sequence id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from drainmark.jobs.errors import UsageError
from drainmark.jobs.graph.ports import Input
from drainmark.jobs.operators.sinks.sink import Sink
from drainmark.jobs.protocol.records.addresses import address_of, is_object
from drainmark.jobs.protocol.records.ids import name_problem
from drainmark.jobs.protocol.records.manifest import TableRole

__all__ = ["FileSink"]

Format = Literal["csv", "json", "parquet", "text"]
Layout = Literal["file", "folder"]

_FORMATS = ("csv", "json", "parquet", "text")
_CONDITION = (
    "as long as the folder is on one POSIX file system, where a rename is atomic and durable, and others leave"
    " _drainmark/ in it alone; a reader that has opened a file keeps rows that a rewind withdraws"
)

_ON_S3 = (
    "as long as others leave _drainmark/ below the prefix alone, and no process stalls between two requests until its"
    " region was taken over and rewound, and dies then: a file that it put late, of an id that the rewind withdrew, is"
    " seen until the next owner deletes it"
)


@dataclass(frozen=True)
class FileSink:
    """A folder, or a prefix of a bucket, with one file for each sequence id, which has the rows of that id.

    A file appears whole, under its own name, after its id is committed, and is never changed. A rewind to N deletes the
    files of ids above N; since ids are never used again, a name always means the same rows. An id without rows has no
    file, unless `empty` asks for one. `backfill --again` is refused: a rewind to an id before it would have to restore
    a deleted file, and a process that comes late with the deletion would delete it again.

    Late processes are kept out in this way: each owner writes to a folder of its own below `_drainmark/`, and renames
    files from there. The next owner first renames the folders of earlier owners, so a late process finds no files to
    rename. Readers need no manifest: all files that they list are valid. A bucket has no such step: an owner looks for
    a later owner before and after it puts a file, and removes files that came late; see the condition that
    `drainmark graph` prints. Files of a large group are streamed. If Spark's tasks run on other machines and can reach
    the place, they write to `_drainmark/staged/`, and the owner brings the files to their names.

    Attributes:
        path: the folder, or `s3://BUCKET/PREFIX`; a relative path begins at the folder of drainmark.toml, `{home}`
            stands for DRAINMARK_HOME.
        format: "csv" (with a header), "json" (one object per line), "parquet", or "text" (the stream has one column of
            texts, and each text is a line). A row that its file cannot hold halts the region before the commit, and the
            error names it: in text, several lines or a null; in a CSV of one column, a null (it would be an empty line,
            which readers skip); in CSV and JSON, a date before the year 1 or after 9999. While the folder has files,
            another format, layout or name is refused: a rewind would not find them. Write to another path.
        layout: "file", or "folder": `<name>/data.<format>`.
        name: name of the file without its ending, or of the folder; must have the id as `{sequence_id}`, which may have
            a format, e.g. `{sequence_id:08d}`.
        empty: whether ids without rows have a file, too.

    Example:
        dm.sink(orders, dm.FileSink("{home}/exports", format="json", name="orders-{sequence_id:08d}"))
    """

    path: str
    format: Format = "csv"
    layout: Layout = "file"
    name: str = "part-{sequence_id:019d}"
    empty: bool = False

    @property
    def label(self) -> str:
        return self.path.strip("./").replace("{home}/", "").replace("://", "/")

    def operator(self, *, name: str, inputs: tuple[Input, ...]) -> FileSinkOperator:
        return FileSinkOperator(
            name=name,
            inputs=inputs,
            path=self.path,
            file_format=self.format,
            layout=self.layout,
            file_name=self.name,
            empty=self.empty,
        )


@dataclass(frozen=True, kw_only=True)
class FileSinkOperator(Sink):
    """A sink that writes a file for each id; a rewind deletes the files of later ids."""

    kind: ClassVar[str] = "file-sink"
    summary: ClassVar[str] = "a file for each sequence id"
    role: ClassVar[TableRole] = TableRole.COPY
    external: ClassVar[str] = "file"
    because: ClassVar[str] = (
        "each id has files of its own, put in place whole after its checkpoint row, and late writers are kept out"
    )

    path: str
    file_format: str = "csv"
    layout: str = "file"
    file_name: str = "part-{sequence_id:019d}"
    empty: bool = False

    @property
    def tables(self) -> tuple[str, ...]:
        return (f"files/{self.path.strip('./').replace('{home}', 'home').replace('://', '/')}",)

    @property
    def format(self) -> str:
        return self.file_format if self.file_format in _FORMATS else "file"

    @property
    def condition(self) -> str | None:
        return _ON_S3 if is_object(self.path) else _CONDITION

    @property
    def options(self) -> Mapping[str, Any]:
        return {**self._asked, **({"every_id": True} if self.empty else {})}

    @property
    def _asked(self) -> dict[str, Any]:
        return {"path": self.path, "format": self.file_format, "layout": self.layout, "name": self.file_name}

    def described(self) -> str:
        return f"A {self.layout} of {self.file_format} for each sequence id."

    def fingerprint(self) -> Any:
        return {**super().fingerprint(), **self._asked, "empty": self.empty}

    def problems(self) -> Iterator[tuple[str, str, str]]:
        if self.file_format not in _FORMATS:
            yield "FILE_FORMAT", f"format is {self.file_format!r}", f"one of {', '.join(_FORMATS)}"
        if self.layout not in ("file", "folder"):
            yield "FILE_LAYOUT", f"layout is {self.layout!r}", 'write "file" or "folder"'
        if not self.path.strip("./"):
            yield "FILE_PATH", f"{self.path!r} is no folder of its own", "name a folder below"
        if is_object(self.path):
            try:
                _, prefix = address_of(self.path)
            except UsageError as error:
                yield "FILE_PATH", error.message, error.remedy or ""
            else:
                if not prefix.strip("/"):
                    yield "FILE_PATH", f"{self.path!r} has no prefix", "write to a prefix below: s3://BUCKET/PREFIX"
        elif "://" in self.path:
            message = f"files cannot be written to {self.path.partition('://')[0]}://"
            yield "FILE_PATH", message, "a path of this machine, or s3://BUCKET/PREFIX"
        problem = name_problem(self.file_name)
        if problem is not None:
            yield "FILE_NAME", f"name is {self.file_name!r}: {problem}", 'e.g. "part-{sequence_id:019d}"'
