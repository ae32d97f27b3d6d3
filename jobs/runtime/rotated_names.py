"""The names of a file of lines and of what it was rotated to, in the order in which they were written to.

Whoever rotates changes them one after the other, at any moment: what was made of a list of names holds if the names,
and the files behind them, are the same before and after.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
NUMBERED = 0
_MOST_DIGITS = 4
"""More digits are a date: `app.log.1` is the newest of its kind, `app.log-20260102` is newer than the day before."""

Age = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class RotatedNames:
    """The file that is written to, and the names that it has afterwards.

    Attributes:
        rotated: glob of those names, with one star; None where it is never rotated.
    """

    path: Path
    rotated: str | None = None

    def closed(self) -> list[tuple[Age, Path]]:
        """Return the rotated files, the oldest first."""
        found: list[tuple[Age, Path]] = []
        begin, _, end = (self.rotated or "").partition("*")
        for name in _listed(self.path.parent) if self.rotated is not None else ():
            plain = name.removesuffix(next((ending for ending in COMPRESSED if name.endswith(ending)), ""))
            has_form = len(plain) > len(begin) + len(end) and plain.startswith(begin) and plain.endswith(end)
            if has_form and name != self.path.name:
                found.append((_age(plain[len(begin) : len(plain) - len(end)]), self.path.parent / name))
        return sorted(found)

    def all(self) -> list[Path]:
        """Return the rotated files, the oldest first, and the one that is written to."""
        return [*(path for _, path in self.closed()), self.path]

    def now(self) -> list[tuple[Path, int | None]]:
        """Return every name with the inode behind it, to be compared with what they are later."""
        return [(path, inode_of(path)) for path in self.all()]


def inode_of(path: Path) -> int | None:
    """Return a file's inode, None where there is none."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _age(text: str) -> Age:
    """Return by what rotated files are sorted, the oldest first: numbers count down, dates up."""
    digits = text.strip(".-_")
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS
    return (NUMBERED, -int(digits), "") if is_number else (NUMBERED + 1, 0, text)


def _listed(folder: Path) -> Iterator[str]:
    try:
        yield from sorted(os.listdir(folder))
    except FileNotFoundError:
        return
