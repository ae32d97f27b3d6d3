"""The parts of slices that a source makes, as files of a group."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from drainmark.jobs.operators.sources.files.file_slices import SlicePart
from drainmark.jobs.protocol.records.triggers import Trigger

if TYPE_CHECKING:
    from drainmark.jobs.tasks.buckets import StoredObject


class PartInputs:
    """The parts of slices, read by a group as files are (`resources.inputs.inputs.Inputs`).

    Attributes:
        digests: by place of a part, the digest of its bytes, once it was placed or tasks read it.
        range_bytes: tasks read a larger part in ranges of so many bytes.
    """

    def __init__(self, parts: Sequence[SlicePart], range_bytes: int) -> None:
        self._parts = parts
        self.range_bytes = range_bytes
        self.digests: dict[int, str] = {}

    def place(self, wanted: Sequence[tuple[Trigger, Path]], *, follow_links: bool = False) -> None:
        for trigger, path in wanted:
            self._parts[trigger.order_index].place(path)
            self.digests[trigger.order_index] = digest_of(path)

    def stored(self, triggers: Sequence[Trigger]) -> Mapping[int, StoredObject]:
        found = ((index, self._parts[trigger.order_index].stored) for index, trigger in enumerate(triggers))
        return {index: stored for index, stored in found if stored is not None}

    def check(self, triggers: Sequence[Trigger], *, follow_links: bool = False) -> None:
        for trigger in triggers:
            self._parts[trigger.order_index].check()


def digest_of(path: Path) -> str:
    """Return the digest of a file's bytes; `file_ranges.DigestTask` gives the same."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]
