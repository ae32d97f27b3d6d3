"""The progress of each region: ids and epoch, state and error, requests and attempts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from drainmark.jobs.errors import Fenced
from drainmark.resources.registry.database import Database
from drainmark.resources.registry.queries import statement


class RegionProgress:
    """The progress of regions; each method is one short transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def take_ids(self, region: str, epoch: int, count: int) -> int:
        """Return the first of `count` consecutive sequence ids; no other caller gets them."""
        with self._database.guarded(region, epoch) as connection:
            after = connection.execute(statement("regions/take_ids"), {"region": region, "count": count}).scalar_one()
            return int(after) - count

    def set_next_id(self, region: str, epoch: int, value: int) -> None:
        """Raise the next id to at least `value`."""
        self._database.change("regions/raise_next_id", region, epoch, value=value)

    def set_epoch(self, region: str, epoch: int) -> None:
        """Enter a new epoch, after the claim row was committed; raise `Fenced` unless it is above the present one."""
        with self._database.writing() as connection:
            connection.execute(statement("regions/add"), {"region": region})
            if not connection.execute(statement("regions/raise_epoch"), {"region": region, "epoch": epoch}).rowcount:
                raise Fenced(f"region {region} has reached epoch {epoch} already", region=region, epoch=epoch)

    def record_error(self, region: str, epoch: int, error: Mapping[str, Any]) -> None:
        """Keep the last error, a JSON object."""
        with self._database.guarded(region, epoch) as connection:
            values = {"region": region, "error": json.dumps(error), "now": self._database.now(connection)}
            connection.execute(statement("regions/set_error"), values)

    def clear_error(self, region: str, epoch: int) -> None:
        """Forget the last error."""
        self._database.change("regions/clear_error", region, epoch)

    def set_state(self, region: str, epoch: int, state: str) -> None:
        """Record the controller's state, for display."""
        self._database.change("regions/set_state", region, epoch, state=state)

    def request_halt(self, region: str, reason: str) -> None:
        """Ask the owner of the region to halt it. This is not a write of a run, so it has no epoch."""
        with self._database.writing() as connection:
            connection.execute(statement("regions/add"), {"region": region})
            connection.execute(statement("regions/request_halt"), {"region": region, "reason": reason})

    def clear_halt_request(self, region: str, epoch: int) -> None:
        """Take the request back, once the halt is in the checkpoint table."""
        self._database.change("regions/clear_halt", region, epoch)

    def set_probed(self, region: str, fingerprints: Mapping[str, str]) -> None:
        """Record operators with functions that passed the probe, in addition to those recorded before."""
        with self._database.writing() as connection:
            connection.execute(statement("regions/add"), {"region": region})
            connection.execute(statement("regions/lock"), {"region": region})
            before = json.loads(connection.execute(statement("regions/probed"), {"region": region}).scalar_one())
            after = json.dumps({**before, **fingerprints}, sort_keys=True)
            connection.execute(statement("regions/set_probed"), {"region": region, "probed": after})

    def get_probed(self, region: str) -> dict[str, str]:
        """Return operator -> fingerprint of the function that passed the probe."""
        rows = self._database.rows("regions/probed", region=region)
        return dict(json.loads(rows[0]["probed"])) if rows else {}
