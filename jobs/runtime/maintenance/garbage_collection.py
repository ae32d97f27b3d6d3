"""The search for files of a region that nobody needs, and their deletion: `gc`, and a step of a run's maintenance.

Deletion is safe only under a claim: then staged files of older epochs are dead, and all committed groups are published.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.manifest import RegionTable
from drainmark.jobs.protocol.retention import files_within_horizon, first_id_within_horizon
from drainmark.jobs.protocol.stage_flow import channels_folder
from drainmark.jobs.runtime.commit.rewind_contents import own_tables
from drainmark.jobs.runtime.outside import Outside

if TYPE_CHECKING:
    from drainmark.resources.checkpoints.region_store import RegionTables
    from drainmark.resources.delta.upkeep.garbage import Garbage

EVERY_SECONDS = 3600.0
"""Minimum time between two collections of one run."""

_KEPT = dt.timedelta(days=1)
_SKEW_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The garbage that was found; `clear` also deletes it.

    Attributes:
        tables: garbage by table; also of the checkpoint table `checkpoints/<region>` and of the channels.
        spools: folders of dead attempts: links to inputs, copies of objects.
    """

    tables: tuple[Garbage, ...] = ()
    spools: tuple[Path, ...] = ()

    @property
    def files(self) -> int:
        return sum(len(garbage.files) for garbage in self.tables)

    @property
    def size(self) -> int:
        """Return the bytes of the files."""
        return sum(garbage.size for garbage in self.tables)


def find_garbage(
    store: RegionTables, tables: Sequence[RegionTable], *, below_epoch: int, horizon: int, now: float
) -> Collected:
    """Return the garbage of a region.

    Args:
        tables: all tables that the region has or had; those that are not managed are ignored.
        below_epoch: the epoch of the owner, or one above that of the last owner if the region has none.
        horizon: number of ids, as `rewind_horizon`.
        now: seconds since 1970, by a clock without a `clock_fault`.
    """
    moment = dt.datetime.fromtimestamp(now, dt.UTC)
    history, since = store.checkpoint.history(), moment - _KEPT
    rows = store.checkpoint.rows(first_id_within_horizon(history, horizon=horizon, withdrawn_since=since))
    named = files_within_horizon(history, rows, horizon=horizon, withdrawn_since=since)
    names = [*(table.name for table in tables if table.is_managed), f"checkpoints/{store.region}"]
    names.append(channels_folder(store.region))
    found = [
        store.leftovers.garbage(name, named.get(name, frozenset()), below_epoch=below_epoch, now=now) for name in names
    ]
    spools = store.leftovers.dead_spools(below_epoch=below_epoch, before=since.timestamp())
    return Collected(tables=tuple(garbage for garbage in found if garbage.files), spools=spools)


def clear(store: RegionTables, tables: Sequence[RegionTable], *, epoch: int, horizon: int, now: float) -> Collected:
    """Delete the garbage of a region; the caller has the claim, and has published all committed groups.

    Tables with garbage are fenced and searched again: otherwise an owner that was stopped before a commit could add a
    file to a table between the search and the deletion.

    Args:
        epoch: of the owner.
    """
    found = find_garbage(store, tables, below_epoch=epoch, horizon=horizon, now=now)
    names = {garbage.table for garbage in found.tables}
    if names:
        store.leftovers.fence(sorted(names), epoch)
        tables = [table for table in tables if table.name in names]
        found = find_garbage(store, tables, below_epoch=epoch, horizon=horizon, now=now)
    discard(store, found)
    return found


def discard(store: RegionTables, found: Collected) -> None:
    """Delete the garbage that `find_garbage` returned."""
    for garbage in found.tables:
        store.leftovers.discard(garbage)
    store.leftovers.discard_spools(found.spools)


def collect(outside: Outside, history: RegionHistory, *, horizon: int) -> dict[str, Any]:
    """Delete garbage as a step of an owner's run; return numbers for its report, or the reason for deleting nothing."""
    fault = clock_fault(history, here=outside.clock(), registry=outside.registry.clock())
    if fault is not None:
        return {"refused": fault}
    tables = own_tables(outside.store, history)
    found = clear(outside.store, tables, epoch=history.epoch, horizon=horizon, now=outside.clock())
    return {"files": found.files, "bytes": found.size, "spools": len(found.spools)}


def clock_fault(history: RegionHistory, *, here: float, registry: float) -> str | None:
    """Return the fault of the clock, None if there is none: with a doubtful clock nothing may be deleted.

    Args:
        here: this machine's time, seconds since 1970.
        registry: the registry's time.
    """
    if abs(here - registry) > _SKEW_SECONDS:
        return f"this machine's clock and the registry's differ by {abs(here - registry):.0f} s"
    newest = history.totals.newest
    if newest > here + _SKEW_SECONDS:
        return f"the checkpoint table has a row of {newest - here:.0f} s in the future"
    return None
