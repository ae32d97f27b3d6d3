"""`FileSource`: the lines of a file that grows, by offsets (V144, E25)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar, Literal

from jobs.errors import InputChanged
from jobs.operators.directory_scan import DirectoryScan
from jobs.operators.sources import Cut, FileSlices, Part, Position, Reach, Slice

__all__ = ["FileSource"]

_HEAD_BYTES = 4096
_TAIL_BYTES = 1024
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class FileSource(FileSlices):
    """Follow a file that others append to; a slice ends behind its last complete line.

    A position is an offset, with what tells whether the bytes before it are still the same: the file's inode, a hash of
    its first 4096 bytes and of the last 1024 before the offset. A file that was truncated or replaced halts the region,
    naming the file and the offsets: rotate by a new name, and use `DirectoryScan` for the closed files.

    In an operator-driven region what is there at a scan is one trigger, or several of about `slice_bytes`: states are
    at the end of the file (E25). In a periodic region it is cut at the tick.

    Args:
        path: the file, which need not exist yet; relative paths count from the folder of drainmark.toml.
        format: `text` (a row a line, column `value`), `csv` or `json`; a record is a line.
        schema: DDL of the columns, for all formats but text.
        options: as of `DirectoryScan`; with `{"header": "true"}` the file's first line is the header.
        slice_bytes: of a trigger in an operator-driven region, about; a line is never divided.
        on_bad, max_bad_ratio, strict: as of `DirectoryScan`; of the rows of a slice.
    """

    kind: ClassVar[str] = "lines"

    path: str
    format: Literal["text", "csv", "json"] = "text"
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    slice_bytes: int = 64 * 1024 * 1024
    on_bad: Literal["quarantine", "halt"] = "quarantine"
    max_bad_ratio: float = 0.5
    strict: bool = True

    @property
    def scan(self) -> DirectoryScan:
        return DirectoryScan(
            path=self.path, format=self.format, schema=self.schema, options=self.options, on_bad=self.on_bad,
            max_bad_ratio=self.max_bad_ratio, strict=self.strict,
        )  # fmt: skip

    @property
    def _has_header(self) -> bool:
        options = {name.lower(): value for name, value in self.options.items()}
        return self.format == "csv" and options.get("header", "false").lower() == "true"

    def problems(self, trigger: str | None) -> Iterator[tuple[str, str, str]]:
        if self.format not in ("text", "csv", "json"):
            yield "UNKNOWN_FORMAT", f"format {self.format!r} is no format of lines", "one of text, csv, json"
        else:
            yield from self.scan.problems()
        if isinstance(self.slice_bytes, bool) or not isinstance(self.slice_bytes, int) or self.slice_bytes < 1:
            yield "SLICE_BYTES", f"slice_bytes={self.slice_bytes!r} is no size", "give bytes, from 1 up"
        if "://" in self.path:
            yield "PATH", "only a file of this machine can be followed", "a path"
        for option in self.options:
            if option.lower() in ("multiline", "linesep", "wholetext"):
                yield "READER_OPTION", f"the option {option!r} makes a record of several lines", "leave it out"

    def fingerprint(self) -> Any:
        return {"format": self.format, "schema": self.schema, "options": dict(self.options)}

    def next_slice(self, after: Position | None, reach: Reach, cut: Cut) -> Slice | None:
        path = reach.path(self.path)
        if after is None and not path.exists():
            return None
        with _opened(path, after) as file:
            _require_same(file, path, after)
            begun = int(after["offset"]) if after is not None else 0
            size = os.fstat(file.fileno()).st_size
            most = size if cut.is_periodic and cut.max_bytes is None else cut.max_bytes or self.slice_bytes
            end = _last_line_end(file, begun, min(size, begun + most), size)
            if end == begun or (begun == 0 and self._has_header and end == len(_first_line(file))):
                return None  # a header alone is no input
            return Slice(start=after, end=_position(file, path, end), size_bytes=end - begun)

    def label(self, piece: Slice, source: str, reach: Reach) -> str:
        return f"lines:{reach.path(self.path)}#{_offset(piece.start)}..{_offset(piece.end)}"

    def check(self, piece: Slice, reach: Reach, source: str) -> None:
        path = reach.path(self.path)
        with _opened(path, piece.end) as file:
            _require_same(file, path, piece.end)

    def parts(self, piece: Slice, reach: Reach, source: str) -> Iterator[Part]:
        path = reach.path(self.path)
        first, last = _offset(piece.start), _offset(piece.end)

        def place(target: Path) -> None:
            with _opened(path, piece.end) as file, target.open("wb") as copy:
                _require_same(file, path, piece.end)
                if self._has_header and first:
                    copy.write(_first_line(file))
                _copy(file, copy, first, last)
                _require_same(file, path, piece.end)  # bytes that were put over these while they were copied

        yield Part(uri=self.label(piece, source, reach), size_bytes=last - first, place=place)


def _offset(position: Position | None) -> int:
    return int(position["offset"]) if position is not None else 0


def _opened(path: Path, expected: Position | None) -> IO[bytes]:
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise _changed(path, expected, "it is gone") from error


def _position(file: IO[bytes], path: Path, offset: int) -> dict[str, Any]:
    return {
        "file": path.name,
        "offset": offset,
        "inode": os.fstat(file.fileno()).st_ino,
        "head": _hash(file, 0, min(offset, _HEAD_BYTES)),
        "tail": _hash(file, max(0, offset - _TAIL_BYTES), offset),
    }


def _require_same(file: IO[bytes], path: Path, expected: Position | None) -> None:
    """Check that everything before a position is what it was.

    Raises:
        InputChanged: names the file and the offset.
    """
    if expected is None:
        return
    offset, facts = _offset(expected), os.fstat(file.fileno())
    if facts.st_size < offset:
        raise _changed(path, expected, f"it was truncated to {facts.st_size} bytes")
    if path.name != expected["file"] or facts.st_ino != expected["inode"]:
        raise _changed(path, expected, "it is another file now")
    found = _position(file, path, offset)
    if found["head"] != expected["head"] or found["tail"] != expected["tail"]:
        raise _changed(path, expected, "bytes before that offset were overwritten")


def _changed(path: Path, expected: Position | None, why: str) -> InputChanged:
    return InputChanged(
        f"{path} was read up to offset {_offset(expected)}, and {why}",
        remedy="restore the file, then: drainmark resume REGION; or follow the new one by another name of the source",
        trigger=str(path), offset=_offset(expected),
    )  # fmt: skip


def _hash(file: IO[bytes], first: int, last: int) -> str:
    file.seek(first)
    return hashlib.sha256(file.read(last - first)).hexdigest()[:32]


def _first_line(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.readline()


def _last_line_end(file: IO[bytes], begun: int, wanted: int, size: int) -> int:
    """Return the offset behind the last line that ends within begun..wanted; behind the next one if none does."""
    end = wanted
    while end > begun:
        start = max(begun, end - _PIECE_BYTES)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    place = wanted
    while place < size:
        file.seek(place)
        piece = file.read(min(_PIECE_BYTES, size - place))
        found = piece.find(b"\n")
        if found >= 0:
            return place + found + 1
        place += max(len(piece), 1)
    return begun


def _copy(file: IO[bytes], copy: IO[bytes], first: int, last: int) -> None:
    file.seek(first)
    left = last - first
    while left:
        piece = file.read(min(left, _PIECE_BYTES))
        if not piece:
            return  # the check that follows says so
        copy.write(piece)
        left -= len(piece)
