"""The holder of a region's lease, seen from outside; `resources.registry.lease` takes it."""

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
    """Who holds a lease.

    Attributes:
        epoch: None until the owner has claimed.
        heartbeat_age_seconds: by the database's clock.
        is_alive: False when the lease is free for the taking: the process is dead or the heartbeat too old.
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
    """Return who holds the region's lease, None if it is free."""
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
    """Return for how long a run has not been heard of, by the database's clock; None where it was not the last holder.

    A lease that was given up still says who held it, and when that one was heard of last.
    """
    row = registry.lease_row(region)
    return max(0.0, row["now"] - row["heartbeat_at"]) if row is not None and row["run_id"] == run_id else None


def is_alive(row: Mapping[Any, Any], now: float, lease_seconds: float) -> bool:
    """Say whether the holder in a row of the lease's table is to be waited for."""
    is_here = row["host"] == socket.gethostname() and row["boot_id"] == boot_id()
    if is_here and process_started(row["pid"]) != row["process_started"]:
        return False
    age = float(now - row["heartbeat_at"])
    if not is_here and age <= -lease_seconds:  # of a clock that is ahead: for so long nobody could take over
        return False
    return age < lease_seconds
