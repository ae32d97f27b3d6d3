"""The queries and rows of a scan in the registry: single uris, never all of them as objects.

Every query costs the same with a million known inputs as with ten; only `hashes` reads all, once in each process.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row

from drainmark.jobs.protocol.records.triggers import TriggerStatus, file_key
from drainmark.jobs.scan.index import ScanNote, in_batches
from drainmark.resources.registry.queries import statement

if TYPE_CHECKING:
    from drainmark.resources.registry.registry import Registry

_URIS_AT_ONCE = 500  # fewer than any SQLite takes as parameters
_SOURCE = "@scan"  # the source of the scan's note, among the cursors of the region


@dataclass(frozen=True, slots=True)
class RegistryScans:
    """One region's part of the registry, for its scan; the contract is `jobs.scan.index.ScanMemory`."""

    registry: Registry
    region: str

    def known(self, uris: Collection[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        with self.registry.database.reading() as connection:
            dialect = connection.dialect.name
            known = statement(f"triggers/asked.{dialect}")
            for some in in_batches(uris, _URIS_AT_ONCE):
                asked = json.dumps(some) if dialect == "sqlite" else list(some)
                rows = connection.execute(known, {"region": self.region, "uris": asked}).fetchall()
                found.update((row.uri, file_key(row.identity_key)) for row in sorted(rows, key=_order))
        return found

    def hashes(self) -> array[int]:
        found = array("q")
        with self.registry.database.reading() as connection:
            rows = connection.execution_options(yield_per=10_000).execute(
                statement("triggers/uris"), {"region": self.region}
            )
            found.extend(map(hash, rows.scalars()))
        return found

    def passed(self, statuses: Iterable[TriggerStatus], limit: int) -> list[str]:
        found: list[str] = []
        with self.registry.database.reading() as connection:
            for status in statuses:
                values = {"region": self.region, "status": status.value, "limit": limit}
                found += connection.execute(statement("triggers/passed"), values).scalars()
        return found

    def load_note(self) -> str | None:
        return self.registry.load_cursor(self.region, _SOURCE)

    def directories(self) -> dict[str, str]:
        with self.registry.database.reading() as connection:
            return {row[0]: row[1] for row in connection.execute(statement("directories/all"), {"region": self.region})}

    def begin(self, note: str) -> None:
        with self.registry.database.writing() as connection:
            connection.execute(statement("cursors/save"), self._source() | {"cursor": note})
            connection.execute(statement("directories/forget"), {"region": self.region})

    def keep(self, token: str, note: str | None, stamps: Mapping[str, str | None] | None = None) -> None:
        stamps = stamps or {}
        if note is None and not stamps:
            return
        seen = [{"region": self.region, "uri": uri, "stamp": stamp} for uri, stamp in stamps.items() if stamp]
        gone = [{"region": self.region, "uri": uri} for uri, stamp in stamps.items() if not stamp]
        with self.registry.database.writing() as connection:
            kept = ScanNote.from_text(connection.execute(statement("cursors/lock"), self._source()).scalar())
            if kept is None or kept.token != token:
                return
            for name, rows in (("directories/note", seen), ("directories/forget_one", gone)):
                if rows:
                    connection.execute(statement(name), rows)
            if note is not None:
                connection.execute(statement("cursors/save"), self._source() | {"cursor": note})

    def _source(self) -> dict[str, str]:
        return {"region": self.region, "source": _SOURCE}


def _order(row: Row[Any]) -> tuple[bool, int]:
    return bool(row.stands), int(row.order_index)
