"""The changes of a region's table id by id, for regions that follow it: what `dm.changes` tells of each id alone."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drainmark.jobs.errors import RewindRefused
from drainmark.jobs.frames.tags import GONE, SEQUENCE_ID
from drainmark.jobs.operators.sources.table_feed import CHANGE_TYPE, COMMIT_VERSION
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.records.manifest import RegionTable, StagedFile, TableRole
from drainmark.jobs.state.keyed_rows import has_keys, key_codes, last_per_key
from drainmark.resources.checkpoints.as_of import RegionReader, committed_files, rows_between

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_KEYS = 10_000
"""Keys of which the earlier rows are looked for in the files; of more keys, all earlier rows are read."""


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
        ids = itertools.islice(self.reader.history.states.above(after), most_ids)
        *_, last = itertools.chain([after], itertools.takewhile(lambda number: number <= newest, ids))
        size, through = 0, last
        for file in self._files(after, last):
            if size and most_bytes is not None and size + file.size > most_bytes:
                through = max(self.in_force((file.first_id or 0) - 1), after + 1)
                break
            size += max(1, file.size)
        if not size and any(after < replaced.by <= last for replaced in self.reader.history.replaced.values()):
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
        return _told((self.reader.as_of(self.table.name, at), "insert", at))

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
        parts = [_told((parts[0], "insert", None))]
        by: dict[int, list[int]] = {}
        for number, replaced in self.reader.history.replaced.items():
            if after < replaced.by <= through:
                by.setdefault(replaced.by, []).append(number)
        for number, old in by.items():
            left = self.reader.as_of(name, self.in_force(number - 1), field.isin(old))
            came = left.filter(pc.greater(left[SEQUENCE_ID], after))
            parts += [_told((came, "insert", None)), _told((left, "delete", number))]
        return _in_order(pa.concat_tables(parts, promote_options="permissive"))

    def _by_state(self, after: int, through: int) -> pa.Table | None:
        """Return the changes of a table that each id replaces."""
        name, parts = self.table.name, []
        before = self.reader.as_of(name, after)
        for number in itertools.takewhile(lambda each: each <= through, self.reader.history.states.above(after)):
            now = self.reader.as_of(name, number)
            if _state_of(now) != _state_of(before):
                parts.append(_told((before, "delete", number), (now, "insert", number)))
            before = now
        return _joined(parts)

    def _by_key(self, after: int, through: int) -> pa.Table | None:
        """Return the changes of an upsert table: each row of its history with the row of its key before it."""
        import numpy as np
        import pyarrow as pa

        keys = list(self.table.keys)
        rows = rows_between(self.reader, self.table, after, through)
        if not rows.num_rows:
            return None
        earlier = self._earlier(after, rows.select(keys))
        every = pa.concat_tables([earlier, rows], promote_options="permissive").combine_chunks()
        ids = every[SEQUENCE_ID].to_numpy()
        codes = key_codes([every], keys)[0]
        order = np.lexsort((ids, codes))
        follows = np.append(False, codes[order][1:] == codes[order][:-1])
        before = np.full(len(order), -1)
        before[order[follows]] = order[np.flatnonzero(follows) - 1]
        gone = np.zeros(len(order), dtype=bool)
        if GONE in every.column_names:
            gone = every[GONE].fill_null(False).to_numpy().astype(bool)
        had = (before >= 0) & ~gone[before]
        is_new = ids > after
        found = {  # rows of an id leave before others come: a reader may have other keys
            "delete": is_new & gone & had,
            "update_preimage": is_new & ~gone & had,
            "update_postimage": is_new & ~gone & had,
            "insert": is_new & ~gone & ~had,
        }
        parts, places, comes = [], [], []
        for change, wanted in found.items():
            at = np.flatnonzero(wanted)
            taken = every.take(pa.array(before[at] if change in ("delete", "update_preimage") else at))
            parts.append(_told((taken, change, pa.array(ids[at], pa.int64()))))
            places.append(at)
            comes.append(np.full(len(at), change in ("update_postimage", "insert")))
        of = np.concatenate(places)
        return pa.concat_tables(parts).take(pa.array(np.lexsort((codes[of], np.concatenate(comes), ids[of]))))

    def _earlier(self, after: int, changed: pa.Table) -> pa.Table:
        """Return the last row up to an id of each key that changes behind it."""
        import pyarrow as pa
        import pyarrow.compute as pc

        keys, where = list(self.table.keys), None
        for key in keys:
            values = changed[key].unique() if not pa.types.is_nested(changed.schema.field(key).type) else None
            plain = values is not None and not values.null_count and not pa.types.is_floating(values.type)
            if values is not None and plain and len(values) <= _MOST_KEYS:
                among = pc.field(key).isin(values)
                where = among if where is None else where & among
        found = rows_between(self.reader, self.table, INITIAL_ID, after, where)
        return last_per_key(found.filter(has_keys(found, changed, keys)), keys)


def _state_of(rows: pa.Table) -> int | None:
    return rows[SEQUENCE_ID][0].as_py() if rows.num_rows else None


def _told(*parts: tuple[pa.Table, str, int | pa.Array | None]) -> pa.Table:
    """Return rows with the type of their change, and the id that made it: by default that of the row."""
    import pyarrow as pa

    found = []
    for rows, change, number in parts:
        numbers = rows[SEQUENCE_ID] if number is None else number
        if isinstance(numbers, int):
            numbers = pa.array([numbers] * rows.num_rows, pa.int64())
        changes = pa.array([change] * rows.num_rows, pa.string())
        found.append(rows.append_column(CHANGE_TYPE, changes).append_column(COMMIT_VERSION, numbers))
    return pa.concat_tables(found, promote_options="permissive")


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
