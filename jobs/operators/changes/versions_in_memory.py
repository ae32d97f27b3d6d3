"""The versions of each key, as `scd2.py` computes them if all columns are tracked, for changes in memory."""

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
from drainmark.jobs.operators.changes.changes_in_memory import (
    Changes,
    Flags,
    Numbers,
    column_of,
    first_of,
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
"""The most changes at ids that are in memory at once, 250 MB. Many late changes of a key with many later versions have
more, since each id has all of these versions; Spark goes through them on disk."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Changes, with the versions that begin with them.

    Attributes:
        rows: row numbers; `_NONE` for a change that is not there.
        begins: a version begins with the change.
        ends: ranks of the ends of these versions; `_NONE` for current ones, and where none begins.
    """

    rows: Numbers
    begins: Flags
    ends: Numbers

    def of(self, chosen: Numbers | Flags) -> Facts:
        return Facts(self.rows[chosen], self.begins[chosen], self.ends[chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionsInMemory:
    """The changes at the ids at which they, or the versions that begin with them, become others.

    Attributes:
        texts: of the sequences, by row number.
        ids: of the group.
        now, was: after these ids, and after the ids before.
        is_same: a version begins with the change after both, and it is the same.
    """

    changes: Changes
    texts: pa.ChunkedArray
    ids: Numbers
    now: Facts
    was: Facts
    is_same: Flags

    @classmethod
    def of(cls, shape: ChangeShape, rows: pa.Table, known: pa.Table | None) -> VersionsInMemory | None:
        """Return what becomes of the changes of a group; None if there are more than `MOST_PLACES`.

        Args:
            rows: columns of `to_collect`.
            known: rows of the state with these keys; others, and earlier ones, may be among them. None for none.
        """
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        if known is not None and known[KEPT_DELETES].null_count:  # the change was erased, and what it was before it
            known = last_per_key(known, (*shape.keys, KEPT_TEXT))
            known = known.filter(pc.is_valid(known[KEPT_DELETES]))
        changes = Changes.of(shape, rows, known, by=VALID_FROM, deletes=KEPT_DELETES, end=VALID_TO)
        there = _There.of(changes)
        if there is None:
            return None
        now = _after_ids(changes, there)
        was = _before_ids(changes, there, now)
        is_alike = (was.rows != _NONE) & changes.alike(now.rows, was.rows)
        is_same = is_alike & (was.begins == now.begins) & (was.ends == now.ends)
        others = np.flatnonzero(~(is_same & (changes.deletes[was.rows] == changes.deletes[now.rows])))
        others = others[np.argsort(there.ids[others], kind="stable")]  # so that a rewind reads few row groups
        texts = [rows[KEPT_TEXT], *([column_of(known, KEPT_TEXT, rows[KEPT_TEXT].type)] if known is not None else [])]
        return cls(
            changes=changes,
            texts=pa.chunked_array([chunk for text in texts for chunk in text.chunks], rows[KEPT_TEXT].type),
            ids=there.ids[others],
            now=now.of(others),
            was=was.of(others),
            is_same=(is_same & now.begins)[others],
        )

    def kept(self) -> pa.Table:
        """Return the changes as rows of the state; see `Versions._kept`."""
        import pyarrow as pa

        deletes = self.changes.deletes[self.now.rows]
        return table_of(
            {
                **self.changes.rows(self.now.rows, deletes),
                VALID_FROM: self.changes.sequences(self.changes.ranks[self.now.rows]),
                VALID_TO: self.changes.sequences(self.now.ends),
                IS_CURRENT: pa.array(self.now.ends == _NONE, mask=~self.now.begins),
                KEPT_TEXT: self.texts.take(pa.array(self.now.rows)),
                KEPT_DELETES: deletes,
                GONE: ~self.now.begins,
                SEQUENCE_ID: self.ids,
            }
        )

    def output(self) -> pa.Table:
        """Return the versions that differ from those of the id before: those of then as gone, and the new ones."""
        return self._differences(self.was.begins & ~self.is_same)

    def net(self) -> pa.Table:
        """Return the same, but no version as gone that has a new row."""
        return self._differences(self.was.begins & ~self.now.begins)

    def _differences(self, lost: Flags) -> pa.Table:
        came = self.now.begins & ~self.is_same
        return stacked(self._rows(lost, self.was, is_gone=True), self._rows(came, self.now, is_gone=False))

    def _rows(self, chosen: Flags, of: Facts, *, is_gone: bool) -> pa.Table:
        import numpy as np

        found = of.of(chosen)
        return table_of(
            {
                SEQUENCE_ID: self.ids[chosen],
                GONE: np.full(len(found.rows), is_gone),
                **self.changes.rows(found.rows),
                VALID_FROM: self.changes.sequences(self.changes.ranks[found.rows]),
                VALID_TO: self.changes.sequences(found.ends),
                IS_CURRENT: found.ends == _NONE,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _There:
    """Changes at the ids of the group at which they are there, by key, id and sequence.

    The ids are those with changes of the key.

    Attributes:
        rows: row numbers.
        before: row numbers of the changes of the state with the same sequence; `_NONE` for none.
        steps: a number for each key and id.
        ids: of the group.
    """

    rows: Numbers
    before: Numbers
    steps: Numbers
    ids: Numbers

    @classmethod
    def of(cls, changes: Changes) -> _There | None:
        import numpy as np

        order = changes.in_order(changes.ranks, changes.ids)
        order = order[last_of(changes.keys[order], changes.ranks[order], changes.ids[order])]
        keys, ranks, ids = changes.keys[order], changes.ranks[order], changes.ids[order]
        is_new = order < changes.new
        before = np.where(is_new, np.append(order[:1], order[:-1]), order)
        before[is_new & (first_of(keys, ranks) | (before < changes.new))] = _NONE
        id_of, number_of = np.unique(ids, return_inverse=True)
        steps = np.sort(keys[is_new] * len(id_of) + number_of[is_new])
        steps = steps[first_of(steps)]
        until = np.where(last_of(keys, ranks), len(id_of), np.append(number_of[1:], 0))  # a later change replaces it
        first, end = (np.searchsorted(steps, keys * len(id_of) + number) for number in (number_of, until))
        counts = np.where(_is_near(changes, order), end - first, 0)
        if int(counts.sum()) > MOST_PLACES:
            return None
        of = np.repeat(np.arange(len(order)), counts)
        at = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts - first, counts)
        sorted_by = np.lexsort((ranks[of], at))
        of, at = of[sorted_by], at[sorted_by]
        found = id_of[steps[at] % max(len(id_of), 1)]
        return cls(rows=order[of], before=before[of], steps=at, ids=found)


def _is_near(changes: Changes, order: Numbers) -> Flags:
    """Say of changes by key and sequence whether they may matter: not before the last known change that began or ended
    a version before the first new one of its key, and not of keys without new ones."""
    import numpy as np

    keys, ranks, is_new = changes.keys[order], changes.ranks[order], order < changes.new
    of_key = np.cumsum(first_of(keys)) - 1
    first = np.full(int(of_key.max(initial=-1)) + 1, -1)
    news = np.flatnonzero(is_new)
    news = news[first_of(of_key[news])]
    first[of_key[news]] = ranks[news]
    is_edge = ~is_new & (changes.deletes[order] | changes.begins[order]) & (ranks < first[of_key])
    lasts = np.flatnonzero(is_edge)
    lasts = lasts[last_of(of_key[lasts])]
    edges = np.zeros(len(first), np.int64)
    edges[of_key[lasts]] = ranks[lasts]
    is_near: Flags = (first[of_key] >= 0) & (ranks >= edges[of_key])
    return is_near


def _after_ids(changes: Changes, there: _There) -> Facts:
    """Return the changes with the versions after each id."""
    import numpy as np

    rows, steps = there.rows, there.steps
    deletes, previous = changes.deletes[rows], np.append(rows[:1], rows[:-1])
    begins = ~deletes & (first_of(steps) | changes.deletes[previous] | ~changes.alike(rows, previous))
    count = len(rows)
    edge = np.where(deletes | begins, np.arange(count), count)
    following = np.append(np.minimum.accumulate(edge[::-1])[::-1], count)[1:]
    at = np.minimum(following, count - 1)
    has_end = begins & (following < count) & (steps[at] == steps)
    return Facts(rows, begins, np.where(has_end, changes.ranks[rows[at]], _NONE))


def _before_ids(changes: Changes, there: _There, now: Facts) -> Facts:
    """Return the same changes with the versions after the ids before."""
    import numpy as np

    keys, ranks = changes.keys[there.rows], changes.ranks[there.rows]
    order = np.lexsort((there.steps, ranks, keys))
    of_previous = np.full(len(order), _NONE)
    of_previous[order] = np.where(first_of(keys[order], ranks[order]), _NONE, np.append(order[:1], order[:-1]))
    known = there.before
    has_previous, is_known = of_previous != _NONE, known != _NONE
    return Facts(
        np.where(has_previous, now.rows[of_previous], known),
        np.where(has_previous, now.begins[of_previous], is_known & changes.begins[known]),
        np.where(has_previous, now.ends[of_previous], np.where(is_known, changes.ends[known], _NONE)),
    )
