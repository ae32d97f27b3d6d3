"""The row of a sink in `drainmark_applied`: the owner of the table, and the version that the table has reached.

The row is in the same database as the table, so that both change in one transaction.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from drainmark.jobs import world
from drainmark.jobs.errors import ForeignTable, SplitBrain
from drainmark.jobs.protocol.records.ids import INITIAL_ID, split_txn_version
from drainmark.resources.sinks.database_target import DatabaseTarget

APPLIED = "drainmark_applied"

_applied = sa.Table(
    APPLIED,
    sa.MetaData(),
    sa.Column("region", sa.Text, primary_key=True),
    sa.Column("operator", sa.Text, primary_key=True),
    sa.Column("target", sa.Text, primary_key=True),
    sa.Column("checkpoints", sa.Text, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("sequence_id", sa.BigInteger, nullable=False),
    sa.Column("applied_at", sa.DateTime, nullable=False),
)


class AppliedVersion:
    """The row of one sink in `drainmark_applied`.

    Args:
        target: the table.
        region: the region whose rows it holds.
        operator: the sink.
        identity: returns the unique id of the region's checkpoint table, None before that table exists.
    """

    def __init__(self, target: DatabaseTarget, region: str, operator: str, identity: Callable[[], str | None]) -> None:
        self._target = target
        self._region = region
        self._operator = operator
        self._identity = identity
        self._mine = sa.and_(
            _applied.c.region == region,
            _applied.c.operator == operator,
            _applied.c.target == target.table.fullname,
        )

    def row(self, connection: sa.Connection) -> Any:
        """Return the row, None if there is none."""
        if not sa.inspect(connection).has_table(APPLIED):
            return None
        return connection.execute(sa.select(_applied).where(self._mine)).first()

    def is_reached(self, version: int) -> bool:
        """Say whether the table has reached a version, or a later one.

        Raises:
            SplitBrain: the row is gone.
        """
        with self._target.reading() as connection:
            row = self.row(connection)
        if row is None:
            raise self._lost()
        return int(row.version) >= version

    def locked(self, connection: sa.Connection) -> int:
        """Return the version, and lock the row until the transaction ends.

        Raises:
            SplitBrain: the row is gone.
        """
        row = connection.execute(sa.select(_applied).where(self._mine).with_for_update()).first()
        if row is None:
            raise self._lost()
        return row.version or 0

    def begin(self, connection: sa.Connection) -> None:
        """Insert the row with version 0, unless it exists.

        Raises:
            ForeignTable: another sink writes to the table.
        """
        if self.row(connection) is None:
            self.require_mine(connection, None)
            connection.execute(
                _applied.insert().values(
                    region=self._region,
                    operator=self._operator,
                    target=self._target.table.fullname,
                    checkpoints=self._identity() or "",
                    version=0,
                    sequence_id=INITIAL_ID,
                    applied_at=_now(),
                )
            )

    def note(self, connection: sa.Connection, version: int) -> None:
        """Record that the table has reached a version."""
        change = {"version": version, "sequence_id": split_txn_version(version)[1], "applied_at": _now()}
        connection.execute(_applied.update().where(self._mine).values(**change))

    def require_mine(self, connection: sa.Connection, row: Any) -> None:
        """Check that the table has no rows of another sink, or of a region of the same name in another home.

        Raises:
            ForeignTable: it has such rows.
        """
        identity, where = self._identity(), self._target.where
        if row is not None and identity is not None and row.checkpoints != identity:
            msg = f"{where} was filled by another home's region {self._region!r}, up to id {row.sequence_id}"
            remedy = f"run there, or choose another table; to begin anew, empty the table and its row of {APPLIED}"
            raise ForeignTable(msg, remedy=remedy)
        if row is not None or not sa.inspect(connection).has_table(APPLIED):
            return
        target = _table_of(connection, self._target.table.fullname)
        for other in connection.execute(sa.select(_applied)):
            if _table_of(connection, other.target) == target:
                msg = f"{where} is written by {other.operator} of region {other.region!r}: ids must not mix"
                raise ForeignTable(msg, remedy="choose another table")

    def _lost(self) -> SplitBrain:
        msg = f"{APPLIED} has no row for {self._target.where}: the version of the table is not known"
        remedy = f"restore the database from a backup; or: drainmark reset {self._region} --to-initial"
        return SplitBrain(msg, remedy=remedy)


def _table_of(connection: sa.Connection, target: str) -> tuple[str, str]:
    """Return the schema and the name of a table, equal for all spellings that the database accepts for it."""
    schema, _, name = target.rpartition(".")
    found = (schema or connection.dialect.default_schema_name or "", name)
    return (found[0].casefold(), found[1].casefold()) if connection.dialect.name == "sqlite" else found


def create_applied(connection: sa.Connection) -> None:
    """Create `drainmark_applied` unless it exists."""
    _applied.create(connection, checkfirst=True)


def _now() -> dt.datetime:
    return dt.datetime.fromtimestamp(world.now(), dt.UTC).replace(tzinfo=None)
