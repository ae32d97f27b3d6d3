"""Columns that an author's code adds to a sink, added to its table: `on_schema_change="evolve"`.

A table only ever gets wider: earlier rows read null, and a rewind to before the change keeps the column. A column
that is gone or has another type is an error with its name.
"""

from __future__ import annotations

import json
from typing import Any

from drainmark.jobs.errors import SchemaMismatch
from drainmark.resources.delta import commits
from drainmark.resources.delta.commits import Act
from drainmark.resources.delta.log.commit_log import SoleWriter
from drainmark.resources.delta.log.log_entries import alter, write_entry
from drainmark.resources.delta.staging import all_nullable
from drainmark.resources.storage.folder import Folder


def added_columns(found_json: str, wanted_json: str, *, where: str) -> list[dict[str, Any]]:
    """Return the columns that a table lacks, as Spark and Delta write them, in the order wanted.

    Args:
        found_json: the table's schema.
        wanted_json: the schema of the rows to come.
        where: name of the table in messages.

    Raises:
        SchemaMismatch: a column of the table is gone, or has another type.
    """
    found, wanted = (_fields(text) for text in (found_json, wanted_json))
    gone = [name for name in found if name not in wanted]
    retyped = [name for name in found if name in wanted and found[name]["type"] != wanted[name]["type"]]
    if gone or retyped:
        what = [f"{name} is gone" for name in gone]
        what += [f"{name} is {_said(wanted[name])}, expected {_said(found[name])}" for name in retyped]
        msg = f"the columns of {where} cannot evolve: {'; '.join(what)}"
        remedy = "keep the columns (as null if need be) and their types, or write to a table of another name"
        raise SchemaMismatch(msg, remedy=remedy, columns=(*gone, *retyped))
    return [field for name, field in wanted.items() if name not in found]


def widen(folder: Folder, region: str, schema_json: str, *, writer: SoleWriter | None) -> None:
    """Add the columns that a managed table lacks, in one commit; do nothing if it lacks none.

    This is part of a claim, and uses its fail points. The commit keeps the version that the table has, since committed
    groups may still have to be published.

    Raises:
        SchemaMismatch: see `added_columns`.
        CommitOutcomeUnknown, SplitBrain, StoreUnavailable: see `commits.commit`.
    """

    def lacking(opened: Any) -> list[dict[str, Any]]:
        return added_columns(opened.schema().to_json(), schema_json, where=f"the table {folder}")

    def prepare(opened: Any) -> Act | None:
        fields = lacking(opened)
        if not fields:
            return None
        version = commits.txn_version(opened, region)
        return lambda: write_entry(folder, opened, region, version, alter(opened, added=fields))

    commits.commit(
        folder,
        verb="claim",
        prepare=prepare,
        landed=lambda opened: not lacking(opened),
        writer=writer,
    )


def _fields(schema_json: str) -> dict[str, dict[str, Any]]:
    return {field["name"]: field for field in json.loads(all_nullable(schema_json))["fields"]}


def _said(field: dict[str, Any]) -> str:
    kind = field["type"]
    return kind if isinstance(kind, str) else json.dumps(kind)
