"""The runtime's side of an operator's state: freeze it after the drain, write the frozen version, go on.

`prepare` and `checkpointed` have exclusive access to the state: the group is drained and the next one is not taken over
yet. `prepare` gets the changes as files, if they are written already, else as rows. `checkpointed` notes that the group
of the last `prepare` is committed.
`checkpoint` may run in the background while the flow goes on; it uses only the frozen version. To reset a state is to
load it anew: a thread that still works on the older object does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from drainmark.jobs.protocol.records.manifest import Image, StagedFile
from drainmark.jobs.state.keyed_rows import RowsPerKey
from drainmark.jobs.state.runs import Run, RunMerge

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


class StagingFolder(Protocol):
    """The folder in which one attempt leaves the files of a table."""

    def write(self, table: pa.Table, stem: str) -> tuple[StagedFile, ...]: ...
    def write_run(
        self, rows: DataFrame, per_key: RowsPerKey, hashed: Sequence[str], size: int, *, is_oldest: bool
    ) -> tuple[StagedFile, ...]: ...
    def write_sorted(
        self, rows: pa.Table, per_key: RowsPerKey, hashed: Sequence[str], *, is_oldest: bool
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
        changes: the group's changes that are not written yet, None if there are none.
        rows: the whole state if it is in memory, None if it is only in the files.
        runs, change_files: the files written so far; of `change_files`, only the rows after `image_at` count.
        young: the rows of the changes after `image_at`, if they are in memory.
        merge: a merge of some of the runs that began with an earlier group.
        has_image: whether an image is due: the whole state if `rows` holds it, else the changes as a run.
    """

    at: int
    changes: pa.Table | None
    rows: pa.Table | None
    runs: tuple[Run, ...]
    image_at: int
    change_files: tuple[StagedFile, ...]
    young: pa.Table | None
    merge: RunMerge | None
    has_image: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The files that a checkpoint left in staging.

    Attributes:
        files: the changes that were not written before.
        image: the whole state, if an image was due: the new run and the older ones.
        merge: the merge to do beside the next groups, if there is an image.
    """

    files: tuple[StagedFile, ...] = ()
    image: Image | None = None
    merge: RunMerge | None = None
