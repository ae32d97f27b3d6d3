"""The databases that can hold a registry, SQLite and PostgreSQL: connecting, and telling an outage from a mistake.

Only the primary PostgreSQL server is written to: a URL may name several hosts, and a host that has become a standby is
left at once. The outcome of an interrupted transaction is unknown, so every write of the registry may be repeated.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

from drainmark.jobs import world
from drainmark.jobs.errors import StoreUnavailable, UsageError
from drainmark.resources.postgresql import postgresql_engine
from drainmark.resources.registry.queries import BUSY_SECONDS

_WAL_WRITE_LOCK = 120  # byte of the -shm file that the writer of a WAL database locks
_POLL_SECONDS = 0.01
_EACH_ITS_OWN: Mapping[str, Any] = {"max_overflow": -1}
"""However many threads wait for a lock, another one gets a connection, and its error or its answer."""
_READ_ONLY = "25006"  # PostgreSQL's code: this server is a standby


def engine_of(url: str) -> Engine:
    """Return an engine for a registry's URL; PostgreSQL is not connected to yet.

    Raises:
        UsageError: the URL names neither an SQLite file nor a PostgreSQL database, or the driver is not installed.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise UsageError("registry_url is no SQLAlchemy URL", remedy="sqlite:///PATH or postgresql://…") from error
    match parsed.get_backend_name():
        case "sqlite" if parsed.database and parsed.database != ":memory:":
            return _sqlite_engine(parsed, Path(parsed.database))
        case "postgresql":
            driven = parsed.set(drivername="postgresql+psycopg")
            options = f"-c lock_timeout={BUSY_SECONDS * 1000}"
            return postgresql_engine(driven, options, pool_pre_ping=True, **_EACH_ITS_OWN)
    raise UsageError("registry_url must name an SQLite file or a PostgreSQL database", remedy="sqlite:///PATH")


@contextmanager
def answering(engine: Engine) -> Iterator[None]:
    """Turn an outage into `StoreUnavailable`, which callers retry; pass on errors of a statement.

    Raises:
        StoreUnavailable: there is no answer now; names the process that locks an SQLite file.
    """
    try:
        yield
    except DBAPIError as error:
        if not _is_outage(error):
            raise
        raise _unavailable(engine, error) from error


def _is_outage(error: DBAPIError) -> bool:
    lost = isinstance(error, OperationalError) or error.connection_invalidated
    return bool(lost) or getattr(error.orig, "sqlstate", None) == _READ_ONLY


def _unavailable(engine: Engine, error: DBAPIError) -> StoreUnavailable:
    database = engine.url.database
    pid = None
    if engine.dialect.name == "sqlite" and "locked" in str(error.orig) and database:
        pid = _lock_holder(database)
    held = f"; process {pid} holds the lock" if pid else ""
    said = str(error.orig).strip().partition("\n")[0]
    return StoreUnavailable(
        f"the registry does not answer: {said}{held}",
        remedy=f"look at process {pid}, and end it if it is stopped" if pid else "drainmark doctor",
        pid=pid,
    )


def _sqlite_engine(url: URL, file: Path) -> Engine:
    file.parent.mkdir(parents=True, exist_ok=True)
    # The mode must be right from the first byte; SQLite gives the -wal and -shm files the same mode. An existing file
    # is never opened here: closing it would drop the locks of all connections of this process. If another process then
    # closed the database, it would delete the log, and these connections would see no new rows any more.
    with suppress(FileExistsError):
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS}, **_EACH_ITS_OWN)

    def configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # `begin` begins transactions, not the driver
        _write_ahead(connection)
        connection.execute("PRAGMA synchronous = FULL")

    def begin(connection: Connection) -> None:
        reads = connection.get_execution_options().get("drainmark_reads", False)
        text = "BEGIN" if reads else "BEGIN IMMEDIATE"
        try:  # by the driver: as a statement of SQLAlchemy it takes as long as a small query
            connection.connection.execute(text)
        except sqlite3.Error as error:
            raise DBAPIError.instance(text, None, error, sqlite3.Error) from error

    event.listen(engine, "connect", configure)
    event.listen(engine, "begin", begin)
    return engine


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Set the mode of the file. While another process sets it in a new file, SQLite refuses that without any wait."""
    until = world.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or world.monotonic() > until:
                raise
        world.sleep(_POLL_SECONDS)


def _lock_holder(database: str) -> int | None:
    """Return the process that writes an SQLite database in WAL mode; None if the system does not tell."""
    try:
        inode = Path(f"{database}-shm").stat().st_ino
        locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in locks:
        fields = line.split()
        if fields[3:4] == ["WRITE"] and fields[5].endswith(f":{inode}") and fields[6] == str(_WAL_WRITE_LOCK):
            return int(fields[4])
    return None
