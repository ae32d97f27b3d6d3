"""The author's line in a stack: not in installed code, in Python's, or in this package except its applications."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable
from pathlib import Path

from drainmark.jobs.errors import Location

_HERE = Path(__file__).parents[2]
_OURS = f"{_HERE}/"
_APPLICATIONS = f"{_HERE / 'jobs' / 'apps'}/"


def authors_line(innermost_first: Iterable[tuple[str, int | None]]) -> Location | None:
    """Return the innermost line of the author's among file names and line numbers; None if there is none."""
    others = ("<", *(sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib")), _OURS)
    for file, line in innermost_first:
        if file.startswith(_APPLICATIONS) or not file.startswith(others):
            return Location(file=file, line=line or 0)
    return None
