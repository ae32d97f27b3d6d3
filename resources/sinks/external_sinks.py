"""Opens sinks outside Delta by what the checkpoint table says of them: the adapter's name and its options."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from drainmark.jobs.errors import UsageError
from drainmark.jobs.protocol.records.manifest import RegionTable

if TYPE_CHECKING:
    from drainmark.jobs.runtime.outside import External
    from drainmark.resources.settings import Settings


class Externals:
    """The adapters, by the settings of this process; nothing is connected to before a verb is called.

    Args:
        settings: have the addresses and credentials that checkpoint rows leave out.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def open(
        self,
        table: RegionTable,
        region: str,
        identity: Callable[[], str | None],
        epoch: int,
        faults: Callable[[str], None],
    ) -> External:
        """Return a sink.

        Args:
            identity: gives what tells the region's checkpoint table from any other, None before there is one.
            epoch: of the owner, 0 for whoever only looks.
            faults: called around each commit with its step.

        Raises:
            UsageError: a newer Drainmark made it, or a setting is missing.
        """
        if table.external == "database":
            from drainmark.resources.sinks.database_tables import DatabaseTable

            return DatabaseTable(self._settings, table, region, identity, faults=faults)
        if table.external == "file":
            from drainmark.resources.sinks.file_tables import FileTable

            return FileTable(self._settings, table, region, identity, epoch=epoch, faults=faults)
        raise UsageError(f"{table.name} needs an adapter {table.external!r}", remedy="install a newer Drainmark")
