"""A merge of runs that goes on beside the groups; its files count only once an image names them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from drainmark.jobs import world
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.state.runs import Run


@dataclass(slots=True, eq=False)
class Merge:
    """One merge; a state has at most one in hand.

    A reset abandons a merge: it ends by itself, and its files are garbage. A merge that fails leaves the runs
    unchanged; it is due again with the next image. If a run ends before its merge, the next run begins it again.

    Attributes:
        runs: the runs to merge, oldest first; they stay in force until the merge is applied.
        write: writes the new run, and returns its files.
    """

    runs: tuple[Run, ...]
    write: Callable[[], tuple[StagedFile, ...]]
    _written: world.Answer[tuple[StagedFile, ...]] | None = field(default=None, repr=False)

    def begin(self) -> None:
        """Start the merge, unless it was started before."""
        if self._written is None:
            self._written = world.Answer(self.write, "merge")

    @property
    def is_over(self) -> bool:
        return self._written is not None and self._written.is_there

    def wait(self) -> None:
        """Wait until the merge is over, with or without an error."""
        self.begin()
        if self._written is not None:
            self._written.wait()

    def applied_to(self, runs: tuple[Run, ...]) -> tuple[Run, ...]:
        """Return runs with the new run in the place of those that were merged; unchanged if the merge failed."""
        self.wait()
        if self._written is None or self._written.error is not None:
            return runs
        new, begin = self._written.get(), runs.index(self.runs[0])
        return (*runs[:begin], *([Run(new)] if new else []), *runs[begin + len(self.runs) :])
