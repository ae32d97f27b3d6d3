"""Changes applied as a slowly changing dimension of type 1: of each key the newest row, by its sequence.

A change is applied unless a change with a later sequence is applied already. Of changes with one sequence, the later in
the stream is applied. A delete is applied like a row, and remembered like one: it is the key's last change. A truncate
is a delete of every key. A delete whose while is over is forgotten: its key then takes any change.

The state is the history of a table of the newest rows: it has the last change of each key and id, with `_gone` in a
delete. A key leaves the state by `_forgotten`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drainmark.jobs.frames.tags import GONE, SEQUENCE_ID
from drainmark.jobs.operators.changes.change_shape import (
    KEPT_BY,
    KEPT_DELETED_AT,
    KEPT_FORGOTTEN,
    ChangeShape,
)
from drainmark.jobs.operators.changes.numbered_changes import (
    NET,
    Flags,
    NumberedChanges,
    Numbers,
    first_of,
    flags_of,
    last_of,
    numbers_of,
    stacked,
    table_of,
)
from drainmark.jobs.state import clock

if TYPE_CHECKING:
    import pyarrow as pa

_NONE = -1
_NEVER = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class While:
    """How long deletes are remembered in a group.

    Attributes:
        ticks: of the clock, by id; see `clock.of_triggers`.
        length: of the while, in the clock's unit.
        is_of_events: a delete has a time of its own, else that of its id.
    """

    ticks: pa.Table
    length: int
    is_of_events: bool

    def deleted_at(self, changes: NumberedChanges, truncates: Flags) -> Numbers:
        """Return the times of deletes by row number; `_NEVER` for other changes, and for deletes without a time."""
        import numpy as np
        import pyarrow as pa

        known = changes.column(KEPT_DELETED_AT, pa.int64())
        has_time, at = np.array(known.is_valid()), numbers_of(known.fill_null(0)).copy()
        is_new = changes.ids > 0
        if not self.is_of_events:
            at[is_new] = self._times(clock.NOW)[np.searchsorted(self._ids, changes.ids[is_new])]
            has_time |= is_new
        return np.where(changes.deletes & has_time & ~(is_new & truncates), at, _NEVER)

    def is_over(self, deleted_at: Numbers, number: int) -> Flags:
        """Say of times whether deletes of then are forgotten before an id."""
        before = self._times(clock.BEFORE)[self._ids == number]
        is_over: Flags = (deleted_at < _NEVER) & (deleted_at + self.length <= before)
        return is_over

    def ends(self, deleted_at: Numbers, ids: Numbers) -> Numbers:
        """Return the first ids, from those of the deletes on, at which deletes of some times are forgotten; else
        `_NEVER`."""
        import numpy as np

        due = np.where(deleted_at < _NEVER, deleted_at + self.length, _NEVER)
        first = np.maximum(np.searchsorted(self._times(clock.NOW), due), np.searchsorted(self._ids, ids))
        return np.append(self._ids, _NEVER)[first]

    @property
    def _ids(self) -> Numbers:
        return numbers_of(self.ticks[clock.ID])

    def _times(self, name: str) -> Numbers:
        """Return a time of each id; before there is one, a time before all others."""
        return numbers_of(self.ticks[name].fill_null(-_NEVER))


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """The changes that are applied, by id.

    Attributes:
        now: row numbers of these changes.
        before: row numbers of the changes that were applied before; `_NONE` for none.
        has_row: whether the key had a row before.
        is_alike: whether that row was the same.
        truncates: whether a change is a truncate, by row number.
        deleted_at: the times of deletes, by row number; `_NEVER` if they are not forgotten.
        forgotten_at: the ids at which they are forgotten, by row number; `_NEVER` if they are not in this group.
    """

    changes: NumberedChanges
    now: Numbers
    before: Numbers
    has_row: Flags
    is_alike: Flags
    truncates: Flags
    deleted_at: Numbers
    forgotten_at: Numbers

    @classmethod
    def of(
        cls, shape: ChangeShape, rows: pa.Table, known: pa.Table, cuts: pa.Table | None, while_: While | None
    ) -> Newest:
        """Return the new changes that are applied.

        Args:
            rows, known: see `NumberedChanges.of`; known rows of other keys, and earlier ones, may be among them.
            cuts: the last truncate of each id, as rows without keys and values; None for none.
        """
        import numpy as np
        import pyarrow as pa

        changes = NumberedChanges.of(shape, rows if cuts is None else _cut(shape, rows, known, cuts), known)
        truncates = flags_of(changes.column(KEPT_FORGOTTEN, pa.bool_()))
        deleted_at = np.full(len(truncates), _NEVER) if while_ is None else while_.deleted_at(changes, truncates)
        now, before, following = _applied(changes, deleted_at, while_)
        forgotten_at = np.full(len(truncates), _NEVER)
        if while_ is not None:
            ends = while_.ends(deleted_at[now], changes.ids[now])
            forgotten_at[now] = np.where(ends < following, ends, _NEVER)
        now, before = now[now < changes.new], before[now < changes.new]
        has_row = (before != _NONE) & ~changes.deletes[before]
        return cls(
            changes=changes,
            now=now,
            before=before,
            has_row=has_row,
            is_alike=has_row & changes.alike(now, before),
            truncates=truncates,
            deleted_at=deleted_at,
            forgotten_at=forgotten_at,
        )

    def kept(self) -> pa.Table:
        """Return the changes of the state: not those that are the last one again, nor truncates of keys without state.
        A key that is truncated leaves it, and so does one whose delete is forgotten."""
        import numpy as np

        changes, now, before = self.changes, self.now, self.before
        is_again = self.is_alike & ~changes.deletes[now] & (changes.ranks[now] == changes.ranks[before])
        is_first = self.truncates[now] & ((before == _NONE) | self.truncates[before])
        now = now[~(is_again | is_first)]
        ids = changes.ids[now]
        came = self._kept(now, ids, self.truncates[now] | (self.forgotten_at[now] == ids))
        went = np.flatnonzero((self.forgotten_at < _NEVER) & (self.forgotten_at > changes.ids))
        if not len(went):
            return came
        return stacked(came, self._kept(went, self.forgotten_at[went], np.ones(len(went), dtype=bool)))

    def _kept(self, numbers: Numbers, ids: Numbers, forgotten: Flags) -> pa.Table:
        import pyarrow as pa

        changes, deletes, at = self.changes, self.changes.deletes[numbers], self.deleted_at[numbers]
        times = {KEPT_DELETED_AT: pa.array(at, mask=at == _NEVER)} if changes.shape.forgets else {}
        return table_of(
            {
                **changes.rows(numbers, deletes),
                KEPT_BY: changes.sequences(changes.ranks[numbers]),
                GONE: deletes,
                **times,
                KEPT_FORGOTTEN: forgotten,
                SEQUENCE_ID: ids,
            }
        )

    def output(self) -> pa.Table:
        """Return the rows that keys lose and get at each id."""
        deletes = self.changes.deletes[self.now]
        shown = (deletes & self.has_row) | ~(deletes | self.is_alike)
        lost, got = shown & self.has_row, shown & ~deletes
        return stacked(
            self._rows(lost, self.before, is_gone=True, net=deletes[lost]),
            self._rows(got, self.now, is_gone=False, net=~deletes[got]),
        )

    def _rows(self, chosen: Flags, of: Numbers, *, is_gone: bool, net: Flags) -> pa.Table:
        import numpy as np

        ids = self.changes.ids[self.now[chosen]]
        gone = np.full(len(ids), is_gone)
        return table_of({SEQUENCE_ID: ids, GONE: gone, **self.changes.rows(of[chosen]), NET: net})


def _cut(shape: ChangeShape, rows: pa.Table, known: pa.Table, cuts: pa.Table) -> pa.Table:
    """Return the new changes that no truncate of an earlier id makes void, and truncates as deletes of keys.

    After a change, the first truncate that is as late takes the row of its key; the others find nothing. So there are
    at most two deletes for a change, however many truncates a group has: one of its id, and one of a later id.
    """
    import numpy as np
    import pyarrow as pa

    changes = NumberedChanges.of(shape, pa.concat_tables([rows, cuts], promote_options="default"), known)
    ids, ranks = changes.ids, changes.ranks
    of_cuts = np.arange(rows.num_rows, changes.new)
    of_cuts = of_cuts[np.argsort(ids[of_cuts])]
    until = np.append(_NONE, np.maximum.accumulate(ranks[of_cuts]))
    is_void = ranks < until[np.searchsorted(ids[of_cuts], ids)]
    of_cuts = of_cuts[~is_void[of_cuts]]  # now their ranks are in order, too
    mine = np.flatnonzero(~is_void)
    mine = mine[(mine < rows.num_rows) | (mine >= changes.new)]
    as_late = np.searchsorted(ranks[of_cuts], ranks[mine])
    pairs = [
        changes.keys[mine] * (len(of_cuts) + 1) + np.maximum(np.searchsorted(ids[of_cuts], ids[mine], side), as_late)
        for side in ("left", "right")
    ]
    key, number = np.divmod(np.unique(np.concatenate(pairs)), len(of_cuts) + 1)
    key, number = key[number < len(of_cuts)], number[number < len(of_cuts)]
    keys, first = np.unique(changes.keys, return_index=True)
    of_key, of_cut = first[np.searchsorted(keys, key)], of_cuts[number] - rows.num_rows
    names = {name: changes.columns[name].take(of_key) for name in shape.keys}
    deletes = table_of({**names, **{name: cuts[name].take(of_cut) for name in cuts.column_names}})
    return pa.concat_tables([rows.filter(~is_void[: rows.num_rows]), deletes], promote_options="default")


def _applied(changes: NumberedChanges, deleted_at: Numbers, while_: While | None) -> tuple[Numbers, Numbers, Numbers]:
    """Return the changes that are applied, by id, the known ones first; those that were applied before, `_NONE` for
    none; and the ids at which the next ones are applied, `_NEVER` for none."""
    import numpy as np

    ranks = np.where(changes.ids > 0, changes.ranks, 0)  # of known changes the last one counts: others may be erased
    order = changes.in_order(changes.ids, ranks)
    order = order[last_of(changes.keys[order], changes.ids[order])]  # the others have no effect that lasts
    order = order[np.argsort(changes.ids[order], kind="stable")]
    keys, ids, ranks = changes.keys[order], changes.ids[order], changes.ranks[order]
    last = np.full(int(keys.max(initial=-1)) + 1, _NONE)  # the place in the order, by key
    before, following = np.full(len(order), _NONE), np.full(len(order), _NEVER)
    is_applied = np.zeros(len(order), dtype=bool)
    for start, end in itertools.pairwise([*np.flatnonzero(first_of(ids)), len(order)]):
        previous = last[keys[start:end]]
        is_free = previous == _NONE
        if while_ is not None and ids[start]:
            is_free |= while_.is_over(deleted_at[order[previous]], ids[start])
        counts = is_free | (ranks[start:end] >= ranks[previous])
        is_next = counts & (previous != _NONE)
        following[previous[is_next]] = ids[start]
        before[start:end] = np.where(is_free, _NONE, order[previous])
        last[keys[start:end][counts]] = np.flatnonzero(counts) + start
        is_applied[start:end] = counts
    return order[is_applied], before[is_applied], following[is_applied]
