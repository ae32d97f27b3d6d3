"""Find and delete what a region left behind that nobody needs: `gc`, and a step of a run's maintenance.

Sound under a claim alone: what older epochs staged is dead then, and all that is committed has been published.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.manifest import RegionTable
from drainmark.jobs.protocol.retention import files_in_reach, first_id_in_reach
from drainmark.jobs.protocol.stage_flow import channels_folder
from drainmark.jobs.runtime.commit.rewind_reach import own_tables
from drainmark.jobs.runtime.outside import Garbage, Outside, RegionStore

EVERY_SECONDS = 3600.0
"""Between two collections of one run."""

_KEPT = dt.timedelta(days=1)
_SPOOL_SECONDS = 3600.0  # a probe, which has no claim, is over by then
_SKEW_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What was found, and deleted unless it was only looked for.

    Attributes:
        tables: those of which something can go, the checkpoint table `checkpoints/<region>` among them.
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
    store: RegionStore, tables: Sequence[RegionTable], *, below_epoch: int, horizon: int, now: float
) -> Collected:
    """Find what can go.

    Args:
        tables: all that the region has or had; those that are not managed are not looked at.
        below_epoch: the epoch of the owner, or one above the last owner's where nobody owns the region.
        horizon: number of ids, as `rewind_horizon` has it.
        now: seconds since 1970, of a clock that `clock_fault` does not complain about.
    """
    moment = dt.datetime.fromtimestamp(now, dt.UTC)
    history, since = store.checkpoint.history(), moment - _KEPT
    rows = store.checkpoint.rows(first_id_in_reach(history, horizon=horizon, withdrawn_since=since))
    named = files_in_reach(history, rows, horizon=horizon, withdrawn_since=since)
    names = [*(table.name for table in tables if table.is_managed), f"checkpoints/{store.region}"]
    names.append(channels_folder(store.region))
    found = [
        store.leftovers.garbage(name, named.get(name, frozenset()), below_epoch=below_epoch, now=now) for name in names
    ]
    spools = store.leftovers.dead_spools(below_epoch=below_epoch, before=now - _SPOOL_SECONDS)
    return Collected(tables=tuple(garbage for garbage in found if garbage.files), spools=spools)


def clear(store: RegionStore, tables: Sequence[RegionTable], *, epoch: int, horizon: int, now: float) -> Collected:
    """Delete what can go, under a claim that still holds and has published all that is committed.

    Tables of which something can go are fenced, and looked at again: an owner that was stopped before a commit could
    bring a file into one between the look and the deletion.

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


def discard(store: RegionStore, found: Collected) -> None:
    """Delete what `find_garbage` found."""
    for garbage in found.tables:
        store.leftovers.discard(garbage)
    store.leftovers.discard_spools(found.spools)


def collect(outside: Outside, history: RegionHistory, *, horizon: int) -> dict[str, Any]:
    """Collect as a step of an owner's run; returns numbers for its report, or why nothing was deleted."""
    fault = clock_fault(history, here=outside.clock(), registry=outside.registry.clock())
    if fault is not None:
        return {"refused": fault}
    tables = own_tables(outside.store, history)
    found = clear(outside.store, tables, epoch=history.epoch, horizon=horizon, now=outside.clock())
    return {"files": found.files, "bytes": found.size, "spools": len(found.spools)}


def clock_fault(history: RegionHistory, *, here: float, registry: float) -> str | None:
    """Say what is wrong with the time, None where nothing is: on a doubtful clock nothing is deleted.

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
