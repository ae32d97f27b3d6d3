"""The files of the slices of a group: those of a folder as they were scanned, or parts that a source makes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.operators.directory_scan import DirectorySource
from jobs.operators.sources import FileSlices, Part, SlicedSource, Source
from jobs.protocol.triggers import Trigger, TriggerStatus
from jobs.runtime.folder_slices import files_of
from jobs.runtime.slicing import slice_of

if TYPE_CHECKING:
    from jobs.runtime.ports import Inputs, Outside
    from jobs.runtime.reading import Group


class PartInputs:
    """Parts behind the verbs by which a group reads files (`jobs.runtime.ports.Inputs`)."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def place(self, wanted: Sequence[tuple[Trigger, Path]]) -> None:
        for trigger, path in wanted:
            self._parts[trigger.order_index].place(path)

    def in_place(self, triggers: Sequence[Trigger]) -> Mapping[int, str]:
        return {}

    def check(self, triggers: Sequence[Trigger]) -> None:
        for trigger in triggers:
            self._parts[trigger.order_index].check()


def files_of_slices(source: Source, group: Group, outside: Outside) -> tuple[dict[int, int], list[Trigger], Inputs]:
    """Return what a group takes of a start as files.

    Returns:
        the id of its slice by number of a file, from 1; the files in order; and where they are.

    Raises:
        InputMissing, InputChanged: a slice does not have its files any more.
    """
    ids: dict[int, int] = {}
    files: list[Trigger] = []
    parts: list[Part] = []
    for member in group.members:
        piece = slice_of(member.trigger.identity, source.name)
        if piece is None:
            continue
        if isinstance(source, DirectorySource):
            files += files_of(piece, outside.reach)
        elif isinstance(source, SlicedSource) and isinstance(source.reads, FileSlices):
            for part in source.reads.parts(piece, outside.reach, source.name):
                files.append(_trigger_of_part(part, len(parts), outside.reach.region))
                parts.append(part)
        ids.update(dict.fromkeys(range(len(ids) + 1, len(files) + 1), member.sequence_id))
    return ids, files, outside.inputs if isinstance(source, DirectorySource) else PartInputs(parts)


def _trigger_of_part(part: Part, place: int, region: str) -> Trigger:
    return Trigger(
        uri=part.uri, identity={}, identity_key="{}", size_bytes=part.size_bytes, order_index=place, id=0,
        region=region, status=TriggerStatus.PENDING, discovered_at=dt.datetime.fromtimestamp(0, dt.UTC),
    )  # fmt: skip
