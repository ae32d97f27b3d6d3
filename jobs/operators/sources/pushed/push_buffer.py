"""The buffer of a `ReplayableStart`: a folder of numbered segments of JSON lines, the last one open.

    open-000000000007.jsonl     rows are appended; durable when `push` returns
    segment-000000000006.jsonl  sealed: never changes, deleted by `purge`

A `ThreadedStart` writes segments whole, each with the state that its handler had at the cut (`seal_with`):

    state-000000000006          of the newest segment; kept when that is purged
    open-000000000007.jsonl     empty: says which number is next

Any number of processes may push; one at a time holds the folder's lock. A line that a crash cut off is no row: its push
never returned, and the next push removes it.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from drainmark.jobs import world
from drainmark.jobs.errors import InputMissing
from drainmark.jobs.failpoints import FailPoint
from drainmark.jobs.formats.bad_records import CAPS
from drainmark.jobs.formats.json_records import tokens_of
from drainmark.jobs.tasks.places import make_folder, sync_folder, write_durably

_OPEN, _SEALED, _END = "open-", "segment-", ".jsonl"
_STATE, _WHOLE = "state-", "whole-"


@dataclass(frozen=True, slots=True)
class RowText:
    """A row as the text of one JSON object, which is stored as it is: no value is written in another way.

    Raises:
        ValueError: it is no good record of JSON lines, or has a column `_pushed_at`.
    """

    text: str

    def __post_init__(self) -> None:
        members = tokens_of(self.text)
        if isinstance(members, str):
            raise ValueError(members)
        if not {"\r", "\n"}.isdisjoint(self.text.strip()):  # JSON takes them between its tokens
            raise ValueError("a line end is in it, where a reader cuts it")
        _require_no_time(members)

    def stamped(self, pushed_at: str | float) -> str:
        """Return the text with `_pushed_at` as the first member."""
        rest = self.text.strip()[1:].lstrip()
        return f"{json.dumps({PUSHED_AT: pushed_at})[:-1]}{'' if rest == '}' else ', '}{rest}"


Row = Mapping[str, Any] | RowText


@dataclass(frozen=True, slots=True, kw_only=False)
class PushBuffer:
    """A buffer in a folder; the first push makes the folder.

    Args:
        rows: number of rows after which a segment is sealed.
        seconds: age of its first row at which it is sealed.
    """

    folder: Path
    rows: int
    seconds: float

    def push(self, rows: Iterable[Row]) -> int:
        """Append rows, all in one segment; return its number. The rows are durable when this returns.

        Raises:
            TypeError, ValueError: a row is no JSON object, too long, or has a column `_pushed_at`; nothing was added.
            OSError: the disk is full, for example; nothing was appended.
        """
        lines = lines_of(rows)
        sync_folder(*make_folder(self.folder))
        with locked(self.folder):
            number, path = self._open()
            if lines:
                with path.open("r+b", buffering=0) as file:
                    _cut_off(file)
                    _append(file, lines)
            self._seal(number, path)
        return number

    def seal_if_due(self) -> None:
        """Seal the open segment if it is full or old enough."""
        if self._open_path() is None:
            return
        with locked(self.folder):
            path = self._open_path()
            if path is not None:
                self._seal(_number(path), path)

    def seal_all(self) -> None:
        """Seal the open segment if it has any row."""
        replace(self, rows=1).seal_if_due()

    def sealed(self, after: int) -> Iterator[tuple[int, int]]:
        """Yield number and size in bytes of the sealed segments after a number, in order.

        Numbers are consecutive, so it asks for one segment after the other. If that does not end at the open segment,
        it lists the folder: the first segments were purged, or the open one is being sealed.

        Raises:
            InputMissing: the folder does not go on after that number: it is lost, or older.
        """
        while (size := _size(self.segment(after + 1))) is not None:
            after += 1
            yield after, size
        if not self._opened(after + 1).exists():
            self._require_later(after)
            for path in sorted(self.folder.glob(f"{_SEALED}*{_END}")):
                if _number(path) > after:
                    yield _number(path), path.stat().st_size

    def _require_later(self, number: int) -> None:
        """Check that no number up to this one can be given again: a purge leaves the open segment, if nothing else.

        Raises:
            InputMissing: it can.
        """
        if not number or self.size(number) is not None:
            return
        if self.folder.is_dir():
            with locked(self.folder):
                if self._open()[0] > number:
                    return
        msg = f"segment {number} and all that followed it are gone from {self.folder}"
        remedy = (
            f"restore the folder. If there is no backup, move what is there aside, make the empty file "
            f"{self._opened(number + 1)}, and push again the rows that are aside"
        )
        raise InputMissing(msg, remedy=remedy, triggers=())

    def size(self, number: int) -> int | None:
        """Return the size of a sealed segment in bytes, None if there is no such segment."""
        return _size(self.segment(number))

    def place(self, number: int, target: Path) -> None:
        """Make a link to a sealed segment at a path."""
        target.symlink_to(self.segment(number))

    def segment(self, number: int) -> Path:
        """Return the path of a sealed segment."""
        return self.folder / segment_name(number)

    def purge(self, upto: int) -> None:
        """Delete the sealed segments up to and including a number; idempotent."""
        doomed = [path for path in self.folder.glob(f"{_SEALED}*{_END}") if _number(path) <= upto]
        if not doomed:
            return
        with locked(self.folder):
            self._open()  # makes the open segment, which keeps the next number if no other is left
            world.pass_point(FailPoint.PURGE_BEFORE)
            for path in doomed:
                path.unlink(missing_ok=True)
            sync_folder(self.folder)
            world.pass_point(FailPoint.PURGE_AFTER)

    # --- segments with a state --------------------------------------------------------------------------------------

    def newest_state(self) -> tuple[int, bytes | None]:
        """Return the number of the newest sealed segment, 0 for none, and the newest state that was sealed, if any."""
        sync_folder(*make_folder(self.folder))
        with locked(self.folder):
            number = self._next() - 1
            sealed = [path for path in self.folder.glob(f"{_STATE}*") if int(path.name.removeprefix(_STATE)) <= number]
            return number, max(sealed).read_bytes() if sealed else None

    def seal_with(self, number: int, rows: Iterable[Mapping[str, Any]], state: bytes) -> bool:
        """Seal rows as the segment of a number, with the state of their handler after them: both or none, durably.

        Returns:
            False if another process sealed that number first, or pushed rows, which have it now; nothing was written.

        Raises:
            TypeError, ValueError: a row is no JSON object, or is too long; nothing was written.
        """
        lines = b"".join(_line(row) for row in rows)
        sync_folder(*make_folder(self.folder))
        with locked(self.folder):
            if number != self._next():
                return False
            write_durably(self._state(number), state, mode="wb")  # has no effect until its segment is there
            whole = self.folder / f"{_WHOLE}{number:012d}"
            write_durably(whole, lines, mode="wb")
            world.pass_point(FailPoint.SEAL_BEFORE)
            whole.rename(self.segment(number))
            sync_folder(self.folder)
            world.pass_point(FailPoint.SEAL_AFTER)
            self._open()
            for path in self.folder.glob(f"{_STATE}*"):
                if int(path.name.removeprefix(_STATE)) < number:
                    path.unlink()
        return True

    def _state(self, number: int) -> Path:
        return self.folder / f"{_STATE}{number:012d}"

    def _next(self) -> int:
        """Return the number of the open segment, which has no rows: those that were pushed into one are sealed."""
        replace(self, rows=1)._seal(*self._open())
        return self._open()[0]

    # --- under the lock ----------------------------------------------------------------------------------------------

    def _open_path(self) -> Path | None:
        """Return the open segment; None if there is none, or only one that a crash in `seal_with` left: see `_open`."""
        path = self._known() or max(self.folder.glob(f"{_OPEN}*{_END}"), default=None)
        if path is None or self.segment(_number(path)).exists():
            return None
        _open_numbers[self.folder] = _number(path)
        return path

    def _known(self) -> Path | None:
        """Return the open segment if it is the last one that this process saw, or a later one; it lists no folder."""
        number = _open_numbers.get(self.folder)
        if number is None:
            return None
        while self.segment(number).exists():  # sealed by another process since
            number += 1
        path = self._opened(number)
        return path if path.exists() else None

    def _opened(self, number: int) -> Path:
        return self.folder / f"{_OPEN}{number:012d}{_END}"

    def _open(self) -> tuple[int, Path]:
        """Return the open segment; make it if there is none, as after a crash between sealing and opening."""
        path = self._open_path()
        if path is None:
            last = max((_number(path) for path in self.folder.glob(f"{_SEALED}*{_END}")), default=0)
            for left in self.folder.glob(f"{_OPEN}*{_END}"):
                left.rename(self._opened(last + 1))
            path = self._begin(last + 1)
        return _number(path), path

    def _begin(self, number: int) -> Path:
        path = self._opened(number)
        path.touch()
        sync_folder(self.folder)
        _open_numbers[self.folder] = number
        return path

    def _seal(self, number: int, path: Path) -> None:
        with path.open("r+b") as file:
            _cut_off(file)
            size = file.tell()
            if not size or not (_is_old(path, self.seconds) or _is_full(file, self.rows)):
                return
            os.fsync(file.fileno())
        self._state(number).unlink(missing_ok=True)  # of a crash in `seal_with`, which had not sealed its rows
        world.pass_point(FailPoint.SEAL_BEFORE)
        path.rename(self.segment(number))
        sync_folder(self.folder)
        world.pass_point(FailPoint.SEAL_AFTER)
        self._begin(number + 1)


_open_numbers: dict[Path, int] = {}
"""By folder, the segment that this process saw open last: a hint, which is checked before use."""

PUSHED_AT = "_pushed_at"
"""A field of every stored row: the time of its push, in seconds since 1970; it is no column of the stream."""


def segment_name(number: int) -> str:
    """Return the name of a sealed segment."""
    return f"{_SEALED}{number:012d}{_END}"


def segment_number(name: str) -> int | None:
    """Return the number of a sealed segment by its name, None for another name."""
    number = name.removeprefix(_SEALED).removesuffix(_END)
    return int(number) if name == f"{_SEALED}{number}{_END}" and number.isdecimal() else None


def lines_of(rows: Iterable[Row], pushed_at: str | None = None) -> bytes:
    """Return rows as they are stored, a line each.

    Args:
        pushed_at: value of `_pushed_at`; the time now by default.

    Raises:
        TypeError, ValueError: a row is no JSON object, or has a column `_pushed_at`.
    """
    return b"".join(_pushed(row, pushed_at) for row in rows)


def _pushed(row: Row, pushed_at: str | None) -> bytes:
    if isinstance(row, RowText):
        return _stored(row.stamped(pushed_at or time.time()))
    line = _line(row, pushed_at)
    _require_no_time(row)
    return line


def _require_no_time(members: Mapping[str, Any]) -> None:
    if PUSHED_AT in members:
        raise ValueError(f"it has a column {PUSHED_AT}, where the buffer keeps when it came")


def _line(row: Mapping[str, Any], pushed_at: str | None = None) -> bytes:
    if not isinstance(row, Mapping):
        raise TypeError(f"a row is a mapping by column, not {type(row).__name__}")
    stamped = {PUSHED_AT: pushed_at or time.time(), **row}
    try:
        text = json.dumps(stamped, ensure_ascii=False, allow_nan=False, default=_plain)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    except ValueError as error:
        raise ValueError(f"column {_not_finite(row)!r}: {error}: give null instead") from error
    return _stored(text)


def _stored(text: str) -> bytes:
    """Return the text of a row as a line. A longer line would be refused with all rows of its segment."""
    line = text.encode()
    if len(line) > CAPS.line_bytes:
        raise ValueError(f"it has {len(line)} bytes, and a row has at most {CAPS.line_bytes}: push no such values")
    return line + b"\n"


def _not_finite(row: Mapping[str, Any]) -> str | None:
    """Return the first column with a number that JSON lacks: NaN or an infinity."""
    for name, value in row.items():
        try:
            json.dumps(value, allow_nan=False, default=_plain)
        except ValueError:
            return name
    return None


def _plain(value: Any) -> Any:
    """Return a value of Python, or of NumPy, as one of JSON."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()  # as Spark reads binary columns
    if isinstance(value, Decimal | UUID):
        return str(value)
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if kind == "M":  # as texts, like times of Python: `tolist` gives numbers for nanoseconds
        return value.astype(str).tolist()
    for way in ("isoformat", "tolist") if kind != "m" else ():
        if hasattr(value, way):
            return getattr(value, way)()
    raise TypeError(f"JSON has no {type(value).__name__}")


def _number(path: Path) -> int:
    return int(path.name.removeprefix(_OPEN).removeprefix(_SEALED).removesuffix(_END))


def _cut_off(file: Any) -> None:
    """Cut off the bytes after the last complete line, and go to the end of the file."""
    end = file.seek(0, os.SEEK_END)
    if not end:
        return
    place = end
    while place:
        start = max(0, place - 65_536)
        file.seek(start)
        found = file.read(place - start).rfind(b"\n")
        if found >= 0:
            place = start + found + 1
            break
        place = start
    if place != end:
        file.truncate(place)
    file.seek(place)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a buffer; wait for it."""
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _append(file: Any, content: bytes) -> None:
    """Write at the end of a file, durably, all or nothing; the file must be unbuffered, and at its end."""
    end, left = file.tell(), memoryview(content)
    try:
        while left:
            left = left[file.write(left) :]
        os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            file.truncate(end)
        raise


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _is_old(path: Path, seconds: float) -> bool:
    with path.open("rb") as file:
        first = json.loads(file.readline())
    try:
        age = time.time() - float(first.get(PUSHED_AT, 0.0))
    except (TypeError, ValueError):  # a row's own column of that name: earlier versions stored it
        return True
    return not 0 <= age < seconds  # a clock that was set back must not keep it open for the whole jump


def _is_full(file: Any, rows: int) -> bool:
    file.seek(0)
    return sum(1 for _ in file) >= rows
