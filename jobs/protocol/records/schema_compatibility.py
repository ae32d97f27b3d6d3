"""The check whether new code can go on with a region's tables. Pure: two descriptions of a table in, an answer out."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole

_GONE = "_gone"
"""The column of tables of changes of which keys can be lost; it comes by itself, and stays."""

_FILE_OPTIONS = ("path", "format", "layout", "name")
"""Options of a file sink by which a rewind finds the files of earlier ids."""

Retentions = Mapping[str, tuple[tuple[int, Mapping[str, Any]], ...]]
"""By name of a state's table: (first id, retention) of each claim that changed its retention, oldest first; () if a
rewind went back behind all of them."""


class TableChange(StrEnum):
    """The consequence of new code for a table."""

    NEW = "new"
    KEPT = "kept"
    WIDENED = "widened"  # it gets further columns, in which older rows are null
    INCOMPATIBLE = "incompatible"
    DROPPED = "dropped"  # the code no longer writes it; it stays unchanged


def change_of(before: RegionTable | None, after: RegionTable) -> TableChange:
    """Compare a table as it was last claimed (None if it never was) with the same table as code declares it."""
    if before is None:
        return TableChange.NEW
    if misfit(before, after):
        return TableChange.INCOMPATIBLE
    widened = not after.adopted and {*_types(after)} > {*_types(before)}
    return TableChange.WIDENED if widened else TableChange.KEPT


def misfit(before: RegionTable, after: RegionTable) -> str:
    """Return the reason why rows of the new description cannot follow those of the old one; "" if they can.

    Columns may only be added, and only to a table that evolves. The columns of an adopted table are not checked. A
    state must reach as far back as the new code asks, and its values must be of the kind that the new code merges into
    them. If older claims did not record the reach or the values, they are unknown, and pass.
    """
    if before.keys != after.keys:
        return f"keys are {_listed(after.keys)}, were {_listed(before.keys)}"
    if short := _too_short(before.retention, after.retention):
        return short
    if others := _other_values(before.retention.get("values", {}), after.retention.get("values", {})):
        return others
    if after.adopted or before.schema_json == after.schema_json:
        return ""
    found, wanted = _types(before), _types(after)
    reasons = [f"{name} is gone" for name in found if name not in wanted]
    reasons += [
        f"{name} is {_said(wanted[name])}, was {_said(kind)}"
        for name, kind in found.items()
        if name in wanted and wanted[name] != kind
    ]
    if not after.evolves:
        reasons += [f"{name} is new" for name in wanted if name not in found]
        if not reasons and [*found] != [*wanted]:
            reasons = ["the columns have another order"]
    return ", ".join(reasons)


def with_gone(tables: Iterable[RegionTable], deleting: Collection[str]) -> tuple[RegionTable, ...]:
    """Return tables so that rows of some tables of changes may say that their keys are gone, and delete them."""
    return tuple(
        replace(table, schema_json=_with_column(table.schema_json, _GONE))
        if table.name in deleting and _GONE not in table.column_names
        else replace(table, deletes=True)
        if table.role is TableRole.UPSERT and table.history in deleting
        else table
        for table in tables
    )


def still_deleting(tables: Iterable[RegionTable], before: Iterable[RegionTable]) -> tuple[RegionTable, ...]:
    """Return tables as code declares them, with what tables of changes got by a retraction: their keys may be gone."""
    tables = tuple(tables)
    had = {table.name for table in before if table.role is TableRole.CHANGES and _GONE in table.column_names}
    return with_gone(tables, had & {table.name for table in tables if table.role is TableRole.CHANGES})


def _with_column(schema_json: str, name: str) -> str:
    schema = json.loads(schema_json)
    schema["fields"].append({"name": name, "type": "boolean", "nullable": True, "metadata": {}})
    return json.dumps(schema)


def other_form(before: RegionTable, after: RegionTable) -> str:
    """Return the reason why a sink's table, or its history, must have no rows when the new code goes on; "" if it may.

    A rewind takes a table back by its newest description. With other keys, files or another history it would lose rows
    of earlier ids, or leave them in the table. A state that takes rows back knows those that came since it began: the
    keys of others would stay for ever.
    """
    if before.role is not after.role:
        return f"has rows that came by {before.role}, and would go on by {after.role}"
    if set(before.keys) != set(after.keys):
        return f"has rows by keys {_listed(before.keys)}, and would go on by keys {_listed(after.keys)}"
    if not _known(before) <= _known(after):
        return f"has {_came(before)}, and would go on with {_came(after)}: nothing would delete the keys of before"
    if before.role in (TableRole.UPSERT, TableRole.OVERWRITE) and before.history != after.history:
        return f"has rows whose history is {before.history}, and would go on with {after.history}"
    for name in _FILE_OPTIONS if after.external == "file" else ():
        had, has = before.options[name], after.options[name]
        if had != has and (name != "path" or _spelled_out(had) != _spelled_out(has)):
            return f"has files with {name}={had!r}, and would go on with {name}={has!r}"
    return ""


def with_states_noted(before: RegionTable, after: RegionTable, names: Collection[str]) -> RegionTable:
    """Return a table with the states of new code that know its rows, if an earlier version did not note any.

    Args:
        names: of all tables that there were: a state that was not among them began later, and knows none of the rows.
    """
    is_of_changes = before.deletes or _GONE in before.column_names
    if before.withdrawn_by or not is_of_changes or not {*after.withdrawn_by} - {""} <= {*names}:
        return before
    return replace(before, withdrawn_by=after.withdrawn_by)


def _known(table: RegionTable) -> set[str]:
    return {*(table.withdrawn_by or ("",))}


def _came(table: RegionTable) -> str:
    return " and ".join(f"changes of {name}" if name else "plain rows" for name in sorted(_known(table)))


def _spelled_out(path: str) -> PurePosixPath:
    return PurePosixPath(path.replace("{home}", "/{home}"))  # an absolute path stands for home


def retained(retentions: Retentions, tables: Iterable[RegionTable], first_id: int) -> Retentions:
    """Return the retentions after a claim of tables, from an id on."""
    last = {name: known[-1][1] for name, known in retentions.items() if known}
    changed = (table for table in tables if table.retention != last.get(table.name, {}))
    further = {table.name: (*retentions.get(table.name, ()), (first_id, table.retention)) for table in changed}
    return {**retentions, **further}


def retained_at(retentions: Retentions, to: int) -> Retentions:
    """Return the retentions after a rewind, without those that began after the id."""
    return {name: tuple(each for each in known if each[0] <= to) for name, known in retentions.items()}


def with_retentions(tables: Iterable[RegionTable], retentions: Retentions) -> tuple[RegionTable, ...]:
    """Return the tables with the last of their retentions; {} if a rewind went back behind all of them."""
    last = {name: known[-1][1] if known else {} for name, known in retentions.items()}
    return tuple(replace(table, retention=last.get(table.name, table.retention)) for table in tables)


def is_state(table: RegionTable, tables: Iterable[RegionTable]) -> bool:
    """Say whether a table is the state of an operator, and not the history of a sink's own visible table."""
    own = (other for other in tables if other.operator == table.operator)
    return table.role is TableRole.CHANGES and all(other.role is not TableRole.UPSERT for other in own)


def _too_short(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return a sentence about the part of the past that a state lacks; "" if it lacks none."""
    if not before or not after:
        return ""
    if before["of"] != after["of"]:
        return f"it is kept for {after['of']}, was for {before['of']}"
    had, asked = before["reach"], after["reach"]
    if had is None or asked is None or asked <= had:
        return ""
    return f"it keeps {had:.12g} {before['of']}, and {asked:.12g} are asked for: what is older is gone"


def _other_values(before: Mapping[str, Mapping[str, str]], after: Mapping[str, Mapping[str, str]]) -> str:
    """Return a sentence about the values of a state that are different now; "" if none are."""
    return ", ".join(filter(None, (_other_value(name, before[name], after[name]) for name in before if name in after)))


def _other_value(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> str:
    if before.get("identity") and before.get("identity") == after.get("identity"):
        return ""
    is_comparable = bool(before.get("code") and after.get("code")) and before["python"] == after["python"]
    if is_comparable and before["code"] == after["code"]:
        return ""
    if before["of"] != after["of"]:
        return f"{name} is {after['of']}, was {before['of']}"
    return f"the code of {name} ({after['of']}) is another" if is_comparable else ""


def _types(table: RegionTable) -> Mapping[str, str]:
    fields = json.loads(table.schema_json)["fields"]
    return {field["name"]: json.dumps(field["type"], sort_keys=True) for field in fields if field["name"] != _GONE}


def _said(kind: str) -> str:
    return kind.strip('"')


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
