"""The tables of the registry, declared with SQLModel: migrations are compared with them.

Importing SQLModel takes half a second, so no command and no run imports this module. Times are seconds since 1970 UTC,
by the database's clock.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Float, Index, Integer, MetaData, Text, UniqueConstraint
from sqlmodel import Field, SQLModel

METADATA = MetaData()
_BIG_KEY: Any = BigInteger().with_variant(Integer, "sqlite")  # SQLite assigns row ids only in an INTEGER key


class TriggerRow(SQLModel, table=True):
    """One input of a region: a file or a slice. Only a rebuild deletes rows."""

    metadata = METADATA
    __tablename__ = "drainmark_trigger"
    __table_args__ = (
        UniqueConstraint("region", "uri", "identity_key", name="drainmark_trigger_identity"),
        UniqueConstraint("region", "order_index", name="drainmark_trigger_order"),
        Index("drainmark_trigger_pending", "region", "status", "order_index"),
        Index("drainmark_trigger_sequence", "region", "sequence_id"),
        {"sqlite_autoincrement": True},  # an id is never used twice
    )
    id: int | None = Field(default=None, primary_key=True, sa_type=_BIG_KEY)
    region: str = Field(sa_type=Text)
    output: str = Field(sa_type=Text)  # of the start; empty if the start has only one output
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


class RegionRow(SQLModel, table=True):
    """Progress of one region; its epoch guards every write of a run."""

    metadata = METADATA
    __tablename__ = "drainmark_region"
    region: str = Field(primary_key=True, sa_type=Text)
    next_id: int = Field(sa_type=BigInteger)  # the first sequence id that is not taken
    epoch: int = Field(sa_type=BigInteger)  # 0 until the first claim or rebuild
    state: str = Field(sa_type=Text)  # the controller's, for display
    last_error: str | None = Field(default=None, sa_type=Text)  # JSON object
    last_error_at: float | None = Field(default=None, sa_type=Float)
    halt_requested: str | None = Field(default=None, sa_type=Text)  # the reason given
    probed: str = Field(sa_type=Text)  # JSON object: operator -> fingerprint


class LeaseRow(SQLModel, table=True):
    """The process that owns a region, or owned it last."""

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


class CursorRow(SQLModel, table=True):
    """The position of the incremental scan of one source."""

    metadata = METADATA
    __tablename__ = "drainmark_cursor"
    region: str = Field(primary_key=True, sa_type=Text)
    source: str = Field(primary_key=True, sa_type=Text)
    cursor: str = Field(sa_type=Text)  # in the format of the scan


class DirectoryRow(SQLModel, table=True):
    """The stamp of a directory at its last complete listing; a directory with the same stamp is not listed again."""

    metadata = METADATA
    __tablename__ = "drainmark_directory"
    region: str = Field(primary_key=True, sa_type=Text)
    uri: str = Field(primary_key=True, sa_type=Text)
    stamp: str = Field(sa_type=Text)  # in the format of the scan
