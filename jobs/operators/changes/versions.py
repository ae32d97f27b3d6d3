"""Changes applied as a slowly changing dimension of type 2: the versions of each key, by the sequence of its changes.

The changes of a key, in the order of their sequences, are its history. Rows that follow each other and differ in no
tracked column are one version: it begins with the first of them, has the values of the last, and ends with the next
change that is none of them. All changes are kept, since a late one may split a version, and needs the changes on both
sides. The versions after an id follow from the changes up to it; an id gives the difference to the versions before.

A row of the state is a change. If a version begins with it, the row also has the end of that version; else it says that
it is gone, since no version begins there. So the state is the history of a table of versions, provided that all columns
are tracked: a version then has the values of its first change.

A group looks only at the parts of a history around its changes: each begins with the last known change before them that
began or ended a version, and ends before the second such change after them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drainmark.jobs.frames.tags import GONE, SEQUENCE_ID
from drainmark.jobs.operators.changes.change_shape import (
    IS_CURRENT,
    KEPT_DELETES,
    KEPT_TEXT,
    VALID_FROM,
    VALID_TO,
    ChangeShape,
)
from drainmark.jobs.operators.changes.numbered_changes import (
    NET,
    Flags,
    NumberedChanges,
    Numbers,
    column_of,
    first_of,
    flags_of,
    last_of,
    stacked,
    table_of,
)
from drainmark.jobs.state.keyed_rows import last_per_key

if TYPE_CHECKING:
    import pyarrow as pa

_NONE = -1
"""No row, or no end."""

MOST_PLACES = 2_000_000
"""The most changes at ids that are in memory at once, 250 MB. If a group has more, its first ids are applied before the
others: at each id all changes of a part of a history are compared."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Changes, with the versions that begin with them.

    Attributes:
        rows: row numbers; `_NONE` for a change that is not there.
        begins: a version begins with the change.
        ends: ranks of the ends of these versions; `_NONE` for current ones, and where none begins.
        shown: row numbers of the values of these versions.
    """

    rows: Numbers
    begins: Flags
    ends: Numbers
    shown: Numbers

    def of(self, chosen: Numbers | Flags) -> Facts:
        return Facts(self.rows[chosen], self.begins[chosen], self.ends[chosen], self.shown[chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """The changes at the ids at which they, or the versions that begin with them, become others.

    Attributes:
        texts: of the sequences, by row number.
        ids: of the group.
        now, was: after these ids, and after the ids before.
        is_same: a version begins with the change after both, and it is the same.
        is_kept: the change is a row of the state with this id.
    """

    changes: NumberedChanges
    texts: pa.ChunkedArray
    ids: Numbers
    now: Facts
    was: Facts
    is_same: Flags
    is_kept: Flags

    @classmethod
    def of(cls, shape: ChangeShape, rows: pa.Table, known: pa.Table) -> Versions | None:
        """Return what becomes of new changes; None if they have several ids and more than `MOST_PLACES`.

        Args:
            rows, known: see `NumberedChanges.of`; known rows of other keys, and earlier ones, may be among them.
        """
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        if column_of(known, KEPT_DELETES, pa.bool_()).null_count:  # the change was erased, and what it was before it
            known = last_per_key(known, (*shape.keys, KEPT_TEXT))
            known = known.filter(pc.is_valid(known[KEPT_DELETES]))
        changes = NumberedChanges.of(shape, rows, known, end=VALID_TO)
        there = _There.of(changes, begins=~flags_of(changes.column(GONE, pa.bool_())) & (changes.ids == 0))
        if there is None:
            return None
        now = _after_ids(changes, there)
        was = _before_ids(changes, there, now)
        is_alike = (was.rows != _NONE) & changes.alike(now.rows, was.rows)
        is_so = (was.begins == now.begins) & (was.ends == now.ends)
        is_kept = ~(is_alike & is_so & (changes.deletes[was.rows] == changes.deletes[now.rows]))
        is_shown = is_alike if shape.tracks_all else (was.rows != _NONE) & changes.alike(now.shown, was.shown)
        is_same = now.begins & is_so & is_shown
        others = np.flatnonzero((is_kept | (now.begins & ~is_same)) & ~there.is_guard & (there.ids > 0))
        others = others[np.argsort(there.ids[others], kind="stable")]  # so that a rewind reads few row groups
        return cls(
            changes=changes,
            texts=changes.column(KEPT_TEXT, pa.string()),
            ids=there.ids[others],
            now=now.of(others),
            was=was.of(others),
            is_same=is_same[others],
            is_kept=is_kept[others],
        )

    def kept(self) -> pa.Table:
        """Return the changes as rows of the state."""
        import pyarrow as pa

        now = self.now.of(self.is_kept)
        deletes = self.changes.deletes[now.rows]
        return table_of(
            {
                **self.changes.rows(now.rows, deletes),
                VALID_FROM: self.changes.sequences(self.changes.ranks[now.rows]),
                VALID_TO: self.changes.sequences(now.ends),
                IS_CURRENT: pa.array(now.ends == _NONE, mask=~now.begins),
                KEPT_TEXT: self.texts.take(pa.array(now.rows)),
                KEPT_DELETES: deletes,
                GONE: ~now.begins,
                SEQUENCE_ID: self.ids[self.is_kept],
            }
        )

    def output(self) -> pa.Table:
        """Return the versions that differ from those of the id before: those of then as gone, and the new ones."""
        lost, came = self.was.begins & ~self.is_same, self.now.begins & ~self.is_same
        return stacked(
            self._rows(lost, self.was, is_gone=True, net=~self.now.begins[lost]),
            self._rows(came, self.now, is_gone=False, net=self.now.begins[came]),
        )

    def _rows(self, chosen: Flags, of: Facts, *, is_gone: bool, net: Flags) -> pa.Table:
        import numpy as np

        found = of.of(chosen)
        return table_of(
            {
                SEQUENCE_ID: self.ids[chosen],
                GONE: np.full(len(found.rows), is_gone),
                **self.changes.rows(found.shown),
                VALID_FROM: self.changes.sequences(self.changes.ranks[found.rows]),
                VALID_TO: self.changes.sequences(found.ends),
                IS_CURRENT: found.ends == _NONE,
                NET: net,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """The parts of histories that may matter, of changes by key and sequence.

    Attributes:
        numbers: of the part of each change; `_NONE` for changes in none.
        is_guard: the change only ends the last version of a part, and remains what it is.
    """

    numbers: Numbers
    is_guard: Flags

    @classmethod
    def of(cls, keys: Numbers, ranks: Numbers, is_new: Flags, is_edge: Flags) -> _Parts:
        """Return the parts.

        Args:
            is_edge: of known changes, whether they began or ended a version.
        """
        import numpy as np

        count = len(keys)
        places = np.arange(count)
        starts = np.maximum.accumulate(np.where(first_of(keys), places, 0))
        ends = _next(last_of(keys), count)[:-1] + 1
        of_rank = np.maximum.accumulate(np.where(first_of(keys, ranks), places, 0))
        after_rank = _next(last_of(keys, ranks), count)[:-1] + 1
        last_edges = np.append(np.maximum.accumulate(np.where(is_edge, places, _NONE)), _NONE)
        new = np.flatnonzero(is_new)
        first = np.maximum(last_edges[of_rank[new] - 1], starts[new])  # of the first row this is the appended place
        following = _next(~is_new, count)[after_rank[new]]
        end = np.minimum(_next(is_edge, count)[np.minimum(following + 1, count)], ends[new])
        depth = np.bincount(first, minlength=count + 1) - np.bincount(end, minlength=count + 1)
        is_inside = np.cumsum(depth)[:-1] > 0
        is_guard = np.zeros(count + 1, dtype=bool)
        is_guard[end[end < ends[new]]] = True
        is_guard = is_guard[:-1] & ~is_inside
        is_near = is_inside | is_guard
        begins = is_inside & (first_of(keys) | ~np.append(False, is_inside[:-1])[:count])
        return cls(numbers=np.where(is_near, np.cumsum(begins) - 1, _NONE), is_guard=is_guard)


def _next(flags: Flags, count: int) -> Numbers:
    """Return for each place, and the one after the last, the next place with a flag, itself included; else `count`."""
    import numpy as np

    places = np.append(np.where(flags, np.arange(count), count), count)
    found: Numbers = np.minimum.accumulate(places[::-1])[::-1]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _There:
    """Changes at the ids of the group at which they are there, by part, id and sequence.

    The ids are those with changes of the part. Untracked columns that a version had before the group are computed from
    the changes of then: 0 is among the ids.

    Attributes:
        rows: row numbers.
        runs: a number for each key and sequence.
        steps: a number for each part and id.
        ids: of the group.
        is_guard: see `_Parts`.
        before: of a change that is not there at the id before, what was there with the same sequence before the group.
    """

    rows: Numbers
    runs: Numbers
    steps: Numbers
    ids: Numbers
    is_guard: Flags
    before: Facts

    @classmethod
    def of(cls, changes: NumberedChanges, begins: Flags) -> _There | None:
        """Return them; None for more than `MOST_PLACES`, unless there is only one id.

        Args:
            begins: by row number, whether a known version begins with a change.
        """
        import numpy as np

        order = changes.in_order(changes.ranks, changes.ids)
        order = order[last_of(changes.keys[order], changes.ranks[order], changes.ids[order])]
        keys, ranks, ids = changes.keys[order], changes.ranks[order], changes.ids[order]
        is_new = order < changes.new
        parts = _Parts.of(keys, ranks, is_new, ~is_new & (changes.deletes[order] | begins[order]))
        id_of, number_of = np.unique(np.append(ids, 0), return_inverse=True)
        number_of, count = number_of[:-1], len(id_of)
        steps = parts.numbers[is_new] * count + number_of[is_new]
        if not changes.shape.tracks_all:
            steps = np.append(steps, parts.numbers[is_new] * count)
        steps = np.sort(steps)
        steps = steps[first_of(steps)]
        until = np.where(last_of(keys, ranks), count, np.append(number_of[1:], 0))  # a later change replaces it
        first, end = (np.searchsorted(steps, parts.numbers * count + number) for number in (number_of, until))
        counts = np.where(parts.numbers != _NONE, end - first, 0)
        if int(counts.sum()) > MOST_PLACES and count > 2:
            return None
        of = np.repeat(np.arange(len(order)), counts)
        at = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts - first, counts)
        by_step = np.argsort(at, kind="stable")
        of, at = of[by_step], at[by_step]
        known = np.where(is_new, np.append(order[:1], order[:-1]), order)
        known[is_new & (first_of(keys, ranks) | (known < changes.new))] = _NONE
        known = known[of]
        is_known = known != _NONE
        return cls(
            rows=order[of],
            runs=np.cumsum(first_of(keys, ranks), dtype=np.int64)[of],
            steps=at,
            ids=id_of[steps[at] % count],
            is_guard=parts.is_guard[of],
            before=Facts(known, is_known & begins[known], np.where(is_known, changes.ends[known], _NONE), known),
        )


def _after_ids(changes: NumberedChanges, there: _There) -> Facts:
    """Return the changes with the versions after each id."""
    import numpy as np

    rows, steps, shape = there.rows, there.steps, changes.shape
    deletes, previous = changes.deletes[rows], np.append(rows[:1], rows[:-1])
    goes_on = changes.alike(rows, previous, None if shape.tracks_all else shape.tracked)
    begins = ~deletes & (first_of(steps) | changes.deletes[previous] | ~goes_on)
    count = len(rows)
    following = _next(deletes | begins, count)[1:]
    at = np.minimum(following, count - 1)
    has_end = (following < count) & (steps[at] == steps)
    shown = rows
    if not shape.tracks_all:  # the values of its last change
        shown = rows[np.where(has_end, following, _next(last_of(steps), count)[:-1] + 1) - 1]
    return Facts(rows, begins, np.where(begins & has_end, changes.ranks[rows[at]], _NONE), shown)


def _before_ids(changes: NumberedChanges, there: _There, now: Facts) -> Facts:
    """Return the same changes with the versions after the ids before."""
    import numpy as np

    order = np.argsort(there.runs, kind="stable")
    place = np.full(len(order), _NONE)
    place[order] = np.where(first_of(there.runs[order]), _NONE, np.append(order[:1], order[:-1]))
    has_place, before = place != _NONE, there.before
    return Facts(
        np.where(has_place, now.rows[place], before.rows),
        np.where(has_place, now.begins[place], before.begins),
        np.where(has_place, now.ends[place], before.ends),
        np.where(has_place, now.shown[place], before.shown),
    )
