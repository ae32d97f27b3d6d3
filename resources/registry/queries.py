"""The statements of the registry, queries to look at it, and access to an SQLite file without SQLAlchemy.

A statement is a file `sql/TABLE/NAME.sql`, the same for both databases. If SQLite and PostgreSQL cannot share one, each
has its file: `NAME.sqlite.sql`, `NAME.postgresql.sql`.

Importing SQLAlchemy takes longer than all queries of `status`, so a registry in a file is read with Python's own
`sqlite3`. Nothing here writes.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from drainmark.jobs import world
from drainmark.jobs.errors import StoreUnavailable
from drainmark.jobs.protocol.records.triggers import Trigger, TriggerStatus

if TYPE_CHECKING:
    from sqlalchemy import TextClause

FOLDER = Path(__file__).parents[2] / "sql"


@cache
def text_of(name: str) -> str:
    """Return the text of `sql/NAME.sql`, without importing SQLAlchemy, which would take too long for `status`."""
    return (FOLDER / f"{name}.sql").read_text(encoding="utf-8")


@cache
def statement(name: str, *lists: str) -> TextClause:
    """Return `sql/NAME.sql` for SQLAlchemy.

    Args:
        lists: the parameters that are lists of values.
    """
    from sqlalchemy import bindparam, text

    return text(text_of(name)).bindparams(*(bindparam(parameter, expanding=True) for parameter in lists))


REVISIONS = ("0001", "0002")
"""Every revision in sql/migrations, oldest first: known without importing alembic."""
BUSY_SECONDS = 30
_PLACES_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionInfo:
    """The progress of one region; an unknown region has epoch 0 and next id 1.

    Attributes:
        newest_id: the largest id of a committed or skipped input; 0 if there is none.
    """

    region: str
    next_id: int = 1
    epoch: int = 0
    state: str = ""
    last_error: Mapping[str, Any] | None = None
    last_error_at: dt.datetime | None = None
    halt_requested: str | None = None
    newest_id: int = 0


def utc(seconds: float) -> dt.datetime:
    """Return a time of the tables as a datetime."""
    return dt.datetime.fromtimestamp(seconds, tz=dt.UTC)


def trigger_of(row: Mapping[Any, Any]) -> Trigger:
    """Return a row of `drainmark_trigger`, all columns, as a value."""
    fields = dict(row)
    fields["identity"] = json.loads(fields["identity"])
    fields["status"] = TriggerStatus(fields["status"])
    fields["discovered_at"] = utc(fields["discovered_at"])
    return Trigger(**fields)


def region_of(row: Mapping[Any, Any]) -> RegionInfo:
    """Return a row of `drainmark_region`, all columns, as a value."""
    fields = dict(row)
    del fields["probed"]
    error, at = fields["last_error"], fields["last_error_at"]
    fields["last_error"] = None if error is None else json.loads(error)
    fields["last_error_at"] = None if at is None else utc(at)
    return RegionInfo(**fields)


def is_cursor(name: str) -> bool:
    """Say whether a name in the registry is that of a cursor, not of a region."""
    return name.count("/") > 1


class Looks(ABC):
    """Queries of a registry, each in a transaction of its own that reads one snapshot and waits for no writer."""

    @abstractmethod
    def _ask(self, name: str, **values: Any) -> list[Mapping[Any, Any]]:
        """Return the rows that `sql/NAME.sql` finds, by column; a parameter may be a list of values."""

    @abstractmethod
    def clock(self) -> float:
        """Return the database's time, seconds since 1970 UTC; SQLite's is that of this machine."""

    def regions(self) -> list[str]:
        """Return the names of all regions, sorted; not those of queues of periodic starts, `REGION#START`."""
        return [row["region"] for row in self._ask("regions/names")]

    def region_info(self, region: str) -> RegionInfo:
        """Return a region's progress."""
        rows = self._ask("regions/one", region=region)
        return region_of(rows[0]) if rows else RegionInfo(region=region)

    def pending_count(self, region: str) -> int:
        """Return how many inputs are pending."""
        return int(self._ask("triggers/pending_count", region=region)[0]["waiting"])

    def by_order(self, region: str, orders: Sequence[int]) -> list[Trigger]:
        """Return the inputs at these places in the order, to find the triggers of checkpoint rows."""
        places = sorted(set(orders))
        parts = [places[first : first + _PLACES_AT_ONCE] for first in range(0, len(places), _PLACES_AT_ONCE)]
        found = (row for part in parts for row in self._ask("triggers/by_order", region=region, orders=part))
        return [trigger_of(row) for row in found]

    def load_cursor(self, region: str, source: str) -> str | None:
        """Return the cursor that `save_cursor` stored; None if there is none."""
        rows = self._ask("cursors/load", region=region, source=source)
        return rows[0]["cursor"] if rows else None

    def lease_row(self, region: str) -> Mapping[Any, Any] | None:
        """Return the row of the region's lease and, as `now`, the database's time; None if it was never held."""
        rows = self._ask("leases/one", region=region)
        return {**rows[0], "now": self.clock()} if rows else None


class SqliteLooks(Looks):
    """Queries of the registry in an SQLite file, which is neither created nor migrated.

    Raises:
        StoreUnavailable: no answer (any method may raise it).
    """

    def __init__(self, file: Path) -> None:
        self._uri = f"file:{quote(os.fsencode(file))}?mode=rw"  # with mode=ro SQLite cannot create its -wal and -shm

    def is_of_today(self) -> bool:
        """Say whether the file can be read and has the newest revision; if not, `Registry` raises the reason."""
        try:
            return [row["version_num"] for row in self._rows("registry/revision", {})] == [REVISIONS[-1]]
        except sqlite3.Error:
            return False

    def clock(self) -> float:
        return world.now()

    def _ask(self, name: str, **values: Any) -> list[Mapping[Any, Any]]:
        try:
            return self._rows(name, values)
        except sqlite3.Error as error:
            msg = f"the registry does not answer: {error}"
            raise StoreUnavailable(msg, remedy="drainmark doctor") from error

    def _rows(self, name: str, values: Mapping[str, Any]) -> list[Mapping[Any, Any]]:
        text = text_of(name)
        for parameter, value in values.items():
            if isinstance(value, list):  # a list of numbers; a parameter of SQLite cannot be a list
                text = text.replace(f":{parameter}", f"({', '.join(str(int(one)) for one in value) or 'NULL'})")
        single = {parameter: value for parameter, value in values.items() if not isinstance(value, list)}
        with closing(sqlite3.connect(self._uri, timeout=BUSY_SECONDS, uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(text, single)]
