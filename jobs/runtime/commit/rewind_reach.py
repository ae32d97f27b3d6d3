"""Further tables of a rewind: tables that earlier code wrote, and images in place of dropped changes.

A sink that is taken out of the code leaves what it wrote where it is. Its rows of ids that a rewind withdraws would
stand beside those of the ids in their place, once the sink is declared again, or for whoever reads it meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from drainmark.jobs.errors import RewindRefused, UsageError
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.records.manifest import Image, RegionTable, TableRole
from drainmark.jobs.protocol.rewind_steps import Rewind
from drainmark.jobs.runtime.outside import RegionStore


def reach_of(store: RegionStore, history: RegionHistory, to: int, horizon: int) -> Rewind:
    """Return what a rewind to an id would have to do: the plan of one that is asked for, the row of one that is made.

    Args:
        horizon: number of ids.

    Raises:
        RewindRefused: see `RegionHistory.check_rewind`, `images_for`, `former_in_reach`.
        StoreUnavailable: a sink outside Delta does not answer.
    """
    history.check_rewind(to, horizon)
    images = images_for(store, history, to)
    former = former_in_reach(store, history)
    return Rewind(
        to=to,
        tables=(*history.tables, *former),
        former=tuple(table.name for table in former),
        restored=tuple(history.replaced_after(to)),
        images=tuple(images),
        lags=history.lags,
    )


def former_in_reach(store: RegionStore, history: RegionHistory) -> tuple[RegionTable, ...]:
    """Return the tables that are not declared any more, and that a rewind takes along.

    One that was deleted since, or given to somebody else, is passed over: nothing of the region is in there.

    Raises:
        RewindRefused: a sink outside Delta cannot be opened with the settings that there are, or the history is gone
            from which a visible table would get its rows back.
        StoreUnavailable: a sink outside Delta does not answer.
    """
    found = []
    for table in history.former:
        try:
            is_own = store.is_own(table)
        except UsageError as error:
            raise _cannot_be_opened(table, history, error) from error
        if is_own and needs_history(table) and not store.table(table.history or "").is_own():
            raise _without_history(table, history)
        if is_own:
            found.append(table)
    return tuple(found)


def own_tables(store: RegionStore, history: RegionHistory) -> Sequence[RegionTable]:
    """Return the Delta tables that the region has or had, less those that it does not own any more."""
    return (*history.tables, *(table for table in history.former if table.is_managed and store.is_own(table)))


def out_of_reach(store: RegionStore, table: RegionTable) -> bool:
    """Say whether nothing can be published any more to a table that the code has no more: it was deleted or given to
    somebody else, or its history was.

    An adopted table has no sign of the region before its first group.

    Raises:
        UsageError, StoreUnavailable: a sink outside Delta cannot be asked.
    """
    is_there = store.open(table).exists() if table.adopted else store.is_own(table)
    return not is_there or bool(table.history and not store.table(table.history).is_own())


def needs_history(table: RegionTable) -> bool:
    """Say whether a rewind gets the rows of a table back from its history."""
    return table.role in (TableRole.UPSERT, TableRole.OVERWRITE)


def _cannot_be_opened(table: RegionTable, history: RegionHistory, error: UsageError) -> RewindRefused:
    msg = (
        f"a rewind takes every sink along, and {table.name}, which {table.operator!r} wrote until it was taken out of"
        f" the code, cannot be opened: {error.message}"
    )
    remedy = f"{error.remedy or 'fix the setting'}; if the database is gone for good, enter an empty one"
    return RewindRefused(msg, remedy=remedy, nearest=history.committed_id, operator=table.operator)


def _without_history(table: RegionTable, history: RegionHistory) -> RewindRefused:
    msg = (
        f"a rewind takes every sink along, and {table.name}, which {table.operator!r} wrote until it was taken out of"
        f" the code, has lost its history {table.history}"
    )
    remedy = f"restore the history from a backup, or delete {table.name}, too"
    return RewindRefused(msg, remedy=remedy, nearest=history.committed_id, operator=table.operator)


def images_for(store: RegionStore, history: RegionHistory, to: int) -> list[Image]:
    """Return the images that a rewind reads in place of dropped changes; to the initial state, any one has the keys.

    Raises:
        RewindRefused: one is not there: once the rewind is committed, nobody could carry it out.
    """
    images = []
    names = {table.name for table in own_tables(store, history)}
    for name in (name for name in history.dropped if name in names):
        image = history.image_held(name, to if to > INITIAL_ID else None, store.table(name).files.holds)
        if image is None:
            msg = f"cannot rewind to {to}: the image of {name} up to there is gone, and changes that it stands for"
            remedy = "restore its files below _staged from a backup, or choose a later id"
            raise RewindRefused(msg, remedy=remedy, nearest=history.committed_id)
        images.append(image)
    return images
