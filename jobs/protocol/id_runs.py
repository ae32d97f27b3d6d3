"""The states of a region by id, for a history of any length: ids are kept as runs, rows are read on request.

Ids are never reused and rows never change, so all histories of one fold share one store of rows: the ids alone tell
which states a rewind withdrew.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Collection, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind

_CHUNK_IDS = 256
_CHUNKS_KEPT = 4
_SPAN_IDS = 4096


Remark = Mapping[str, Any]
"""Facts that a later row adds to a state: `rows_quarantined` (to be added up), `unmet` and `reason`."""


class Archive(Protocol):
    """The rows of a checkpoint table, read on request."""

    def states(self, first: int, last: int) -> Iterable[CheckpointRow]:
        """Return the state, skip and progress rows from id `first` to `last` (inclusive), with commit durations."""

    def states_of(self, uris: Collection[str]) -> Iterable[CheckpointRow]:
        """Return the states and skips of the triggers with some uris, ordered by id."""

    def refusals(self) -> Iterable[CheckpointRow]:
        """Return the rows of refused triggers, in commit order."""


class Ids:
    """Ascending ids as runs of neighbours, immutable: a further id costs the same for any number of ids.

    Histories that continue each other share the lists of closed runs; the first `_closed` runs belong to this one.
    """

    __slots__ = ("_closed", "_count", "_firsts", "_lasts", "_tail")

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        given = list(runs)
        self._tail: tuple[int, int] | None = given.pop() if given else None
        self._firsts, self._lasts = [first for first, _ in given], [last for _, last in given]
        self._closed = len(given)
        self._count = sum(last - first + 1 for first, last in self.runs())

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Ids:
        """Return numbers, in any order, as ids."""
        return cls(_runs_of(sorted(set(numbers))))

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield the runs of neighbours as (first, last)."""
        yield from zip(self._firsts[: self._closed], self._lasts[: self._closed], strict=True)
        if self._tail is not None:
            yield self._tail

    def with_id(self, number: int) -> Ids:
        """Return these ids and one more."""
        if self._tail is None or number > self._tail[1]:
            return self._continued(number)
        return self if number in self else Ids(_runs_of(sorted([*self, number])))

    def _continued(self, number: int) -> Ids:
        new = Ids.__new__(Ids)
        new._firsts, new._lasts, new._closed, new._count = self._firsts, self._lasts, self._closed, self._count + 1
        if self._tail is not None and number == self._tail[1] + 1:
            new._tail = (self._tail[0], number)
            return new
        if self._tail is not None:
            if len(self._firsts) != self._closed:  # another history has already continued these runs
                new._firsts, new._lasts = self._firsts[: self._closed], self._lasts[: self._closed]
            new._firsts.append(self._tail[0])
            new._lasts.append(self._tail[1])
            new._closed += 1
        new._tail = (number, number)
        return new

    def up_to(self, number: int) -> Ids:
        """Return the ids at or below a number."""
        return Ids((first, min(last, number)) for first, last in self.runs() if first <= number)

    def above(self, number: int) -> Ids:
        """Return the ids above a number."""
        return Ids((max(first, number + 1), last) for first, last in self.runs() if last > number)

    def at_most(self, number: int) -> int | None:
        """Return the largest id at or below a number; None without one."""
        if self._tail is not None and number >= self._tail[0]:
            return min(number, self._tail[1])
        place = bisect_right(self._firsts, number, 0, self._closed) - 1
        return min(number, self._lasts[place]) if place >= 0 else None

    def at_least(self, number: int) -> int | None:
        """Return the smallest id at or above a number; None without one."""
        place = bisect_left(self._lasts, number, 0, self._closed)
        if place < self._closed:
            return max(number, self._firsts[place])
        return max(number, self._tail[0]) if self._tail is not None and number <= self._tail[1] else None

    def from_end(self, count: int) -> int | None:
        """Return the first of the last `count` ids; None without any."""
        left = min(count, self._count)
        for first, last in reversed(list(self.runs())) if left > 0 else ():
            if left <= last - first + 1:
                return last - left + 1
            left -= last - first + 1
        return None

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self.at_most(number) == number

    def __iter__(self) -> Iterator[int]:
        for first, last in self.runs():
            yield from range(first, last + 1)

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ids) and list(self.runs()) == list(other.runs())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Ids({list(self.runs())})"


def _runs_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


@dataclass(slots=True)
class IdRows:
    """Every state, skip and progress row of a region by id, in force or not: recent ones here, older ones archived.

    Attributes:
        archive: holds the rows of ids up to `archived` (inclusive); None if all rows are in `recent`.
        recent: the rows of larger ids.
        late: by last id of a group, the seconds of its commit, if they were noted after its rows were archived.
        remarks: by id of a state, the remarks of later rows, by the ids of these rows: stages may finish it late.
    """

    archive: Archive | None = None
    archived: int = 0
    recent: dict[int, CheckpointRow] = field(default_factory=dict)
    late: dict[int, float] = field(default_factory=dict)
    remarks: dict[int, dict[int, Remark]] = field(default_factory=dict)
    _newest: int = 0
    _chunks: OrderedDict[int, dict[int, CheckpointRow]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)

    def continued(self, next_id: int) -> IdRows:
        """Return the store for a history that continues at an id: this one, unless another history has done so."""
        if self._newest < next_id:
            return self
        kept = {number: row for number, row in self.recent.items() if number < next_id}
        said = {
            number: found
            for number, remarks in self.remarks.items()
            if (found := {by: remark for by, remark in remarks.items() if by < next_id})
        }
        return IdRows(self.archive, self.archived, kept, self.late, said, max(kept, default=0))

    def add(self, row: CheckpointRow) -> None:
        """Add a row."""
        self.recent[row.sequence_id] = row
        self._newest = max(self._newest, row.sequence_id)

    def remark(self, by: int, late: Mapping[int, Remark]) -> None:
        """Keep the remarks of the row with id `by` about states that are committed, by the ids of these states."""
        for number, remark in late.items():
            self.remarks.setdefault(number, {})[by] = remark

    def told(self, row: CheckpointRow) -> CheckpointRow:
        """Return the row of a state with the remarks of all later rows."""
        remarks = self.remarks.get(row.sequence_id) if row.kind is RowKind.STATE else None
        if not remarks:
            return row
        said = [row.detail, *remarks.values()]
        late = {
            "rows_quarantined": sum(each.get("rows_quarantined") or 0 for each in said),
            "unmet": {name: rows for each in said for name, rows in (each.get("unmet") or {}).items()},
            "reason": "; ".join(each["reason"] for each in said if each.get("reason")),
        }
        return replace(row, detail={**row.detail, **{name: value for name, value in late.items() if value}})

    def get(self, number: int) -> CheckpointRow:
        """Return the row of an id; KeyError if there is none."""
        if self.archive is None or number > self.archived:
            return self.told(self.recent[number])
        return self.told(self._chunk(self.archive, number // _CHUNK_IDS)[number])

    def _chunk(self, archive: Archive, place: int) -> dict[int, CheckpointRow]:
        with self._lock:  # the threads of stages ask for rows, too
            found = self._chunks.get(place)
        if found is None:
            first = place * _CHUNK_IDS
            found = self._archived(archive, first, min(first + _CHUNK_IDS - 1, self.archived))
        with self._lock:
            self._chunks[place] = found
            self._chunks.move_to_end(place)
            if len(self._chunks) > _CHUNKS_KEPT:
                self._chunks.popitem(last=False)
        return found

    def _archived(self, archive: Archive, first: int, last: int) -> dict[int, CheckpointRow]:
        rows = {row.sequence_id: row for row in archive.states(first, last)}
        for number, row in rows.items() if self.late else ():
            seconds = self.late.get(row.group_last or number)
            if seconds is not None and row.checkpoint_seconds is None:
                rows[number] = replace(row, checkpoint_seconds=seconds)
        return rows

    def among(self, ids: Ids) -> Iterator[tuple[int, CheckpointRow]]:
        """Yield (id, row) for some ids; at most a few thousand archived rows are in memory at a time."""
        pending = [(first, last) for first, last in ids.runs()]
        while pending:
            spans, pending = _next_spans(pending, self.archived if self.archive is not None else 0)
            first, last = spans[0][0], spans[-1][1]
            if self.archive is not None and last <= self.archived:
                rows = self._archived(self.archive, first, last)
            else:
                rows = self.recent
            for start, end in spans:
                yield from ((number, self.told(rows[number])) for number in range(start, end + 1))

    def of(self, uris: Collection[str]) -> Iterator[CheckpointRow]:
        """Yield the rows of the triggers with some uris, ordered by id."""
        if self.archive is not None:
            yield from (self.told(row) for row in self.archive.states_of(uris) if row.sequence_id <= self.archived)
        yield from (self.told(row) for _, row in sorted(self.recent.items()) if row.trigger_uri in uris)


def _next_spans(
    pending: Sequence[tuple[int, int]], archived: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the runs to read together (within a span of ids, all archived or all recent), and the runs after them."""
    end = pending[0][0] + _SPAN_IDS - 1
    if pending[0][0] <= archived:
        end = min(end, archived)
    spans = [(first, min(last, end)) for first, last in pending if first <= end]
    return spans, [(max(first, end + 1), last) for first, last in pending if last > end]


class States(Mapping[int, CheckpointRow]):
    """Effective states and skips by id, oldest first. To count them or to look for an id reads no row.

    Attributes:
        ids: the effective ids.
        rows: the store of the rows.
    """

    __slots__ = ("ids", "rows")

    def __init__(self, ids: Ids | None = None, rows: IdRows | None = None) -> None:
        self.ids = ids if ids is not None else Ids()
        self.rows = rows if rows is not None else IdRows()

    def __getitem__(self, number: int) -> CheckpointRow:
        if number not in self.ids:
            raise KeyError(number)
        return self.rows.get(number)

    def __contains__(self, number: object) -> bool:
        return number in self.ids

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def above(self, number: int) -> States:
        """Return the states above an id."""
        return States(self.ids.above(number), self.rows)

    def newest(self, count: int) -> States:
        """Return the newest `count` states."""
        first = self.ids.from_end(count)
        return self.above(first - 1) if first is not None else States()

    def items(self) -> ItemsView[int, CheckpointRow]:
        return _Items(self)

    def values(self) -> ValuesView[CheckpointRow]:
        return _RowValues(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, States) and self.ids == other.ids and list(self.items()) == list(other.items())

    __hash__ = None  # type: ignore[assignment]


class _Items(ItemsView[int, CheckpointRow]):
    """Items that read rows in long spans instead of one by one."""

    _mapping: States

    def __iter__(self) -> Iterator[tuple[int, CheckpointRow]]:
        return self._mapping.rows.among(self._mapping.ids)


class _RowValues(ValuesView[CheckpointRow]):
    _mapping: States

    def __iter__(self) -> Iterator[CheckpointRow]:
        return (row for _, row in self._mapping.rows.among(self._mapping.ids))
