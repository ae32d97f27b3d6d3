"""Can other code go on with a region's tables? Pure: two descriptions of a table in, an answer out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole


class TableChange(StrEnum):
    """What new code means for a table."""

    NEW = "new"
    KEPT = "kept"
    WIDENED = "widened"  # it gets further columns, in which older rows are null
    INCOMPATIBLE = "incompatible"
    DROPPED = "dropped"  # nobody writes it any more; it stays as it is


def change_of(before: RegionTable | None, after: RegionTable) -> TableChange:
    """Compare a table as it was last claimed, None where it never was, with the same one as code declares it."""
    if before is None:
        return TableChange.NEW
    if misfit(before, after):
        return TableChange.INCOMPATIBLE
    widened = not after.adopted and set(after.column_names) > set(before.column_names)
    return TableChange.WIDENED if widened else TableChange.KEPT


def misfit(before: RegionTable, after: RegionTable) -> str:
    """Say why rows of the new description cannot go on from those of the old one, "" where they can.

    Columns may be added where the table evolves, and that is all. An adopted table's columns are its maker's business.
    A state must reach as far back as the new code asks, and its values must be what the new code merges into them; what
    older claims did not write down of either is unknown, and passes.
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
        if not reasons:
            reasons = ["the columns have another order"]
    return ", ".join(reasons)


def is_state(table: RegionTable, tables: Iterable[RegionTable]) -> bool:
    """Is a table the state of an operator, and not the history from which a sink's own visible table is rewound?"""
    own = (other for other in tables if other.operator == table.operator)
    return table.role is TableRole.CHANGES and all(other.role is not TableRole.UPSERT for other in own)


def _too_short(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Say what of the past a state lacks, "" where it has it."""
    if not before or not after:
        return ""
    if before["of"] != after["of"]:
        return f"it is kept for {after['of']}, was for {before['of']}"
    had, asked = before["reach"], after["reach"]
    if had is None or asked is None or asked <= had:
        return ""
    return f"it keeps {had:.12g} {before['of']}, and {asked:.12g} are asked for: what is older is gone"


def _other_values(before: Mapping[str, Mapping[str, str]], after: Mapping[str, Mapping[str, str]]) -> str:
    """Say which values of a state are something else now, "" where none is."""
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
    return {
        field["name"]: json.dumps(field["type"], sort_keys=True) for field in json.loads(table.schema_json)["fields"]
    }


def _said(kind: str) -> str:
    return kind.strip('"')


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
