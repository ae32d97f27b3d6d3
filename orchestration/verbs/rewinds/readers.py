"""The regions of this home that read tables of another one: found by the ids of the tables in their positions."""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from drainmark.jobs.protocol.chains import IDS, Follower, Link, followers, pieces_read, readings_of
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.manifest import RegionTable
from drainmark.jobs.protocol.records.triggers import slices_of
from drainmark.jobs.runtime.commit.removal.table_drops import table_id_of
from drainmark.orchestration.workplace.declaration import declared
from drainmark.orchestration.workplace.workplace import Workplace


def followers_of(workplace: Workplace, region: str, to: int) -> tuple[Follower, ...]:
    """Return the regions that a rewind of a region takes along, see `jobs.protocol.chains.followers`."""
    found = Home(workplace)
    return followers(
        region,
        to,
        links=found.links,
        history=found.history,
        horizon=lambda reader: declared(workplace, reader).rewind_horizon,
    )


def cascade_flag(workplace: Workplace, region: str) -> str:
    """Return what the `reset` of a region needs behind its target if other regions read it; else it is refused."""
    return " --cascade" if Home(workplace).links(region) else ""


class Home:
    """The regions of a home, each read once."""

    def __init__(self, workplace: Workplace) -> None:
        self._workplace = workplace
        self.history = functools.cache(workplace.history)
        self._regions = functools.cache(workplace.own_regions)

    def links(self, region: str, *, keeping: bool = False) -> tuple[Link, ...]:
        """Return the starts of all regions that read a table of a region.

        Args:
            keeping: also those that keep what leaves.
        """
        tables: Mapping[str, RegionTable] | None = None
        found = []
        for reader in self._regions():
            for reading in readings_of(self.history(reader)):
                if (reading.keeps and not keeping) or reading.home or reading.region not in (None, region):
                    continue
                tables = tables if tables is not None else tables_of(self._workplace, region, self.history(region))
                if reading.table in tables:
                    named = {"source": reading.source, "table": reading.table}
                    found.append(Link(reader=reader, upstream=region, has_changes=reading.has_changes, **named))
        return tuple(found)


def readers_of(
    workplace: Workplace, region: str, numbers: Iterable[int], spared: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return the states in force of other regions that read rows of some ids of a region, and of those regions again.

    Each has `region`, `sequence_id` and `trigger`; nearest first.

    Args:
        spared: ids of tables that have no rows of these ids: a slice of them only spans the ids.
    """
    home = Home(workplace)
    found: dict[tuple[str, int], dict[str, Any]] = {}
    waiting = [(region, sorted(numbers))]
    while waiting:
        above, ids = waiting.pop(0)
        for link in home.links(above, keeping=True):
            if link.table in spared:
                continue
            new = []
            for number, row in pieces_read(home.history(link.reader), link.source):
                first, last = slices_of(row.trigger_identity or {})[link.source].get(IDS, (1, 0))
                place = bisect_left(ids, first)
                if place < len(ids) and ids[place] <= last and (link.reader, number) not in found:
                    found[link.reader, number] = {
                        "region": link.reader, "sequence_id": number, "trigger": row.trigger_uri}  # fmt: skip
                    new.append(number)
            if new:
                waiting.append((link.reader, new))
    return list(found.values())


def tables_of(workplace: Workplace, region: str, history: RegionHistory) -> Mapping[str, RegionTable]:
    """Return the tables that a region made and still has, by their ids, as positions in them name them."""
    store = workplace.store(region)
    named = (table for table in (*history.tables, *history.former) if table.is_managed and store.is_own(table))
    return {table_id_of(store.table(table.name).folder): table for table in named}
