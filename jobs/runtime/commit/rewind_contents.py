"""What a rewind takes along beside the declared tables: tables of earlier code, and images in place of dropped changes.

A sink that is taken out of the code leaves its table in place. Without a rewind of that table, withdrawn rows would
stand beside the rows of the new ids: for readers at once, and for the region if the sink is declared again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from drainmark.jobs.errors import RewindRefused, UsageError
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.records.manifest import Image, RegionTable, TableRole
from drainmark.jobs.protocol.rewind_steps import Rewind

if TYPE_CHECKING:
    from drainmark.resources.checkpoints.region_store import RegionTables


def contents_of(store: RegionTables, history: RegionHistory, to: int, horizon: int) -> Rewind:
    """Return the contents of a rewind to an id: for the plan that is shown, or for the row that is committed.

    Args:
        horizon: number of ids.

    Raises:
        RewindRefused: see `RegionHistory.check_rewind`, `images_for`, `former_tables`.
        StoreUnavailable: a sink outside Delta does not answer.
    """
    history.check_rewind(to, horizon)
    images = images_for(store, history, to)
    former = former_tables(store, history)
    return Rewind(
        to=to,
        tables=(*history.tables, *former),
        former=tuple(table.name for table in former),
        restored=tuple(history.replaced_after(to)),
        images=tuple(images),
        lags=history.lags,
    )


def former_tables(store: RegionTables, history: RegionHistory) -> tuple[RegionTable, ...]:
    """Return the tables that are not declared any more, and that a rewind takes along.

    A table that was deleted since, or given to another owner, is left out: it has no rows of the region.

    Raises:
        RewindRefused: a sink outside Delta cannot be opened with the present settings, or a visible table has lost the
            history from which a rewind restores its rows.
        StoreUnavailable: a sink outside Delta does not answer.
    """
    found = []
    for table in history.former:
        try:
            is_own = store.is_own(table)
        except UsageError as error:
            why = f"cannot be opened: {error.message}"
            remedy = f"{error.remedy or 'fix the setting'}; if the database is gone for good, enter an empty one"
            raise _stays(table, history, why, remedy) from error
        is_restored = table.role in (TableRole.UPSERT, TableRole.OVERWRITE)  # from its history
        if is_own and is_restored and not store.table(table.history or "").is_own():
            remedy = f"restore the history from a backup, or delete {table.name}, too"
            raise _stays(table, history, f"has lost its history {table.history}", remedy)
        if is_own:
            found.append(table)
    return tuple(found)


def own_tables(store: RegionTables, history: RegionHistory) -> Sequence[RegionTable]:
    """Return the declared tables, and the former managed tables that the region still owns."""
    return (*history.tables, *(table for table in history.former if table.is_managed and store.is_own(table)))


def takes_no_groups(store: RegionTables, table: RegionTable) -> bool:
    """Say whether a former table can take no more groups: it or its history was deleted or given to another owner.

    An adopted table need only exist: before its first group it has no sign of the region.

    Raises:
        UsageError, StoreUnavailable: a sink outside Delta cannot be asked.
    """
    is_there = store.open(table).exists() if table.adopted else store.is_own(table)
    return not is_there or bool(table.history and not store.table(table.history).is_own())


def _stays(table: RegionTable, history: RegionHistory, why: str, remedy: str) -> RewindRefused:
    """Return the error for a former table that a rewind cannot take along."""
    msg = (
        f"a rewind takes every sink along, and {table.name}, which {table.operator!r} wrote until it was taken out of"
        f" the code, {why}"
    )
    return RewindRefused(msg, remedy=remedy, nearest=history.committed_id, operator=table.operator)


def images_for(store: RegionTables, history: RegionHistory, to: int) -> list[Image]:
    """Return the images that a rewind reads in place of dropped changes.

    To the initial state, any image has the keys, and only tables of others are read for them.

    Raises:
        RewindRefused: an image is not there: the rewind could be committed, but not carried out.
    """
    images = []
    names = {table.name for table in own_tables(store, history)}
    if to == INITIAL_ID:
        names &= {table.history for table in (*history.tables, *history.former) if not table.is_managed}
    for name in (name for name in history.dropped if name in names):
        image = history.image_held(name, to if to > INITIAL_ID else None, store.table(name).files.holds)
        if image is None:
            msg = f"cannot rewind to {to}: the image of {name} up to there is gone, and changes that it stands for"
            remedy = "restore its files below _staged from a backup, or choose a later id"
            raise RewindRefused(msg, remedy=remedy, nearest=history.committed_id)
        images.append(image)
    return images
