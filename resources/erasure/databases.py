"""What a database keeps of rows that were deleted: free pages, its log, and statistics of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    from sqlalchemy import Engine


def forget_sqlite(connection: Any) -> None:
    """Rewrite an SQLite file without its free pages, and empty its log.

    Args:
        connection: of the driver, outside of a transaction.
    """
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def forget_pages(engine: Engine, table: str, schema: str | None = None) -> None:
    """Let a database forget the deleted rows of a table: they may lie in its files until it writes there again.

    PostgreSQL rewrites the table, and its statistics, under an exclusive lock. Its write-ahead log, replicas and backups
    are beyond reach.
    """
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            forget_sqlite(connection.connection.driver_connection)
            return
        quoted = sa.sql.quoted_name(table, quote=True)
        name = engine.dialect.identifier_preparer.format_table(sa.Table(quoted, sa.MetaData(), schema=schema))
        connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql(f"VACUUM (FULL, ANALYZE) {name}")
