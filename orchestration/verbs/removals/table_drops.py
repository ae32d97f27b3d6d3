"""`tables drop`: what left the code goes for good, a table with its history, or a whole region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from drainmark.jobs import world
from drainmark.jobs.errors import UnknownName, UsageError
from drainmark.jobs.failpoints import DropPoint
from drainmark.jobs.graph.application import nearest
from drainmark.jobs.printable import shell_word
from drainmark.jobs.protocol.chains import readings_of
from drainmark.jobs.protocol.history import RegionHistory, lookups_of
from drainmark.jobs.protocol.records.manifest import RegionTable
from drainmark.jobs.protocol.records.state_generations import first_generation
from drainmark.jobs.protocol.transitions import Event
from drainmark.jobs.regions.formatting import counted
from drainmark.jobs.runtime.commit.removal.table_drops import delete_table, table_id_of
from drainmark.jobs.runtime.hosting.checkpoint_cleanup import entry_of, states_in_reach
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.verbs.orders import Done, Order, Reason
from drainmark.orchestration.workplace.declaration import declared, is_declared, own_applications, recorded_regions
from drainmark.orchestration.workplace.hand_off import claim_asking, owning
from drainmark.orchestration.workplace.region_sources import tables_read
from drainmark.orchestration.workplace.workplace import Workplace, existing_registry, looks, opened_in_time
from drainmark.resources.checkpoints.as_of import called
from drainmark.resources.checkpoints.checkpoint_table import checkpoint_name
from drainmark.resources.storage.folder import LocalFolder

_FOLDERS = ("channels", "buffers", "slices")
"""The folders beside the tables in which a region has files, some of them always on this machine."""


_BEING_DROPPED = "it is being dropped"
"""The beginning of the reason for the halt of a region whose tables may be half gone."""

_WITHOUT_LOG = "without log"
"""In place of the id of a table whose log is gone already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedTable:
    """A table of a plan.

    Attributes:
        table_id: id of the Delta table whose files are deleted; "" if only its name is forgotten.
        why: why its files stay, "" if they go.
    """

    name: str
    table_id: str = ""
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"table": self.name, "is_deleted": bool(self.table_id), "why": self.why or None}


# --- a table --------------------------------------------------------------------------------------------------------


def drop_table(
    workplace: Workplace,
    region: str | None,
    table: Annotated[str, typer.Option(help="A table of this region that left the code; its history goes with it.")],
    reason: Reason = "dropped by hand",
) -> Order:
    """Return the order to drop a table that left the code, with the history that only it reads.

    Args:
        region: the one that wrote it; None if only one did.

    Raises:
        UnknownName: no region wrote such a table.
        UsageError: the table is of the code, or something still needs it.
    """
    name, found = _former(workplace, table, region)
    history = workplace.history(name)
    _require_droppable(workplace, name, history, found)
    tables = [_planned(workplace, name, each) for each in (found, *_histories(history, found))]
    facts = {"region": name, "tables": [each.to_json() for each in tables], "reason": reason}

    def act() -> Done:
        with owning(region_owner(workplace, name)) as owner:
            left = {each.name for each in owner.history.former}
            owner.drops.drop({each.name: each.table_id for each in tables if each.name in left}, reason)
        return Done(facts=facts, lines=(*_lines(tables, done=True), f"{name}: forgot {_listed(tables)}"))

    lines = (f"{name}: drop {_listed(tables)}, which left the code", *_lines(tables), *_after(history, found))
    bound = {"tables": [(each.name, each.table_id) for each in tables]}
    return Order(verb="tables drop", region=name, facts=facts, plan=lines, bound=bound, act=act)


def _former(workplace: Workplace, table: str, region: str | None) -> tuple[str, RegionTable]:
    """Return the region and the table that a name means; of several regions the one that still has the table."""
    found, current, known = list[tuple[str, RegionTable]](), list[str](), list[str]()
    for name in workplace.own_regions() if region is None else (region,):
        history = workplace.history(name)
        if (former := called(history.former, table)) is not None:
            found.append((name, former))
        elif called(history.tables, table) is not None:
            current.append(name)
        known += [each.name.removeprefix("lake/") for each in history.former]
    owning_it = [each for each in found if _is_own(workplace, *each)] or found
    if len(owning_it) > 1:
        msg = f"{table!r} was of several regions"
        raise UsageError(msg, remedy=f"say which with --region: {', '.join(name for name, _ in owning_it)}")
    if owning_it:
        return owning_it[0]
    if current:
        msg = f"{table!r} is of the code of {current[0]}: only a table that left the code can be dropped"
        raise UsageError(msg, remedy="take its operator out of the code, and run that once")
    raise UnknownName(f"no table {table!r} left the code", remedy=nearest(table, known) or "drainmark tables")


def _is_own(workplace: Workplace, region: str, table: RegionTable) -> bool:
    return table.is_managed and workplace.store(region).is_own(table)


def _require_droppable(workplace: Workplace, region: str, history: RegionHistory, table: RegionTable) -> None:
    if table.name in history.dropping:  # who dropped it died in between
        return
    shown = [each for each in (*history.tables, *history.former) if each.history == table.name]
    if shown:
        msg = f"{table.name} is the history of {shown[0].name}, from which rewinds restore it"
        raise UsageError(msg, remedy=f"drainmark tables drop {shell_word(shown[0].name)} drops both")
    states = {first_generation(each.name) for each in history.tables}
    horizon = declared(workplace, region).rewind_horizon
    if first_generation(table.name) in states and table.name in set(states_in_reach(history, horizon)):
        msg = f"{table.name} is the state of {table.operator!r} before it began anew, to which a rewind returns"
        raise UsageError(
            msg, remedy=f"wait until that is more than {horizon} ids ago: rewind_horizon of @dm.consistent"
        )
    if readers := readers_of_tables(workplace, region, (table,)):
        raise _still_read(table.name, readers)


def _histories(history: RegionHistory, table: RegionTable) -> list[RegionTable]:
    """Return the former history of a table, if no other table is made from it."""
    others = [each for each in (*history.tables, *history.former) if each.history == table.history]
    return [each for each in history.former if each.name == table.history and len(others) == 1]


def _planned(workplace: Workplace, region: str, table: RegionTable) -> DroppedTable:
    if table.adopted:
        return DroppedTable(name=table.name, why="others made it: it is only released, with all its rows")
    if table.external:
        return DroppedTable(name=table.name, why="it is outside of Delta: it is only released, with all its rows")
    found = table_id_of(workplace.tables / table.name)
    if not found and _is_half_dropped(workplace, region):
        return DroppedTable(name=table.name, table_id=_WITHOUT_LOG)
    if not found or not workplace.store(region).is_own(table):
        return DroppedTable(name=table.name, why="it is not there any more, or another's")
    return DroppedTable(name=table.name, table_id=found)


def _is_half_dropped(workplace: Workplace, region: str) -> bool:
    halt = workplace.history(region).halt
    return halt is not None and str(halt.detail.get("reason", "")).startswith(_BEING_DROPPED)


def readers_of_tables(workplace: Workplace, region: str, tables: Sequence[RegionTable]) -> list[str]:
    """Return the others of this home that read some tables, as a stream or as a lookup: regions, or applications.

    What a region looks up is said by its code, or by its newest group if the code cannot be opened.
    """
    ids = {table_id_of(workplace.tables / table.name) for table in tables if table.is_managed} - {""}
    names, code = {table.name for table in tables}, _read_by_code(workplace)
    found = {reader for reader, read in code.items() if names & read}
    for reader in workplace.own_regions():
        history = workplace.history(reader)
        looked_up = {f"lake/{table}" for table in lookups_of(history)} if reader not in code else set()
        if names & looked_up or any(each.table in ids for each in readings_of(history)):
            found.add(reader)
    return sorted(found - {region})


def _read_by_code(workplace: Workplace) -> dict[str, set[str]]:
    """Return the tables that each region reads by the code of this home's applications, and each application beside."""
    found: dict[str, set[str]] = {}
    for _, opened in opened_in_time(workplace.settings, own_applications(workplace)):
        if isinstance(opened, Exception):
            continue
        inside = {each.name: region.name for region in opened.plan.regions for each in region.run_order}
        found |= {region.name: set() for region in opened.plan.regions}
        for operator in opened.application.operators:
            reader = inside.get(operator.name, opened.plan.name)
            found.setdefault(reader, set()).update(tables_read(operator))
    return found


def _still_read(name: str, readers: Sequence[str]) -> UsageError:
    reads = "reads" if len(readers) == 1 else "read"
    msg = f"{', '.join(readers)} {reads} {name}"
    return UsageError(msg, remedy="take that out of the code first, or drop these regions, if they left the code, too")


def _listed(tables: Sequence[DroppedTable]) -> str:
    return ", ".join(each.name for each in tables)


def _lines(tables: Sequence[DroppedTable], *, done: bool = False) -> list[str]:
    goes = "is deleted with all its rows" if not done else "deleted"
    return [f"  {each.name}: {goes if each.table_id else each.why}" for each in tables]


def _after(history: RegionHistory, table: RegionTable) -> list[str]:
    left = history.left.get(table.name)
    up_to = f" to {left} or before" if left is not None else ""
    return [f"  a rewind{up_to} does not bring it back: if its operator comes back, it begins anew"]


# --- a region -------------------------------------------------------------------------------------------------------


def drop_region(workplace: Workplace, region: str, reason: str) -> Order:
    """Return the order to drop a region that left the code: its tables, its history, its rows in the registry.

    The region is halted first, so that no code goes on with a part of it if this dies in between; the same command
    goes on then.

    Raises:
        UnknownName: there is no such region.
        UsageError: it is of the code, or that cannot be told; or others read its tables.
    """
    registry = looks(workplace)
    known = {*workplace.known_regions(), *(recorded_regions(registry) if registry is not None else ())}
    if region not in known:
        raise UnknownName(f"there is no region {region!r}", remedy=nearest(region, sorted(known)))
    if is_declared(workplace, region):
        msg = f"{region} is of the code: only a region that left the code can be dropped"
        raise UsageError(msg, remedy="take its start out of the code first")
    history = workplace.history(region)
    every = (*history.tables, *history.former)
    if readers := readers_of_tables(workplace, region, every):
        raise _still_read(f"tables of {region}", readers)
    tables = [_planned(workplace, region, each) for each in every]
    facts = {"region": region, "tables": [each.to_json() for each in tables], "reason": reason}

    def act() -> Done:
        _drop_region(workplace, region, tables, reason)
        return Done(facts=facts, lines=(*_lines(tables, done=True), f"{region} is dropped"))

    states = f"{counted(len(history.states), 'state')} and its checkpoint table leave for good"
    lines = (f"{region}: drop the region, which left the code; {states}", *_lines(tables))
    bound = {"tables": [(each.name, each.table_id) for each in tables], "committed": history.committed_id}
    return Order(verb="tables drop", region=region, facts=facts, plan=lines, bound=bound, act=act)


def _drop_region(workplace: Workplace, region: str, tables: Sequence[DroppedTable], reason: str) -> None:
    checkpoints = workplace.tables / checkpoint_name(region)
    owner = region_owner(workplace, region) if region in workplace.known_regions() else None
    try:
        if owner is not None:
            claim_asking(owner, lambda: owner.claim(repair=lambda _: False))  # what is half gone is not looked at
            halt = f"{_BEING_DROPPED} ({reason}): drainmark tables drop --region {shell_word(region)} --yes"
            owner.halts.halt(halt, event=Event.HALT_ASKED)
            world.pass_point(DropPoint.NOTED)
        for each in tables:
            if each.table_id:
                delete_table(workplace.tables / each.name, each.table_id)
        _delete_states(workplace, tables)
        for kind in _FOLDERS:
            (workplace.tables / kind).delete(region)
            LocalFolder(workplace.home / kind).delete(region)
        delete_table(checkpoints, table_id_of(checkpoints))
    finally:
        if owner is not None:
            owner.leave()
    registry = existing_registry(workplace)
    if registry is not None:
        registry.forget(region)
    (workplace.home / "pages" / f"{region}.html").unlink(missing_ok=True)


def _delete_states(workplace: Workplace, tables: Sequence[DroppedTable]) -> None:
    store = workplace.state_store()
    for entry in (entry_of(each.name) for each in tables) if store is not None else ():
        if store is not None and store.exists(entry):
            store.delete(entry)
