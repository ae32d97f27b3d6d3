"""The runtime's side of an operator's state: freeze it after the drain, write the frozen version, go on.

`prepare` and `checkpointed` have the state to themselves: the group is drained and the next one is not taken over yet.
`prepare` gets the files of the changes, as far as they are written, or their rows; where there are no files, it needs
the rows. `checkpointed` says that the group of the last `prepare` is committed.
`checkpoint` may run in the background while the flow goes on; it sees the frozen version only. A state is reset by
loading it anew: what still works on an older object does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from drainmark.jobs.protocol.records.manifest import Image, StagedFile
from drainmark.jobs.state.keyed_rows import RowsPerKey
from drainmark.jobs.state.merge import Merge
from drainmark.jobs.state.runs import Run

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


class StagingFolder(Protocol):
    """Where one attempt leaves the files of a table."""

    def write(self, table: pa.Table, stem: str) -> tuple[StagedFile, ...]: ...
    def write_run(
        self, rows: DataFrame, per_key: RowsPerKey, hashed: Sequence[str], size: int, *, is_oldest: bool
    ) -> tuple[StagedFile, ...]: ...
    def merge_runs(
        self,
        session: SparkSession,
        files: Sequence[StagedFile],
        per_key: RowsPerKey,
        hashed: Sequence[str],
        *,
        is_oldest: bool,
    ) -> tuple[StagedFile, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """A version of a state that no later change reaches: Arrow tables and staged files are immutable.

    Attributes:
        at: last id of the group.
        changes: the group's changes that are not written yet, None where they are.
        rows: the whole state where it is in memory; else it is in the files.
        runs, change_files: as far as they are written; of the changes, the rows after `image_at`.
        young: the rows of the changes after `image_at`, where they are in memory.
        merge: of some of the runs, that was begun with an earlier group.
        has_image: the changes are to be written as a run.
    """

    at: int
    changes: pa.Table | None
    rows: pa.Table | None
    runs: tuple[Run, ...]
    image_at: int
    change_files: tuple[StagedFile, ...]
    young: pa.Table | None
    merge: Merge | None
    has_image: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a checkpoint left in staging.

    Attributes:
        files: the changes that were not written before.
        image: the state whole, where a run was due: this run and older ones.
        merge: what is to be merged beside the next groups, where there is an image.
    """

    files: tuple[StagedFile, ...] = ()
    image: Image | None = None
    merge: Merge | None = None
