"""Invariants of a region after any failure: ids, epochs, files and states, and no work left unfinished."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from drainmark.jobs.protocol.history import Outcome, RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.records.manifest import TableRole

if TYPE_CHECKING:
    from drainmark.orchestration.workplace.workplace import Workplace

_NUMBERED = {RowKind.STATE, RowKind.SKIP, RowKind.PROGRESS, RowKind.REWIND}


def reused_ids(rows: Sequence[CheckpointRow]) -> Iterator[str]:
    """Yield the errors in the ids and epochs of checkpoint rows, which are given in commit order.

    No two states, skips, rows of progress or rewinds share an id, ids rise in commit order, every claim raises the
    epoch, and no row has an older epoch than the row before it.
    """
    numbers = [row.sequence_id for row in rows if row.kind in _NUMBERED]
    if numbers != sorted(set(numbers)):
        yield f"ids do not rise, or were used twice: {numbers}"
    epochs = [row.epoch for row in rows]
    if epochs != sorted(epochs):
        yield f"epochs fall: {epochs}"
    claims = [row.epoch for row in rows if row.kind is RowKind.CLAIM]
    if claims != sorted(set(claims)):
        yield f"two claims share an epoch: {claims}"


def misplaced_files(history: RegionHistory, files: Sequence[str]) -> Iterator[str]:
    """Yield an error unless every file (uris, in order) has exactly one state in force, in the same order."""
    committed = [history.states[number].trigger_uri for number in sorted(history.states)]
    if committed != list(files):
        yield f"the states in force are of {committed}, the files are {list(files)}"


def visible_too_early(workplace: Workplace, region: str) -> Iterator[str]:
    """Yield the sinks that show a row above the committed id to readers; no check while a rewind is under way."""
    from drainmark.resources.checkpoints.as_of import RegionReader

    if not workplace.store(region).checkpoint.exists():
        return
    reader = RegionReader(workplace.settings, region)
    if reader.history.rewinding:
        return
    for table in reader.history.tables:
        if table.role is not TableRole.CHANGES and reader.store.open(table).exists():
            seen = reader.visible(table.name)["_sequence_id"].to_pylist()
            if early := sorted({number for number in seen if (number or 0) > reader.history.committed_id}):
                yield f"{table.name}: rows of {early} are visible, committed is {reader.history.committed_id}"


def unfinished(workplace: Workplace, region: str) -> Iterator[str]:
    """Yield the errors of a region that should be idle after a run without an error."""
    history = workplace.history(region)
    if pending := workplace.registry.pending_count(region):
        yield f"{pending} files are pending"
    if history.halt is not None:
        yield f"it is halted: {history.halt.detail.get('reason')}"
    if history.unpublished:
        yield f"not published: {[row.sequence_id for row in history.unpublished]}"
    if history.flow.channels:
        yield f"in flight: {sorted(history.flow.channels)}"
    if history.last_outcome is not Outcome.CLEAN:
        yield f"the last owner ended {history.last_outcome.value}"
