"""A file of lines that grows, and its rotated files: the head of a reader, and the file that comes next.

A position is an offset in one of the files, which were written one after the other, with facts that identify this file
under another name: its inode or, if it was copied, hashes of the bytes before the offset.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from drainmark.jobs.errors import InputChanged
from drainmark.jobs.operators.sources.files.rotated_names import COMPRESSED, NUMBERED, RotatedNames, inode_of
from drainmark.jobs.operators.sources.slices import Position

_HEAD_BYTES = 4096
_TAIL_BYTES = 1024
_PIECE_BYTES = 1 << 20
_SAMPLES = 64
_SAMPLE_BYTES = 4096
_LOOKS = 5
"""The number of searches for a file while other processes rename files."""

NUMBER = "number"
LEFT = "left"
BETWEEN = "between"


@dataclass(slots=True)
class ReadHead:
    """The head of a reader: the file and the offset at which reading continues.

    Attributes:
        begun: the offset.
        number: number of the file among the files that were read, from 0.
        left: the position at the end of the file before this one; None if this is the first, or that one was lost.
        is_closed: no process appends to the file any more: its last line may lack a line end.
        waits: no bytes may be taken yet, since the file is being copied.
        twin: a finished copy with the same bytes; the file was written to since: truncated or not, it looks the same.
    """

    path: Path
    file: IO[bytes]
    begun: int
    number: int
    left: Position | None = None
    is_closed: bool = False
    waits: bool = False
    twin: Path | None = None

    @property
    def size(self) -> int:
        return os.fstat(self.file.fileno()).st_size

    def position(self, offset: int) -> dict[str, Any]:
        """Return the position of a slice that ends at an offset."""
        facts = os.fstat(self.file.fileno())
        further = {NUMBER: self.number, LEFT: self.left} if self.number else {}
        head, tail = _hashes(self.file, offset)
        return {
            "file": self.path.name,
            "offset": offset,
            "inode": facts.st_ino,
            "head": head,
            "tail": tail,
            BETWEEN: _between(self.file, offset),
            "mtime": facts.st_mtime_ns,
            **further,
        }

    def line_end(self, most: int, header: int = 0) -> int:
        """Return the offset after the last whole line within `most` bytes, or after the next line if it is longer.

        The rest of a closed file is a line.

        Args:
            header: size of the file's first line if it is a header that comes with the slice.
        """
        size, begun = self.size, max(self.begun, header)
        end = _last_line_end(self.file, begun, min(size, max(begun, self.begun + most)), size)
        return size if end == begun and self.is_closed else end

    def first_line(self) -> bytes:
        self.file.seek(0)
        return self.file.readline()

    def copy(self, target: IO[bytes], last: int) -> None:
        """Copy the bytes from the head up to an offset, exclusive."""
        self.file.seek(self.begun)
        left = last - self.begun
        while left:
            piece = self.file.read(min(left, _PIECE_BYTES))
            if not piece:
                return  # the caller's check finds that
            target.write(piece)
            left -= len(piece)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFiles:
    """The current file, to which lines are appended, and its names after rotations.

    Attributes:
        rotated: glob of those names, with one star; None if the file is never rotated.
        wait: seconds that a rotated file must be unchanged before the next file is read.
        restarts: if the file at which a reader stands is lost, go on with the oldest file that was written to since.
        follow_links: the files may be symbolic links.
    """

    path: Path
    rotated: str | None = None
    wait: float = 5.0
    restarts: bool = False
    follow_links: bool = False

    def standing(self, after: Position | None) -> ReadHead | None:
        """Return the place at which to go on after a position; None without a file, or while files are being renamed.

        Raises:
            InputChanged: bytes that were read are gone or changed, or a file grew after the reader left it.
        """
        if after is None:
            return self._first(0)
        if not self.restarts:
            self._require_left_alone(after)
        try:
            head = self.holding(after, begun=int(after["offset"]))
        except InputChanged:
            if not self.restarts:
                raise
            return self._first(number_of(after) + 1, lost=after)
        return head if head.twin is None else self._in_twin(head, head.twin, after)

    def _in_twin(self, head: ReadHead, twin: Path, after: Position) -> ReadHead | None:
        """Return the head in the copy of a file, as if the file was truncated; None while files are being renamed.

        Raises:
            InputChanged: the source does not say `on_lost="restart"`.
        """
        head.file.close()
        if not self.restarts:
            raise _doubtful(head.path, twin, after)
        try:
            found = ReadHead(twin, self._names.open(twin), head.begun, head.number, head.left)
        except FileNotFoundError:
            return None
        found.is_closed = self._is_closed(found)
        return found

    def holding(self, position: Position, *, begun: int) -> ReadHead:
        """Return a head in the file that has the bytes before a position unchanged.

        Raises:
            InputChanged: no file has them; the error names the file and the offset.
        """
        for _ in range(_LOOKS):
            before = self._names.now()
            try:
                return self._holding(position, begun)
            except (InputChanged, FileNotFoundError):
                if self._names.now() == before:
                    raise
        return self._holding(position, begun)

    def _holding(self, position: Position, begun: int) -> ReadHead:
        found, waits, twin = (self.path, False, None) if self.rotated is None else self._found(position)
        file = self._opened(found, position)
        head = ReadHead(found, file, begun, number_of(position), position.get(LEFT), waits=waits, twin=twin)
        try:
            self.require_same(head, position)
        except InputChanged:
            file.close()
            raise
        head.is_closed = self._is_closed(head)
        return head

    def require_same(self, head: ReadHead, position: Position) -> None:
        """Check that the bytes before a position are unchanged, by the hashes in the position.

        Raises:
            InputChanged: they are not; the error names the file and the offset.
        """
        facts, offset = os.fstat(head.file.fileno()), int(position["offset"])
        if facts.st_size < offset:
            raise _changed(head.path, position, f"it was truncated to {facts.st_size} bytes")
        is_other = head.path.name != position["file"] or facts.st_ino != position["inode"]
        if self.rotated is None and is_other:
            raise _changed(head.path, position, "it is another file now")
        if not _is_same(head.file, position):
            raise _changed(head.path, position, "bytes before that offset were overwritten")

    def following(self, head: ReadHead) -> ReadHead | None:
        """Return the beginning of the file after a head that was read to its end.

        None as long as that file is not closed, or while files are being renamed.

        Raises:
            InputChanged: the next file is compressed or gone.
        """
        if not head.is_closed:
            return None
        size, before = head.size, self._names.now()
        try:
            newer = self._newer_than(head.path)
        except InputChanged:
            if self._names.now() == before:
                raise
            return None
        if newer is None:
            return None
        try:
            file = self._names.open(newer)
        except FileNotFoundError:
            return None
        here = os.fstat(head.file.fileno())
        if not _is_at(head.path, here) or self._names.now() != before:
            file.close()
            return None  # files are being renamed: the next scan finds them in order
        found = ReadHead(newer, file, 0, head.number + 1, head.position(size))
        found.is_closed = self._is_closed(found)
        return found

    # --- names -------------------------------------------------------------------------------------------------------

    @property
    def _names(self) -> RotatedNames:
        return RotatedNames(self.path, self.rotated, self.follow_links)

    def _first(self, number: int, lost: Position | None = None) -> ReadHead | None:
        """Return the beginning of the oldest file; None if there is none, or files are being renamed.

        Args:
            lost: the position after which to go on. Rotated files that were not written to since then were read, and so
                was the file before it. If it is in the current file, which was truncated, all rotated files were read.
        """
        for _ in range(_LOOKS):
            before = self._names.now()
            head = self._oldest(number, lost)
            if self._names.now() == before:
                return head
            if head is not None:
                head.file.close()
        return None

    def _oldest(self, number: int, lost: Position | None) -> ReadHead | None:
        is_truncated = lost is not None and inode_of(self.path) == lost["inode"]
        since, left = (lost.get("mtime", 0), lost.get(LEFT)) if lost is not None else (0, None)
        closed = [] if is_truncated else [path for _, path in self._names.closed() if path.suffix not in COMPRESSED]
        for path in (*closed, self.path):
            try:
                file = self._names.open(path)
            except FileNotFoundError:
                continue
            head = ReadHead(path, file, 0, number)
            was_read = os.fstat(file.fileno()).st_mtime_ns < since or (left is not None and self._is(path, left))
            if path != self.path and was_read:
                file.close()
                continue
            head.is_closed = self._is_closed(head)
            return head
        return None

    def _newer_than(self, path: Path) -> Path | None:
        """Return the file after a rotated one; None while files are being renamed.

        Raises:
            InputChanged: the next file is compressed, or gone.
        """
        closed = self._names.closed()
        place = next((place for place, (_, other) in enumerate(closed) if other == path), None)
        if place is None:
            return None
        (kind, number, _), newer = closed[place][0], closed[place + 1 :]
        is_missing = kind == NUMBERED and number < -1 and (not newer or newer[0][0][1] != number + 1)
        is_compressed = bool(newer) and newer[0][1].suffix in COMPRESSED
        if is_missing and not self._is_left_alone(path):
            return None
        if not self.restarts and is_missing:
            raise _lost(path, f"was followed by number {-number - 1}, which is gone", "keep more of them: rotate")
        if not self.restarts and is_compressed:
            raise _lost(newer[0][1], "was compressed before it was read", "compress later: delaycompress")
        return next((other for _, other in newer if other.suffix not in COMPRESSED), self.path)

    # --- files -------------------------------------------------------------------------------------------------------

    def _found(self, position: Position) -> tuple[Path, bool, Path | None]:
        """Return the file of a position, whether it is being copied, and its twin."""
        matching, left = [path for path in self._names.all() if self._matches(path, position)], position.get(LEFT)
        own = next((path for path in matching if inode_of(path) == position["inode"]), None)
        older = matching[: matching.index(own)] if own is not None else ()
        copies = [path for path in older if left is None or inode_of(path) != left["inode"]]
        if own is None or not copies:
            return own or (matching or [self.path])[0], False, None
        if not _begins_with(own, copies[0]):
            return copies[0], False, None  # truncated, and grown again
        if not self._is_left_alone(copies[0]):
            return own, True, None  # copied, and to be truncated
        return own, False, copies[0] if _was_written_since(own, copies[0]) else None

    def _opened(self, path: Path, expected: Position) -> IO[bytes]:
        try:
            return self._names.open(path)
        except FileNotFoundError as error:
            raise _changed(path, expected, "it is gone") from error

    def _matches(self, path: Path, position: Position) -> bool:
        """Say whether a file has the bytes before a position; another inode must also have been written to since."""
        try:
            with self._names.open(path) as file:
                facts = os.fstat(file.fileno())
                is_possible = facts.st_ino == position["inode"] or facts.st_mtime_ns >= position.get("mtime", 0)
                return is_possible and facts.st_size >= int(position["offset"]) and _is_same(file, position)
        except FileNotFoundError:
            return False

    def _is(self, path: Path, position: Position) -> bool:
        return inode_of(path) == position["inode"] and self._matches(path, position)

    def _is_closed(self, head: ReadHead) -> bool:
        """Say whether a file is a rotated one, and its writer has had time to close it."""
        return self.rotated is not None and head.path != self.path and self._is_left_alone(head.path)

    def _is_left_alone(self, path: Path) -> bool:
        try:
            facts = path.stat()
        except FileNotFoundError:
            return False
        now = time.time()
        changed = max(facts.st_ctime, facts.st_mtime) if facts.st_mtime <= now else facts.st_ctime
        return now - changed >= self.wait

    def _require_left_alone(self, after: Position) -> None:
        """Check that the file before this one has not grown since the reader left it.

        Raises:
            InputChanged: lines were appended that no slice would have.
        """
        left = after.get(LEFT)
        if left is None:
            return
        for _, path in self._names.closed():
            if self._is(path, left) and _size(path) > int(left["offset"]):
                raise _changed(path, left, f"it grew after it was left; rotate_wait={self.wait:g} was too short")


def offset_of(position: Position | None) -> int:
    """Return the offset of a position."""
    return int(position["offset"]) if position is not None else 0


def number_of(position: Position | None) -> int:
    """Return the number of the file that a position is in, in the order of reading, from 0."""
    return int(position.get(NUMBER, 0)) if position is not None else 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _is_at(path: Path, facts: os.stat_result) -> bool:
    return inode_of(path) == facts.st_ino


def _begins_with(path: Path, copy: Path) -> bool:
    with path.open("rb") as file, copy.open("rb") as other:
        while piece := other.read(_PIECE_BYTES):
            if file.read(len(piece)) != piece:
                return False
    return True


def _was_written_since(path: Path, copy: Path) -> bool:
    """Say whether a file was written to, or truncated, since its copy was finished; a copy may keep the file's time."""
    own, made = path.stat(), copy.stat()
    return (own.st_mtime_ns, own.st_ctime_ns) >= (made.st_mtime_ns, made.st_ctime_ns)


def _is_same(file: IO[bytes], position: Position) -> bool:
    """Say whether the bytes before a position are the same, as far as its hashes say; before 0.4.0 it had but two."""
    offset = int(position["offset"])
    is_same = _hashes(file, offset) == (position["head"], position["tail"])
    return is_same and (BETWEEN not in position or _between(file, offset) == position[BETWEEN])


def _between(file: IO[bytes], offset: int) -> str:
    """Return the hash of the bytes between the first and the last ones: of all up to 1 MiB, else of even samples."""
    first, last = _HEAD_BYTES, offset - _TAIL_BYTES
    if last - first <= _PIECE_BYTES:
        return _hash(file, first, max(first, last))
    found, step = hashlib.sha256(), (last - first - _SAMPLE_BYTES) / (_SAMPLES - 1)
    for number in range(_SAMPLES):
        file.seek(first + int(number * step))
        found.update(file.read(_SAMPLE_BYTES))
    return found.hexdigest()[:32]


def _hashes(file: IO[bytes], offset: int) -> tuple[str, str]:
    """Return the hash of the first bytes of a file, and of the last bytes before an offset."""
    return _hash(file, 0, min(offset, _HEAD_BYTES)), _hash(file, max(0, offset - _TAIL_BYTES), offset)


def _hash(file: IO[bytes], first: int, last: int) -> str:
    file.seek(first)
    return hashlib.sha256(file.read(last - first)).hexdigest()[:32]


def _last_line_end(file: IO[bytes], begun: int, wanted: int, size: int) -> int:
    """Return the offset after the last line that ends in begun..wanted, else after the next line, else `begun`."""
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


def _changed(path: Path, expected: Mapping[str, Any], why: str) -> InputChanged:
    return InputChanged(
        f"{path} was read up to offset {expected['offset']}, and {why}",
        remedy="restore the file; or follow the new one by another name of the source;"
        ' rotated="NAME.*" follows a file under its later names, on_lost="restart" goes on without what is lost',
        trigger=str(path),
        offset=int(expected["offset"]),
    )


def _doubtful(path: Path, twin: Path, expected: Mapping[str, Any]) -> InputChanged:
    return InputChanged(
        f"{path} was read up to offset {expected['offset']}, {twin.name} is a copy of it, and it was written to since:"
        " it may have been truncated, and filled again with equal lines",
        remedy=f"if it was only copied, move {twin.name} to a name that rotated= does not match; if it was truncated,"
        f' on_lost="restart" at the source reads the rest of {twin.name}, then {path.name} from its beginning',
        trigger=str(path),
        offset=int(expected["offset"]),
    )


def _lost(path: Path, why: str, remedy: str) -> InputChanged:
    return InputChanged(f"{path} {why}", remedy=f'{remedy}; or on_lost="restart"', trigger=str(path))
