"""Sources that give files; `FileSource`: the lines of a file that grows, by offsets."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from drainmark.jobs.errors import InputChanged
from drainmark.jobs.formats.format import format_of, formats
from drainmark.jobs.graph.annotations import is_count
from drainmark.jobs.operators.sources.contract import Replayable, SourceAccess
from drainmark.jobs.operators.sources.files.directory_scan import DirectoryScan
from drainmark.jobs.operators.sources.files.line_files import LineFiles, number_of, offset_of
from drainmark.jobs.operators.sources.slices import Position, Slice, SliceLimit

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.jobs.tasks.buckets import StoredObject

__all__ = ["FileSource"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePart:
    """The part of a slice that is one file.

    Attributes:
        uri: the value of `source_file` in its rows.
        place: makes the file readable at a path that does not exist yet.
        stored: the object of the file, if tasks may fetch it; the object never changes.
        check: raises InputChanged if the file has changed; called after reading.
    """

    uri: str
    size_bytes: int
    place: Callable[[Path], None]
    stored: StoredObject | None = None
    check: Callable[[], None] = lambda: None


class FileSlices(Replayable):
    """A source that gives files, in which rows may be bad; they are treated like the rows of a `DirectoryScan`."""

    @property
    @abstractmethod
    def scan(self) -> DirectoryScan:
        """Return the format, columns, options and policies of the files."""

    @abstractmethod
    def parts(self, piece: Slice, access: SourceAccess, source: str) -> Iterator[SlicePart]:
        """Yield the files of a slice in order."""

    def columns(self, access: SourceAccess) -> str | pa.Schema:
        return self.scan.rows_of("")

    @property
    def parsed(self) -> tuple[str, str] | None:
        ddl = self.scan.schema_of("")
        return (self.scan.format, ddl) if ddl is not None else None


@dataclass(frozen=True, kw_only=True)
class FileSource(FileSlices):
    """The lines that others append to a file; a slice ends after the last complete line.

    A position is an offset, and marks to check that the bytes before it are still the same: the file's inode, hashes of
    its first 4096 bytes, of the last 1024 before the offset, and of what is between: all of it up to 1 MiB, else 64
    even samples of 4096 bytes. If a file was truncated or replaced, the region halts, naming the file and the offset,
    unless `rotated` gives the later names of the file. A file that was truncated, and filled again with the very same
    bytes at least up to the offset, cannot be told from one that grew; with `rotated` its copy tells, and it halts.

    A file that is rotated, as logrotate does it, is followed under its later names: by rename, or copied and truncated
    (`copytruncate`; logrotate itself loses bytes that are written between the two). It is read to its end, including a
    last line without a line end, before the next file is begun; a slice belongs to one file. So nothing is lost or read
    twice, for any number of rotations since the last scan. If that is impossible, the region halts: if the current
    file, or one after it, is compressed or gone, or if a file grew after the source went on to the next one. A rewind
    can read slices again as long as their file is there, not compressed, under any of its names.

    In an operator-driven region the input that a scan finds is one trigger, or several of about `slice_bytes`; the last
    one ends at the end of the file. In a periodic region the input is cut at the tick.

    Args:
        path: the file, which need not exist yet; a relative path begins at the folder of drainmark.toml.
        format: `text` (one row per line, column `value`), `csv` or `json`; each line is one record.
        schema: DDL of the columns, for all formats except text.
        options: as for `DirectoryScan`; with `{"header": "true"}` the file's first line is the header.
        slice_bytes: approximate size of a trigger in an operator-driven region; a line is never divided.
        rotated: names of the file after a rotation, a glob with one star for files in the same folder: `"app.log.*"`
            for `app.log.1`, which is the newest of them, or for `app.log.20260102`, which is newer than the day before.
            The first run begins with the rotated files that are there, except compressed ones.
        rotate_wait: seconds that a rotated file must be unchanged before the next file is begun: a writer may keep
            the file open for so long.
        on_lost: the reaction if bytes that were read, or the next ones, are gone: `"halt"`, or `"restart"` with the
            oldest file that was written to since, or the beginning of the file if it was truncated. Bytes that were not
            read until then are lost.
        follow_links: the file may be a symbolic link. By default it may not, and a rotated name that is a link is
            skipped: a user who may write to the folder could make Drainmark read any file. The folder may be a link.
        on_bad, on_schema, max_bad_ratio: as for `DirectoryScan`, for the rows of a slice.

    Example:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.FileSource(path="/var/log/shop/app.log", rotated="app.log.*"))
        def log_lines(scanned):
            return scanned.where("value like '%ERROR%'")
    """

    kind: ClassVar[str] = "lines"

    path: str
    format: str = "text"
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    slice_bytes: int = 64 * 1024 * 1024
    rotated: str | None = None
    rotate_wait: float = 5.0
    on_lost: Literal["halt", "restart"] = "halt"
    follow_links: bool = False
    on_bad: Literal["quarantine", "halt"] = "quarantine"
    on_schema: Literal["rescue", "quarantine", "halt"] | None = None
    max_bad_ratio: float = 0.5

    @property
    def scan(self) -> DirectoryScan:
        return DirectoryScan(
            path=self.path,
            format=self.format,
            schema=self.schema,
            options=self.options,
            on_bad=self.on_bad,
            on_schema=self.on_schema,
            max_bad_ratio=self.max_bad_ratio,
        )

    @property
    def _has_header(self) -> bool:
        options = {name.lower(): value for name, value in self.options.items()}
        return "header" in format_of(self.format).options and options.get("header", "false").lower() == "true"

    def problems(self, trigger: str | None) -> Iterator[tuple[str, str, str]]:
        known = [name for name, form in formats().items() if form.lines is not None]
        if self.format not in known:
            yield "UNKNOWN_FORMAT", f"format {self.format!r} is no format of lines", f"one of {', '.join(known)}"
        else:
            yield from self.scan.problems()
        if not is_count(self.slice_bytes):
            yield "SLICE_BYTES", f"slice_bytes={self.slice_bytes!r} is no size", "give bytes, from 1 up"
        is_name = self.rotated is None or (self.rotated.count("*") == 1 and not set(self.rotated) & set("/?["))
        if not is_name:
            remedy = f'one star, e.g. "{Path(self.path).name}.*"'
            yield "ROTATED", f"rotated={self.rotated!r} is no glob of names beside the file", remedy
        if self.rotate_wait < 0:
            yield "ROTATE_WAIT", f"rotate_wait={self.rotate_wait} is below zero", "give seconds, 0 for none"
        if self.on_lost not in ("halt", "restart"):
            yield "UNKNOWN_POLICY", f"on_lost={self.on_lost!r} is not known", "one of halt, restart"
        if "://" in self.path:
            yield "PATH", "only a file of this machine can be followed", "a path"
        for option in self.options:
            if option.lower() in ("multiline", "linesep", "wholetext"):
                yield "READER_OPTION", f"the option {option!r} makes a record of several lines", "leave it out"
            if option.lower() in ("encoding", "charset") and not _has_line_feeds(self.options[option]):
                why = f"lines in {self.options[option]} do not end with the byte of a line feed"
                yield "READER_OPTION", why, "write the file in UTF-8"

    def fingerprint(self) -> Any:
        rescue = {"on_schema": self.on_schema} if self.on_schema == "rescue" else {}
        return {"format": self.format, "schema": self.schema, "options": dict(self.options), **rescue}

    def next_slice(self, after: Position | None, access: SourceAccess, cut: SliceLimit) -> Slice | None:
        files = self._files(access)
        most = sys.maxsize if cut.is_periodic and cut.max_bytes is None else cut.max_bytes or self.slice_bytes
        head = files.standing(after)
        while head is not None:
            with head.file:
                header = len(head.first_line()) if self._has_header and not head.begun else 0
                end = head.line_end(most, header)
                if end > max(head.begun, header) and not head.waits:  # a header alone is no input
                    return Slice(start=after, end=head.position(end), size_bytes=end - head.begun)
                head = files.following(head)
        return None

    def label(self, piece: Slice, source: str, access: SourceAccess) -> str:
        number = number_of(piece.end)
        file = f"{access.path(self.path)}@{number}" if number else f"{access.path(self.path)}"
        return f"lines:{file}#{_begun(piece)}..{offset_of(piece.end)}"

    def check(self, piece: Slice, access: SourceAccess, source: str) -> None:
        self._files(access).holding(piece.end, begun=0).file.close()

    def parts(self, piece: Slice, access: SourceAccess, source: str) -> Iterator[SlicePart]:
        files, begun = self._files(access), _begun(piece)

        def place(target: Path) -> None:
            try:
                copy(target)
            except InputChanged:  # truncated during the copy: look for the file that has the bytes now
                copy(target)

        def copy(target: Path) -> None:
            found = files.holding(piece.end, begun=begun)
            with found.file, target.open("wb") as rows:
                if self._has_header and begun:
                    rows.write(found.first_line())
                found.copy(rows, offset_of(piece.end))
                files.require_same(found, piece.end)  # they may be overwritten during the copy

        yield SlicePart(uri=self.label(piece, source, access), size_bytes=offset_of(piece.end) - begun, place=place)

    def _files(self, access: SourceAccess) -> LineFiles:
        return LineFiles(
            path=access.path(self.path),
            rotated=self.rotated,
            wait=self.rotate_wait,
            restarts=self.on_lost == "restart",
            follow_links=self.follow_links,
        )


def _has_line_feeds(encoding: str) -> bool:
    """Say whether a line of text in an encoding ends with a line feed; True if the encoding is not known."""
    try:
        return "\n".encode(encoding) == b"\n"
    except LookupError:
        return True


def _begun(piece: Slice) -> int:
    """Return the offset at which a slice begins in its file: the end of the slice before, or 0 in a new file."""
    return offset_of(piece.start) if number_of(piece.start) == number_of(piece.end) else 0
