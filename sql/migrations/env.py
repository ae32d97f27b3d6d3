"""Alembic's entry: brings the registry up to date on the connection, and in the transaction, that it is given.

Started by `resources.registry.registry` alone, which holds the write lock: all or nothing, and one process at a time.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from alembic import context
from sqlalchemy import Connection

from drainmark.resources.registry.tables import METADATA


def copy_first(connection: Connection) -> None:
    """Copy an SQLite registry that has a revision to `<file>.<revision>.bak`, as it was before the migration."""
    file = connection.engine.url.database
    revision = context.get_context().get_current_revision()
    if connection.dialect.name != "sqlite" or not file or revision is None:
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


def run() -> None:
    """Upgrade on the connection in `config.attributes["connection"]`."""
    connection = context.config.attributes["connection"]
    context.configure(
        connection=connection,
        target_metadata=METADATA,
        version_table=context.config.attributes["version_table"],
        transactional_ddl=True,
        render_as_batch=True,
    )
    copy_first(connection)
    with context.begin_transaction():
        context.run_migrations()


run()
