"""Windows in plain Python: the rows and late rows that each configuration of `dm.aggregate(window=…)` emits at each id.

Rows go in one by one, in order, into lists; nothing here knows partials, merging or Spark.
"""

from __future__ import annotations

import datetime as dt
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Told:
    """The expected result after some files.

    Attributes:
        emitted: the rows of each file, by its number.
        late: the late rows of each file, by its number.
        open: the number of windows that are not closed.
    """

    emitted: list[list[Row]]
    late: list[list[Row]] = field(default_factory=list)
    open: int | None = None


def values(window: Sequence[Row]) -> Row:
    numbers = [row["n"] for row in window if row["n"] is not None]
    by_x = sorted(range(len(window)), key=lambda place: (window[place]["x"], place))
    return {
        "rows": len(window),
        "total": sum(numbers) if numbers else None,
        "mean": sum(row["x"] for row in window) / len(window),
        "oldest": window[0]["n"],
        "newest": window[-1]["n"],
        "known": sorted(set(numbers)),
        "listed": numbers[:3],
        "largest": [window[place]["n"] for place in by_x[::-1][:2]],
        "median": median([row["x"] for row in window]),
    }


def median(numbers: Sequence[float]) -> float:
    """Return the median that a sketch gives for numbers that are not negative; its buckets grow by 1.01 / 0.99."""
    found = sorted(numbers)[(len(numbers) + 1) // 2 - 1]
    gamma = 1.01 / 0.99
    held = 2 * gamma ** math.ceil(math.log(found, gamma)) / (1 + gamma) if found else 0.0
    return min(max(held, min(numbers)), max(numbers))


def keyed(keys: Sequence[str], row: Row) -> Row:
    return {key: row[key] for key in keys}


def grouped(keys: Sequence[str], rows: Iterable[Row]) -> Mapping[Any, list[Row]]:
    found: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        found[tuple(row[key] for key in keys)].append(row)
    return found


def numbered(
    files: Sequence[Sequence[Row]], keys: Sequence[str], emit: str, *,
    begins: Callable[[list[Row], Row], bool] = lambda window, row: False,
    is_full: Callable[[list[Row]], bool] = lambda window: False,
) -> Told:  # fmt: skip
    """Return tumbling windows by order; `begins`: a row begins a new window; `is_full`: a window takes no more rows."""
    windows: dict[Any, tuple[int, list[Row]]] = {}
    told: list[list[Row]] = []
    for rows in files:
        changed, closed = {}, []
        for row in rows:
            key = tuple(row[name] for name in keys)
            number, window = windows.get(key, (1, []))
            if window and (is_full(window) or begins(window, row)):
                if not is_full(window):
                    closed.append({**keyed(keys, row), "window_number": number, **values(window)})
                number, window = number + 1, []
            window = [*window, row]
            windows[key] = number, window
            now = {**keyed(keys, row), "window_number": number, **values(window)}
            changed[key, number] = now
            if is_full(window):
                closed.append(now)
        told.append(closed if emit == "closed" else list(changed.values()))
    return Told(told)


def by_rows(files: Any, keys: Sequence[str], emit: str, size: int) -> Told:
    return numbered(files, keys, emit, is_full=lambda window: len(window) == size)


def by_mark(files: Any, keys: Sequence[str], emit: str, column: str) -> Told:
    return numbered(files, keys, emit, is_full=lambda window: window[-1][column] is True)


def number_of(value: Any) -> Any:
    """Return the number to take a difference of: NaN and infinities count as null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def by_delta(files: Any, keys: Sequence[str], emit: str, column: str, width: Any) -> Told:
    def is_beyond(window: list[Row], row: Row) -> bool:
        known = [value for one in window if (value := number_of(one[column])) is not None]
        return bool(known) and number_of(row[column]) is not None and row[column] - known[0] >= width

    return numbered(files, keys, emit, begins=is_beyond)


def by_time(
    files: Any, keys: Sequence[str], emit: str, *,
    size: dt.timedelta, every: dt.timedelta, lateness: dt.timedelta | None, trigger: int | None = None,
    max_ahead: dt.timedelta | None = None,
) -> Told:  # fmt: skip
    """Return windows of event time; without a lateness, none is ever closed and a row without event time is dropped."""
    windows: dict[Any, list[Row]] = {}
    mark: dt.datetime | None = None
    told, late = [], []
    for rows in files:
        changed: dict[Any, int] = {}
        missed = []
        for row in rows:
            starts = [] if row["at"] is None else starts_of(row["at"], size, every)
            open_ = [start for start in starts if mark is None or start + size > mark]
            if not open_:
                missed.append(row)
            for start in open_:
                window = (*(row[key] for key in keys), start)
                changed.setdefault(window, len(windows.get(window, [])))
                windows.setdefault(window, []).append(row)
        mark = None if lateness is None else taken_on(mark, rows, lateness, max_ahead)
        closed = [window for window in windows if mark is not None and window[-1] + size <= mark]
        early = [
            window for window, had in changed.items()
            if trigger and len(windows[window]) // trigger > had // trigger and window not in closed
        ]  # fmt: skip
        chosen = [*early, *closed] if emit == "closed" else list(changed)
        told.append([
            {**dict(zip((*keys, "window_start"), window, strict=True)), **values(windows[window])} for window in chosen
        ])  # fmt: skip
        late.append(missed)
        for window in closed:
            del windows[window]
    return Told(told, late if lateness is not None else [], len(windows))


def taken_on(
    mark: dt.datetime | None, rows: Sequence[Row], lateness: dt.timedelta, max_ahead: dt.timedelta | None
) -> dt.datetime | None:
    """Return the watermark after a file: it never falls, and rises by `max_ahead` at most."""
    asked = max((row["at"] - lateness for row in rows if row["at"] is not None), default=None)
    if asked is None or mark is None:
        return asked or mark
    return max(mark, asked if max_ahead is None else min(asked, mark + max_ahead))


def starts_of(moment: dt.datetime, size: dt.timedelta, every: dt.timedelta) -> list[dt.datetime]:
    start = EPOCH + (moment - EPOCH) // every * every
    found = []
    while start > moment - size:
        found.append(start)
        start -= every
    return found


def by_session(
    files: Any, keys: Sequence[str], *, gap: dt.timedelta, lateness: dt.timedelta, max_ahead: dt.timedelta | None = None
) -> Told:
    sessions: dict[Any, list[list[Row]]] = defaultdict(list)
    mark: dt.datetime | None = None
    told, late, place = [], [], 0
    for rows in files:
        missed = []
        for row in rows:
            place += 1
            if row["at"] is None or (mark is not None and row["at"] + gap <= mark):
                missed.append(row)
                continue
            mine = sessions[tuple(row[key] for key in keys)]
            mine.append([{**row, "place": place}])
            merge_close(mine, gap)
        late.append(missed)
        mark = taken_on(mark, rows, lateness, max_ahead)
        closed = []
        for key, mine in sessions.items():
            for session in list(mine):
                start, end = span(session, gap)
                if mark is not None and rows and end <= mark:
                    mine.remove(session)
                    named = dict(zip(keys, key, strict=True))
                    ordered = sorted(session, key=lambda row: row["place"])
                    closed.append({**named, "window_start": start, "window_end": end, **values(ordered)})
        told.append(closed)
    return Told(told, late, sum(map(len, sessions.values())))


def span(session: Sequence[Row], gap: dt.timedelta) -> tuple[dt.datetime, dt.datetime]:
    moments = [row["at"] for row in session]
    return min(moments), max(moments) + gap


def merge_close(sessions: list[list[Row]], gap: dt.timedelta) -> None:
    for one in sessions:
        for other in sessions:
            (start, end), (begin, stop) = span(one, gap), span(other, gap)
            if one is not other and begin < end and start < stop:
                sessions.remove(other)
                one.extend(other)
                merge_close(sessions, gap)
                return


def sliding(
    files: Any, keys: Sequence[str], emit: str, window_of: Callable[[list[Row]], list[Row]], columns: Sequence[str] = ()
) -> Told:
    """Return windows that end with each row: `window_of` selects their rows from all rows of the key so far."""
    seen: dict[Any, list[Row]] = defaultdict(list)
    told = []
    for rows in files:
        by_row, by_key = [], {}
        for row in rows:
            key = tuple(row[name] for name in keys)
            seen[key].append(row)
            window = values(window_of(seen[key]))
            by_row.append({**keyed(keys, row), **{name: row[name] for name in columns}, **window})
            by_key[key] = {**keyed(keys, row), **window}
        told.append(by_row if emit == "row" else list(by_key.values()))
    return Told(told)


def last_rows(size: int) -> Callable[[list[Row]], list[Row]]:
    return lambda seen: seen[-size:]


def trailing(column: str, width: Any) -> Callable[[list[Row]], list[Row]]:
    def window_of(seen: list[Row]) -> list[Row]:
        largest, measured = None, []
        for row in seen:
            value = number_of(row[column])
            largest = value if largest is None or (value is not None and value > largest) else largest
            measured.append(largest)
        top = measured[-1]
        return [
            row for row, measure in zip(seen, measured, strict=True)
            if top is None or (measure is not None and top - measure < width)
        ]  # fmt: skip

    return window_of
