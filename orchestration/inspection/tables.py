"""The tables of a home: those of the code, those that left it, and those that autonomous operators write."""

from __future__ import annotations

from typing import Any

from drainmark.jobs.errors import DrainmarkError
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.orchestration.workplace.declaration import find_regions, has_left, is_declared
from drainmark.orchestration.workplace.workplace import Workplace, looks
from drainmark.resources.checkpoints.region_store import RegionTables
from drainmark.resources.delta.delta_tables import tables_outside
from drainmark.resources.delta.table_files import TableFiles
from drainmark.resources.storage.folder import Folder

OUTSIDE = "outside"
"""The role of a table that autonomous operators write."""


def tables_of_home(workplace: Workplace, name: str | None = None) -> list[dict[str, Any]]:
    """Return an entry for each table, by region and name; all of the home, or those of a region or an application.

    Each has `table`, `region` (of a table outside of regions, its application), `role` (`sink`, `history`, `state`,
    `outside`), `operator`, `rows`, `bytes` and `files` of its newest version (null for a sink outside Delta, and for a
    table that is not there), `last_sequence_id` (null without rows), `is_of_code`, `left_after` (the id after which it
    left the code, null if it is of the code or if that is not known), `is_there`, and `is_adopted`.
    """
    found, registry, own = [], looks(workplace), workplace.own_regions()
    for region in own if name is None else [each for each in find_regions(workplace, name) if each in own]:
        history, store = workplace.history(region), workplace.store(region)
        is_gone = has_left(registry, region)
        found += [_entry(store, history, table, is_gone=is_gone) for table in (*history.tables, *history.former)]
    outside = tables_outside(workplace.tables)
    found += [_outside(workplace.tables, table, of) for table, of in outside if name in (None, of)]
    return found


def regions_left(workplace: Workplace) -> list[dict[str, Any]]:
    """Return an entry for each region of the home that no application has now, by name: its code is opened.

    Each has `region`, `tables` (the names of those that it still has), `committed_sequence_id`, and `error`: why code
    that may have the region cannot be opened, null if nothing has it.
    """
    found = []
    for region in sorted(workplace.own_regions()):
        error = None
        try:
            if is_declared(workplace, region):
                continue
        except DrainmarkError as unknown:
            error = unknown.message
        history = workplace.history(region)
        tables = [table.name for table in (*history.tables, *history.former)]
        found.append(
            {"region": region, "tables": tables, "committed_sequence_id": history.committed_id, "error": error}
        )
    return found


def _entry(store: RegionTables, history: RegionHistory, table: RegionTable, *, is_gone: bool) -> dict[str, Any]:
    is_former = any(each.name == table.name for each in history.former)
    left = history.left.get(table.name) if is_former else history.committed_id if is_gone else None
    return {
        "table": table.name,
        "region": store.region,
        "role": _role(history, table),
        "operator": table.operator,
        **_facts(store, table),
        "is_of_code": not is_former and not is_gone,
        "left_after": left,
        "is_adopted": table.adopted,
    }


def _role(history: RegionHistory, table: RegionTable) -> str:
    if any(each.history == table.name for each in (*history.tables, *history.former)):
        return "history"
    return "state" if table.role is TableRole.CHANGES else "sink"


def _facts(store: RegionTables, table: RegionTable) -> dict[str, Any]:
    """Return the numbers of a table from its log; a sink outside Delta is not asked."""
    nothing: dict[str, Any] = {"rows": None, "bytes": None, "files": None, "last_sequence_id": None}
    if table.external:
        return {**nothing, "is_there": True}
    try:
        if not store.is_own(table):
            return {**nothing, "is_there": False}
        return {**_of_files(store.tables / table.name), "is_there": True}
    except DrainmarkError:  # `doctor` says what is wrong with it
        return {**nothing, "is_there": False}


def _of_files(folder: Folder) -> dict[str, Any]:
    found = TableFiles(folder)
    files = found.live()
    return {
        "rows": sum(file.rows for file in files),
        "bytes": sum(file.size for file in files),
        "files": len(files),
        "last_sequence_id": found.last_of(files) if any(file.last_id is not None for file in files) else None,
    }


def _outside(tables: Folder, name: str, application: str) -> dict[str, Any]:
    return {
        "table": name,
        "region": application,
        "role": OUTSIDE,
        "operator": None,
        **_of_files(tables / name),
        "is_there": True,
        "is_of_code": True,
        "left_after": None,
        "is_adopted": False,
    }
