"""A slow operator in Python that hangs or fails if files in a folder tell it to, while other stages go on. The part in
the application, and the part in the test."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import drainmark as dm

SECONDS = 0.1
"""The time of the operator for each id: so long that the stages after it lag when the starts are done."""

_POLL_SECONDS = 0.02
_HOLD, _HELD, _BROKEN, _FAIL, _PASS = "hold", "held", "broken", "fail-", "pass-"


def slow_at(folder: str) -> type[dm.StateHandler]:
    """Return the operator: it sorts the rows of each id, and numbers the rows of the stream.

    Args:
        folder: the folder of its gate; an empty text if it has none.
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
    """Take a token; say whether there was one."""
    token = next(folder.glob(f"{kind}*"), None)
    if token is not None:
        token.unlink()
    return token is not None


@dataclass(frozen=True, slots=True)
class Gate:
    """The control of a test over the operator. All copies of a scene share the folder, so begin with `open`."""

    folder: Path

    def open(self) -> None:
        """Let all ids pass."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def hold(self, after: int = 0) -> None:
        """Let so many ids pass; then let none pass until the gate is opened."""
        for number in range(after):
            (self.folder / f"{_PASS}{number}").touch()
        (self.folder / _HOLD).touch()

    @property
    def is_held(self) -> bool:
        """Say whether the operator waits at the gate."""
        return (self.folder / _HELD).exists()

    def fail(self, times: int) -> None:
        """Let the operator fail so many times, and then pass."""
        for number in range(times):
            (self.folder / f"{_FAIL}{number}").touch()

    def break_down(self) -> None:
        """Let the operator fail until the gate is opened."""
        (self.folder / _BROKEN).touch()
