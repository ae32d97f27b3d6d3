"""An operator in Python that is slow, and that hangs or fails where a folder says so: what one stage does alone while
the others go on. Its half in the application, and the half of the test."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import drainmark as dm

SECONDS = 0.1
"""What it takes an id: so long that those behind it are behind when the starts are done."""

_POLL_SECONDS = 0.02
_HOLD, _HELD, _BROKEN, _FAIL, _PASS = "hold", "held", "broken", "fail-", "pass-"


def slow_at(folder: str) -> type[dm.StateHandler]:
    """Return the operator; it numbers the rows of a stream, those of an id sorted.

    Args:
        folder: of its gate; an empty text for none.
    """

    @dataclass
    class Slow(dm.StateHandler):
        place: int = 0

        def process(self, rows: pa.Table, context: Any) -> pa.Table:
            if folder:
                _pass(Path(folder), context.sequence_id)
            rows = rows.sort_by([(name, "ascending") for name in rows.column_names])
            first, self.place = self.place, self.place + rows.num_rows
            return rows.add_column(0, "place", pa.array(range(first, self.place), pa.int64()))

    return Slow


def _pass(folder: Path, number: int) -> None:
    time.sleep(SECONDS)
    while (folder / _HOLD).exists() and not _took(folder, _PASS):
        (folder / _HELD).touch()
        time.sleep(_POLL_SECONDS)
    if _took(folder, _FAIL) or (folder / _BROKEN).exists():
        msg = f"made to fail at {number}"
        raise RuntimeError(msg)


def _took(folder: Path, kind: str) -> bool:
    """Take a token; is there one?"""
    token = next(folder.glob(f"{kind}*"), None)
    if token is not None:
        token.unlink()
    return token is not None


@dataclass(frozen=True, slots=True)
class Gate:
    """What a test does to the operator; the folder is shared by all copies of a scene, so begin with `open`."""

    folder: Path

    def open(self) -> None:
        """Let everything pass."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def hold(self, after: int = 0) -> None:
        """Let so many ids pass, and nothing then until it is opened."""
        for number in range(after):
            (self.folder / f"{_PASS}{number}").touch()
        (self.folder / _HOLD).touch()

    @property
    def is_held(self) -> bool:
        """Does somebody wait in front of it?"""
        return (self.folder / _HELD).exists()

    def fail(self, times: int) -> None:
        """Let it fail so many times, and pass then."""
        for number in range(times):
            (self.folder / f"{_FAIL}{number}").touch()

    def break_down(self) -> None:
        """Let it fail until it is opened."""
        (self.folder / _BROKEN).touch()
