"""Transactions of the registry's database, and the guard that every write of a run passes first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine

from drainmark.jobs import world
from drainmark.jobs.errors import Fenced
from drainmark.jobs.world import Seam
from drainmark.resources.registry.engines import answering
from drainmark.resources.registry.queries import statement


class Database:
    """Transactions on an engine; threads may share one, forked processes may not.

    Raises:
        StoreUnavailable: no answer, or another process has locked the database for 30 s (any method may raise it).
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.dialect = engine.dialect.name

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a transaction that holds SQLite's write lock from its start."""
        seam = world.transaction(Seam.REGISTRY_WRITE)
        with world.whole(), answering(self.engine), seam, self.engine.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a transaction that reads one snapshot and waits for no writer."""
        with answering(self.engine), world.transaction(Seam.REGISTRY_READ), self.engine.connect() as connection:
            connection.execution_options(drainmark_reads=True)
            with connection.begin():
                yield connection

    @contextmanager
    def guarded(self, region: str, epoch: int) -> Iterator[Connection]:
        """Open a transaction for a write of a run.

        Raises:
            Fenced: the region has another epoch; nothing is written.
        """
        with self.writing() as connection:
            if not connection.execute(statement("regions/guard"), {"region": region, "epoch": epoch}).rowcount:
                raise Fenced(f"epoch {epoch} of region {region} is over", region=region, epoch=epoch)
            yield connection

    def change(self, name: str, region: str, epoch: int, **values: Any) -> int:
        """Run one statement as a write of a run; return how many rows it changed."""
        with self.guarded(region, epoch) as connection:
            return connection.execute(statement(name), {"region": region, **values}).rowcount

    def rows(self, name: str, **values: Any) -> list[Mapping[Any, Any]]:
        """Return the rows of a query, in a transaction of its own; a parameter may be a list of values."""
        lists = [parameter for parameter, value in values.items() if isinstance(value, list)]
        with self.reading() as connection:
            return [row._mapping for row in connection.execute(statement(name, *lists), values)]

    def now(self, connection: Connection) -> float:
        """Return the database's time, seconds since 1970 UTC."""
        if self.dialect == "sqlite":  # it has no other clock than this machine
            return world.now()
        return float(connection.execute(statement("registry/clock")).scalar_one())
