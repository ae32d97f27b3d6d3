"""The opener of sinks outside Delta. The checkpoint table names the adapter of a sink and its options."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from drainmark.jobs.errors import UsageError
from drainmark.jobs.protocol.records.manifest import RegionTable

if TYPE_CHECKING:
    from drainmark.jobs.runtime.outside import External
    from drainmark.resources.settings import Settings


class Externals:
    """The adapters of sinks with the settings of this process; a connection is made only when a verb is called.

    Args:
        settings: have the addresses and credentials, which checkpoint rows do not contain.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def open(
        self,
        table: RegionTable,
        region: str,
        identity: Callable[[], str | None],
        *,
        epoch: int,
        seen: dict[str, int],
    ) -> External:
        """Return the adapter of a sink.

        Args:
            identity: returns the unique id of the region's checkpoint table, None before that table exists.
            epoch: of the owner, 0 for a caller that only reads.
            seen: version by sink that it had reached when the caller last saw it; see `SeenVersion`.

        Raises:
            UsageError: a newer Drainmark made the sink, or a setting is missing.
        """
        if table.external == "database":
            from drainmark.resources.sinks.database_tables import DatabaseTable

            return DatabaseTable(self._settings, table, region, identity, seen=seen)
        if table.external == "file":
            from drainmark.resources.sinks.file_tables import FileTable

            return FileTable(self._settings, table, region, identity, epoch=epoch, seen=seen)
        raise UsageError(f"{table.name} needs an adapter {table.external!r}", remedy="install a newer Drainmark")
