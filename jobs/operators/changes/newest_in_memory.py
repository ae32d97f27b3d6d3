"""The newest row of each key, as `scd1.py` computes it, for changes in memory: without truncates, and no delete is
forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drainmark.jobs.frames.tags import GONE, SEQUENCE_ID
from drainmark.jobs.operators.changes.change_shape import KEPT_BY, KEPT_FORGOTTEN, ChangeShape
from drainmark.jobs.operators.changes.changes_in_memory import (
    Changes,
    Flags,
    Numbers,
    first_of,
    last_of,
    stacked,
    table_of,
)

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestInMemory:
    """The changes that are applied.

    Attributes:
        now: row numbers of these changes, those of the group in the order of their stream.
        before: row numbers of the changes that were applied before; only where `has_before`.
        has_row: whether the key had a row before.
        is_alike: whether that row was the same.
    """

    changes: Changes
    now: Numbers
    before: Numbers
    has_row: Flags
    is_alike: Flags

    @classmethod
    def of(cls, shape: ChangeShape, rows: pa.Table, known: pa.Table | None) -> NewestInMemory:
        """Return the changes of a group that are applied.

        Args:
            rows: columns of `to_collect`.
            known: rows of the state with these keys; others, and earlier ones, may be among them. None for none.
        """
        import numpy as np

        changes = Changes.of(shape, rows, known, by=KEPT_BY, deletes=GONE)
        order = changes.in_order(changes.ids, changes.ranks)
        order = order[last_of(changes.keys[order], changes.ids[order])]  # the others have no effect that lasts
        sorted_by = changes.keys[order] * (int(changes.ranks.max(initial=0)) + 1) + changes.ranks[order]
        is_applied = sorted_by >= np.append(sorted_by[:1], np.maximum.accumulate(sorted_by)[:-1])
        applied = order[is_applied]
        before = np.append(applied[:1], applied[:-1])
        has_before = ~first_of(changes.keys[applied])
        is_new = applied < changes.new
        by_place = np.argsort(applied[is_new])
        now: Numbers = applied[is_new][by_place]
        before, has_before = before[is_new][by_place], has_before[is_new][by_place]
        has_row = has_before & ~changes.deletes[before]
        is_alike = has_row & changes.alike(now, before)
        return cls(changes=changes, now=now, before=before, has_row=has_row, is_alike=is_alike)

    def kept(self) -> pa.Table:
        """Return the changes of the state; see `Newest._kept`."""
        import numpy as np

        changes = self.changes
        is_again = self.is_alike & ~changes.deletes[self.now] & (changes.ranks[self.now] == changes.ranks[self.before])
        now = self.now[~is_again]
        deletes = changes.deletes[now]
        return table_of(
            {
                **changes.rows(now, deletes),
                KEPT_BY: changes.sequences(changes.ranks[now]),
                GONE: deletes,
                KEPT_FORGOTTEN: np.zeros(len(now), dtype=bool),
                SEQUENCE_ID: changes.ids[now],
            }
        )

    def output(self) -> pa.Table:
        """Return the rows that keys lose and get at each id."""
        shown, deletes = self._shown, self.changes.deletes[self.now]
        lost, got = shown & self.has_row, shown & ~deletes
        return stacked(self._rows(lost, self.before, is_gone=True), self._rows(got, self.now, is_gone=False))

    def net(self) -> pa.Table:
        """Return of each key and id the new row, or else the one that is gone."""
        shown, deletes = self._shown, self.changes.deletes[self.now]
        lost, got = shown & deletes, shown & ~deletes
        return stacked(self._rows(lost, self.before, is_gone=True), self._rows(got, self.now, is_gone=False))

    @property
    def _shown(self) -> Flags:
        import numpy as np

        return np.where(self.changes.deletes[self.now], self.has_row, ~self.is_alike)

    def _rows(self, chosen: Flags, of: Numbers, *, is_gone: bool) -> pa.Table:
        import numpy as np

        ids = self.changes.ids[self.now[chosen]]
        gone = np.full(len(ids), is_gone)
        return table_of({SEQUENCE_ID: ids, GONE: gone, **self.changes.rows(of[chosen])})
