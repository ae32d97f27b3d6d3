"""The changes of a region's table id by id, for regions that follow it: what `dm.changes` tells of each id alone."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drainmark.jobs.errors import RewindRefused
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.operators.sources.table_feed import CHANGE_TYPE, COMMIT_VERSION
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.records.manifest import RegionTable, StagedFile, TableRole
from drainmark.resources.checkpoints.as_of import RegionReader, committed_files, rows_between
from drainmark.resources.checkpoints.table_changes import of_keys, told

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class RegionFeed:
    """The changes of one table of a region (`sources.contract.ChangesById`)."""

    reader: RegionReader
    table: RegionTable

    def newest(self) -> int:
        return self.reader.newest_id(self.table)

    def in_force(self, number: int) -> int:
        return self.reader.history.states.ids.at_most(number) or INITIAL_ID

    def cut(self, after: int, most_ids: int | None, most_bytes: int | None) -> tuple[int, int]:
        newest = self.newest()
        above = itertools.islice(self.reader.history.states.above(after), most_ids)
        ids = [after, *itertools.takewhile(lambda number: number <= newest, above)]
        size, through = 0, ids[-1]
        for file in self._files(after, through):
            if size and most_bytes is not None and size + file.size > most_bytes:
                through = max(self.in_force((file.first_id or 0) - 1), *ids[:2])
                break
            size += max(1, file.size)
        if not size and any(after < replaced.by <= through for replaced in self.reader.history.replaced.values()):
            size = 1
        return through, size

    def _files(self, after: int, through: int) -> Sequence[StagedFile]:
        files = committed_files(self.reader.store, self.reader.history, self.table.history or self.table.name)
        return [file for file in files if (file.first_id or 0) <= through and (file.last_id or 0) > after]

    def moment(self, number: int) -> dt.datetime:
        return self.reader.history.states[number].recorded_at

    def require(self, after: int) -> None:
        history = self.reader.history
        edge = max(history.dropped.get(self._name, INITIAL_ID), history.trimmed.get(self._name, INITIAL_ID))
        if after < edge:
            msg = f"the changes of {self.table.name!r} behind {after} are out of reach: up to {edge} only their outcome"
            raise RewindRefused(f"{msg} is kept", remedy=f"{edge} or a later id", nearest=edge)

    @property
    def _name(self) -> str:
        return self.table.history or self.table.name

    def whole(self, at: int) -> pa.Table:
        return told((self.reader.as_of(self.table.name, at), "insert", at))

    def rows(self, after: int, through: int) -> Iterator[pa.Table]:
        self.require(after)
        by_role = {TableRole.UPSERT: self._by_key, TableRole.OVERWRITE: self._by_state}
        found = by_role.get(self.table.role, self._by_id)(after, through)
        yield found if found is not None else self.whole(INITIAL_ID).slice(0, 0)

    # --- by the kind of table ----------------------------------------------------------------------------------------

    def _by_id(self, after: int, through: int) -> pa.Table | None:
        """Return the changes of a table without keys: rows of an id come, and leave if a later id replaces them."""
        import pyarrow as pa
        import pyarrow.compute as pc

        name, field = self.table.name, pc.field(SEQUENCE_ID)
        parts = [self.reader.as_of(name, through, field > after)]
        parts = [told((parts[0], "insert", None))]
        by: dict[int, list[int]] = {}
        for number, replaced in self.reader.history.replaced.items():
            if after < replaced.by <= through:
                by.setdefault(replaced.by, []).append(number)
        for number, old in by.items():
            left = self.reader.as_of(name, self.in_force(number - 1), field.isin(old))
            came = left.filter(pc.greater(left[SEQUENCE_ID], after))
            parts += [told((came, "insert", None)), told((left, "delete", number))]
        return _in_order(pa.concat_tables(parts, promote_options="permissive"))

    def _by_state(self, after: int, through: int) -> pa.Table | None:
        """Return the changes of a table that each id replaces."""
        name, parts = self.table.name, []
        before = self.reader.as_of(name, after)
        for number in itertools.takewhile(lambda each: each <= through, self.reader.history.states.above(after)):
            now = self.reader.as_of(name, number)
            if _state_of(now) != _state_of(before):
                parts.append(told((before, "delete", number), (now, "insert", number)))
            before = now
        return _joined(parts)

    def _by_key(self, after: int, through: int) -> pa.Table | None:
        """Return the changes of an upsert table: each row of its history with the row of its key before it."""
        rows = rows_between(self.reader, self.table, after, through)
        return of_keys(self.reader, self.table, after, rows) if rows.num_rows else None


def _state_of(rows: pa.Table) -> int | None:
    return rows[SEQUENCE_ID][0].as_py() if rows.num_rows else None


def _joined(parts: Sequence[pa.Table]) -> pa.Table | None:
    import pyarrow as pa

    return pa.concat_tables(parts, promote_options="permissive") if parts else None


def _in_order(rows: pa.Table) -> pa.Table:
    """Return rows by the id of their change; rows of one id leave before others come."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    comes = pc.equal(rows[CHANGE_TYPE], "insert").to_numpy()
    return rows.take(pa.array(np.lexsort((comes, rows[COMMIT_VERSION].to_numpy()))))
