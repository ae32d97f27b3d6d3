"""Entries of handlers' checkpoints that nobody comes back to: deleted when their job is over.

An operator has an entry a generation of its state, named as the state's table is. The job of one is over when its state
was dropped and no rewind goes back to before that; or, but only when a person says so, when the operator or the whole
region has left the code: it may come back, and would go on from there. Which generation counts at an id is the
checkpoint table's to say, so deleting one again, or after a crash, is harmless.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.state.handlers.data_store import DataStore

_STATES = "state/"


def entry_of(table: str) -> str:
    """Return the name of the entry that has the chunks of a state, by the name of the state's table."""
    return table.removeprefix(_STATES)


def forgotten(
    history: RegionHistory, store: DataStore, *, horizon: int, left: Collection[str] | None = None
) -> list[str]:
    """Return the entries of a region that can be deleted.

    Args:
        horizon: number of ids, as `rewind_horizon` has it.
        left: operators that the code has, where what others kept is to go as well; None where it stays.
    """
    kept = set(_in_reach(history, horizon))
    found = []
    for table in _states(history):
        has_left = left is not None and table.operator not in left
        if has_left or (table.operator in history.generations and table.name not in kept):
            found.append(entry_of(table.name))
    return [entry for entry in found if store.exists(entry)]


def forget(history: RegionHistory, store: DataStore, *, horizon: int, left: Collection[str] | None = None) -> list[str]:
    """Delete what `forgotten` finds, under a claim; return the entries."""
    found = forgotten(history, store, horizon=horizon, left=left)
    for entry in found:
        store.delete(entry)
    return found


def _states(history: RegionHistory) -> Iterator[RegionTable]:
    known = {table.name: table for table in (*history.former, *history.tables)}
    for name, table in known.items():
        if table.role is TableRole.CHANGES and name.startswith(_STATES):
            yield table


def _in_reach(history: RegionHistory, horizon: int) -> Iterator[str]:
    """Yield the tables of the generations that are in force at the last id, or at one that a rewind can go to.

    At 0 every state is the initial one, of whatever generation, and needs no entry.
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
