"""Checks before a region is claimed: may this owner, with this code, continue from the present state?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import (
    DrainmarkError,
    Halted,
    InFlightLost,
    RegistryLost,
    SplitBrain,
    StateIncompatible,
    StatesMoved,
)
from drainmark.jobs.printable import shell_word
from drainmark.jobs.protocol.claimed_code import Code
from drainmark.jobs.protocol.history import RegionHistory, target_before
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.records.manifest import RegionTable
from drainmark.jobs.protocol.records.schema_compatibility import (
    is_state,
    misfit,
    other_form,
    still_deleting,
    with_gone,
    with_states_noted,
)
from drainmark.jobs.protocol.records.state_generations import labels_in_force
from drainmark.jobs.runtime.commit.table_damage import is_gone
from drainmark.jobs.runtime.messages import PUT_RIGHT
from drainmark.jobs.runtime.outside import Outside
from drainmark.resources.checkpoints.region_store import examine

if TYPE_CHECKING:
    from drainmark.resources.checkpoints.region_store import RegionTables
    from drainmark.resources.registry.registry import Registry

_REBUILD = "rebuild it first: drainmark doctor --repair"


def ready(
    outside: Outside, region: str, tables: Sequence[RegionTable], code: Code, deleting: Collection[str] = ()
) -> tuple[RegionHistory, tuple[RegionTable, ...]]:
    """Read the region's facts and create missing tables; the caller holds the lease.

    Args:
        deleting: names of tables of changes of which keys will be gone.

    Returns:
        the facts, and the tables that the claim is to name: by default those of the last claim.

    Raises:
        RegistryLost: see `read_facts`.
        StateIncompatible, SchemaMismatch, ForeignTable, AdoptionRefused: the code does not fit the tables.
        StatesMoved: a state was dropped, or its drop undone, since the code was analysed.
        InFlightLost: the code has no place for the batches in flight.
        Halted: others changed rows of the checkpoint table.
    """
    store = outside.store
    store.checkpoint.create()
    history, known = _checked(outside, region, tables, code, deleting)
    for table in known:
        if not is_gone(store, history, table):  # an empty new table would hide that committed rows are lost
            store.create(table)
        elif table.external:
            store.external(table).examine(table.schema_json)  # it may be another's
    return history, known


def refusal(outside: Outside, region: str, tables: Sequence[RegionTable], code: Code) -> DrainmarkError | None:
    """Return the error with which `ready` would refuse a claim now, None if it would not; changes nothing."""
    store = outside.store
    try:
        is_known = store.checkpoint.exists()
        history, known = _checked(outside, region, tables, code) if is_known else (RegionHistory(), tuple(tables))
        for table in known:
            if table.external or not is_gone(store, history, table):
                examine(store, table)
    except DrainmarkError as error:
        return error
    return None


def _checked(
    outside: Outside, region: str, tables: Sequence[RegionTable], code: Code, deleting: Collection[str] = ()
) -> tuple[RegionHistory, tuple[RegionTable, ...]]:
    """Return the facts of a region with a checkpoint table, and the tables that a claim is to name; see `ready`."""
    store, registry = outside.store, outside.registry
    _require_checkpoint(store, region)
    history, why = read_facts(registry, region, store.checkpoint.history)
    if why:
        raise RegistryLost(why, remedy=_REBUILD)
    if code.operators:
        _require_same_states(history, region, code)
        require_takeover(history, region, code)
    known = still_deleting(tables or history.tables, (*history.former, *history.tables))
    known = with_gone(known, deleting)
    _require_going_on(store, history, region, known, code)
    require_same_forms(store, history, region, known)
    _require_not_dropped(history, known)
    return history, known


def _require_not_dropped(history: RegionHistory, tables: Sequence[RegionTable]) -> None:
    """Refuse a table that is being dropped: its files are half gone."""
    for table in tables:
        if table.name in history.dropping:
            msg = f"{table.name} is being dropped, which died in between"
            remedy = f"drainmark tables drop {shell_word(table.name)} --yes finishes that; then it begins anew"
            raise StateIncompatible(msg, operator=table.operator, remedy=remedy, table=table.name)


def require_settled(outside: Outside, history: RegionHistory) -> None:
    """Check that the registry knows the newest state; everything that is committed is rolled forward.

    A standby of the registry's database that took over, or a backup, may lack the end of a group, though it has the
    group's ids: it would give out the group's files again.

    Raises:
        RegistryLost: it does not.
    """
    if why := why_unsettled(outside.registry, history, history.committed_id):
        raise RegistryLost(why, remedy=_REBUILD)


def read_facts(registry: Registry, region: str, read: Callable[[], RegionHistory]) -> tuple[RegionHistory, str]:
    """Return a region's facts, and why its rows in the registry cannot belong to its checkpoint table; "" if they can.

    An owner that is about to be fenced off may commit meanwhile, so the registry is asked before and after.

    Args:
        read: reads the checkpoint table.
    """
    before, history, after = registry.region_info(region), read(), registry.region_info(region)
    return history, _why_lost(replace(after, newest_id=before.newest_id), history, region)


def _why_lost(info: Any, history: RegionHistory, region: str) -> str:
    if history.states and info.epoch == 0:  # triggers prove nothing: a scan may have written them
        return f"the registry knows nothing of {region!r}, its checkpoint table does"
    if info.next_id < history.next_id:  # ids are taken in the registry before any commit
        return f"the registry is older than the checkpoint table of {region!r}: was a backup restored?"
    if info.newest_id >= history.next_id:  # a state is committed before the registry has it
        return f"the checkpoint table of {region!r} is older than the registry: was a backup restored?"
    return ""


def why_unsettled(registry: Registry, history: RegionHistory, number: int) -> str:
    """Say that the registry does not know a published state; "" if it does."""
    state = history.states.get(number)
    if state is None or state.trigger_order is None:
        return ""
    found = registry.by_order(state.region, [state.trigger_order])
    if any(trigger.sequence_id == state.sequence_id for trigger in found):
        return ""
    msg = f"the registry does not know that {state.trigger_uri} was committed as {state.sequence_id}"
    return f"{msg}: was a backup restored, or did a standby take over?"


def _require_checkpoint(store: RegionTables, region: str) -> None:
    """Refuse a checkpoint table that others changed: not even a halt row can be committed to it."""
    try:
        store.foreign_commits.require_sole_writer(store.checkpoint_name)
    except SplitBrain as error:
        if not error.facts.get("is_cut"):
            remedy = f"{error.remedy}; then: {PUT_RIGHT}"
            raise Halted(f"region {region!r} is halted: {error.message}", remedy=remedy) from error


def _require_going_on(
    store: RegionTables, history: RegionHistory, region: str, tables: Sequence[RegionTable], code: Code
) -> None:
    """Refuse code with a state that cannot continue: from what is in its table, or since it lacks groups.

    Raises:
        StateIncompatible: names the operator, and says how to begin its state anew, or to rewind.
        StoreUnavailable: a sink outside Delta does not answer.
    """
    unfit = _misfits(history, tables)
    holes = states_with_holes(history, tables)
    wrong = unfit or (holes if code.operators else {})
    if not wrong:
        return
    name, why = next(iter(wrong.items()))
    operator = next(table.operator for table in tables if table.name == name)
    dropped = sorted({*code.dropped, *(table.operator for table in tables if table.name in {*unfit, *holes})})
    run = f"drainmark run {region.partition('/')[0]}" + "".join(f" --drop-state {operator}" for operator in dropped)
    full = full_of(store, history, tables, {*unfit, *holes})
    anew = f"begin anew: {emptied(region, full)}{run}"
    if unfit:
        look = f"look: drainmark plan {region.partition('/')[0]}"
        too = f", and another table to what writes {', '.join(full)}" if full else ""
        remedy = f"{look}; {anew}; or keep it, and give the new operator another name{too}"
    else:
        target = target_before(history, history.left[name] + 1, code.horizon)
        remedy = f"{anew}; or process these again with it: drainmark reset {region} --to {target}"
    msg = f"the state of {operator!r} in {region!r} cannot go on: {why}"
    raise StateIncompatible(msg, operator=operator, remedy=remedy, table=name)


def full_of(
    store: RegionTables, history: RegionHistory, tables: Sequence[RegionTable], states: Collection[str]
) -> list[str]:
    """Return the tables with rows of which no state may begin anew: they show it, or its changes delete their keys.

    Args:
        tables: as the code declares them.
        states: names of the tables of states.
    """
    begun = {name: f"{name}.anew" for name in states}
    after = (
        replace(
            table,
            history=begun.get(table.history or "", table.history),
            withdrawn_by=tuple(begun.get(name, name) for name in table.withdrawn_by),
        )
        for table in tables
    )
    return [*other_forms(store, history, [*after])]


def emptied(region: str, full: Sequence[str]) -> str:
    """Return what comes before the command that lets states begin anew, which those of full tables may not."""
    if not full:
        return ""
    reset = f"drainmark reset {region} --to-initial"
    return f"give what writes {', '.join(full)} another table, or empty it: {reset}, then: "


def _misfits(history: RegionHistory, tables: Sequence[RegionTable]) -> dict[str, str]:
    """Return name -> reason for each state that cannot continue from the state in its table."""
    before = history.tables_by_name
    states = [table for table in tables if table.name in before and is_state(table, tables)]
    return {table.name: why for table in states if (why := misfit(before[table.name], table))}


def states_with_holes(history: RegionHistory, tables: Sequence[RegionTable]) -> dict[str, str]:
    """Return name -> reason for each state with an operator that is back after groups were committed without it."""
    states = (table.name for table in tables if is_state(table, tables) and table.name in history.left)
    missed = {name: history.state_at_least(history.left[name] + 1) for name in states}
    return {
        name: f"its operator was not in the code from state {first} to {history.committed_id}, whose rows it lacks"
        for name, first in missed.items()
        if first is not None
    }


def require_same_forms(store: RegionTables, history: RegionHistory, region: str, tables: Sequence[RegionTable]) -> None:
    """Refuse code that gives a sink's table with rows another role, other keys, another history or other files.

    Raises:
        StateIncompatible: names the sink's operator, and lists the remedies.
        StoreUnavailable: a sink outside Delta does not answer.
    """
    operators = {table.name: table.operator for table in tables}
    for name, why in other_forms(store, history, tables).items():
        remedy = (
            f"{_name_back(history, tables, name)}run the code as it was; or give {operators[name]!r} another name and"
            f" another table or path; or empty the tables first: drainmark reset {region} --to-initial"
        )
        raise StateIncompatible(f"{name} {why}", operator=operators[name], remedy=remedy, table=name)


def _name_back(history: RegionHistory, tables: Sequence[RegionTable], name: str) -> str:
    """Return how to keep the state behind a sink whose operator seems to be renamed; "" if it is not."""
    before = history.tables_by_name
    after = {table.name: table for table in tables}
    had, has = (_states_behind(name, known) for known in (before, after))
    if len(had - after.keys()) != 1 or len(has - before.keys()) != 1:
        return ""
    (gone,), (new,) = had - after.keys(), has - before.keys()
    return f'if {after[new].operator!r} is renamed, keep its state by name="{before[gone].operator}"; or '


def _states_behind(name: str, tables: Mapping[str, RegionTable]) -> set[str]:
    """Return the states of operators that a sink's table shows, or whose changes it gets."""
    table = tables[name]
    states = (tables.get(state) for state in {table.history or "", *table.withdrawn_by})
    return {state.name for state in states if state is not None and state.operator != table.operator}


def other_forms(store: RegionTables, history: RegionHistory, tables: Sequence[RegionTable]) -> dict[str, str]:
    """Return name -> reason for each sink's table, and history of one, that has rows and would go on in another form.

    Visible tables come first. See `other_form`.
    """
    before = history.tables_by_name
    found = {}
    for table in sorted(tables, key=lambda table: not table.is_derived):
        known = before.get(table.name)
        if known is None or is_state(table, tables):
            continue
        why = other_form(with_states_noted(known, table, before.keys()), table)
        if why and store.is_own(known) and store.open(known).newest_id() != INITIAL_ID:
            found[table.name] = why
    return found


def require_takeover(history: RegionHistory, region: str, code: Code) -> None:
    """Refuse code that cannot take over the batches in flight: it has other stages, or drops a state that they need.

    Raises:
        InFlightLost: says how to finish the batches in flight, or how to process them again.
    """
    flow = history.flow
    if why := list(flow.misfits(code.stages, code.channels)):
        msg = f"{region!r} is cut into other stages than when it last ran: {'; '.join(why)}"
        raise _in_flight_lost(msg, history, region, "run the code as it was", code.horizon)
    reached = {name: flow.reached(name) for name in sorted(code.dropped)}
    behind = [name for name, number in reached.items() if number is not None and number < history.committed_id]
    if behind:
        msg = f"batches in flight in {region!r} belong to states that you want to drop: {', '.join(behind)}"
        raise _in_flight_lost(msg, history, region, "run the code as it was, without --drop-state,", code.horizon)


def _in_flight_lost(msg: str, history: RegionHistory, region: str, first: str, horizon: int | None) -> InFlightLost:
    target = target_before(history, min(history.flow.through.values()) + 1, horizon)
    remedy = (
        f"{first} until `drainmark status` shows nothing in flight; or process the batches in flight again:"
        f" drainmark reset {region} --to {target}"
    )
    return InFlightLost(msg, remedy=remedy, in_flight=len(history.flow.batches))


def _require_same_states(history: RegionHistory, region: str, code: Code) -> None:
    ours = {name: label for name, label in code.states.items() if name not in code.dropped}
    theirs = {name: label for name, label in labels_in_force(history.generations).items() if name not in code.dropped}
    if ours != theirs:
        names = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
        msg = f"states of {region!r} were dropped or brought back since its code was read: {', '.join(names)}"
        raise StatesMoved(msg, remedy="start it again: no attempt was counted")
