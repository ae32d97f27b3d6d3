"""The registry: triggers seen, progress, cursors, leases of all regions, in SQLite or PostgreSQL (design.md §3.3, §4).

An index beside the checkpoint tables, never the truth, and it can be rebuilt from them. One short transaction a
public method, without any other I/O in it (H25). Every write of a run carries its epoch and raises `Fenced` when the
region has another (H26). Values, statements and tables are in `resources.registry.models`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, TextClause, inspect, text
from sqlalchemy.exc import DatabaseError

from drainmark.jobs.errors import Fenced, FormatTooNew, RegistryLost
from drainmark.jobs.failpoints import whole
from drainmark.jobs.protocol.records.triggers import file_key
from drainmark.resources.registry import models
from drainmark.resources.registry.engines import answering, engine_of
from drainmark.resources.registry.models import NewTrigger, RebuiltTrigger, Trigger, TriggerStatus
from drainmark.resources.registry.queries import REGION, REVISION, REVISIONS, Looks, trigger_of

__all__ = ["MIGRATIONS", "REVISIONS", "VERSION_TABLE", "Registry"]

_ROWS_AT_ONCE = 5000
_prepared = lru_cache(128)(text)
VERSION_TABLE = "drainmark_version"
"""Not alembic's own name: Dagster uses that one, perhaps in the same PostgreSQL database."""
MIGRATIONS = Path(__file__).parents[2] / "sql" / "migrations"


class Registry(Looks):
    """The registry at `url`; opening it creates or migrates it. Threads may share one, forks may not.

    Raises:
        FormatTooNew: a newer Drainmark made it; it is left as it is (R6).
        RegistryLost: the SQLite file is damaged.
        StoreUnavailable: no answer, or locked by another process for 30 s (any method may raise it).
    """

    def __init__(self, url: str) -> None:
        self._engine = engine_of(url)
        self._clock_sql = models.CLOCKS[self._engine.dialect.name]
        try:
            self._bring_up_to_date()
        except Exception as error:
            self.close()
            # SQLite's "malformed" and "not a database" are of this very class, all other troubles of a subclass.
            if type(error) is DatabaseError:
                raise RegistryLost(f"{url} is damaged: {error.orig}", remedy="drainmark doctor --repair") from error
            raise

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    # --- transactions, also for `resources.registry.lease` ------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a transaction that holds SQLite's write lock from its start (R1)."""
        with whole(), answering(self._engine), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a transaction that sees one state and waits for no writer."""
        with answering(self._engine), self._engine.connect() as connection:
            connection.execution_options(drainmark_reads=True)
            with connection.begin():
                yield connection

    def now(self, connection: Connection) -> float:
        """Return the database's time, seconds since 1970 UTC."""
        return float(connection.execute(_prepared(f"SELECT {self._clock_sql}")).scalar_one())

    def clock(self) -> float:
        """Return the database's time in a transaction of its own, seconds since 1970 UTC."""
        with self.reading() as connection:
            return self.now(connection)

    def _ask(self, statement: str, **values: Any) -> list[Mapping[Any, Any]]:
        with self.reading() as connection:
            return [row._mapping for row in connection.execute(_prepared(statement), values)]

    def _guard(self, connection: Connection, region: str, epoch: int) -> None:
        # An update, not a select: on PostgreSQL it also locks the region's row until the transaction ends.
        if not connection.execute(models.GUARD, {"region": region, "epoch": epoch}).rowcount:
            raise Fenced(f"epoch {epoch} of region {region} is over", region=region, epoch=epoch)

    def _guarded(self, region: str, epoch: int, statement: TextClause, **values: Any) -> int:
        with self.writing() as connection:
            self._guard(connection, region, epoch)
            return connection.execute(statement, {"region": region, **values}).rowcount

    # --- triggers -------------------------------------------------------------------------------------------------

    def add_triggers(self, region: str, triggers: Sequence[NewTrigger], *, after: int | None = None) -> int:
        """Append inputs to the region's order, in the order given; return how many were new.

        An identity (uri, identity_key) that is known already, whatever its status, is ignored.

        Args:
            after: the last place in the order that whoever found them knew: where another came meanwhile, nothing is
                added. Slices are cut one behind the other, so of two who cut the same one only one may add it.
        """
        if not triggers and self.knows(region):
            return 0  # a scan that found nothing new writes nothing
        with self.writing() as connection:
            connection.execute(models.ENSURE_REGION, {"region": region})
            connection.execute(models.LOCK_REGION, {"region": region})
            last = connection.execute(models.LAST_ORDER, {"region": region}).scalar_one()
            if after is not None and last != after:
                return 0
            now = self.now(connection)
            rows = [
                models.columns_of(region, models.placed(trigger, place), now)
                for place, trigger in enumerate(triggers, start=last + 1)
            ]
            for first in range(0, len(rows), _ROWS_AT_ONCE):
                connection.execute(models.ADD, rows[first : first + _ROWS_AT_ONCE])
            return int(connection.execute(models.COUNT_ABOVE, {"region": region, "last": last}).scalar_one())

    def knows(self, region: str) -> bool:
        """Say whether a scan or a run of the region was ever here."""
        with self.reading() as connection:
            return connection.execute(_prepared(REGION), {"region": region}).one_or_none() is not None

    def known(self, region: str) -> dict[str, str]:
        """Return uri -> file key of the newest input at each uri, whatever its status.

        All of them, so not for what happens often: a scan asks `scan_queries` for those that it meets.
        """
        with self.reading() as connection:
            return {row[0]: file_key(row[1]) for row in connection.execute(models.KNOWN, {"region": region})}

    def by_uri(self, region: str, uri: str) -> list[Trigger]:
        """Return all inputs ever seen at a uri, oldest first."""
        with self.reading() as connection:
            rows = connection.execute(models.BY_URI, {"region": region, "uri": uri})
            return [trigger_of(row._mapping) for row in rows]

    def newest(self, region: str) -> Trigger | None:
        """Return the last input in the region's order, whatever its status."""
        with self.reading() as connection:
            row = connection.execute(models.NEWEST, {"region": region}).one_or_none()
        return None if row is None else trigger_of(row._mapping)

    def take_queued(self, queue: str, upto: int, number: int) -> None:
        """Note that the inputs of a queue up to a place belong to a slice; again is harmless. No run's write."""
        with self.writing() as connection:
            connection.execute(models.TAKE_QUEUED, {"region": queue, "upto": upto, "number": number})

    def give_back_queued(self, queue: str, after: int) -> None:
        """Note that the inputs of a queue behind a place belong to no slice any more; again is harmless."""
        with self.writing() as connection:
            connection.execute(models.GIVE_BACK_QUEUED, {"region": queue, "after": after})

    def pending(self, region: str, limit: int, max_bytes: int | None = None, *, after: int = 0) -> list[Trigger]:
        """Return the next inputs in order: at most `limit`, at most `max_bytes` together, but one in any case.

        Args:
            after: place in the order of the last input that is under way already; it and those before it are pending
                until their group is committed.
        """
        with self.reading() as connection:
            rows = connection.execute(models.PENDING, {"region": region, "limit": limit, "after": after})
            triggers = [trigger_of(row._mapping) for row in rows]
        return _bounded(triggers, max_bytes)

    def take_pending(
        self, region: str, epoch: int, limit: int, max_bytes: int | None = None, *, sequence_id: int
    ) -> list[Trigger]:
        """Note the next inputs as committed for an id and return them: of several who ask, each gets others.

        Where the answer is lost, they are taken all the same.
        """
        with self.writing() as connection:
            self._guard(connection, region, epoch)
            rows = connection.execute(models.PENDING, {"region": region, "limit": limit, "after": 0})
            found = _bounded([trigger_of(row._mapping) for row in rows], max_bytes)
            taken: set[int] = set()
            for first in range(0, len(found), _ROWS_AT_ONCE):
                values = {"region": region, "sequence_id": sequence_id}
                ids = [trigger.id for trigger in found[first : first + _ROWS_AT_ONCE]]
                taken.update(connection.execute(models.TAKE_PENDING, {**values, "ids": ids}).scalars())
        return [trigger for trigger in found if trigger.id in taken]

    def mark_committed(self, region: str, epoch: int, committed: Sequence[tuple[int, int]]) -> None:
        """Note (trigger id, sequence id) pairs as committed; again after a crash is harmless."""
        rows = [{"region": region, "id": id_, "sequence_id": sequence_id} for id_, sequence_id in committed]
        with self.writing() as connection:
            self._guard(connection, region, epoch)
            if rows:
                connection.execute(models.COMMITTED, rows)

    def settle(self, region: str, epoch: int, states: Sequence[tuple[int, int]]) -> None:
        """Note (order index, sequence id) pairs as committed, as checkpoint rows tell them; repeating is harmless."""
        rows = [{"region": region, "order_index": order, "sequence_id": number} for order, number in states]
        with self.writing() as connection:
            self._guard(connection, region, epoch)
            if rows:
                connection.execute(models.SETTLED, rows)

    def mark_skipped(self, region: str, epoch: int, trigger_id: int, sequence_id: int, reason: str) -> None:
        """Note an input that an empty state stands for."""
        values = {"id": trigger_id, "sequence_id": sequence_id, "reason": reason}
        self._guarded(region, epoch, models.SKIPPED, **values)

    def mark(
        self, region: str, epoch: int, trigger_ids: Sequence[int], status: TriggerStatus, reason: str | None
    ) -> None:
        """Give inputs a status that no new sequence id goes with; pending ones lose theirs."""
        if status in {TriggerStatus.COMMITTED, TriggerStatus.SKIPPED}:
            msg = f"{status} needs a sequence id: use mark_committed or mark_skipped"
            raise ValueError(msg)
        rows = [{"region": region, "id": id_, "status": status.value, "reason": reason} for id_ in trigger_ids]
        with self.writing() as connection:
            self._guard(connection, region, epoch)
            if rows:
                connection.execute(models.MARK, rows)

    def requeue_above(self, region: str, epoch: int, sequence_id: int) -> int:
        """Make committed and skipped inputs above an id pending again, in their old order; return how many."""
        return self._guarded(region, epoch, models.REQUEUE, sequence_id=sequence_id)

    # --- ids and epochs -------------------------------------------------------------------------------------------

    def take_ids(self, region: str, epoch: int, count: int) -> int:
        """Return the first of `count` sequence ids that nobody else ever gets (E16)."""
        with self.writing() as connection:
            self._guard(connection, region, epoch)
            after = connection.execute(models.TAKE, {"region": region, "count": count}).scalar_one()
            return int(after) - count

    def set_next_id(self, region: str, epoch: int, value: int) -> None:
        """Raise the next id to at least `value` (H40)."""
        self._guarded(region, epoch, models.RAISE_NEXT, value=value)

    def set_epoch(self, region: str, epoch: int) -> None:
        """Enter a new epoch, after the claim row was committed; `Fenced` unless it is above the present one."""
        with self.writing() as connection:
            connection.execute(models.ENSURE_REGION, {"region": region})
            if not connection.execute(models.SET_EPOCH, {"region": region, "epoch": epoch}).rowcount:
                raise Fenced(f"region {region} has reached epoch {epoch} already", region=region, epoch=epoch)

    # --- regions --------------------------------------------------------------------------------------------------

    def is_empty(self, region: str) -> bool:
        """Say whether no run ever wrote here: a scan may have, so triggers prove nothing (H27)."""
        return self.region_info(region).epoch == 0

    def record_error(self, region: str, epoch: int, error: Mapping[str, Any]) -> None:
        """Keep the last error, a JSON object."""
        with self.writing() as connection:
            self._guard(connection, region, epoch)
            values = {"region": region, "error": json.dumps(error), "now": self.now(connection)}
            connection.execute(models.SET_ERROR, values)

    def clear_error(self, region: str, epoch: int) -> None:
        """Forget the last error."""
        self._guarded(region, epoch, models.CLEAR_ERROR)

    def set_state(self, region: str, epoch: int, state: str) -> None:
        """Show the controller's state."""
        self._guarded(region, epoch, models.SET_STATE, state=state)

    def request_halt(self, region: str, reason: str) -> None:
        """Ask whoever runs the region to halt it; no run's write, so no epoch."""
        with self.writing() as connection:
            connection.execute(models.ENSURE_REGION, {"region": region})
            connection.execute(models.REQUEST_HALT, {"region": region, "reason": reason})

    def clear_halt_request(self, region: str, epoch: int) -> None:
        """Take the request back, once the halt is in the checkpoint table."""
        self._guarded(region, epoch, models.CLEAR_HALT)

    def set_probed(self, region: str, fingerprints: Mapping[str, str]) -> None:
        """Note operators whose function passed the probe (H14), beside those noted before."""
        with self.writing() as connection:
            connection.execute(models.ENSURE_REGION, {"region": region})
            connection.execute(models.LOCK_REGION, {"region": region})
            before = json.loads(connection.execute(models.PROBED, {"region": region}).scalar_one())
            after = json.dumps({**before, **fingerprints}, sort_keys=True)
            connection.execute(models.SET_PROBED, {"region": region, "probed": after})

    def get_probed(self, region: str) -> dict[str, str]:
        """Return operator -> fingerprint of what passed the probe."""
        with self.reading() as connection:
            return dict(json.loads(connection.execute(models.PROBED, {"region": region}).scalar() or "{}"))

    def save_cursor(self, region: str, source: str, cursor: str) -> None:
        """Keep how far the scan of a source has come, a text of the scan's own making."""
        with self.writing() as connection:
            connection.execute(models.SAVE_CURSOR, {"region": region, "source": source, "cursor": cursor})

    def rebuild(self, region: str, *, epoch: int, next_id: int, triggers: Sequence[RebuiltTrigger]) -> None:
        """Replace a region's triggers and progress and drop its cursors, all or nothing (H27).

        Stay as they are: the lease, a halt request, what was probed, a next id that is higher already (H40).

        Raises:
            Fenced: the region has reached a higher epoch.
        """
        values = {"region": region, "epoch": epoch, "next_id": next_id}
        with self.writing() as connection:
            connection.execute(models.ENSURE_REGION, {"region": region})
            if not connection.execute(models.REBUILD_REGION, values).rowcount:
                raise Fenced(f"region {region} is above epoch {epoch}", region=region, epoch=epoch)
            for statement in models.FORGET:
                connection.execute(statement, {"region": region})
            now = self.now(connection)
            for first in range(0, len(triggers), _ROWS_AT_ONCE):
                batch = triggers[first : first + _ROWS_AT_ONCE]
                connection.execute(models.ADD, [models.columns_of(region, trigger, now) for trigger in batch])

    # --- opening --------------------------------------------------------------------------------------------------

    def _bring_up_to_date(self) -> None:
        with self.reading() as connection:
            if _checked_revision(connection) == REVISIONS[-1]:
                return
        with self.writing() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('drainmark'))"))
            # Asked again under the lock: another process may have migrated, even to a newer revision.
            if _checked_revision(connection) != REVISIONS[-1]:
                _migrate(connection)


def _bounded(triggers: list[Trigger], max_bytes: int | None) -> list[Trigger]:
    """Return as many as have so many bytes together, one in any case."""
    total = 0
    for place, trigger in enumerate(triggers):
        total += trigger.size_bytes
        if max_bytes is not None and total > max_bytes and place:
            return triggers[:place]
    return triggers


def _checked_revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    revision = connection.execute(text(REVISION)).scalar()
    if revision is not None and revision not in REVISIONS:
        raise FormatTooNew(
            f"the registry has revision {revision}, this Drainmark knows {REVISIONS[-1]} at most",
            remedy="install the Drainmark that wrote it, or a newer one",
            revision=revision,
        )
    return None if revision is None else str(revision)


def _migrate(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["version_table"] = VERSION_TABLE
    command.upgrade(config, "head")
