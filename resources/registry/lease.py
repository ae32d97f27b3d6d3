"""The lease of a region: a row in the registry that its owner's heartbeat keeps alive.

The lease saves two runs from double work; safety does not depend on it. Only the fence in Delta makes commits safe, so
an owner that lost its lease while its process was stopped may go on until it gets `Fenced`.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from drainmark.jobs import world
from drainmark.jobs.errors import DrainmarkError, Owned, StoreUnavailable
from drainmark.resources.processes import boot_id, process_started
from drainmark.resources.registry.queries import Looks, statement, utc
from drainmark.resources.settings import Settings

if TYPE_CHECKING:  # `status` looks at owners, and starts without SQLAlchemy
    from sqlalchemy import Row

    from drainmark.resources.registry.registry import Registry

__all__ = ["Lease", "LeaseHolder", "Owner", "describe", "process_started"]

LEASE_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The process that holds a lease.

    Attributes:
        heartbeat_age_seconds: by the database's clock.
        is_alive: False if another process may take the lease: this process is dead, or its heartbeat is too old.
    """

    region: str
    host: str
    pid: int
    run_id: str
    acquired_at: dt.datetime
    heartbeat_at: dt.datetime
    heartbeat_age_seconds: float
    is_alive: bool


def describe(registry: Looks, region: str, *, lease_seconds: float = LEASE_SECONDS) -> Owner | None:
    """Return the owner that holds the region's lease; None if it is free."""
    row = registry.lease_row(region)
    if row is None or row["token"] is None:
        return None
    return Owner(
        region=region,
        host=row["host"],
        pid=row["pid"],
        run_id=row["run_id"],
        acquired_at=utc(row["acquired_at"]),
        heartbeat_at=utc(row["heartbeat_at"]),
        heartbeat_age_seconds=max(0.0, row["now"] - row["heartbeat_at"]),
        is_alive=is_alive(row, row["now"], lease_seconds),
    )


def silent_seconds(registry: Looks, region: str, run_id: str) -> float | None:
    """Return the seconds since a run's last heartbeat, by the database's clock; None if it was not the last owner.

    A lease that was released still has its last owner and the time of its last heartbeat.
    """
    row = registry.lease_row(region)
    return max(0.0, row["now"] - row["heartbeat_at"]) if row is not None and row["run_id"] == run_id else None


def is_alive(row: Mapping[Any, Any], now: float, lease_seconds: float) -> bool:
    """Say whether the owner in a row of the lease table is alive, so that others must wait for it."""
    is_here = row["host"] == socket.gethostname() and row["boot_id"] == boot_id()
    if is_here and process_started(row["pid"]) != row["process_started"]:
        return False
    age = float(now - row["heartbeat_at"])
    if not is_here and age <= -lease_seconds:  # a heartbeat in the future would block others for as long
        return False
    return age < lease_seconds


logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 3.0
_TRIES = 3
_given_up: set[str] = set()
"""Tokens of leases that this process gave up, or perhaps took, while the registry did not answer. They are free."""


class Lease:
    """A region's lease, held; made by `acquire`, ended by `release` or the end of the `with` block.

    Attributes:
        previous_clean: whether the previous owner released the lease as clean; None if it died before it released the
            lease, or if there was none.
    """

    def __init__(
        self, registry: Registry, region: str, token: str, previous_clean: bool | None, heartbeat_seconds: float
    ) -> None:
        self.region = region
        self.previous_clean = previous_clean
        self._registry = registry
        self._key = {"region": region, "token": token}
        self._heartbeat_seconds = heartbeat_seconds
        self._stop = world.event()
        self._thread = world.start(self._keep_alive, f"lease {region}")

    @classmethod
    def acquire(
        cls,
        registry: Registry,
        region: str,
        run_id: str,
        *,
        lease_seconds: float = LEASE_SECONDS,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> Self:
        """Take the lease, if it is free, if its owner is a dead process of this host, or if its heartbeat is too old.

        Raises:
            Owned: another process holds it (exit 4).
        """
        token = world.token()
        for _ in range(_TRIES):
            row, now = _look(registry, region)
            is_held = row.token is not None and row.token not in _given_up
            if is_held and is_alive(row._mapping, now, lease_seconds):
                raise _owned(row)
            if _try_take(registry, row, token, run_id):
                previous = None if row.released_clean is None else bool(row.released_clean)
                return cls(registry, region, token, previous, heartbeat_seconds)
        raise Owned(f"region {region} changes hands just now", region=region, remedy="try again")

    def release(self, *, clean: bool) -> None:
        """End the heartbeat, and free the lease with a note whether the run ended clean; a lost lease stays unchanged.

        If the registry does not answer, the lease expires by itself: a run that is over does not fail because of that.
        """
        self._stop.set()
        self._thread.join()
        try:
            with self._registry.database.writing() as connection:
                connection.execute(statement("leases/release"), {**self._key, "clean": clean})
        except StoreUnavailable as error:
            _given_up.add(self._key["token"])
            logger.warning("Lease of %s was not released: %s", self.region, error, extra={"action": "release_failed"})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release(clean=kind is None)

    def _keep_alive(self) -> None:
        while not self._stop.wait(self._heartbeat_seconds):
            try:
                with self._registry.database.writing() as connection:
                    kept = connection.execute(
                        statement("leases/beat"), {**self._key, "now": self._registry.database.now(connection)}
                    ).rowcount
            except DrainmarkError as error:
                # If the registry does not answer for a while, the run may lose its lease, but it does not fail.
                logger.warning("Heartbeat failed: %s", error, extra={"action": "heartbeat_failed"})
                continue
            if not kept:
                logger.warning("Lease of %s was taken over", self.region, extra={"action": "lease_lost"})
                return


@dataclass(slots=True)
class LeaseHolder:
    """A lease that is acquired by name and released once."""

    registry: Registry
    settings: Settings
    _lease: Lease | None = None

    def acquire(self, region: str, run_id: str) -> None:
        self._lease = Lease.acquire(
            self.registry,
            region,
            run_id,
            lease_seconds=self.settings.lease_seconds,
            heartbeat_seconds=self.settings.heartbeat_seconds,
        )

    def release(self, *, clean: bool) -> None:
        if self._lease is not None:
            self._lease.release(clean=clean)
            self._lease = None


def _look(registry: Registry, region: str) -> tuple[Row[Any], float]:
    with registry.database.writing() as connection:
        connection.execute(statement("leases/add"), {"region": region})
        return connection.execute(statement("leases/one"), {"region": region}).one(), registry.database.now(connection)


def _try_take(registry: Registry, row: Row[Any], token: str, run_id: str) -> bool:
    # The statement compares the row with the one seen: checking processes needs no transaction, and one caller wins.
    pid = os.getpid()
    values = {
        "region": row.region,
        "token": token,
        "host": socket.gethostname(),
        "boot_id": boot_id(),
        "pid": pid,
        "process_started": process_started(pid) or "",
        "run_id": run_id,
        "seen_token": row.token or "",
        "seen_heartbeat": row.heartbeat_at,
    }
    try:
        with registry.database.writing() as connection:
            return bool(
                connection.execute(
                    statement("leases/take"), {**values, "now": registry.database.now(connection)}
                ).rowcount
            )
    except StoreUnavailable:
        _given_up.add(token)  # the write may have succeeded
        raise


def _owned(row: Row[Any]) -> Owned:
    since = utc(row.acquired_at).isoformat(timespec="seconds")
    return Owned(
        f"region {row.region} is owned by pid {row.pid} on {row.host} since {since}",
        remedy=f"wait for it, or end run {row.run_id}",
        region=row.region,
        pid=row.pid,
        host=row.host,
        run_id=row.run_id,
        since=since,
    )
