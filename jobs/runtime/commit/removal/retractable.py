"""May a state be taken back alone (`drainmark retract`)? Asked of its region's tables, operators and history."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from drainmark.jobs.errors import RetractRefused
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.operators.windows.running_aggregate import Aggregate
from drainmark.jobs.protocol.claimed_code import deploy_of
from drainmark.jobs.protocol.history import RegionHistory, retracted_uris, target_before
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.protocol.records.schema_compatibility import is_state
from drainmark.jobs.regions.change_streams import change_streams
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.commit.removal.keyed_retraction import KeyedHistory
from drainmark.jobs.runtime.commit.replacement import why_kept
from drainmark.jobs.runtime.messages import skip_command


def keyed_tables(
    region: str,
    history: RegionHistory,
    ids: Sequence[int],
    code: Callable[[], RegionPlan | None],
) -> tuple[KeyedHistory, ...]:
    """Return the tables of one row a key from which states are to be taken out; () if all tables have rows of ids only.

    The rows of an id are those of its file alone if no operator keeps anything from id to id. An aggregate may, if its
    values are sums and only upsert sinks of its own keys read it.

    Args:
        ids: of states in force that no other state replaced.
        code: finds the region's present code; called only if operators keep state.

    Raises:
        RetractRefused: names the operator that keeps what cannot be taken out; its remedy is `remedy_of` these ids.
    """
    refused = next(_reasons(history, ids, code), None)
    if refused is not None:
        blamed, why = refused
        raise RetractRefused(f"region {region!r}: {why}", operator=blamed, ids=tuple(ids))
    plan = code() if any(is_state(table, history.tables) for table in history.tables) else None
    found = []
    for table in history.tables:
        if table.role is TableRole.CHANGES:
            operator = plan.operator(table.operator) if plan is not None and is_state(table, history.tables) else None
            found.append(KeyedHistory(table, operator if isinstance(operator, Aggregate) else None))
    return tuple(found)


def remedy_of(region: str, history: RegionHistory, ids: Sequence[int], horizon: int, flags: str = "") -> str:
    """Return the commands that have the effect of a retraction.

    The rewind also takes back later retractions: it goes to before these files, too, and they are skipped as well.

    Args:
        flags: of `reset`, each behind a space.
    """
    undone = {number: history.states[number].trigger_uri or "" for number in ids}
    target = target_before(history, min(ids), horizon)
    gone = retracted_uris(history)
    while others := {
        old: uri
        for old, found in history.replaced.items()
        if old not in undone and found.by > target and (uri := history.states[old].trigger_uri or "") in gone
    }:
        undone |= others
        target = target_before(history, min(undone), horizon)
    uris = dict.fromkeys(undone.values())
    return f"drainmark reset {region} --to {target}{flags} --yes && {skip_command(region, *uris)}"


def _reasons(
    history: RegionHistory, ids: Sequence[int], code: Callable[[], RegionPlan | None]
) -> Iterator[tuple[str | None, str]]:
    """Yield (operator, why) for each obstacle."""
    yield from _in_history(history, min(ids))
    states = [table for table in history.tables if is_state(table, history.tables)]
    plan = code() if states else None
    for table in states:
        if plan is None:
            yield table.operator, f"{table.operator!r} keeps state, and its code cannot be found"
            return
        if why := _why_not(plan, table, history) or _changed_since(history, ids, table.operator):
            yield table.operator, why


def _in_history(history: RegionHistory, first: int) -> Iterator[tuple[str | None, str]]:
    """Yield the obstacles that the history tells.

    Args:
        first: the lowest id that is to be taken back.
    """
    if history.flow.channels or history.flow.operators:
        stages = ", ".join(map(repr, history.flow.operators))
        yield None, f"its stages {stages} work on several files at a time, between buffered edges"
    for table in history.tables:
        edge = history.dropped.get(table.name, INITIAL_ID)
        if why := why_kept(table):
            yield table.operator, why
        elif edge >= first:
            yield table.operator, f"{table.operator!r} has one image up to {edge}, and no changes of {first} any more"
    histories = {table.history for table in history.former}
    for table in history.former:
        is_plain = table.role is TableRole.APPEND and table.is_managed and table.name not in histories
        if not is_plain and history.left.get(table.name, first) >= first:
            yield table.operator, f"{table.operator!r}, which the code has no more, was there when {first} was made"


def _why_not(plan: RegionPlan, table: RegionTable, history: RegionHistory) -> str:
    """Return the reason why a state keeps what an id brought; "" if that can be taken out."""
    known = {operator.name: operator for operator in plan.operators}
    operator = known.get(table.operator)
    if not isinstance(operator, Aggregate) or operator.kept:
        kind = operator.kind if operator is not None else "an operator that the code has no more"
        return f"{table.operator!r} ({kind}) keeps in its state what cannot be taken out again"
    if operator.inputs[0].upstream in change_streams(plan.run_order):
        return f"{operator.name!r} aggregates changes of keys, which come from several files"
    if odd := [name for name, value in operator.values.items() if not value.is_invertible]:
        labels = ", ".join(f"{name!r} ({operator.values[name].label})" for name in odd)
        return f"{operator.name!r} keeps {labels}, from which nothing can be subtracted"
    fed = {each.operator for each in history.tables if each.role is TableRole.UPSERT and each.history == table.name}
    for reader in _readers(plan, operator):
        if reader.name not in fed:
            return f"{reader.name!r} ({reader.kind}) reads {operator.name!r}, whose later rows count the file, too"
    return ""


def _readers(plan: RegionPlan, operator: Operator) -> Iterator[Operator]:
    for other in (*plan.run_order, *plan.followers):
        if any(port.upstream == operator.name for port in other.inputs):
            yield other


def _changed_since(history: RegionHistory, ids: Sequence[int], operator: str) -> str:
    """Say that other code of an operator than the present one made an id; "" if none did."""
    for number in ids:
        later = [deploy for deploy in history.deploys if deploy.first_id > number and operator in deploy.operators]
        if later:
            made = deploy_of(history.deploys, number)
            by = f" by the code {made.label}" if made is not None else ""
            return f"{number} was made{by}, and {operator!r} is another operator since the code {later[-1].label}"
    return ""
