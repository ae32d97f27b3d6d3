"""The owner of a region, as other processes see it; `resources.registry.lease` takes the lease."""

from __future__ import annotations

import datetime as dt
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drainmark.resources.processes import boot_id, process_started
from drainmark.resources.registry.queries import Looks, utc

LEASE_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The process that holds a lease.

    Attributes:
        epoch: None until the owner has claimed.
        heartbeat_age_seconds: by the database's clock.
        is_alive: False if another process may take the lease: this process is dead, or its heartbeat is too old.
    """

    region: str
    epoch: int | None
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
        epoch=row["epoch"],
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
