"""The files of a committed state: one file in an operator-driven region, the files of its lists in a periodic one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from drainmark.jobs.errors import InputChanged, InputMissing
from drainmark.jobs.operators.sources.files.directory_source import LIST, DirectorySource, files_of, queue_of
from drainmark.jobs.operators.sources.files.file_source import FileSlices
from drainmark.jobs.operators.sources.slices import Slice
from drainmark.jobs.operators.sources.source import SlicedSource
from drainmark.jobs.protocol.records.checkpoint_row import RowKind
from drainmark.jobs.protocol.records.triggers import DIGESTS, FILE, RebuiltTrigger, TriggerStatus, kind_of, slices_of
from drainmark.jobs.runtime.input.inbox import digest_of
from drainmark.jobs.runtime.input.slice_inputs import joined_digest
from drainmark.jobs.runtime.input.slices import NUMBER, slice_of
from drainmark.orchestration.workplace.declaration import load_region

COMPARED_BYTES = 64 * 1024 * 1024
"""Largest number of bytes of slices that the plan of a rewind reads to compare them."""

if TYPE_CHECKING:
    from drainmark.jobs.protocol.history import RegionHistory
    from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow
    from drainmark.jobs.protocol.records.triggers import Trigger
    from drainmark.orchestration.workplace.workplace import Workplace


class StateInput(NamedTuple):
    """An input file of a state.

    Attributes:
        identity: as it was scanned.
        start: the start whose slice lists the file; "" in an operator-driven region.
    """

    uri: str
    identity: Mapping[str, Any]
    start: str = ""


def files_behind(workplace: Workplace, row: CheckpointRow) -> list[StateInput]:
    """Return the input files of a state; an empty list if its sources read no files.

    Raises:
        InputMissing: the list of a slice's files is gone.
    """
    identity = row.trigger_identity or {}
    if kind_of(identity) == FILE:
        return [StateInput(row.trigger_uri, identity)] if row.trigger_uri is not None else []
    return [StateInput(file.uri, file.identity, start) for start, file in _listed(workplace, row)]


def is_quarantined_whole(row: CheckpointRow) -> bool:
    """Say whether nothing of a state's input was read, so that no table but the quarantine has rows of it.

    A slice has remarks of other kinds, too, and may have other files, which were read.
    """
    is_file = kind_of(row.trigger_identity or {}) == FILE
    return "reason" in row.detail and (is_file or row.rows_in == row.detail.get("rows_quarantined"))


class UnreadFiles:
    """The files of a region's states of which nothing was read: as inputs of their own, or in the slices of a period.

    The quarantines are read once for many files, and again for a state that was committed since.
    """

    def __init__(self, workplace: Workplace, region: str) -> None:
        self._workplace, self._region = workplace, region
        self._newest = 0
        self._whole: frozenset[tuple[int, str]] = frozenset()

    def holds(self, number: int, uri: str) -> bool:
        """Say whether nothing was read of a file in the state of a number."""
        history = self._workplace.history(self._region)
        row = history.states.get(number)
        if row is None or row.kind is not RowKind.STATE or "reason" not in row.detail:
            return False
        if kind_of(row.trigger_identity or {}) == FILE:
            return True
        if number > self._newest:
            found = bad_records(self._workplace, self._region, history)
            whole = (bad for bad in found if bad["position"] is None)
            self._whole = frozenset((bad["_sequence_id"], bad["source_file"]) for bad in whole)
            self._newest = history.next_id - 1
        return (number, uri) in self._whole


def bad_records(workplace: Workplace, region: str, history: RegionHistory) -> list[dict[str, Any]]:
    """Return the rows of a region's quarantines; that of a whole file has no position."""
    from drainmark.resources.checkpoints.as_of import read_at

    names = [table.name for table in history.tables if table.name.endswith("_quarantine")]
    columns = {"_sequence_id", "source_file", "position", "raw", "reason"}
    found: list[dict[str, Any]] = []
    for name in names:
        rows = read_at(region, name, home=str(workplace.home))
        found += rows.to_pylist() if set(rows.column_names) == columns else []
    return found


def skipping_starts(workplace: Workplace, region: str) -> frozenset[str]:
    """Return the starts that read a slice without the files that are gone; none if the region's code is not found."""
    found = load_region(workplace, region)
    folders = (start for start in found[1].starts if isinstance(start, DirectorySource)) if found is not None else ()
    return frozenset(start.name for start in folders if start.scan.on_missing == "skip")


def lost_slices(workplace: Workplace, rows: Sequence[CheckpointRow]) -> tuple[list[str], list[str]]:
    """Return the uris of states with slices that are gone, and of states with slices that changed, if sources can tell.

    It asks the sources of the region's code; if the code is not found, both lists are empty. It compares at most
    `COMPARED_BYTES` of slices with the bytes that were read; a change of another slice is found when it is read again.
    """
    sliced = [row for row in rows if kind_of(row.trigger_identity or {}) != FILE]
    found = load_region(workplace, sliced[0].region) if sliced else None
    starts = found[1].starts if found is not None else ()
    gone: list[str] = []
    changed: list[str] = []
    left = COMPARED_BYTES
    access = workplace.access(sliced[0].region) if starts else None
    for row in sliced:
        for start in starts:
            piece = slice_of(row.trigger_identity or {}, start.name)
            if piece is None or access is None or not isinstance(start, SlicedSource):
                continue
            try:
                start.reads.check(piece, access, start.name)
                if piece.size_bytes <= left:
                    left -= piece.size_bytes
                    _require_same_bytes(workplace, row, start, piece)
            except InputMissing:
                gone.append(row.trigger_uri or "")
            except InputChanged:
                changed.append(row.trigger_uri or "")
    return gone, changed


def _require_same_bytes(workplace: Workplace, row: CheckpointRow, start: SlicedSource, piece: Slice) -> None:
    """Check that a slice still has the bytes that its state read, if the state's row has their digest.

    Raises:
        InputMissing, InputChanged: the slice is gone, or has other bytes.
    """
    known = ((row.trigger_identity or {}).get(DIGESTS) or {}).get(start.name)
    if known is None or not isinstance(start.reads, FileSlices):
        return
    with tempfile.TemporaryDirectory(prefix="drainmark-") as folder:
        found = []
        for number, part in enumerate(start.reads.parts(piece, workplace.access(row.region), start.name)):
            path = Path(folder) / str(number)
            part.place(path)
            found.append(digest_of(path))
            path.unlink()
    if joined_digest(found) != known:
        raise InputChanged(f"{row.trigger_uri} gives other bytes than before", remedy="restore the old content")


def rebuild_queues(workplace: Workplace, region: str, history: RegionHistory) -> dict[str, list[RebuiltTrigger]]:
    """Rebuild the queues of a periodic region's folders from the lists of its slices, also of refused ones, by start.

    The next scan finds the files that were queued, but in no slice yet.
    """
    queues: dict[str, dict[int, RebuiltTrigger]] = {}
    states = (row for row in (*history.states.values(), *history.withdrawn) if row.trigger_order is not None)
    for row in (*history.refused, *states):
        number = int((row.trigger_identity or {}).get(NUMBER, 0))
        for source, file in _listed(workplace, row):
            queues.setdefault(source, {})[file.order_index] = RebuiltTrigger(
                uri=file.uri,
                identity=file.identity,
                identity_key=file.identity_key,
                size_bytes=file.size_bytes,
                output=file.output,
                order_index=file.order_index,
                status=TriggerStatus.COMMITTED,
                sequence_id=number,
            )
    in_order = {source: [files[place] for place in sorted(files)] for source, files in queues.items()}
    for source, ordered in in_order.items():
        workplace.registry.rebuild(queue_of(region, source), epoch=0, next_id=1, triggers=ordered)
    return in_order


def _listed(workplace: Workplace, row: CheckpointRow) -> Iterator[tuple[str, Trigger]]:
    identity = row.trigger_identity or {}
    for source in slices_of(identity):
        piece = slice_of(identity, source)
        if piece is not None and LIST in piece.facts:
            yield from ((source, file) for file in files_of(piece, workplace.access(row.region)))
