"""Databases of the setting `databases`: connections, and errors told apart as outage or refusal, without passwords."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool

from drainmark.jobs.errors import StoreUnavailable, TableRefused, UsageError
from drainmark.jobs.errors.database_faults import is_passing, said_by
from drainmark.resources.postgresql import postgresql_engine
from drainmark.resources.settings import Settings

BUSY_SECONDS = 30
IDLE_SECONDS = 30
"""How long a process that is stopped inside a transaction may hold its locks; then PostgreSQL ends its session."""


def given_url(settings: Settings, name: str) -> URL:
    """Return the URL of a database of the settings, for sources and for sinks.

    `{home}` in it stands for home. A relative path of an SQLite file starts at the project's root, as every path in
    settings does, not at the working directory.

    Raises:
        UsageError: there is no such setting, or it is not a URL.
    """
    given = settings.databases.get(name)
    if given is None:
        remedy = f"set DRAINMARK_DATABASES__{name.upper()}, or {name} below [databases] in drainmark.toml, to its URL"
        raise UsageError(f"no database {name!r} is set", remedy=remedy)
    try:
        url = make_url(given.replace("{home}", str(settings.home)))
    except ArgumentError:
        msg = f"the setting databases.{name} is no SQLAlchemy URL"
        raise UsageError(msg, remedy="postgresql://… or sqlite:///PATH") from None  # the cause would quote it
    return url.set(database=str(settings.project_root / str(url.database))) if _is_sqlite_file(url) else url


def _is_sqlite_file(url: URL) -> bool:
    """Say whether the URL names an SQLite file by its path; `:memory:` and `file:` URIs do not."""
    path = url.database or ":memory:"
    return url.get_backend_name() == "sqlite" and path != ":memory:" and not path.startswith("file:")


def url_of(settings: Settings, name: str) -> URL:
    """Return the URL of a database that can be written to; see `given_url`.

    Raises:
        UsageError: there is no such setting, or its URL is neither of PostgreSQL nor of an SQLite file.
    """
    url = given_url(settings, name)
    if _is_sqlite_file(url):
        return url
    if url.get_backend_name() == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    raise UsageError(f"databases.{name} is neither PostgreSQL nor an SQLite file", remedy="sqlite:///PATH")


def engine_of(url: URL) -> Engine:
    """Return an engine without a pool: a sink commits once for each group, and holds no connection in between.

    Raises:
        UsageError: the driver is not installed.
    """
    if url.get_backend_name() == "sqlite":
        return _sqlite_engine(url)
    limits = f"lock_timeout={BUSY_SECONDS * 1000} -c idle_in_transaction_session_timeout={IDLE_SECONDS * 1000}"
    return postgresql_engine(url, f"-c {limits} -c timezone=UTC", poolclass=NullPool, hide_parameters=True)


def _sqlite_engine(url: URL) -> Engine:
    with suppress(OSError):  # the first connection reports the fault of the folder
        Path(url.database or "").parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": BUSY_SECONDS}, hide_parameters=True)

    def configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver must begin no transactions: `begin` does
        connection.execute("PRAGMA foreign_keys = ON")
        if connection.execute("PRAGMA page_count").fetchone()[0] == 0:
            # Otherwise a stopped reader would block writers. A file that others made keeps its mode.
            connection.execute("PRAGMA journal_mode = WAL")

    def begin(connection: Connection) -> None:
        reads = connection.get_execution_options().get("drainmark_reads", False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    event.listen(engine, "connect", configure)
    event.listen(engine, "begin", begin)
    return engine


@contextmanager
def answering(engine: Engine, what: str) -> Iterator[None]:
    """Turn errors of a database into an outage, which is retried, or a refusal, which halts the region.

    Args:
        what: names the database for messages, without credentials.

    Raises:
        StoreUnavailable: the database does not answer now, or another process holds the lock.
        TableRefused: the database refuses, and a retry would not help.
    """
    dbapi: Any = engine.dialect.dbapi
    try:
        yield
    except (DBAPIError, dbapi.Error) as error:
        said = said_by(error)
        if is_passing(error):
            remedy = "a new attempt starts by itself; look at the database if it stays so"
            raise StoreUnavailable(f"{what} does not answer: {said}", remedy=remedy) from None
        remedy = "fix the table, or remove the obstacle to its rows"
        raise TableRefused(f"{what} refuses: {said}", remedy=remedy) from None


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

    PostgreSQL rewrites the table, and its statistics, under an exclusive lock. Its write-ahead log, replicas and
    backups are beyond reach.
    """
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            forget_sqlite(connection.connection.driver_connection)
            return
        parts = [engine.dialect.identifier_preparer.quote_identifier(each) for each in (schema, table) if each]
        name = ".".join(parts)
        connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql(f"VACUUM (FULL, ANALYZE) {name}")
