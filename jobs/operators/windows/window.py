"""Windows: the rows that an aggregate is over, the time at which it emits, and the refused combinations of both.

`dm.tumbling`, `dm.sliding`, `dm.session` by event time, number of rows, difference of a column, or a mark. Nothing here
reads a clock: the rows of a window follow from the rows alone, so a replay at any speed makes the same windows.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import UsageError
from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.graph.annotations import duration_of, is_count, is_duration, micros
from drainmark.jobs.graph.operator import Retention
from drainmark.jobs.lazy import F
from drainmark.jobs.state.clock import moment

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["session", "sliding", "tumbling"]

WINDOW_START = "window_start"
WINDOW_END = "window_end"
WINDOW_NUMBER = "window_number"
STARTS = "__window_start"
"""The window start of a row before the grouping: a value may read a column `window_start` that other windows made."""
LATE = "late"


class Emit(StrEnum):
    """The time at which an aggregate emits a row."""

    CHANGE = "change"
    """One row for each changed key and id: the values at the end of the id."""
    ROW = "row"
    """One row for every row, over the sliding window that ends with it."""
    CLOSED = "closed"
    """One row for each window, when it cannot change any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTime:
    """Windows of event time, `size` long, one beginning at every multiple of `every` since 1970-01-01 UTC.

    `every == size`: tumbling. `every < size`: a row is in several windows. `count_trigger`: see `tumbling`.
    """

    column: str
    size: dt.timedelta
    every: dt.timedelta
    count_trigger: int | None = None

    @property
    def is_tumbling(self) -> bool:
        return self.every == self.size

    @property
    def size_micros(self) -> int:
        return micros(self.size)

    def fingerprint(self) -> list[Any]:
        more = [] if self.is_tumbling else [self.every.total_seconds()]
        trigger = [] if self.count_trigger is None else [{"count_trigger": self.count_trigger}]
        return [self.column, self.size.total_seconds(), *more, *trigger]

    def moment(self) -> Column:
        """Return a row's event time in microseconds since 1970-01-01 UTC; null if it has none."""
        return moment_of(self.column)

    def last_start(self) -> Column:
        """Return the start, in microseconds, of the last window that a row is in."""
        moment = self.moment()
        return moment - F.pmod(moment, F.lit(micros(self.every)))

    def start(self) -> Column:
        """Return the start of each window that a row is in, one row each; one null if there is no event time."""
        if self.is_tumbling:
            return F.timestamp_micros(self.last_start())
        every, last = micros(self.every), self.last_start()
        most = math.ceil(self.size_micros / every)
        starts = F.sequence(last - (most - 1) * every, last, F.lit(every))
        begun = F.filter(starts, lambda start: start > self.moment() - self.size_micros)
        return F.explode_outer(F.transform(begun, lambda start: F.timestamp_micros(start)))  # noqa: PLW0108


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Windows of `rows` rows of a key, by sequence id and position: side by side, or sliding by one row."""

    rows: int
    is_sliding: bool = False

    def fingerprint(self) -> list[Any]:
        return ["rows", self.rows, self.is_sliding]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Windows in which a column grows by less than `size`: side by side, or sliding by one row."""

    column: str
    size: float | dt.timedelta
    is_sliding: bool = False

    @property
    def width(self) -> float | int:
        """Return the size, in microseconds if it is a duration."""
        return micros(self.size) if isinstance(self.size, dt.timedelta) else self.size

    def fingerprint(self) -> list[Any]:
        return ["delta", self.column, isinstance(self.size, dt.timedelta), self.width, self.is_sliding]

    def measure(self) -> Column:
        """Return the measure of a row, for differences that are compared with the size; null if it has none."""
        return (
            moment_of(self.column) if isinstance(self.size, dt.timedelta) else finite(F.col(quoted_name(self.column)))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """Windows that end with each row in which a boolean column is true (punctuation)."""

    column: str

    def fingerprint(self) -> list[Any]:
        return ["until", self.column]


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Windows of event time that end when a key has no row for `gap`."""

    column: str
    gap: dt.timedelta

    def fingerprint(self) -> list[Any]:
        return ["session", self.column, self.gap.total_seconds()]

    def moment(self) -> Column:
        return moment_of(self.column)


@dataclass(frozen=True, slots=True, kw_only=True)
class WallClock:
    """A window by the machine's clock, always refused; it exists so that the refusal names operator and place."""

    def fingerprint(self) -> list[Any]:
        return ["wall clock"]


Window = EventTime | Rows | Delta | Marked | Session | WallClock


def moment_of(column: str) -> Column:
    return F.expr(moment(column))


def finite(number: Column) -> Column:
    """Return a number, null if it is NaN (to Spark, above all numbers) or infinite: it has no difference to itself."""
    return F.when(F.abs(number.cast("double")) < math.inf, number)


def tumbling(
    column: str | None = None,
    *,
    rows: int | None = None,
    delta: float | dt.timedelta | None = None,
    until: str | None = None,
    count_trigger: int | None = None,
    **size: float,
) -> Window:
    """Return tumbling windows, which do not overlap: each row is in one of them.

    - `dm.tumbling("logged_at", minutes=5)`: event time, aligned to 1970-01-01 UTC; key `window_start`.
    - `dm.tumbling(rows=100)`: a hundred rows of a key, by sequence id and position in the file.
    - `dm.tumbling("mileage", delta=50)`: a window begins with the first row that is 50 or more above the first row of
      the window before; for a timestamp, give `delta=datetime.timedelta(…)`.
    - `dm.tumbling(until="_punctuation")`: a window ends with each row in which the boolean column is true.

    The last three add the key `window_number`, 1, 2, 3 … for each key. Rows without event time belong to no window. A
    null in the other columns ends no window, nor does a NaN or an infinite number in the column of `delta`.

    Args:
        count_trigger: for event time and `emit="closed"`: a window is also emitted, with its values so far, at the end
            of each id in which its number of rows reaches another multiple of this.

    Raises:
        UsageError: none or several of the four are given.

    Example:
        hourly = dm.aggregate(
            orders,
            keys=["item"],
            values={"sold": dm.sum("amount")},
            window=dm.tumbling("at", hours=1),
            emit="closed",
            lateness=600,
            name="hourly",
        )
        dm.sink(hourly, dm.DeltaAppend("sold_each_hour"))
        dm.sink(hourly["late"], dm.DeltaAppend("late_rows"))
    """
    given = {"rows": rows, "delta": delta, "until": until, "a duration": size or None}
    what = _one_of("dm.tumbling", given)
    if count_trigger is not None and what != "a duration":
        raise UsageError("count_trigger is for windows of event time", remedy="leave it out")
    if rows is not None and column is None:
        return Rows(rows=rows)
    if until is not None and column is None:
        return Marked(column=until)
    if column is None:
        return _without_column("dm.tumbling", what)
    if delta is not None:
        return Delta(column=column, size=delta)
    if not size:
        raise UsageError(f"dm.tumbling by {what} takes no column {column!r}", remedy="leave it out")
    length = dt.timedelta(**size)
    return EventTime(column=column, size=length, every=length, count_trigger=count_trigger)


def sliding(
    column: str | None = None,
    *,
    rows: int | None = None,
    delta: float | dt.timedelta | None = None,
    every: dt.timedelta | float | None = None,
    **size: float,
) -> Window:
    """Return sliding windows, which overlap.

    - `dm.sliding(rows=100)`: the last hundred rows of a key, by sequence id and position in the file. A changed key
      has one row of values for each id, over the window at the end of the id; with `emit="row"` every row has its own.
      Without `emit="row"`, windows of more than 1000 rows are processed one trigger at a time.
    - `dm.sliding("logged_at", minutes=5, every=60)`: event time; a window of five minutes begins every 60 seconds, and
      a row is in all windows that contain its time. Adds the key `window_start`.
    - `dm.sliding("mileage", delta=50)`, `dm.sliding("logged_at", minutes=5)`: the rows of a key, up to the newest, in
      which the column is less than 50, or five minutes, below the largest value until then. A row with a smaller value
      than an earlier row counts as having that row's value, and so does a row with null, NaN or an infinite value. Rows
      before the first value are only in the windows of each other.

    Args:
        every: seconds, or a `datetime.timedelta`.

    Raises:
        UsageError: none or several of `rows`, `delta` and a duration are given.

    Example:
        of_the_last_four = dm.aggregate(
            orders,
            keys=["item"],
            values={"mean": dm.mean("amount")},
            window=dm.sliding(rows=4),
            emit="row",
            columns=["id"],
            name="of_the_last_four",
        )
    """
    what = _one_of("dm.sliding", {"rows": rows, "delta": delta, "a duration": size or None})
    if every is not None and what != "a duration":
        raise UsageError("every= is for windows of event time", remedy="leave it out")
    if rows is not None and column is None:
        return Rows(rows=rows, is_sliding=True)
    if column is None:
        return _without_column("dm.sliding", what)
    if rows is not None:
        raise UsageError(f"dm.sliding by rows takes no column {column!r}", remedy="leave it out")
    if delta is not None:
        return Delta(column=column, size=delta, is_sliding=True)
    if every is None:
        return Delta(column=column, size=dt.timedelta(**size), is_sliding=True)
    return EventTime(column=column, size=dt.timedelta(**size), every=duration_of(every))


def session(column: str | None = None, *, gap: dt.timedelta | float) -> Window:
    """Return session windows: `dm.session("logged_at", gap=600)`. Rows of a key less than `gap` apart share a window.

    They add the keys `window_start` (event time of the first row) and `window_end` (of the last row, plus `gap`).
    Sessions are emitted when they are closed, since they may merge until then: `emit="closed"` and `lateness=` are
    needed. A row is late if a session of this row alone would be closed. A row that is not late begins a new session if
    the session near it is closed.

    Args:
        gap: seconds, or a `datetime.timedelta`.

    Example:
        visits_of_customers = dm.aggregate(
            orders,
            keys=["customer"],
            values={"orders": dm.count()},
            window=dm.session("at", gap=1800),
            emit="closed",
            lateness=600,
            name="visits_of_customers",
        )
    """
    return WallClock() if column is None else Session(column=column, gap=duration_of(gap))


def _one_of(function: str, given: dict[str, Any]) -> str:
    found = [name for name, value in given.items() if value is not None]
    if len(found) != 1:
        said = f"{' and '.join(found)} at once" if found else "nothing that says how large a window is"
        raise UsageError(f"{function} got {said}", remedy=f"give one of {', '.join(given)}")
    return found[0]


def _without_column(function: str, what: str) -> Window:
    if what == "delta":
        raise UsageError(f"{function} by delta needs a column", remedy=f'{function}("mileage", delta=50)')
    return WallClock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """The emission of an aggregate: its time, its columns, and the watermark.

    Attributes:
        emit: one of `Emit`.
        lateness: the time by which the watermark is behind the newest event time; None if there is no watermark.
        columns: columns of the input that `emit="row"` passes on.
        max_ahead: the most by which one id can move the watermark; None for no limit.
    """

    emit: str = Emit.CHANGE
    lateness: dt.timedelta | None = None
    columns: tuple[str, ...] = ()
    max_ahead: dt.timedelta | None = None

    def fingerprint(self) -> list[Any]:
        lateness = None if self.lateness is None else self.lateness.total_seconds()
        bound = [] if self.max_ahead is None else [self.max_ahead.total_seconds()]
        return [str(self.emit), lateness, list(self.columns), *bound]


EVERY_CHANGE = Emission()


def retention_of(window: Window | None) -> Retention | None:
    """Return the retention of a window's state: how far it slides, or how it cuts; None for a mark, or no window.

    Windows that are open when the code changes go on. So windows that end with a difference from their first row may
    change their size, but not their column; windows that end with a mark may also change the column.
    """
    if isinstance(window, Rows):
        sliding = Retention(of="rows of a key", extent=window.rows)
        return sliding if window.is_sliding else Retention(of=f"windows of {window.rows} rows")
    if isinstance(window, Delta):
        size = window.size
        extent, of = (size.total_seconds(), "seconds") if isinstance(size, dt.timedelta) else (size, "differences")
        return Retention(of=f"{of} of `{window.column}`", extent=extent if window.is_sliding else None)
    if isinstance(window, EventTime):
        return Retention(of=f"windows of {window.size} every {window.every} by `{window.column}`")
    if isinstance(window, Session):
        return Retention(of=f"seconds of `{window.column}` between sessions", extent=window.gap.total_seconds())
    return None


Refusal = tuple[str, str, str]
"""Rule, message, remedy."""


def refusals(window: Window | None, emission: Emission) -> Iterator[Refusal]:
    """Yield a refusal for each mistake in a window, in an emission, or in their combination."""
    if not isinstance(window, Window | None):
        yield "WINDOW_KIND", f"{window!r} is no window", "such as dm.tumbling(rows=5)"
        return
    if isinstance(window, WallClock):
        yield (
            "WINDOW_CLOCK",
            "a window of the wall clock would hold other rows when they are replayed",
            'name a column of event time: dm.tumbling("logged_at", minutes=5)',
        )
        return
    yield from _wrong_sizes(window)
    yield from _wrong_emissions(window, emission)
    yield from _wrong_lateness(window, emission)
    if emission.columns and emission.emit != Emit.ROW:
        yield (
            "WINDOW_COLUMNS",
            "columns= passes on a row's columns, and no row is emitted",
            'leave it out, or emit="row"',
        )


def _wrong_sizes(window: Window | None) -> Iterator[Refusal]:
    rule, zero = "WINDOW_SIZE", dt.timedelta(0)
    if isinstance(window, Rows) and not is_count(window.rows):
        yield rule, f"a window of {window.rows!r} rows is none", "give a number from 1 up"
    if isinstance(window, EventTime):
        if not is_duration(window.size, above=zero):
            yield rule, f"a window of {window.size} is none", "give a positive size"
        if not is_duration(window.every, above=zero) or window.every > window.size:
            message = f"windows of {window.size} every {window.every} would leave rows out"
            yield rule, message, "give an every= from above 0 up to the size"
        if window.count_trigger is not None and not is_count(window.count_trigger):
            yield rule, f"count_trigger={window.count_trigger!r} is none", "give a number from 1 up"
    if isinstance(window, Session) and not is_duration(window.gap, above=zero):
        yield rule, f"a gap of {window.gap} is none", "give a positive gap"
    if isinstance(window, Delta) and not window.width > 0:
        yield rule, f"a difference of {window.size} is none", "give a positive difference"


def _wrong_emissions(window: Window | None, emission: Emission) -> Iterator[Refusal]:
    rule, emit = "WINDOW_EMIT", emission.emit
    slides = isinstance(window, Rows | Delta) and window.is_sliding
    if emit not in set(Emit):
        yield rule, f"emit={emit!r} is not known", "one of " + ", ".join(f'"{known}"' for known in Emit)
    elif emit == Emit.ROW and not slides:
        yield rule, 'emit="row" is for sliding windows: of the others a row has no values', "window=dm.sliding(rows=4)"
    elif emit == Emit.CLOSED and (window is None or slides):
        what = "a sliding window is never closed" if window else "without a window nothing is ever closed"
        yield rule, what, 'leave emit="closed" out'
    elif emit == Emit.CHANGE and isinstance(window, Session):
        yield rule, "sessions merge: rows emitted before would stay behind", 'emit="closed"'
    if isinstance(window, EventTime) and window.count_trigger and emit != Emit.CLOSED:
        yield rule, "count_trigger is for windows that are emitted when they are closed", 'emit="closed"'


def _wrong_lateness(window: Window | None, emission: Emission) -> Iterator[Refusal]:
    rule, has_watermark = "WINDOW_LATENESS", isinstance(window, EventTime | Session)
    if emission.lateness is None:
        if isinstance(window, Session) or (has_watermark and emission.emit == Emit.CLOSED):
            message = "nothing says how late rows may be, so no window is ever closed"
            yield rule, message, "lateness=0 (seconds), or more"
    elif not has_watermark:
        yield rule, "lateness= is for windows of event time with bounds of their own", "leave it out"
    elif not is_duration(emission.lateness):
        yield rule, f"a lateness of {emission.lateness} is none", "lateness=0 (seconds), or more"
    bound = emission.max_ahead
    if bound is not None and (emission.lateness is None or not is_duration(bound, above=dt.timedelta(0))):
        yield rule, f"max_ahead={bound} bounds no watermark", "give lateness=, and seconds above 0; or leave it out"
