"""The runs of a keyed state after a checkpoint that writes one: a flush of the changes, then the merge that is due."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.state.checkpointed_state import Frozen, StagingFolder
from drainmark.jobs.state.keyed_rows import RowsPerKey
from drainmark.jobs.state.runs import Run, due
from drainmark.jobs.state.state_rows import StateRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMaking:
    """Writes the runs of one checkpoint.

    Attributes:
        in_files: reads what is there.
        hashed: the columns whose hash sorts a run.
        is_tiered: older runs stay; else the new run is the whole state.
    """

    in_files: StateRows
    per_key: RowsPerKey
    hashed: tuple[str, ...]
    is_tiered: bool
    staging: StagingFolder
    session: SparkSession

    def after(self, frozen: Frozen, files: Sequence[StagedFile]) -> tuple[Run, ...]:
        """Return the runs that make up the state at the frozen id, oldest first.

        Args:
            files: of changes that were written with the checkpoint.
        """
        return self._merged(self._flushed(frozen, files))

    def _flushed(self, frozen: Frozen, files: Sequence[StagedFile]) -> tuple[Run, ...]:
        """Write the changes since the last image as a run; with them what is older, where it has no order yet."""
        older, changed = frozen.runs, (*frozen.change_files, *files)
        unsorted = [file for run in older for file in run.files]
        if self.is_tiered and self.in_files.are_sorted(unsorted):
            unsorted = []
        else:
            older = ()
        if frozen.young is not None and not unsorted:
            rows = self.in_files.local(self.session, frozen.young)
        else:
            rows = self.in_files.frame(self.session, unsorted, changed, frozen.image_at)
        size = sum(file.size for file in (*unsorted, *changed))
        new = self.staging.write_run(rows, self.per_key, self.hashed, size, is_oldest=not older)
        return (*older, Run(new)) if new else older

    def _merged(self, runs: tuple[Run, ...]) -> tuple[Run, ...]:
        """Return the runs after the merge that is due."""
        count = due(runs)
        if not count:
            return runs
        older, young = runs[: len(runs) - count], runs[len(runs) - count :]
        files = [file for run in young for file in run.files]
        merged = self.staging.merge_runs(self.session, files, self.per_key, self.hashed, is_oldest=not older)
        return (*older, Run(merged)) if merged else older
