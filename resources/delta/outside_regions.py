"""The tables below a folder; and those that no region owns, whose mark is the application that writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from drainmark.jobs.protocol.records.ids import app_id
from drainmark.resources.delta import delta_tables
from drainmark.resources.delta.log.commit_log import LOG
from drainmark.resources.delta.staging import STAGING_FOLDER
from drainmark.resources.storage.folder import Folder

_APPLICATION = re.compile(re.escape(app_id("")) + "([^/]+)")


def application_of(table: Any) -> str | None:
    """Return the application whose autonomous operators write an open `DeltaTable`; None if it is another table."""
    found = _APPLICATION.fullmatch(table.metadata().description or "")
    return found[1] if found is not None else None


def tables_outside(tables: Folder) -> Iterator[tuple[str, str]]:
    """Yield the tables of autonomous operators, each with its application.

    Args:
        tables: the folder of `lake/`.
    """
    for name in tables_below(tables, "lake"):
        if delta_tables.is_table(tables / name):
            application = application_of(delta_tables.open_table(tables / name))
            if application is not None:
                yield name, application


def tables_below(tables: Folder, path: str) -> Iterator[str]:
    """Yield the folders at any depth that are tables, or have a staging folder."""
    names = list(tables.names(path))
    if STAGING_FOLDER in names or LOG in names:
        yield path
        return
    for name in names:
        if not name.startswith(("_", ".")):
            yield from tables_below(tables, f"{path}/{name}")
