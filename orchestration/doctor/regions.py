"""Checks of each region and its tables: owner, registry, foreign commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import SplitBrain
from drainmark.jobs.operators.sources.pushed.replayable_start import ReplayableStart
from drainmark.jobs.operators.sources.slices import SliceLimit
from drainmark.jobs.operators.sources.source import SlicedSource
from drainmark.jobs.protocol.records.checkpoint_row import RowKind
from drainmark.jobs.regions.formatting import counted, said_of
from drainmark.jobs.runtime.messages import halted_error
from drainmark.orchestration.doctor.findings import Finding, broken, fail, ok, warn
from drainmark.orchestration.doctor.registry_repair import why_rebuild
from drainmark.orchestration.verbs.table_repair import is_put_right
from drainmark.orchestration.workplace.declaration import load_region
from drainmark.orchestration.workplace.workplace import Workplace, living_owner

if TYPE_CHECKING:
    from drainmark.jobs.protocol.history import RegionHistory
    from drainmark.resources.delta.health.store_check import TableFacts
    from drainmark.resources.registry.registry import Registry

_MUCH_GARBAGE = 1024**3
_NEVER = "delta.setTransactionRetentionDuration"


def examine_region(
    workplace: Workplace, region: str, registry: Registry | None
) -> tuple[dict[str, Any], list[Finding]]:
    """Return the facts of a region, with the keys that `doctor --json` has always had, and the findings."""
    from drainmark.resources.checkpoints.checkpoint_table import is_copy

    entry: dict[str, Any] = {"region": region, "epoch": None, "registry_epoch": None, "is_code_found": False}
    try:
        history = workplace.history(region)
    except Exception as error:
        return entry, [broken("checkpoint", error, where=f"{region}: ", remedy="restore its checkpoint table")]
    if is_copy(workplace.tables, region):
        message = f"checkpoints/{region} is a copy of another region's checkpoint table"
        return entry, [warn("checkpoint", message, "keep copies outside of the home")]
    known = registry.region_info(region).epoch if registry is not None else None
    entry = {
        "region": region,
        "epoch": history.epoch,
        "registry_epoch": known,
        "is_code_found": load_region(workplace, region) is not None,
    }
    looks: Mapping[str, Callable[[], Finding]] = {
        "registry_agrees": lambda: _agreement(workplace, region, history, registry),
        "not_halted": lambda: _halted(workplace, region, history),
        "one_writer": lambda: _owner(workplace, region, history, registry),
        "clock": lambda: _clock(region, history, registry),
        "garbage": lambda: _garbage(workplace, region),
        "outside": lambda: _outside(workplace, region, history),
        "sources": lambda: _sources(workplace, region, registry),
    }
    findings = [_guarded(name, look, region) for name, look in looks.items()]
    return entry, [*findings, *_tables(workplace, region, history)]


def _guarded(name: str, look: Callable[[], Finding], region: str) -> Finding:
    try:
        return look()
    except Exception as error:
        return broken(name, error, where=f"{region}: ")


def _agreement(workplace: Workplace, region: str, history: RegionHistory, registry: Registry | None) -> Finding:
    if registry is not None and (why := why_rebuild(workplace, region)):
        return fail("registry_agrees", f"{region}: {why}", "drainmark doctor --repair")
    return ok("registry_agrees", f"{region}: epoch {history.epoch}, committed {history.committed_id}")


def _halted(workplace: Workplace, region: str, history: RegionHistory) -> Finding:
    if history.halt is None:
        return ok("not_halted", f"{region} is not halted")
    if (history.halt.detail.get("error") or {}).get("id") == SplitBrain.id and is_put_right(workplace, region):
        message = f"{region} is halted since others changed its tables, which are put right"
        return warn("not_halted", message, f"drainmark resume {region}")
    return fail("not_halted", f"{region} is halted", halted_error(region, history).remedy or "")


def _owner(workplace: Workplace, region: str, history: RegionHistory, registry: Registry | None) -> Finding:
    """Check for a single writer: a live owner whose claim is not the newest has a second registry, or stood still.

    An owner that has not claimed yet is not passed: a process may have died between its claim and the registry.
    """
    owner = living_owner(workplace, region) if registry is not None else None
    if registry is None or owner is None:
        return ok("one_writer", f"{region}: no process owns it")
    who = f"pid {owner.pid} on {owner.host} (run {owner.run_id})"
    epoch = registry.region_info(region).epoch  # of the last claim that this registry was told of
    newest = history.last_claim
    if epoch < history.epoch and newest is not None and newest.run_id != owner.run_id:
        rows = workplace.store(region).checkpoint.rows()
        if any(row.kind is RowKind.CLAIM and row.run_id == owner.run_id for row in rows):
            message = f"{region}: {who} has epoch {epoch}, another owner has claimed {history.epoch}"
            return fail("one_writer", message, "end the older one; two registries on one home are a mistake")
    return ok("one_writer", f"{region}: owned by {who}")


def _clock(region: str, history: RegionHistory, registry: Registry | None) -> Finding:
    from drainmark.orchestration.verbs.removals.garbage import fault_of_clock

    if (fault := fault_of_clock(history, registry)) is None:
        return ok("clock", f"{region}: no row is in the future")
    return fail("clock", f"{region}: {fault}; nothing is collected", "set the clock (NTP)")


def _garbage(workplace: Workplace, region: str) -> Finding:
    from drainmark.orchestration.verbs.removals.garbage import collect_region

    found = collect_region(workplace, region, dry_run=True)
    message = f"{region}: {counted(found['files'], 'file')}, {counted(found['bytes'], 'byte')} can be collected"
    if found["bytes"] > _MUCH_GARBAGE:
        return warn("garbage", message, f"drainmark gc {region}")
    return ok("garbage", message)


def _sources(workplace: Workplace, region: str, registry: Registry | None) -> Finding:
    """Check that a scan could read the next input of the starts; this changes nothing."""
    from drainmark.jobs.runtime.input.slices import positions

    found = load_region(workplace, region)
    newest = registry.triggers.newest(region) if registry is not None else None
    before = positions(newest.identity if newest is not None else None)
    looked = []
    for start in found[1].starts if found is not None else ():
        # Drainmark itself stores pushed input, and a look at it would seal a segment.
        if isinstance(start, SlicedSource) and not isinstance(start.reads, ReplayableStart):
            start.next_slice(before.get(start.name), workplace.access(region), SliceLimit(source=start.name))
            looked.append(start.name)
    return ok("sources", f"{region}: {', '.join(looked) or 'nothing outside'} can be read")


def _outside(workplace: Workplace, region: str, history: RegionHistory) -> Finding:
    """Check that each sink outside Delta is where the checkpoint table says, as a claim does."""
    from drainmark.jobs.runtime.commit.publish import outer_sinks

    store, sinks = workplace.store(region), outer_sinks.outer(history.tables)
    for table in sinks:
        if (repair := outer_sinks.repair_of(store, history, table)) is not None:
            message = f"{region}: {table.name} {repair.why}"
            return fail("outside", message, "see the possible repairs: drainmark doctor --repair")
    which = said_of(len(sinks), "sink", "outside Delta are", "outside Delta is")
    return ok("outside", f"{region}: {which} where the history is")


def _tables(workplace: Workplace, region: str, history: RegionHistory) -> Iterator[Finding]:
    from drainmark.jobs.runtime.commit.table_damage import other_copy
    from drainmark.resources.delta.health.store_check import damaged_files, facts_of

    store = workplace.store(region)
    managed = [table for table in history.tables if table.is_managed]
    folders = {table.name: store.tables / table.name for table in managed}
    folders[f"checkpoints/{region}"] = store.checkpoint.folder
    sound = True
    for name, folder in folders.items():
        try:
            findings = list(_table(name, facts_of(folder, region)))
            if name != store.checkpoint_name:  # that one was read as a whole
                findings += _damaged(name, damaged_files(folder))
                if why := other_copy(store, history, name):
                    message = f"{name} {why}"
                    findings.append(fail("tables", message, "see the possible repairs: drainmark doctor --repair"))
        except Exception as error:
            findings = [broken("tables", error, where=f"{name}: ")]
        sound = sound and not findings
        yield from findings
    if sound:
        yield ok(
            "tables",
            f"{region}: {said_of(len(folders), 'table', 'have', 'has')} our properties and none but our commits",
        )


def _damaged(name: str, paths: Sequence[str]) -> Iterator[Finding]:
    if paths:
        message = f"{name}: {said_of(len(paths), 'file', 'are', 'is')} gone or cut off, the first is {paths[0]}"
        yield fail("tables", message, "restore from a backup what is below the table's folder")


def _table(name: str, facts: TableFacts) -> Iterator[Finding]:
    yield from _properties(name, facts.configuration)
    if facts.unknown:
        message = f"{name} has features that we did not give it: {', '.join(facts.unknown)}"
        yield fail("tables", message, "find out which tool upgraded it; rebuild the table, or adopt it")
    damage = [commit for commit in facts.foreign if commit.is_damage]
    for commit in damage[-1:]:
        message = (
            f"{name}: {said_of(len(damage), 'commit', 'are', 'is')} not ours and changed rows, the last is {commit}"
        )
        yield fail("tables", message, "see the possible repairs: drainmark doctor --repair")
    if len(facts.foreign) > len(damage):
        others = sorted({commit.operation for commit in facts.foreign if not commit.is_damage})
        message = f"{name} had {', '.join(others)} by another tool, which left its rows as they are"
        yield warn("tables", message, "leave that to Drainmark")


def _properties(name: str, configuration: Mapping[str, str]) -> Iterator[Finding]:
    from drainmark.resources.delta.delta_tables import CONFIGURATION
    from drainmark.resources.delta.upkeep.log_retention import FORMER

    if _NEVER in configuration:
        message = f"{name} has {_NEVER} = {configuration[_NEVER]}: published versions would be forgotten"
        yield fail("tables", message, f"ALTER TABLE delta.`{name}` UNSET TBLPROPERTIES ('{_NEVER}')")
    for key, value in CONFIGURATION.items():
        if configuration.get(key) not in (value, FORMER.get(key)):
            message = f"{name} has {key} = {configuration.get(key, 'nothing')}, not {value}"
            yield warn("tables", message, "find out who changed it")
