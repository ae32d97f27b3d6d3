"""What is read from a database table that is a sink: the region's rows, and their numbers by id."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import sqlalchemy as sa

from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.resources.sinks.database_target import DatabaseTarget

if TYPE_CHECKING:
    import pyarrow as pa

_IDS = 500  # fewer than a statement may have parameters


class DatabaseReader:
    """The region's rows in one table; rows of others, without an id, are left out."""

    def __init__(self, target: DatabaseTarget) -> None:
        self._target = target

    def row_count(self) -> int:
        """Return the number of rows of the region."""
        return int(self._target.scalar(sa.func.count(self._target.id)) or 0)

    def rows_above(self, to: int) -> int:
        """Return the number of rows with ids above `to` (exclusive)."""
        return int(self._target.scalar(sa.func.count(self._target.id).filter(self._target.id > to)) or 0)

    def newest_id(self) -> int:
        """Return the largest `_sequence_id`, 0 without one."""
        return int(self._target.scalar(sa.func.max(self._target.id)) or INITIAL_ID)

    def counts(self) -> dict[int, int | None]:
        """Return the number of rows by id; {} if there is no table."""
        with self._target.reading() as connection:
            if not self._target.is_there(connection):
                return {}
            counted = sa.select(self._target.id, sa.func.count()).where(self._target.id.is_not(None))
            return {int(number): int(rows) for number, rows in connection.execute(counted.group_by(self._target.id))}

    def read(
        self,
        columns: Sequence[str] | None = None,
        where: pa.compute.Expression | None = None,
        *,
        upto: int | None = None,
    ) -> pa.Table:
        """Return the region's rows for which `where` holds, in no order.

        Args:
            columns: all by default.
            where: a condition on any of the columns; it is applied after the rows left the database.
            upto: the last id (inclusive) whose rows the database returns.
        """
        rows = self._target.rows([self._target.id.is_not(None) if upto is None else self._target.id <= upto], where)
        return rows if columns is None else rows.select(list(columns))

    def read_ids(self, ids: Collection[int]) -> pa.Table:
        """Return the rows of some ids, in no order; the database returns no other rows."""
        ordered = sorted(ids)
        return self._target.rows(
            [self._target.id.in_(ordered[first : first + _IDS]) for first in range(0, len(ordered), _IDS)]
        )
