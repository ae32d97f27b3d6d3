"""Turns at a table that several runs write without a fence: a run that lost a commit to another asks all to wait.

A turn decides only about time: Delta's log decides which commit lands. So a turn may come late, or be of a run that has
died. A turn older than `TURN_SECONDS` is removed, and each try of a commit waits at most `WAIT_SECONDS` for turns:
a run of one group lives only a little longer.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from drainmark.jobs import world
from drainmark.jobs.errors import StoreUnavailable
from drainmark.resources.storage.folder import Folder

TURNS = "_turns"
TURN_SECONDS = 120.0
WAIT_SECONDS = 10.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.02, 1.0


@dataclass(slots=True)
class Turn:
    """The turn of one commit; a context manager, at the end of which the turn is over.

    Args:
        folder: of the table.
    """

    folder: Folder
    _name: str = field(default_factory=lambda: f"{int(world.now() * 1e9):020d}-{world.token()}")
    _is_asked: bool = False

    def __enter__(self) -> Turn:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_asked:
            with suppress(OSError, StoreUnavailable):
                self.folder.remove([f"{TURNS}/{self._name}"])

    def take(self, attempt: int) -> None:
        """Wait for turns of other commits; from the second attempt on, ask for a turn and wait only for older ones."""
        with suppress(OSError, StoreUnavailable):  # if the store fails, the commit itself finds out
            if attempt:
                self._ask()
                _pause(_FIRST_PAUSE_SECONDS * 2 ** min(attempt, 5))
            self._wait()

    def _ask(self) -> None:
        import pyarrow as pa

        self._is_asked = True
        with suppress(FileExistsError):
            self.folder.write(f"{TURNS}/{self._name}", pa.py_buffer(b"waiting"))

    def _wait(self) -> None:
        until, pause = world.monotonic() + WAIT_SECONDS, _FIRST_PAUSE_SECONDS
        while (first := self._first()) and world.monotonic() < until:
            if world.now() - int(first.partition("-")[0]) / 1e9 > TURN_SECONDS:
                self.folder.remove([f"{TURNS}/{first}"])
                continue
            _pause(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    def _first(self) -> str | None:
        """Return the name of the turn to wait for, None if there is none."""
        asked = sorted(name for name in self.folder.names(TURNS) if name[0].isdigit())
        return asked[0] if asked and not (self._is_asked and asked[0] >= self._name) else None


def _pause(seconds: float) -> None:
    """Wait for a random part of the time, at least half, so that waiting commits do not come back together."""
    world.sleep(world.between(seconds / 2, seconds))
