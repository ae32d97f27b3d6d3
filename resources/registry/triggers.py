"""The inputs of all regions, each region's in one order: pending, committed, skipped, refused, superseded or missing.

An input that is found twice is one trigger: `sql/triggers/add.sql`. `resources/delta/commits.py` ensures that nothing
is committed twice; outside Delta, the version that is stored with a sink's rows does (`resources/sinks`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection

from drainmark.jobs.protocol.records.triggers import (
    NewTrigger,
    RebuiltTrigger,
    Trigger,
    TriggerStatus,
    file_key,
    placed,
)
from drainmark.resources.registry.database import Database
from drainmark.resources.registry.queries import statement, trigger_of

_ROWS_AT_ONCE = 5000


class Triggers:
    """The inputs of regions; each method is one short transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, region: str, triggers: Sequence[NewTrigger], *, after: int | None = None) -> int:
        """Append inputs to the region's order, in the order given; return how many were new.

        An identity (uri, identity_key) that is already known is ignored. If it is superseded or missing, it becomes
        pending again, at the end of the order.

        Args:
            after: the last place in the order when the inputs were found; if another input was added since, nothing is
                added. Slices follow each other: if two processes cut the same slice, only one may add it.
        """
        if not triggers and self._database.rows("regions/one", region=region):
            return 0  # a scan that found nothing new writes nothing
        with self._database.writing() as connection:
            connection.execute(statement("regions/add"), {"region": region})
            connection.execute(statement("regions/lock"), {"region": region})
            last = connection.execute(statement("triggers/last_place"), {"region": region}).scalar_one()
            if after is not None and last != after:
                return 0
            insert(
                connection,
                region,
                (placed(trigger, place) for place, trigger in enumerate(triggers, start=last + 1)),
                self._database.now(connection),
            )
            found = connection.execute(statement("triggers/count_above"), {"region": region, "last": last})
            return int(found.scalar_one())

    def known(self, region: str) -> dict[str, str]:
        """Return uri -> file key of the newest input at each uri; "" if all of its inputs are superseded or missing.

        It reads all inputs, so it is not for frequent use: a scan asks `scan_queries` only for the uris that it finds.
        """
        rows = self._database.rows("triggers/known", region=region)
        return {row["uri"]: file_key(row["identity_key"]) for row in rows}

    def by_uri(self, region: str, uri: str) -> list[Trigger]:
        """Return all inputs ever seen at a uri, oldest first."""
        return [trigger_of(row) for row in self._database.rows("triggers/by_uri", region=region, uri=uri)]

    def gave_way(self, region: str, origin: str) -> list[Trigger]:
        """Return the newest inputs at their uris that have an origin and are superseded or missing, oldest first."""
        rows = self._database.rows("triggers/gave_way", region=region, origin=origin)
        return [trigger_of(row) for row in rows]

    def newest(self, region: str) -> Trigger | None:
        """Return the last input in the region's order, with any status; None if there is none."""
        rows = self._database.rows("triggers/newest", region=region)
        return trigger_of(rows[0]) if rows else None

    def take_queued(self, queue: str, upto: int, number: int) -> None:
        """Assign the inputs of a queue up to a place (inclusive) to a slice. Idempotent; not a write of a run."""
        with self._database.writing() as connection:
            values = {"region": queue, "upto": upto, "number": number}
            connection.execute(statement("triggers/take_queued"), values)

    def give_back_queued(self, queue: str, after: int) -> None:
        """Make the inputs of a queue after a place (exclusive) pending again: they belong to no slice. Idempotent."""
        with self._database.writing() as connection:
            connection.execute(statement("triggers/give_back_queued"), {"region": queue, "after": after})

    def pending(self, region: str, limit: int, max_bytes: int | None = None, *, after: int = 0) -> list[Trigger]:
        """Return the next pending inputs in order: at most `limit`, and at most `max_bytes` in total, but at least one.

        Args:
            after: place (exclusive) of the last input that is in work already; it and those before it stay pending
                until their group is committed.
        """
        with self._database.reading() as connection:
            return _bounded(_pending(connection, region, limit, after), max_bytes)

    def take_pending(
        self, region: str, epoch: int, limit: int, max_bytes: int | None = None, *, sequence_id: int
    ) -> list[Trigger]:
        """Mark the next inputs as committed for an id, and return them. Concurrent callers get different inputs.

        If the reply is lost, the inputs are marked all the same.
        """
        with self._database.guarded(region, epoch) as connection:
            found = _bounded(_pending(connection, region, limit, 0), max_bytes)
            taken: set[int] = set()
            for first in range(0, len(found), _ROWS_AT_ONCE):
                ids = [trigger.id for trigger in found[first : first + _ROWS_AT_ONCE]]
                values = {"region": region, "sequence_id": sequence_id, "ids": ids}
                taken.update(connection.execute(statement("triggers/take_pending", "ids"), values).scalars())
        return [trigger for trigger in found if trigger.id in taken]

    def settle(self, region: str, epoch: int, states: Sequence[tuple[int, int]]) -> None:
        """Mark the inputs of (order index, sequence id) pairs of checkpoint rows as committed. Idempotent."""
        rows = [{"region": region, "order_index": order, "sequence_id": number} for order, number in states]
        self._change_all("triggers/settle", region, epoch, rows)

    def mark_skipped(self, region: str, epoch: int, trigger_id: int, sequence_id: int, reason: str) -> None:
        """Mark an input as skipped: an empty state records it."""
        values = {"id": trigger_id, "sequence_id": sequence_id, "reason": reason}
        self._database.change("triggers/skip", region, epoch, **values)

    def mark(
        self, region: str, epoch: int, trigger_ids: Sequence[int], status: TriggerStatus, reason: str | None
    ) -> None:
        """Set a status that needs no new sequence id; inputs that become pending or missing lose their sequence id."""
        if status in {TriggerStatus.COMMITTED, TriggerStatus.SKIPPED}:
            msg = f"{status} needs a sequence id: use settle or mark_skipped"
            raise ValueError(msg)
        rows = [{"region": region, "id": id_, "status": status.value, "reason": reason} for id_ in trigger_ids]
        self._change_all("triggers/mark", region, epoch, rows)

    def requeue_above(self, region: str, epoch: int, sequence_id: int) -> int:
        """Make committed and skipped inputs above an id pending again, in their old order; return how many."""
        return self._database.change("triggers/requeue", region, epoch, sequence_id=sequence_id)

    def _change_all(self, name: str, region: str, epoch: int, rows: Sequence[dict[str, Any]]) -> None:
        with self._database.guarded(region, epoch) as connection:
            if rows:
                connection.execute(statement(name), rows)


def insert(connection: Connection, region: str, triggers: Iterable[RebuiltTrigger], discovered_at: float) -> None:
    """Write inputs at their places; a known identity is left out, unless it is superseded or missing."""
    rows = [_columns_of(region, trigger, discovered_at) for trigger in triggers]
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        connection.execute(statement("triggers/add"), rows[first : first + _ROWS_AT_ONCE])


def _pending(connection: Connection, region: str, limit: int, after: int) -> list[Trigger]:
    values = {"region": region, "limit": limit, "after": after}
    return [trigger_of(row._mapping) for row in connection.execute(statement("triggers/pending"), values)]


def _bounded(triggers: list[Trigger], max_bytes: int | None) -> list[Trigger]:
    """Return the first inputs with at most so many bytes in total, but at least one."""
    total = 0
    for place, trigger in enumerate(triggers):
        total += trigger.size_bytes
        if max_bytes is not None and total > max_bytes and place:
            return triggers[:place]
    return triggers


def _columns_of(region: str, trigger: RebuiltTrigger, discovered_at: float) -> dict[str, Any]:
    return {
        "region": region,
        "output": trigger.output,
        "uri": trigger.uri,
        "identity": json.dumps(dict(trigger.identity), sort_keys=True),
        "identity_key": trigger.identity_key,
        "order_index": trigger.order_index,
        "size_bytes": trigger.size_bytes,
        "status": trigger.status.value,
        "sequence_id": trigger.sequence_id,
        "discovered_at": discovered_at,
        "origin": trigger.origin,
        "reason": trigger.reason,
    }
