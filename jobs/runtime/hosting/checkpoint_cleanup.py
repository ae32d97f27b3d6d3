"""The deletion of entries of handlers' checkpoints that are not needed any more.

An operator has one entry for each generation of its state, with the name of the state's table. An entry is not needed
any more when its state was dropped and no rewind can go back before that. If the operator or the whole region has left
the code, its entry is deleted only on request, since it may come back and continue from the entry. The checkpoint table
decides which generation counts at an id, so it is harmless to delete an entry again, or after a crash.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.state.handlers.data_store import DataStore

_STATES = "state/"


def entry_of(table: str) -> str:
    """Return the name of the entry with the chunks of a state, by the name of the state's table."""
    return table.removeprefix(_STATES)


def forgotten(
    history: RegionHistory, store: DataStore, *, horizon: int, left: Collection[str] | None = None
) -> list[str]:
    """Return the entries of a region that can be deleted.

    Args:
        horizon: number of ids, as `rewind_horizon`.
        left: operators of the code; entries of all other operators can be deleted, too. None keeps those.
    """
    kept = set(states_in_reach(history, horizon))
    found = []
    for table in _states(history):
        has_left = left is not None and table.operator not in left
        if has_left or (table.operator in history.generations and table.name not in kept):
            found.append(entry_of(table.name))
    return [entry for entry in found if store.exists(entry)]


def forget(history: RegionHistory, store: DataStore, *, horizon: int, left: Collection[str] | None = None) -> list[str]:
    """Delete the entries that `forgotten` returns, under a claim; return them."""
    found = forgotten(history, store, horizon=horizon, left=left)
    for entry in found:
        store.delete(entry)
    return found


def _states(history: RegionHistory) -> Iterator[RegionTable]:
    for name, table in history.tables_by_name.items():
        if table.role is TableRole.CHANGES and name.startswith(_STATES):
            yield table


def states_in_reach(history: RegionHistory, horizon: int) -> Iterator[str]:
    """Yield the tables of the generations that are in force at the last id, or at an id that a rewind can go to.

    At 0 the state of every generation is the initial one, and needs no entry.
    """
    oldest = history.oldest_target(horizon)
    current = {table.name for table in history.tables}
    for table in _states(history):
        if table.name in current:
            yield table.name
            continue
        known = history.generations.get(table.operator, ())
        ends = [first_id for first_id, _ in known]
        labels = ["", *(label for _, label in known)]
        label = table.name.partition(".")[2]
        if label in labels:
            place = labels.index(label)
            if place == len(ends) or ends[place] > oldest:
                yield table.name
