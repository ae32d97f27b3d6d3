"""The way of a registry to today's tables, in one transaction under its write lock: all or nothing, one at a time.

Alembic gives an `env.py` one context for the whole process, and scripts one `op`, and Dagster uses both in its own
threads. So there is no `env.py` here: each registry has a context of its own, and scripts are given its operations.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from sqlalchemy import Connection, inspect

from drainmark.jobs.errors import FormatTooNew
from drainmark.resources.registry.database import Database
from drainmark.resources.registry.queries import FOLDER, REVISIONS, statement

VERSION_TABLE = "drainmark_version"
"""Not alembic's default name: Dagster uses that one, perhaps in the same PostgreSQL database."""
MIGRATIONS = FOLDER / "migrations"


def bring_up_to_date(database: Database) -> None:
    """Create or migrate the tables of a registry.

    Raises:
        FormatTooNew: a newer Drainmark created it; it stays unchanged.
    """
    with database.reading() as connection:
        if _checked_revision(connection) == REVISIONS[-1]:
            return
    with database.writing() as connection:
        if database.dialect == "postgresql":
            connection.execute(statement("registry/lock_migration.postgresql"))
        # Check again under the lock: another process may have migrated, even to a newer revision.
        if (found := _checked_revision(connection)) != REVISIONS[-1]:
            if found is not None:
                _copy(connection, found)
            _migrate(connection, found)


def _checked_revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    revision = connection.execute(statement("registry/revision")).scalar()
    if revision is not None and revision not in REVISIONS:
        raise FormatTooNew(
            f"the registry has revision {revision}, this Drainmark knows {REVISIONS[-1]} at most",
            remedy="install the Drainmark that wrote it, or a newer one",
            revision=revision,
        )
    return None if revision is None else str(revision)


def _copy(connection: Connection, revision: str) -> None:
    """Copy an SQLite registry to `<file>.<revision>.bak`, as it was before the migration."""
    file = connection.engine.url.database
    if connection.dialect.name != "sqlite" or not file:
        return
    copy = Path(f"{file}.{revision}.bak")
    unfinished = Path(f"{copy}.tmp")
    unfinished.unlink(missing_ok=True)
    os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    # A second connection sees the last committed state: the migration has not written yet and nobody else can.
    source, target = sqlite3.connect(file), sqlite3.connect(unfinished)
    try:
        source.backup(target)
    finally:
        source.close()
        target.close()
    unfinished.replace(copy)


def _migrate(connection: Connection, revision: str | None) -> None:
    from alembic.migration import MigrationContext
    from alembic.operations import Operations
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(MIGRATIONS))
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    for script in reversed(list(scripts.iterate_revisions("head", revision or "base"))):
        script.module.upgrade(Operations(context))
        context.stamp(scripts, script.revision)
