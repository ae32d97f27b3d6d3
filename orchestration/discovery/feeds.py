"""Cursors of autonomous sources: the files that a reader has not taken yet, one cursor for each source and reader.

A cursor is rows of the registry: files are recorded as a region's inputs are, under a name of three parts, and one
transaction takes them. There are no epochs: files that a replaced reader takes are lost, as no other reader gets them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from drainmark.jobs import world
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
from drainmark.jobs.protocol.history import manifest_of
from drainmark.jobs.protocol.records.triggers import Trigger
from drainmark.orchestration.discovery.scan_recording import record_scan

if TYPE_CHECKING:
    from drainmark.orchestration.workplace.workplace import Workplace

NO_EPOCH = 0
"""The epoch of cursors in the registry, which no process ever claims."""


def cursor_name(reader: str, source: str) -> str:
    """Return the name under which the registry keeps a cursor: `APP/READER/SOURCE`."""
    return f"{reader}/{source}"


@dataclass(frozen=True, slots=True)
class Feeds:
    """The cursors of all autonomous sources of a workplace."""

    workplace: Workplace

    def take(self, reader: str, source: DirectorySource, sequence_id: int = 0, *, limit: int = 0) -> Sequence[Trigger]:
        """Scan a source's folder, take the oldest files for a reader and return them; no other call returns them.

        A file that changed after it was taken is taken again only if `on_change` is `"reprocess"`, because its old
        rows then come twice.

        Args:
            reader: name of the region, or of the autonomous part, that reads the source.
            sequence_id: recorded as the id for which they were taken.
            limit: largest number of files, 0 for the limit of the settings.

        Raises:
            UsageError: the folder does not exist.
            StoreUnavailable, StoreRefused: the folder or the registry does not answer; nothing was taken.
        """
        registry, settings = self.workplace.registry, self.workplace.settings
        name = self._scanned(reader, source)
        if not registry.triggers.pending(name, 1):
            return []  # this look takes no lock
        count = limit or settings.max_group_triggers
        found: list[Trigger] = registry.triggers.take_pending(
            name, NO_EPOCH, count, settings.max_group_bytes, sequence_id=sequence_id
        )
        return found

    def pending(self, reader: str, source: DirectorySource) -> int:
        """Scan a source's folder, and return the number of files that the reader has not taken yet.

        Raises:
            UsageError, StoreUnavailable, StoreRefused: as `take`.
        """
        return int(self.workplace.registry.pending_count(self._scanned(reader, source)))

    def numbers(self, reader: str, source: DirectorySource, count: int) -> int:
        """Return the first of `count` consecutive numbers that the reader never got before."""
        return int(self.workplace.registry.progress.take_ids(cursor_name(reader, source.name), NO_EPOCH, count))

    def _scanned(self, reader: str, source: DirectorySource) -> str:
        """Record the new files of a source's folder; return the name of the reader's cursor."""
        from drainmark.orchestration.workplace.region_sources import source_folder

        registry = self.workplace.registry
        name = cursor_name(reader, source.name)
        first_look = not registry.is_known(name)
        scan = source.scan if source.scan.on_change == "reprocess" else replace(source.scan, on_change="ignore")
        location = source_folder(self.workplace, source)
        record_scan(registry, name, self.workplace.inputs, location, scan, now=world.now())
        if first_look and self._was_read(reader, source):
            self._pass_over(name)
        return name

    def _was_read(self, reader: str, source: DirectorySource) -> bool:
        """Say whether the reader's checkpoint table names files of a source that the registry does not know.

        If so, the registry was lost, and the files in the folder may have been read.
        """
        checkpoint = self.workplace.store(reader).checkpoint
        rows = checkpoint.rows() if checkpoint.exists() else ()  # also of late stages, and withdrawn
        manifests = (manifest_of(row) for row in rows)
        return any(manifest is not None and source.name in manifest.feeds for manifest in manifests)

    def _pass_over(self, name: str) -> None:
        registry = self.workplace.registry
        while registry.triggers.take_pending(name, NO_EPOCH, 5000, sequence_id=0):
            pass
