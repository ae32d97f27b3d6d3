"""What a scan asks the registry, and keeps in it: single uris, never all of them as objects.

Every answer costs the same with a million known inputs as with ten; only `hashes` reads them all, once a process.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row, TextClause, text

from drainmark.jobs.protocol.records.triggers import TriggerStatus, file_key
from drainmark.jobs.runtime.scan.index import ScanNote, in_batches
from drainmark.resources.registry.models import SAVE_CURSOR

if TYPE_CHECKING:
    from drainmark.resources.registry.registry import Registry

_URIS_AT_ONCE = 500  # below what any SQLite takes as parameters
_SOURCE = "@scan"  # of the note, among the cursors of the region

# SQLite takes a long IN for dearer than to read the whole region, so the uris are made the outer loop.
_KNOWN: Mapping[str, TextClause] = {
    "sqlite": text(
        "SELECT known.uri, known.identity_key, known.order_index FROM json_each(:uris) AS asked"
        " CROSS JOIN drainmark_trigger AS known WHERE known.region = :region AND known.uri = asked.value"
    ),
    "postgresql": text(
        "SELECT uri, identity_key, order_index FROM drainmark_trigger WHERE region = :region AND uri = ANY(:uris)"
    ),
}
_URIS = text("SELECT uri FROM drainmark_trigger WHERE region = :region")
_PASSED = text(
    "SELECT uri FROM drainmark_trigger AS passed WHERE region = :region AND status = :status AND NOT EXISTS"
    " (SELECT 1 FROM drainmark_trigger AS later WHERE later.region = passed.region AND later.uri = passed.uri"
    " AND later.order_index > passed.order_index) ORDER BY order_index DESC LIMIT :limit"
)
_LOCK_NOTE = text(
    "UPDATE drainmark_cursor SET cursor = cursor WHERE region = :region AND source = :source RETURNING cursor"
)
_DIRECTORIES = text("SELECT uri, stamp FROM drainmark_directory WHERE region = :region")
_NOTE_DIRECTORY = text(
    "INSERT INTO drainmark_directory (region, uri, stamp) VALUES (:region, :uri, :stamp)"
    " ON CONFLICT (region, uri) DO UPDATE SET stamp = excluded.stamp"
)
_FORGET_DIRECTORY = text("DELETE FROM drainmark_directory WHERE region = :region AND uri = :uri")
_FORGET_DIRECTORIES = text("DELETE FROM drainmark_directory WHERE region = :region")


@dataclass(frozen=True, slots=True)
class RegistryScans:
    """One region's part of the registry, as its scan sees it; `jobs.runtime.scan.index.ScanMemory` says the terms."""

    registry: Registry
    region: str

    def known(self, uris: Collection[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        with self.registry.reading() as connection:
            statement, is_sqlite = _KNOWN[connection.dialect.name], connection.dialect.name == "sqlite"
            for some in in_batches(uris, _URIS_AT_ONCE):
                asked = json.dumps(some) if is_sqlite else list(some)
                rows = connection.execute(statement, {"region": self.region, "uris": asked}).fetchall()
                found.update((uri, file_key(key)) for uri, key, _ in sorted(rows, key=_order))
        return found

    def hashes(self) -> array[int]:
        found = array("q")
        with self.registry.reading() as connection:
            rows = connection.execution_options(yield_per=10_000).execute(_URIS, {"region": self.region})
            found.extend(map(hash, rows.scalars()))
        return found

    def passed(self, statuses: Iterable[TriggerStatus], limit: int) -> list[str]:
        found: list[str] = []
        with self.registry.reading() as connection:
            for status in statuses:
                values = {"region": self.region, "status": status.value, "limit": limit}
                found += connection.execute(_PASSED, values).scalars()
        return found

    def load_note(self) -> str | None:
        return self.registry.load_cursor(self.region, _SOURCE)

    def directories(self) -> dict[str, str]:
        with self.registry.reading() as connection:
            return {row[0]: row[1] for row in connection.execute(_DIRECTORIES, {"region": self.region})}

    def begin(self, note: str) -> None:
        with self.registry.writing() as connection:
            connection.execute(SAVE_CURSOR, self._source() | {"cursor": note})
            connection.execute(_FORGET_DIRECTORIES, {"region": self.region})

    def keep(self, token: str, note: str | None, stamps: Mapping[str, str | None] | None = None) -> None:
        stamps = stamps or {}
        if note is None and not stamps:
            return
        seen = [{"region": self.region, "uri": uri, "stamp": stamp} for uri, stamp in stamps.items() if stamp]
        gone = [{"region": self.region, "uri": uri} for uri, stamp in stamps.items() if not stamp]
        with self.registry.writing() as connection:
            kept = ScanNote.from_text(connection.execute(_LOCK_NOTE, self._source()).scalar())
            if kept is None or kept.token != token:
                return
            for statement, rows in ((_NOTE_DIRECTORY, seen), (_FORGET_DIRECTORY, gone)):
                if rows:
                    connection.execute(statement, rows)
            if note is not None:
                connection.execute(SAVE_CURSOR, self._source() | {"cursor": note})

    def _source(self) -> dict[str, str]:
        return {"region": self.region, "source": _SOURCE}


def _order(row: Row[Any]) -> int:
    return int(row.order_index)
