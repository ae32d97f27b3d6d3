"""Names of visible tables in Spark's catalogues, given beside the groups once a group is published.

A failure here fails no group: it is reported, kept for `status`, and tried again. A catalogue may lose its names
with the session that it belongs to, so each run checks again.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field

from drainmark.jobs import world
from drainmark.jobs.errors import DrainmarkError, Fenced, StoreRefused, StoreUnavailable
from drainmark.jobs.errors.spark_faults import telling_line
from drainmark.jobs.protocol.records.manifest import REGISTERED, WITHOUT_NAMES, RegionTable
from drainmark.jobs.runtime.commit.region_owner import RegionOwner

AGAIN_SECONDS = 60.0
"""Time between two attempts; a catalogue that hangs delays no group."""

_END_SECONDS = 60.0
"""How long the end of a run waits for a catalogue: the first call to a metastore takes tens of seconds."""


@dataclass(slots=True, kw_only=True)
class TableNames:
    """The names of the tables of one owner's region in Spark's catalogues, and the attempts to give them."""

    owner: RegionOwner
    _without: dict[str, RegionTable] | None = None
    _failures: dict[str, str] = field(default_factory=dict)
    _under_way: world.Answer[dict[str, str]] | None = None
    _due_at: float = 0.0

    def give(self) -> None:
        """Begin to give tables their names if that is due, without waiting; all committed groups must be visible."""
        if not self.owner.history.committed_id:
            return
        if self._without is None:
            tables = self.owner.history.tables
            self._without = {table.name: table for table in tables if table.options.get(REGISTERED)}
        self._take()
        if self._without and self._under_way is None and world.monotonic() >= self._due_at:
            tables = tuple(self._without.values())
            self._under_way = world.Answer(lambda: self._attempt(tables), "table-names")

    def settle(self) -> None:
        """Wait for the attempt under way, at most `_END_SECONDS`."""
        if self._under_way is None:
            return
        if self._under_way.wait(_END_SECONDS):
            self._take()
        else:
            late = f"the catalogue did not answer within {_END_SECONDS:g} s; the next run tries again"
            self._note(dict.fromkeys(self._without or (), late))

    def _attempt(self, tables: tuple[RegionTable, ...]) -> dict[str, str]:
        """Give tables their names; return by table the error, "" if it has its name; runs beside the groups."""
        found = {}
        for table in tables:
            try:
                self.owner.outside.register(table)
                found[table.name] = ""
            except Exception as error:  # a catalogue's client may raise anything
                found[table.name] = str(error) if isinstance(error, DrainmarkError) else telling_line(str(error))
        return found

    def _take(self) -> None:
        """Note the result of an attempt that has ended."""
        if self._under_way is None or not self._under_way.is_there:
            return
        found, self._under_way = self._under_way.get(), None
        self._due_at = world.monotonic() + AGAIN_SECONDS
        self._note(found)

    def _note(self, found: dict[str, str]) -> None:
        tables = self._without or {}
        for name, error in found.items():
            if not error or error != self._failures.get(name):
                numbers = {"table": name, "name": tables[name].options[REGISTERED], "failed": error or None}
                self.owner.report("register", numbers)
        self._failures = {name: error for name, error in found.items() if error}
        self._without = {name: table for name, table in tables.items() if name in self._failures}
        region, registry = self.owner.region, self.owner.outside.registry
        with suppress(StoreUnavailable, StoreRefused, Fenced):  # the next owner tries again, perhaps now already
            if json.loads(registry.load_cursor(region, WITHOUT_NAMES) or "{}") != self._failures:
                registry.save_cursor(region, WITHOUT_NAMES, json.dumps(self._failures), epoch=self.owner.epoch)
