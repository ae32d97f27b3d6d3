"""Rows of a keyed state that become due with time: windows to close, keys to forget, rows that can match no more.

Runs are sorted by the hash of their keys, so due rows may be anywhere in them. A row group is not read if its bounds
exclude due rows. From the others, two columns are read: the time, and the hash, by which the rows are then looked up
like the rows of any key.
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
"""The most due rows that are looked up; if more are due, the whole state is read."""


@dataclass(frozen=True, slots=True)
class DueSpan:
    """A span of time: rows in it are due in a group, and were not due before it.

    Attributes:
        column: of the state; a timestamp, read as microseconds since 1970-01-01 UTC, or a bigint.
        above: rows up to this time (inclusive) are gone already; None if that is not known.
        upto: rows up to this time (inclusive) are due; None for no rows.
    """

    column: str
    above: int | None
    upto: int | None

    @property
    def is_empty(self) -> bool:
        return self.upto is None or (self.above is not None and self.above >= self.upto)

    def overlaps(self, least: int, most: int) -> bool:
        """Say whether rows between two times (inclusive) may be due."""
        return self.upto is not None and least <= self.upto and (self.above is None or most > self.above)

    def of(self, rows: pa.Table) -> pa.Table:
        """Return the rows that are due; a row without a time never is."""
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
    """The time up to which (inclusive) the rows of a state are gone, as far as this process knows.

    An operator may not know it: if new code keeps rows for a shorter time, it finds rows that were due long ago. Its
    first group finds them all; rows of that time that later groups find in the runs were replaced or are gone.

    Attributes:
        upto: of the groups that the state has taken over; None before the first.
        asked: of the group in hand.
    """

    upto: int | None = None
    asked: int | None = None

    def forget(self) -> None:
        """Begin an attempt at a group: an earlier attempt failed, so its `ask` does not count."""
        self.asked = None

    def ask(self, column: str, above: int | None, upto: int | None) -> DueSpan:
        """Return the span that is due in a group; the group removes all rows up to its end from the state."""
        self.asked = upto
        known = [time for time in (above, self.upto) if time is not None]
        return DueSpan(column, max(known, default=None), upto)

    def taken_over(self) -> None:
        """Note that the state has taken over the changes of the group in hand."""
        if self.asked is not None:
            self.upto, self.asked = max(self.asked, self.upto if self.upto is not None else self.asked), None


@dataclass(frozen=True, slots=True)
class DueRows:
    """The places of the rows of a state that may be due.

    Attributes:
        hashes: key hashes of due rows in the runs; some of these rows may be gone or replaced since; int64.
        young: due rows of the changes after the runs; None without such changes.
    """

    hashes: np.ndarray[Any, np.dtype[np.int64]]
    young: pa.Table | None


def hashes_due(source: Callable[[], Any], index: RunIndex, span: DueSpan) -> Iterator[pa.ChunkedArray]:
    """Yield the hashes of the rows of a file that may be due.

    Args:
        source: returns the path or file object that pyarrow opens; not called if no row group may have due rows.
    """
    groups = [
        group
        for group, bounds in enumerate(index.bounds_of(span.column))
        if not span.is_empty and (bounds is None or span.overlaps(*bounds))
    ]
    for rows in rows_of_groups(source, index, groups, [KEY_HASH, span.column]):
        yield span.of(rows)[KEY_HASH]
