"""`gc`: delete the files that crashes, compactions and rewinds left of a region, or only list them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.errors import UsageError
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.runtime.hosting.checkpoint_cleanup import forget, forgotten
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.workplace.declaration import declared, declared_operators
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.workplace import Workplace, existing_registry, living_owner

if TYPE_CHECKING:
    from drainmark.jobs.runtime.maintenance.garbage_collection import Collected
    from drainmark.resources.registry.registry import Registry


OUTSIDE = "outside of regions"
"""The name of `gc` for the tables of autonomous operators, in place of a region's name."""


def collect_region(
    workplace: Workplace, region: str, *, dry_run: bool = False, left_out: bool = False
) -> dict[str, Any]:
    """Collect a region's garbage under a claim, or only look; a claim is made only if there is garbage.

    Args:
        left_out: also the entries in `state_store` of operators that the application does not have any more; the
            tables of the states stay.

    Returns:
        the output of `gc --json` for the region: `refused` says why nothing was deleted, sizes are bytes.

    Raises:
        Owned: a run works on the region; it collects by itself once an hour.
        UnknownName: with `left_out`, the code of the application cannot be found, and so its operators are unknown.
        UsageError: the region has never run.
    """
    if region not in workplace.known_regions():
        raise UsageError(f"region {region!r} has never run: there is nothing to delete")
    history = workplace.history(region)
    fault = fault_of_clock(history, existing_registry(workplace))
    found = _find(workplace, region, history, history.epoch + (living_owner(workplace, region) is None))
    store, left = workplace.state_store(), declared_operators(workplace, region) if left_out else None
    horizon = declared(workplace, region).rewind_horizon
    entries = forgotten(history, store, horizon=horizon, left=left) if store is not None else []
    if dry_run or fault is not None or not (found.files or found.spools or entries):
        return _told(region, found, entries, dry_run=dry_run, refused=fault)
    from drainmark.jobs.runtime.commit.rewind_contents import own_tables
    from drainmark.jobs.runtime.maintenance.garbage_collection import clear

    with owning(region_owner(workplace, region)) as owner:
        tables = own_tables(workplace.store(region), owner.history)
        found = clear(workplace.store(region), tables, epoch=owner.epoch, horizon=horizon, now=world.now())
        entries = forget(owner.history, store, horizon=horizon, left=left) if store is not None else []
    return _told(region, found, entries, dry_run=False, refused=None)


def collect_outside_regions(workplace: Workplace, *, dry_run: bool = False) -> dict[str, Any]:
    """Collect the files that autonomous operators of all applications left behind; there is no claim, age decides.

    Returns:
        as `collect_region`; `region` is `OUTSIDE`.
    """
    from drainmark.jobs.runtime.maintenance.garbage_collection import Collected
    from drainmark.resources.delta.upkeep.garbage import outside_regions

    fault, tables = fault_of_clock(RegionHistory(), existing_registry(workplace)), workplace.tables
    found = Collected(tables=tuple(garbage for garbage in outside_regions(tables, now=world.now()) if garbage.files))
    for garbage in found.tables if not dry_run and fault is None else ():
        (tables / garbage.table).remove(garbage.files)
    return _told(OUTSIDE, found, (), dry_run=dry_run, refused=fault)


def _find(workplace: Workplace, region: str, history: RegionHistory, below_epoch: int) -> Collected:
    from drainmark.jobs.runtime.commit.rewind_contents import own_tables
    from drainmark.jobs.runtime.maintenance.garbage_collection import find_garbage

    tables = own_tables(workplace.store(region), history)
    horizon = declared(workplace, region).rewind_horizon
    return find_garbage(workplace.store(region), tables, below_epoch=below_epoch, horizon=horizon, now=world.now())


def fault_of_clock(history: RegionHistory, registry: Registry | None) -> str | None:
    """Return why the clock cannot be trusted with deletions, by a history and the registry; None if it can."""
    from drainmark.jobs.runtime.maintenance.garbage_collection import clock_fault

    now = world.now()
    return clock_fault(history, here=now, registry=registry.clock() if registry is not None else now)


def _told(
    region: str, found: Collected, entries: Sequence[str], *, dry_run: bool, refused: str | None
) -> dict[str, Any]:
    return {
        "region": region,
        "dry_run": dry_run,
        "refused": refused,
        "files": found.files,
        "bytes": found.size,
        "spools": len(found.spools),
        "entries": list(entries),
        "tables": [
            {"table": garbage.table, "files": len(garbage.files), "bytes": garbage.size, "paths": list(garbage.files)}
            for garbage in found.tables
        ],
    }
