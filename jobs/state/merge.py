"""A merge of runs that takes its time beside the groups; nobody names what it writes until an image does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.state.runs import Run


@dataclass(slots=True, eq=False)
class Merge:
    """One merge; a state has one in hand at most.

    A reset abandons it: it ends by itself, and what it wrote is garbage. One that fails leaves the runs as they are; it
    is due again with the next image.

    Attributes:
        runs: that it merges, oldest first; they stay in force until it is applied.
        write: returns the files of the new run.
    """

    runs: tuple[Run, ...]
    write: Callable[[], tuple[StagedFile, ...]]
    _written: Future[tuple[StagedFile, ...]] | None = field(default=None, repr=False)

    def begin(self) -> None:
        """Start it, once."""
        if self._written is None:
            self._written = Future()
            threading.Thread(target=self._work, args=[self._written], daemon=True, name="merge").start()

    def _work(self, written: Future[tuple[StagedFile, ...]]) -> None:
        try:
            written.set_result(self.write())
        except BaseException as error:
            written.set_exception(error)

    @property
    def is_over(self) -> bool:
        return self._written is not None and self._written.done()

    def wait(self) -> None:
        """Wait until it is over, however it ends."""
        self.begin()
        if self._written is not None:
            self._written.exception()

    def applied_to(self, runs: tuple[Run, ...]) -> tuple[Run, ...]:
        """Return runs with the new one in the place of those that it merged; as they are where it failed."""
        if self._written is None or self._written.exception() is not None:
            return runs
        new, begin = self._written.result(), runs.index(self.runs[0])
        return (*runs[:begin], *([Run(new)] if new else []), *runs[begin + len(self.runs) :])
