"""The registry: known triggers, progress, cursors and leases of all regions, in SQLite or PostgreSQL.

It is an index of the checkpoint tables, never the truth, and can be rebuilt from them. Each public method is one short
transaction, without any other I/O in it. Every write of a run carries its epoch and raises `Fenced` if the region has
another epoch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from sqlalchemy.exc import DatabaseError

from drainmark.jobs.errors import Fenced, RegistryLost
from drainmark.jobs.protocol.records.triggers import RebuiltTrigger
from drainmark.resources.registry.database import Database
from drainmark.resources.registry.engines import engine_of
from drainmark.resources.registry.migration import bring_up_to_date
from drainmark.resources.registry.progress import RegionProgress
from drainmark.resources.registry.queries import Looks, statement
from drainmark.resources.registry.triggers import Triggers, insert

_OF_INPUTS = ("triggers/forget", "cursors/forget", "directories/forget")


class Registry(Looks):
    """The registry at `url`; opening it creates or migrates it. Threads may share one, forked processes may not.

    Attributes:
        triggers: the inputs of all regions.
        progress: the progress of each region.
        database: transactions, for the lease and the scans.

    Raises:
        FormatTooNew: a newer Drainmark created it; it stays unchanged.
        RegistryLost: the SQLite file is damaged.
        StoreUnavailable: no answer, or another process has locked it for 30 s (any method may raise it).
    """

    def __init__(self, url: str) -> None:
        self.database = Database(engine_of(url))
        self.triggers = Triggers(self.database)
        self.progress = RegionProgress(self.database)
        try:
            bring_up_to_date(self.database)
        except Exception as error:
            self.close()
            # SQLite's "malformed" and "not a database" have exactly this class, all other errors a subclass.
            if type(error) is DatabaseError:
                raise RegistryLost(f"{url} is damaged: {error.orig}", remedy="drainmark doctor --repair") from error
            raise
        self._file = self._file_now()

    def is_in_place(self) -> bool:
        """Say whether the file that is open is still that of the URL: a file may be deleted, or replaced."""
        return self._file == self._file_now()

    def _file_now(self) -> tuple[int, int] | None:
        """Return what another file in its place would not have; None without a file."""
        if self.database.dialect != "sqlite":
            return None
        with suppress(FileNotFoundError):
            facts = os.stat(str(self.database.engine.url.database))
            return facts.st_dev, facts.st_ino
        return None

    def close(self) -> None:
        """Close all connections."""
        self.database.engine.dispose()

    def clock(self) -> float:
        with self.database.reading() as connection:
            return self.database.now(connection)

    def is_known(self, region: str) -> bool:
        """Say whether a scan or a run of the region has ever written here."""
        return bool(self.database.rows("regions/one", region=region))

    def is_empty(self, region: str) -> bool:
        """Say whether no run of the region has written here. Triggers prove nothing: a scan may have written them."""
        return self.region_info(region).epoch == 0

    def save_cursor(self, region: str, source: str, cursor: str, *, epoch: int | None = None) -> None:
        """Store the cursor of a source's scan, a text in the format of the scan.

        Args:
            epoch: of the owner that notes how far it is; None for what no owner writes.

        Raises:
            Fenced: the region has another epoch; nothing is written.
        """
        values = {"region": region, "source": source, "cursor": cursor}
        if epoch is not None:
            self.database.change("cursors/save", epoch=epoch, **values)
            return
        with self.database.writing() as connection:
            connection.execute(statement("cursors/save"), values)

    def rebuild(
        self,
        region: str,
        *,
        epoch: int,
        next_id: int,
        triggers: Sequence[RebuiltTrigger],
        cursors: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Replace a region's triggers, progress and cursors, all or nothing.

        The lease, a halt request, the probed operators, and a next id that is already higher stay unchanged.

        Args:
            cursors: the only ones that it has then.

        Raises:
            Fenced: the region has reached a higher epoch.
        """
        values = {"region": region, "epoch": epoch, "next_id": next_id}
        with self.database.writing() as connection:
            connection.execute(statement("regions/add"), {"region": region})
            if not connection.execute(statement("regions/rebuild"), values).rowcount:
                raise Fenced(f"region {region} is above epoch {epoch}", region=region, epoch=epoch)
            for forgotten in _OF_INPUTS:
                connection.execute(statement(forgotten), {"region": region})
            for source, cursor in cursors.items():
                connection.execute(statement("cursors/save"), {"region": region, "source": source, "cursor": cursor})
            insert(connection, region, triggers, self.database.now(connection))

    def forget(self, region: str) -> None:
        """Delete everything about a region and the queues of its starts, all or nothing: it left the code, and its
        tables are gone. Writes of an owner that still lives are refused from then on."""
        with self.database.writing() as connection:
            values = {"prefix": f"{region}#", "length": len(region) + 1}  # LIKE would take `_` for any letter
            queues = connection.execute(statement("regions/queues"), values).scalars().all()
            for name in (region, *queues):
                for forgotten in (*_OF_INPUTS, "leases/forget", "regions/forget"):
                    connection.execute(statement(forgotten), {"region": name})

    def _ask(self, name: str, **values: Any) -> list[Mapping[Any, Any]]:
        return self.database.rows(name, **values)
