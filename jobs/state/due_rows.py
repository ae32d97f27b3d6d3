"""Rows of a keyed state that time makes due: windows to be closed, keys to be forgotten, rows that meet nothing more.

Runs are sorted by the hash of their keys, so what is due lies anywhere in them. Row groups whose bounds say that they
have none of it are passed over; of the others two columns are read: the time, and the hash by which the rows are then
looked up like those of any key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drainmark.jobs.state.run_files import KEY_HASH, RunIndex, rows_of_groups

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

FEW_ROWS = 100_000
"""So many due rows are looked up; to read more of them all of the state is read."""


@dataclass(frozen=True, slots=True)
class DueSpan:
    """A span of time: what is due in a group, and was not before it.

    Attributes:
        column: of the state; a timestamp, taken as microseconds since 1970-01-01 UTC, or a bigint.
        above: rows up to here are gone already; None where that is not known.
        upto: rows up to here are due; None for no rows.
    """

    column: str
    above: int | None
    upto: int | None

    @property
    def is_empty(self) -> bool:
        return self.upto is None or (self.above is not None and self.above >= self.upto)

    def overlaps(self, least: int, most: int) -> bool:
        """May rows between two times be due?"""
        return self.upto is not None and least <= self.upto and (self.above is None or most > self.above)

    def of(self, rows: pa.Table) -> pa.Table:
        """Return the rows that are due; one without a time never is."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.is_empty or self.column not in rows.column_names:
            return rows.slice(0, 0)
        time = rows[self.column]
        if pa.types.is_timestamp(time.type):
            time = time.cast(pa.timestamp("us", time.type.tz)).cast(pa.int64())
        is_due = pc.less_equal(time, self.upto)
        return rows.filter(is_due if self.above is None else pc.and_(is_due, pc.greater(time, self.above)))


@dataclass(slots=True)
class PassedTime:
    """Up to which time the rows of a state are gone, as far as this process knows.

    An operator may not know it: code that keeps rows for less than the code before it finds some that were due long
    ago. Its first group finds them; what later ones find of that time in the runs was replaced or is gone.

    Attributes:
        upto: of the groups that the state has taken over; None before there is one.
        asked: of the group in hand.
    """

    upto: int | None = None
    asked: int | None = None

    def forget(self) -> None:
        """Begin an attempt at a group; an earlier one failed, whatever it asked for."""
        self.asked = None

    def ask(self, column: str, above: int | None, upto: int | None) -> DueSpan:
        """Return what is due in a group, which has all rows up to then leave the state."""
        self.asked = upto
        known = [time for time in (above, self.upto) if time is not None]
        return DueSpan(column, max(known, default=None), upto)

    def taken_over(self) -> None:
        """Note that the state has the changes of the group in hand."""
        if self.asked is not None:
            self.upto, self.asked = max(self.asked, self.upto if self.upto is not None else self.asked), None


@dataclass(frozen=True, slots=True)
class DueRows:
    """Where the rows of a state that may be due are.

    Attributes:
        hashes: in the runs, some perhaps of rows that are gone or were replaced since; int64.
        young: of the changes after them; None for none.
    """

    hashes: np.ndarray[Any, np.dtype[np.int64]]
    young: pa.Table | None


def hashes_due(source: Callable[[], Any], index: RunIndex, span: DueSpan) -> Iterator[pa.ChunkedArray]:
    """Yield the hashes of the rows of a file that may be due.

    Args:
        source: gives the file as pyarrow opens it; not called where no row group may have some.
    """
    groups = [
        group
        for group, bounds in enumerate(index.bounds_of(span.column))
        if not span.is_empty and (bounds is None or span.overlaps(*bounds))
    ]
    for rows in rows_of_groups(source, index, groups, [KEY_HASH, span.column]):
        yield span.of(rows)[KEY_HASH]
