"""Staged files that the rows of a checkpoint table still need: `gc` deletes none of them.

Pure: rows in, names out. The store knows the files that a Delta table itself shows, or showed lately.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from drainmark.jobs.protocol.history import RegionHistory, manifest_of
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.protocol.stage_flow import channels_folder


def first_id_within_horizon(history: RegionHistory, *, horizon: int, withdrawn_since: dt.datetime) -> int:
    """Return the smallest `sequence_id` of the rows that `files_within_horizon` needs."""
    since = withdrawn_since.timestamp()
    taken_back = [to + 1 for moment, to in history.rewinds if moment >= since]
    return max(1, min(history.committed_id - horizon, *taken_back, history.next_id))


def files_within_horizon(
    history: RegionHistory, rows: Sequence[CheckpointRow], *, horizon: int, withdrawn_since: dt.datetime
) -> Mapping[str, frozenset[str]]:
    """Return, by name of a table, the paths of the files that may still be needed.

    These are the files of a group that is committed and not published; of a group with an id within the horizon, for a
    rewind, `show --at` or `backfill --again`, unless a rewind withdrew it long ago; of a state's newest image at or
    below the horizon; of an image that stands in for dropped changes; of replaced rows, which are kept nowhere else;
    and of batches in flight.

    Args:
        rows: of the checkpoint table, in commit order, from `first_id_within_horizon` on (inclusive).
        horizon: number of ids, the value of `rewind_horizon`.
        withdrawn_since: files withdrawn after this time are kept: a reader may still hold an old version of a table.
    """
    oldest = history.committed_id - horizon
    standing = _standing(rows, withdrawn_since)
    needed = {row.attempt for row in standing if row.sequence_id >= oldest}
    manifests = [manifest_of(row) for row in rows if row.attempt in needed]
    manifests += [manifest_of(row) for row in history.unpublished]
    paths: dict[str, set[str]] = defaultdict(set)
    for manifest in manifests:
        for name, files in manifest.files.items() if manifest else ():
            paths[name].update(file.path for file in files)
        for image in manifest.images if manifest else ():
            paths[image.table].update(file.path for file in image.files)
    images = [history.image_of(table, oldest) for table in history.images]
    # For any horizon: a raised one, or a rewind, brings states between that image and the next into reach again.
    images += [history.image_of(table, through) for table, through in history.dropped.items()]
    for image in filter(None, images):
        paths[image.table].update(file.path for file in image.files)
    for name, files in _replaced(standing, history):
        paths[name].update(file.path for file in files)
    for batch in history.flow.batches:  # enough for any rewind: a stage never needs a batch again that it has done
        paths[channels_folder(rows[0].region)].update(file.path for file in batch.files)
    return {name: frozenset(found) for name, found in paths.items()}


def _standing(rows: Sequence[CheckpointRow], since: dt.datetime) -> list[CheckpointRow]:
    """Return the state and progress rows that no rewind withdrew before a time."""
    standing: list[CheckpointRow] = []
    for row in rows:
        if row.kind in (RowKind.STATE, RowKind.PROGRESS):
            standing.append(row)
        elif row.kind is RowKind.REWIND and row.recorded_at < since:
            to = row.detail["to"]  # work that stages finished late may have ids that are not withdrawn
            standing = [row for row in standing if row.kind is RowKind.PROGRESS or row.sequence_id <= to]
    return standing


def _replaced(
    standing: Sequence[CheckpointRow], history: RegionHistory
) -> Iterator[tuple[str, tuple[StagedFile, ...]]]:
    """Yield the files of replaced rows, also if a rewind withdrew the row that names them and not the replaced ids."""
    for replacement in history.replaced.values():
        yield from replacement.kept.files.items()
    for row in standing:
        manifest = manifest_of(row)
        if manifest is not None and manifest.replaced is not None:
            yield from manifest.replaced.files.items()
