"""What a home holds of a person outside of regions: tables of autonomous operators, pages, logs, databases of notes."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from drainmark.jobs import world
from drainmark.jobs.protocol.persons import Person, spellings
from drainmark.jobs.protocol.records.ids import app_id
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.tasks.places import write_durably
from drainmark.resources.delta import commits, delta_tables, file_lists
from drainmark.resources.delta.commits import Act
from drainmark.resources.delta.merge import arrow_schema
from drainmark.resources.delta.staging import Staging, verify
from drainmark.resources.delta.turns import Turn
from drainmark.resources.erasure import files, purge
from drainmark.resources.erasure.conditions import columns_of, condition_of
from drainmark.resources.sinks.databases import forget_sqlite
from drainmark.resources.storage.folder import Folder

_SAID = {"drainmark_trigger": ("reason",), "drainmark_region": ("last_error", "halt_requested")}
"""The columns of the registry that hold what sources and functions said."""

_ERASED = "[erased]"


def autonomous_tables(tables: Folder) -> Iterator[tuple[Folder, str, str]]:
    """Yield folder, name and application of each table that autonomous operators write."""
    for kind in ("lake", "state"):
        for name in delta_tables.tables_below(tables, kind):
            folder = tables / name
            if not delta_tables.is_table(folder):
                continue
            mark = delta_tables.open_table(folder).metadata().description or ""
            owner = mark.removeprefix(app_id(""))
            if mark.startswith(app_id("")) and owner and "/" not in owner:
                yield folder, name, owner


def autonomous_columns(tables: Folder) -> dict[str, frozenset[str]]:
    """Return the columns of each table that autonomous operators write, by its name."""
    found = autonomous_tables(tables)
    return {name: frozenset(arrow_schema(delta_tables.open_table(folder)).names) for folder, name, _ in found}


def search_autonomous(folder: Folder, table: str, person: Person) -> dict[str, Any] | None:
    """Return the number of rows of a person in a table; None if it lacks the columns."""
    opened = delta_tables.open_table(folder)
    schema = arrow_schema(opened)
    where = condition_of(person, schema)
    if where is None:
        return None
    found = files.search(folder, file_lists.live_files(opened, folder), where, columns_of(person, schema))
    return {"table": table, "rows": found.rows}


def erase_autonomous(folder: Folder, table: str, application: str, person: Person) -> dict[str, Any] | None:
    """Let the rows of a person leave a table of autonomous operators, which others may write to meanwhile."""
    schema = arrow_schema(delta_tables.open_table(folder))
    where = condition_of(person, schema)
    if where is None:
        return None
    made: list[tuple[list[StagedFile], list[StagedFile]]] = []
    rows = 0

    def prepare(opened: Any) -> Act | None:
        nonlocal rows
        found = files.search(folder, file_lists.live_files(opened, folder), where, columns_of(person, schema))
        if not found.files:
            return None
        rows = found.rows
        staging = Staging(folder, 0, world.token())
        written = files.rewrite(folder, staging, found.files, arrow_schema(opened), where)
        new = [file for some in written.values() for file in some]
        made.append((found.files, new))
        verify(folder, new)
        return lambda: commits.transact(
            folder, opened, application, None, adds=new, removes=found.files, data_change=False
        )

    def landed(opened: Any) -> bool:
        live, (old, new) = file_lists.live_paths(opened), made[-1]
        return {file.path for file in new} <= live and not {file.path for file in old} & live

    with Turn(folder) as turn:
        commits.commit(folder, verb="erase", prepare=prepare, landed=landed, writer=None, turn=turn)
    kept = file_lists.live_paths(delta_tables.open_table(folder))
    # A batch of a run may be staged and not committed: only files with rows of the person go.
    dead = [
        StagedFile(path=path, size=folder.size(path), rows=0, first_id=None, last_id=None)
        for path in purge.unneeded(folder, kept, through=0)
        if path.endswith(".parquet")
    ]
    left = files.search(folder, dead, where, columns_of(person, schema))
    removed = [{"table": table, **each} for each in files.digests(folder, [file.path for file in left.files])]
    folder.remove([file.path for file in left.files])
    purge.forget_log(folder, application, writer=None)
    return {"table": table, "rows": rows, "removed": removed}


# --- texts --------------------------------------------------------------------------------------------------------


def erase_texts(home: Path, dagster: Iterable[Path], person: Person) -> list[dict[str, Any]]:
    """Delete the pages, and mask the logs and the entries of Dagster's databases, that hold a value of a person.

    Nothing else of a home is touched: it may be the folder of a project, with inputs in it.

    Args:
        dagster: folders of Dagster's events and logs.
    """
    done: list[dict[str, Any]] = []
    logs = [path for folder in dagster for path in _below(folder)]
    for path in [*_below(home / "pages"), *logs, *sorted(home.glob("registry.db.*.bak"))]:
        if path.name.endswith(("-wal", "-shm")) or not _holds(path, person):
            continue
        relative = os.path.relpath(path, home)
        if path.suffix == ".html":
            path.unlink()
            done.append({"file": relative, "done": "deleted: the next run writes it again"})
        elif _is_sqlite(path):
            done.append({"file": relative, "entries": _erase_sqlite(path, person)})
        else:
            _mask(path, person)
            done.append({"file": relative, "done": "masked"})
    return done


def _below(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]


def _holds(path: Path, person: Person) -> bool:
    if _is_sqlite(path) and any(_holds(log, person) for log in [Path(f"{path}-wal")] if log.is_file()):
        return True
    return person.is_in(path.read_bytes())


def _is_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(15) == b"SQLite format 3"


def _mask(path: Path, person: Person) -> None:
    """Write letters of the same number over each value: others may keep places in the file."""
    data = path.read_bytes()
    for pattern in person.patterns():
        data = pattern.sub(lambda found: b"x" * len(found.group()), data)
    write_durably(path, data, mode="r+b")


def _erase_sqlite(path: Path, person: Person) -> int:
    """Replace the values of a person in every text of an SQLite file; return the number of entries.

    As a part of a longer word a value stays: it is another's, or a name in which Dagster looks for its own things.
    """
    changed = 0
    with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
        connection.create_function("without_person", 1, person.without, deterministic=True)
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in names:
            columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
            for column in columns:
                statement = (
                    f'UPDATE "{table}" SET "{column}" = without_person("{column}")'  # noqa: S608  (its own names)
                    f' WHERE typeof("{column}") = \'text\' AND "{column}" <> without_person("{column}")'
                )
                changed += connection.execute(statement).rowcount
        forget_sqlite(connection)
    return changed


def _texts(person: Person) -> list[str]:
    found = {text for each in person.conditions for value in each.values for text in spellings(value)}
    return sorted(found, key=len, reverse=True)


def erase_registry(engine: sa.Engine, person: Person) -> list[dict[str, Any]]:
    """Replace the values of a person in the messages of the registry."""
    changed = 0
    with engine.begin() as connection:
        for table, columns in _SAID.items():
            for column in columns:
                rows = sa.table(table, sa.column(column, sa.Text))
                at = rows.c[column]
                for text in _texts(person):
                    change = sa.update(rows).where(at.contains(text, autoescape=True))
                    changed += connection.execute(change.values({column: sa.func.replace(at, text, _ERASED)})).rowcount
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            forget_sqlite(connection.connection.driver_connection)
    return [{"file": "registry", "entries": changed}] if changed else []
