"""The names of a file of lines and of its rotated files, in the order in which they were written.

A rotation changes the names one after the other, at any moment. A result that was computed from a list of names is
valid if the names, and the files behind them, are the same before and after.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from drainmark.jobs.errors import InputChanged

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
NUMBERED = 0
_MARKS = ".-_"
_MOST_DIGITS = 4
"""More digits are a date: `app.log.1` is the newest number; `app.log-20260102` is newer than the file before it. So
many digits are a year, as in `app.log-2026`, if no rotated file has a shorter number."""

Age = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class RotatedNames:
    """The current file, to which lines are appended, and its names after rotations.

    Attributes:
        rotated: glob of those names, with one star; None if the file is never rotated.
        follow_links: the files may be symbolic links; otherwise a link does not count as a rotated file.
    """

    path: Path
    rotated: str | None = None
    follow_links: bool = False

    def closed(self) -> list[tuple[Age, Path]]:
        """Return the rotated files, the oldest first."""
        found: list[tuple[str, Path]] = []
        begin, _, end = (self.rotated or "").partition("*")
        for name in _listed(self.path.parent) if self.rotated is not None else ():
            plain = name.removesuffix(next((ending for ending in COMPRESSED if name.endswith(ending)), ""))
            has_form = len(plain) > len(begin) + len(end) and plain.startswith(begin) and plain.endswith(end)
            path = self.path.parent / name
            if has_form and name != self.path.name and (self.follow_links or not path.is_symlink()):
                found.append((plain[len(begin) : len(plain) - len(end)], path))
        are_years = all(len(text.strip(_MARKS)) >= _MOST_DIGITS for text, _ in found)
        most_digits = _MOST_DIGITS - 1 if are_years else _MOST_DIGITS
        return sorted((_age(text, most_digits), path) for text, path in found)

    def all(self) -> list[Path]:
        """Return the rotated files, the oldest first, and the current file."""
        return [*(path for _, path in self.closed()), self.path]

    def open(self, path: Path) -> IO[bytes]:
        """Open one of the files.

        Raises:
            InputChanged: the file is not a regular file, or is a symbolic link and links must not be followed.
            FileNotFoundError: the file is gone.
        """
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a plain open of a pipe would wait for its writer
        try:
            descriptor = os.open(path, flags if self.follow_links else flags | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            msg, remedy = f"{path} is a symbolic link", "name the file that it leads to, or follow_links=True"
            raise InputChanged(msg, remedy=f"{remedy} at the source", trigger=str(path)) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            remedy = "name a file"
            raise InputChanged(f"{path} is no regular file", remedy=remedy, trigger=str(path))
        return os.fdopen(descriptor, "rb")

    def now(self) -> list[tuple[Path, int | None]]:
        """Return every name with the inode behind it, for a comparison with a later call."""
        return [(path, inode_of(path)) for path in self.all()]


def inode_of(path: Path) -> int | None:
    """Return a file's inode, None if there is no file."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _age(text: str, most_digits: int) -> Age:
    """Return the key that sorts rotated files, the oldest first: numbers count down, dates count up."""
    digits = text.strip(_MARKS)
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= most_digits
    return (NUMBERED, -int(digits), "") if is_number else (NUMBERED + 1, 0, text)


def _listed(folder: Path) -> Iterator[str]:
    try:
        yield from sorted(os.listdir(folder))
    except FileNotFoundError:
        return
