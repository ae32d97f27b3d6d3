"""The runs of a keyed state after a checkpoint that writes one: a flush of the changes, then the merge that is due."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.state.checkpointed_state import Frozen, StagingFolder
from drainmark.jobs.state.keyed_rows import RowsPerKey
from drainmark.jobs.state.run_files import KEY_HASH
from drainmark.jobs.state.runs import Run, RunMerge, due
from drainmark.jobs.state.state_rows import StateRows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


AT_ONCE_BYTES = 64 * 2**20
"""The largest merge that is part of the checkpoint that finds it due."""

_MOST_RUNS = 24
"""With more runs, each reading costs too much: the checkpoint waits for the merge, or does it itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMaking:
    """The maker of the runs of one checkpoint.

    Attributes:
        in_files: reads the existing files; runs are sorted by the hash of its columns `hashed`.
        is_tiered: older runs stay; else the new run is the whole state.
    """

    in_files: StateRows
    per_key: RowsPerKey
    is_tiered: bool
    staging: StagingFolder
    session: SparkSession

    def after(self, frozen: Frozen, files: Sequence[StagedFile]) -> tuple[tuple[Run, ...], RunMerge | None]:
        """Return the runs of the state at the frozen id, oldest first, and the merge that is then in hand.

        A small merge is done here. A large one goes on beside the groups, and the first image after its end names its
        files.

        Args:
            files: files of the changes that this checkpoint wrote.
        """
        runs, merge = self._flushed(frozen, files), frozen.merge
        if merge is not None and len(runs) > _MOST_RUNS:
            merge.wait()
        if merge is not None and not merge.is_over:
            begin = runs.index(merge.runs[-1]) + 1
            return (*runs[:begin], *self._merged(runs[begin:], older=runs[:begin])), merge
        runs = merge.applied_to(runs) if merge is not None else runs
        if sum(run.size for run in runs[len(runs) - due(runs) :]) > AT_ONCE_BYTES and len(runs) <= _MOST_RUNS:
            return runs, self._later(runs)
        return self._merged(runs), None

    def _flushed(self, frozen: Frozen, files: Sequence[StagedFile]) -> tuple[Run, ...]:
        """Write the changes since the last image as a run; older runs go in if they are unsorted, or must not stay."""
        older, changed = frozen.runs, (*frozen.change_files, *files)
        unsorted = [file for run in older for file in run.files]
        if self.is_tiered and self.in_files.are_sorted(unsorted):
            unsorted = []
        else:
            older = ()
        if frozen.young is not None and not unsorted:
            new = self.of_rows(frozen.young, is_oldest=not older)
        else:
            rows = self.in_files.frame(self.session, unsorted, changed, frozen.image_at)
            size = sum(file.size for file in (*unsorted, *changed))
            new = self.staging.write_run(rows, self.per_key, self.in_files.hashed, size, is_oldest=not older)
        return (*older, Run(new)) if new else older

    def of_rows(self, rows: pa.Table, *, is_oldest: bool) -> tuple[StagedFile, ...]:
        """Write rows that are in memory as a run."""
        hashed = self.in_files.with_hashes(self.session, rows)
        return self.staging.write_sorted(
            hashed.sort_by(KEY_HASH), self.per_key, self.in_files.hashed, is_oldest=is_oldest
        )

    def whole(self, rows: pa.Table, unsorted_bytes: int | None) -> tuple[StagedFile, ...]:
        """Write the whole state: as a run if it has more than `unsorted_bytes`, since its keys are looked up soon.

        Args:
            unsorted_bytes: None if keys are not looked up.
        """
        is_sorted = unsorted_bytes is not None and rows.nbytes > unsorted_bytes
        return self.of_rows(rows, is_oldest=True) if is_sorted else self.staging.write(rows, "image")

    def _merged(self, runs: tuple[Run, ...], older: tuple[Run, ...] = ()) -> tuple[Run, ...]:
        """Return runs after the merge that is due among them.

        Args:
            older: the runs before these.
        """
        count = due(runs)
        if not count:
            return runs
        kept, young = runs[: len(runs) - count], runs[len(runs) - count :]
        merged = self._write(young, is_oldest=not (older or kept))
        return (*kept, Run(merged)) if merged else kept

    def _later(self, runs: tuple[Run, ...]) -> RunMerge:
        count = due(runs)
        young = runs[len(runs) - count :]
        return RunMerge(young, partial(self._write, young, is_oldest=count == len(runs)))

    def _write(self, runs: Sequence[Run], *, is_oldest: bool) -> tuple[StagedFile, ...]:
        files = [file for run in runs for file in run.files]
        return self.staging.merge_runs(self.session, files, self.per_key, self.in_files.hashed, is_oldest=is_oldest)
