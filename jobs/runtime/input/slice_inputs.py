"""The files of a group's slices: files of a folder as they were scanned, or parts that a source makes."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from drainmark.jobs.errors import SliceLost
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource, files_of
from drainmark.jobs.operators.sources.files.file_source import FileSlices, SlicePart
from drainmark.jobs.operators.sources.source import SlicedSource, Source
from drainmark.jobs.protocol.records.triggers import Trigger, TriggerStatus
from drainmark.jobs.runtime.input.inbox import PartInputs
from drainmark.jobs.runtime.input.slices import slice_of
from drainmark.jobs.scan.findings import missing_files
from drainmark.jobs.tasks.file_ranges import InputFile, digests_of

if TYPE_CHECKING:
    from drainmark.jobs.runtime.input.inbox import Group, GroupInbox
    from drainmark.jobs.runtime.outside import Outside
    from drainmark.jobs.tasks.executor import Executor
    from drainmark.resources.inputs.inputs import Inputs


def note_fetched(inbox: GroupInbox, executor: Executor) -> None:
    """Let tasks compute the digests of the parts that they will fetch: this process never has their bytes.

    Raises:
        InputMissing: an object is gone, or was replaced.
        OSError, StoreUnavailable: a store failed a task.
    """
    if not (isinstance(inbox.inputs, PartInputs) and inbox.objects):
        return
    files = [
        InputFile(number=number, path=stored.key, size=stored.size, stored=stored)
        for number, stored in inbox.objects.items()
    ]
    for number, digest in zip(inbox.objects, digests_of(executor, files), strict=True):
        part = inbox.group.member(number).trigger
        if digest is None:
            raise missing_files([part], "the object is gone, or another one")
        inbox.inputs.digests[part.order_index] = digest


def require_same_bytes(source: Source, group: Group, ids: Mapping[int, int], inputs: Inputs | PartInputs) -> None:
    """Note the digests of a group's slices; a slice that was committed before must give the same bytes again.

    Args:
        ids: number of a part, from 1 -> id of its slice.

    Raises:
        SliceLost: such a slice gives other bytes.
    """
    if not isinstance(inputs, PartInputs):
        return
    for member in group.members:
        parts = [inputs.digests[number - 1] for number, of in ids.items() if of == member.sequence_id]
        if not parts:
            continue
        found, known = joined_digest(parts), member.trigger.digests.get(source.name)
        if known is not None and found != known:
            msg = f"{member.trigger.uri} gives other bytes than when its state was committed, which a rewind withdrew"
            raise SliceLost(
                msg,
                operator=source.name,
                location=source.location,
                remedy="restore the old content",
                trigger=member.trigger.uri,
            )
        member.trigger.digests[source.name] = found


def joined_digest(parts: Sequence[str]) -> str:
    """Return one digest of a slice's parts in order."""
    return parts[0] if len(parts) == 1 else hashlib.sha256("".join(parts).encode()).hexdigest()[:32]


def files_of_slices(
    source: Source, group: Group, outside: Outside
) -> tuple[dict[int, int], list[Trigger], Inputs | PartInputs]:
    """Return the files that a group takes from a start.

    Returns:
        number of a file, from 1 -> id of its slice; the files in order; and the inputs to read them from.

    Raises:
        InputMissing, InputChanged: a slice no longer has its files.
    """
    ids: dict[int, int] = {}
    files: list[Trigger] = []
    parts: list[SlicePart] = []
    for member in group.members:
        piece = slice_of(member.trigger.identity, source.name)
        if piece is None:
            continue
        if isinstance(source, DirectorySource):
            files += files_of(piece, outside.access)
        elif isinstance(source, SlicedSource) and isinstance(source.reads, FileSlices):
            for part in source.reads.parts(piece, outside.access, source.name):
                files.append(_trigger_of_part(part, len(parts), outside.access.region))
                parts.append(part)
        ids.update(dict.fromkeys(range(len(ids) + 1, len(files) + 1), member.sequence_id))
    return (
        ids,
        files,
        outside.inputs if isinstance(source, DirectorySource) else PartInputs(parts, outside.inputs.range_bytes),
    )


def _trigger_of_part(part: SlicePart, place: int, region: str) -> Trigger:
    return Trigger(
        uri=part.uri,
        identity={},
        identity_key="{}",
        size_bytes=part.size_bytes,
        order_index=place,
        id=0,
        region=region,
        status=TriggerStatus.PENDING,
        discovered_at=dt.datetime.fromtimestamp(0, dt.UTC),
    )
