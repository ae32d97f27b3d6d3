"""What the registry holds: its values, its SQL, and its tables as SQLModel declares them.

`registry` runs the statements, beside those of `queries`; migrations are compared with the tables. SQLModel alone takes
half a second to import, so the tables are declared in functions that only a migration calls. Times in the tables are
seconds since 1970 UTC, by the database's clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Float,
    Index,
    Integer,
    MetaData,
    Text,
    UniqueConstraint,
    bindparam,
    text,
)

from drainmark.jobs.protocol.records.triggers import NewTrigger, RebuiltTrigger, Trigger, TriggerStatus
from drainmark.resources.registry.queries import SQLITE_CLOCK

__all__ = ["NewTrigger", "RebuiltTrigger", "Trigger", "TriggerStatus"]


# --- between values and rows -----------------------------------------------------------------------------------


def columns_of(region: str, trigger: RebuiltTrigger, discovered_at: float) -> dict[str, Any]:
    """Return the parameters of `ADD`."""
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


def placed(trigger: NewTrigger, order_index: int) -> RebuiltTrigger:
    """Return a found input at its place, pending."""
    return RebuiltTrigger(
        uri=trigger.uri,
        identity=trigger.identity,
        identity_key=trigger.identity_key,
        size_bytes=trigger.size_bytes,
        output=trigger.output,
        origin=trigger.origin,
        order_index=order_index,
        status=TriggerStatus.PENDING,
    )


# --- statements, the same for SQLite and PostgreSQL ------------------------------------------------------------

ADD = text(
    "INSERT INTO drainmark_trigger (region, output, uri, identity, identity_key, order_index, size_bytes, status,"
    " sequence_id, discovered_at, origin, reason) VALUES (:region, :output, :uri, :identity, :identity_key,"
    " :order_index, :size_bytes, :status, :sequence_id, :discovered_at, :origin, :reason)"
    " ON CONFLICT (region, uri, identity_key) DO NOTHING"
)
LAST_ORDER = text("SELECT coalesce(max(order_index), 0) FROM drainmark_trigger WHERE region = :region")
NEWEST = text("SELECT * FROM drainmark_trigger WHERE region = :region ORDER BY order_index DESC LIMIT 1")
TAKE_QUEUED = text(
    "UPDATE drainmark_trigger SET status = 'committed', sequence_id = :number"
    " WHERE region = :region AND status = 'pending' AND order_index <= :upto"
)
GIVE_BACK_QUEUED = text(
    "UPDATE drainmark_trigger SET status = 'pending', sequence_id = NULL"
    " WHERE region = :region AND status = 'committed' AND order_index > :after"
)
COUNT_ABOVE = text("SELECT count(*) FROM drainmark_trigger WHERE region = :region AND order_index > :last")
KNOWN = text("SELECT uri, identity_key FROM drainmark_trigger WHERE region = :region ORDER BY order_index")
BY_URI = text("SELECT * FROM drainmark_trigger WHERE region = :region AND uri = :uri ORDER BY order_index")
PENDING = text(
    "SELECT * FROM drainmark_trigger WHERE region = :region AND status = 'pending' AND order_index > :after"
    " ORDER BY order_index LIMIT :limit"
)
TAKE_PENDING = text(
    "UPDATE drainmark_trigger SET status = 'committed', sequence_id = :sequence_id"
    " WHERE region = :region AND status = 'pending' AND id IN :ids RETURNING id"
).bindparams(bindparam("ids", expanding=True))
COMMITTED = text(
    "UPDATE drainmark_trigger SET status = 'committed', sequence_id = :sequence_id, reason = NULL"
    " WHERE region = :region AND id = :id"
)
SETTLED = text(
    "UPDATE drainmark_trigger SET status = 'committed', sequence_id = :sequence_id, reason = NULL"
    " WHERE region = :region AND order_index = :order_index"
)
SKIPPED = text(
    "UPDATE drainmark_trigger SET status = 'skipped', sequence_id = :sequence_id, reason = :reason"
    " WHERE region = :region AND id = :id"
)
MARK = text(
    "UPDATE drainmark_trigger SET status = :status, reason = :reason,"
    " sequence_id = CASE WHEN :status = 'pending' THEN NULL ELSE sequence_id END WHERE region = :region AND id = :id"
)
REQUEUE = text(
    "UPDATE drainmark_trigger SET status = 'pending', sequence_id = NULL, reason = NULL"
    # Said by what it is not, so that the index of the sequence ids is taken: a rewind costs what it takes back.
    " WHERE region = :region AND sequence_id > :sequence_id"
    " AND status NOT IN ('pending', 'refused', 'superseded', 'missing')"
)
FORGET = (
    text("DELETE FROM drainmark_trigger WHERE region = :region"),
    text("DELETE FROM drainmark_cursor WHERE region = :region"),
    text("DELETE FROM drainmark_directory WHERE region = :region"),
)

ENSURE_REGION = text(
    "INSERT INTO drainmark_region (region, next_id, epoch, state, probed) VALUES (:region, 1, 0, '', '{}')"
    " ON CONFLICT (region) DO NOTHING"
)
LOCK_REGION = text("UPDATE drainmark_region SET epoch = epoch WHERE region = :region")
GUARD = text("UPDATE drainmark_region SET epoch = epoch WHERE region = :region AND epoch = :epoch")
TAKE = text("UPDATE drainmark_region SET next_id = next_id + :count WHERE region = :region RETURNING next_id")
RAISE_NEXT = text("UPDATE drainmark_region SET next_id = :value WHERE region = :region AND next_id < :value")
SET_EPOCH = text("UPDATE drainmark_region SET epoch = :epoch WHERE region = :region AND epoch < :epoch")
SET_STATE = text("UPDATE drainmark_region SET state = :state WHERE region = :region")
SET_ERROR = text("UPDATE drainmark_region SET last_error = :error, last_error_at = :now WHERE region = :region")
CLEAR_ERROR = text("UPDATE drainmark_region SET last_error = NULL, last_error_at = NULL WHERE region = :region")
REQUEST_HALT = text("UPDATE drainmark_region SET halt_requested = :reason WHERE region = :region")
CLEAR_HALT = text("UPDATE drainmark_region SET halt_requested = NULL WHERE region = :region")
PROBED = text("SELECT probed FROM drainmark_region WHERE region = :region")
SET_PROBED = text("UPDATE drainmark_region SET probed = :probed WHERE region = :region")
REBUILD_REGION = text(
    "UPDATE drainmark_region SET epoch = :epoch, state = '', last_error = NULL,"
    " last_error_at = NULL, next_id = CASE WHEN next_id < :next_id THEN :next_id ELSE next_id END"
    " WHERE region = :region AND epoch <= :epoch"
)
SAVE_CURSOR = text(
    "INSERT INTO drainmark_cursor (region, source, cursor) VALUES (:region, :source, :cursor)"
    " ON CONFLICT (region, source) DO UPDATE SET cursor = excluded.cursor"
)
CLOCKS: Mapping[str, str] = {
    "sqlite": SQLITE_CLOCK,
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) AS double precision)",
}


# --- tables ----------------------------------------------------------------------------------------------------

METADATA = MetaData()
_BIG_KEY = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by itself only in an INTEGER key


@cache
def declared_tables() -> MetaData:
    """Return the tables as declared; the first call imports SQLModel."""
    for declare in (_trigger, _region, _lease, _cursor, _directory):
        declare()
    return METADATA


def _trigger() -> None:
    from sqlmodel import Field, SQLModel

    class TriggerRow(SQLModel, table=True):
        """One input of a region: a file, a slice of a period. Only a rebuild deletes any."""

        metadata = METADATA
        __tablename__ = "drainmark_trigger"
        __table_args__ = (
            UniqueConstraint("region", "uri", "identity_key", name="drainmark_trigger_identity"),
            UniqueConstraint("region", "order_index", name="drainmark_trigger_order"),
            Index("drainmark_trigger_pending", "region", "status", "order_index"),
            Index("drainmark_trigger_sequence", "region", "sequence_id"),
            {"sqlite_autoincrement": True},  # an id is never used twice
        )
        id: int | None = Field(default=None, primary_key=True, sa_type=_BIG_KEY)  # type: ignore[call-overload]
        region: str = Field(sa_type=Text)
        output: str = Field(sa_type=Text)  # of the start; empty where it has one
        uri: str = Field(sa_type=Text)
        identity: str = Field(sa_type=Text)  # JSON: size, mtime_ns, inode, or etag and version
        identity_key: str = Field(sa_type=Text)  # with region and uri the fence against reading a file twice
        order_index: int = Field(sa_type=BigInteger)
        size_bytes: int = Field(sa_type=BigInteger)
        status: str = Field(sa_type=Text)  # a TriggerStatus
        sequence_id: int | None = Field(default=None, sa_type=BigInteger)
        discovered_at: float = Field(sa_type=Float)
        origin: str = Field(sa_type=Text)  # scan | backfill
        reason: str | None = Field(default=None, sa_type=Text)


def _region() -> None:
    from sqlmodel import Field, SQLModel

    class RegionRow(SQLModel, table=True):
        """Progress of one region; its epoch guards every write of a run (H26)."""

        metadata = METADATA
        __tablename__ = "drainmark_region"
        region: str = Field(primary_key=True, sa_type=Text)
        next_id: int = Field(sa_type=BigInteger)  # the first sequence id that nobody has taken
        epoch: int = Field(sa_type=BigInteger)  # 0 until the first claim or rebuild
        state: str = Field(sa_type=Text)  # the controller's, for display
        last_error: str | None = Field(default=None, sa_type=Text)  # JSON object
        last_error_at: float | None = Field(default=None, sa_type=Float)
        halt_requested: str | None = Field(default=None, sa_type=Text)  # the reason given
        probed: str = Field(sa_type=Text)  # JSON object: operator -> fingerprint


def _lease() -> None:
    from sqlmodel import Field, SQLModel

    class LeaseRow(SQLModel, table=True):
        """Who runs a region, or ran it last."""

        metadata = METADATA
        __tablename__ = "drainmark_lease"
        region: str = Field(primary_key=True, sa_type=Text)
        token: str | None = Field(default=None, sa_type=Text)  # new for each acquisition; null when free
        epoch: int | None = Field(default=None, sa_type=BigInteger)
        host: str = Field(sa_type=Text)
        boot_id: str = Field(sa_type=Text)
        pid: int = Field(sa_type=BigInteger)
        process_started: str = Field(sa_type=Text)
        run_id: str = Field(sa_type=Text)
        acquired_at: float = Field(sa_type=Float)
        heartbeat_at: float = Field(sa_type=Float)
        released_clean: bool | None = None  # null while held; stays null when the owner died


def _cursor() -> None:
    from sqlmodel import Field, SQLModel

    class CursorRow(SQLModel, table=True):
        """How far the incremental scan of one source has come."""

        metadata = METADATA
        __tablename__ = "drainmark_cursor"
        region: str = Field(primary_key=True, sa_type=Text)
        source: str = Field(primary_key=True, sa_type=Text)
        cursor: str = Field(sa_type=Text)  # a text of the scan's own making


def _directory() -> None:
    from sqlmodel import Field, SQLModel

    class DirectoryRow(SQLModel, table=True):
        """What the last whole listing of a directory saw; a directory that still looks so is not listed again."""

        metadata = METADATA
        __tablename__ = "drainmark_directory"
        region: str = Field(primary_key=True, sa_type=Text)
        uri: str = Field(primary_key=True, sa_type=Text)
        stamp: str = Field(sa_type=Text)  # a text of the scan's own making
