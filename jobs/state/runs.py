"""Runs of a keyed state: the files of a state, and the choice of the runs to merge next; pure.

A keyed state is a small log-structured tree. A run has, for a span of ids, the last rows of each key that changed
within it, sorted by the hash of the key. A flush makes the youngest run from the changes since the last one. A merge
makes one run from the youngest ones, once these are together as large as the next tier: so a row is copied about once
per tier, and a reader finds a few runs per tier. Sources: tiered compaction in RocksDB, merge trees in Apache Paimon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from drainmark.jobs import world
from drainmark.jobs.protocol.records.manifest import Image, StagedFile

_TIER = 4
"""The runs of a tier have up to so many times the rows of the runs in the tier below."""
_LOWEST = 1 << 12


@dataclass(frozen=True, slots=True)
class Run:
    """The files of one run, in the order of the hashes; they have no hash in common."""

    files: tuple[StagedFile, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def runs_of(image: Image | None) -> tuple[Run, ...]:
    """Return the runs of an image, oldest first."""
    if image is None or not image.files:
        return ()
    runs, first = [], 0
    for count in image.runs or (len(image.files),):
        runs.append(Run(image.files[first : first + count]))
        first += count
    return tuple(runs)


def image_of(table: str, at: int, runs: Sequence[Run]) -> Image:
    """Return the image at an id that consists of runs, given oldest first."""
    files = tuple(file for run in runs for file in run.files)
    return Image(table=table, at=at, files=files, runs=tuple(len(run.files) for run in runs))


def due(runs: Sequence[Run]) -> int:
    """Return how many of the youngest runs are to be merged into one; 0 for none.

    All runs are merged once the younger ones have as many rows as the oldest. So the files have at most twice the rows
    of the state.
    """
    younger = sum(run.rows for run in runs[1:])
    if len(runs) > 1 and younger >= runs[0].rows:
        return len(runs)
    found, limit = 0, _LOWEST
    while limit <= younger:
        count, rows = 0, 0
        for run in reversed(runs[1:]):
            if run.rows >= limit:
                break
            count, rows = count + 1, rows + run.rows
        if count > 1 and rows >= limit:
            found = count
        limit *= _TIER
    return found


@dataclass(slots=True, eq=False)
class RunMerge:
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
