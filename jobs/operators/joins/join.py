"""`join`: joins rows of two streams with equal keys; here, each new row with the window of the other side.

Joins by event time are in `interval_join`; they do not depend on the order of arrival.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from drainmark.jobs.errors import OperatorFailed, UsageError, Violation
from drainmark.jobs.frames.names import quoted, quoted_name
from drainmark.jobs.frames.row_order import payload_of, same
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID
from drainmark.jobs.graph.annotations import duration_of
from drainmark.jobs.graph.context import Due
from drainmark.jobs.graph.declarations import Stream, StreamLike, caller, declare, default_name, location_of, port_to
from drainmark.jobs.graph.operator import KeptState, Measured, Operator, Retention, StepResult, names_of
from drainmark.jobs.graph.ports import Input
from drainmark.jobs.lazy import F
from drainmark.jobs.operators.joins.interval_join import LEFT, RIGHT, IntervalJoin
from drainmark.jobs.state import clock
from drainmark.jobs.state.placed_rows import FROM, HELD, IS_NEW, LEAVES, PLACE, held_changes, keys_of_all, placed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.context import OperatorContext

__all__ = ["join"]

Window = int | dt.timedelta | Literal["id"] | None
Clocks = Mapping[str, "tuple[DataFrame, DataFrame]"]

_AT = "_at"
_TIME = "_time"
_ROW = "_row"
_OWN = "__own"
_OTHER = "__other"
_OUTER = {"left": "left", "right": "right", "full": "full"}
_SUFFIXES = ("", "_right")


@dataclass(frozen=True, kw_only=True)
class Join(Operator):
    """State: the rows of both windows; a clock for each window that is a duration.

    A pair is put out when its later row comes, by (sequence id, position, left before right).
    """

    kind: ClassVar[str] = "join"
    summary: ClassVar[str] = "windowed join of two streams on equal keys"
    keeps_tags: ClassVar[bool] = True
    configurations: ClassVar[tuple[str, ...]] = (
        "rows", "durations", "rows and duration", "id", "id outer", "left", "right", "latest",
    )  # fmt: skip

    keys: tuple[str, ...]
    how: str
    left_window: Window
    right_window: Window
    left_time: str | None = None
    right_time: str | None = None

    @property
    def windows(self) -> Mapping[str, Window]:
        return {LEFT: self.left_window, RIGHT: self.right_window}

    @property
    def kept(self) -> tuple[KeptState, ...]:
        states = []
        for side, window in self.windows.items():
            if isinstance(window, dt.timedelta):
                time, other = self._times(side)
                retention = Retention(of=f"seconds of `{time}`", extent=window.total_seconds())
                keys = (*self.keys, *HELD)
                states.append(KeptState(part=side, keys=keys, looked_up_by=self.keys, retention=retention))
                states.append(clock.clock_state(f"{side}-clock", of=f"the newest `{other}`"))
            elif isinstance(window, int):
                retention = Retention(of="rows of a key", extent=window)
                states.append(
                    KeptState(part=side, keys=self.keys, depth=window, looked_up_by=self.keys, retention=retention)
                )
        return tuple(states)

    @property
    def measured(self) -> tuple[Measured, ...]:
        times = zip(self.inputs, (self.left_time, self.right_time), strict=True)
        return tuple(Measured(port, time) for port, time in times if time)

    def _times(self, side: str) -> tuple[str | None, str | None]:
        """Return the column of a side's event time, and that of the other side, which moves the side's window."""
        return (self.left_time, self.right_time) if side == LEFT else (self.right_time, self.left_time)

    def fingerprint(self) -> Any:
        windows = [str(window) for window in self.windows.values()]
        times = [self.left_time, self.right_time]
        return {
            **super().fingerprint(),
            "on": list(self.keys),
            "kind_of_join": self.how,
            "windows": windows,
            "by": times,
        }

    def notes(self, read: Collection[str]) -> Iterator[str]:
        windows = {*self.windows.values()}
        if "id" in windows:
            return
        missed = "is read when it is not, or not any more, in its window"
        if any(isinstance(window, dt.timedelta) for window in windows):
            missed = "is read after it and has an earlier time"
        yield (
            f"{self.name} depends on the order in which rows are read: a row never meets one that {missed}, and nothing"
            " counts such rows; within= joins by event time, in any order of reading"
        )

    def violations(self, in_region: bool) -> Iterator[Violation]:
        if not self.keys:
            yield self.wrong("JOIN_KEYS", "it has no columns to join on", 'give on=["symbol"]')
        if self.how not in ("inner", *_OUTER):
            yield self.wrong("JOIN_KIND", f"kind={self.how!r} is not known", "inner, left, right, full or latest")
        if self.inputs[0].stream == self.inputs[1].stream:
            yield self.wrong("JOIN_INPUTS", "it joins a stream with itself", "give one side a name by dm.functor")
        for side, window in self.windows.items():
            if problem := _window_problem(window):
                yield self.wrong("JOIN_WINDOW", f"{side}_window={window!r}: {problem}", 'rows, a timedelta, or "id"')
        yield from self._combination()

    def _combination(self) -> Iterator[Violation]:
        windows = [*self.windows.values()]
        if windows == [None, None]:
            message = "it has neither within= nor a window, so no row ever meets another"
            remedy = "give within=(low, high), left_time=, right_time= and lateness=, or right_window=1"
            yield self.wrong("JOIN_WINDOW", message, remedy)
        if ("id" in windows) and windows != ["id", "id"]:
            message = "the window of one id is that of both sides"
            yield self.wrong("JOIN_WINDOW", message, 'give left_window="id" and right_window="id"')
        if any(isinstance(window, dt.timedelta) for window in windows) and not (self.left_time and self.right_time):
            message = "a duration is one of event time, and no columns say which"
            yield self.wrong("JOIN_TIME", message, 'give left_time="quoted_at" and right_time="traded_at"')
        kept = {"left": self.left_window, "right": self.right_window, "full": 1}.get(self.how)
        if kept is not None and windows != ["id", "id"]:
            message = (
                f"kind={self.how!r} with this window cannot tell that a row will never meet another: it would put out "
                "the row alone and, later, paired"
            )
            remedy = f'leave {self.how}_window out, so that its rows only meet those before them, or take "id" for both'
            yield self.wrong("JOIN_KIND", message, remedy if self.how != "full" else 'take "id" for both windows')

    def step(self, frames: OperatorContext) -> StepResult:
        sides = {side: self._side(frames, side, port) for side, port in zip(self.windows, self.inputs, strict=True)}
        _require_apart(self, frames)
        clocks = {side: _clock(self, frames, side, sides) for side in self.windows if self._lasts(side)}
        seen = {side: self._seen(frames, side, sides, clocks) for side in sides}
        if any(isinstance(window, int) for window in self.windows.values()):
            seen = self._numbered(frames, seen)
        changes: dict[str, DataFrame] = {}
        for side, rows in sides.items():
            if self._lasts(side):
                changes[f"{side}-clock"] = clocks[side][1]
            if self.windows[side] not in (None, "id"):
                changes[side] = self._changes(frames, side, rows, seen[side], clocks)
        return StepResult(self._pairs(seen, sides), changes)

    def _lasts(self, side: str) -> bool:
        return isinstance(self.windows[side], dt.timedelta)

    def _side(self, frames: OperatorContext, side: str, port: Input) -> DataFrame:
        """Return the new rows of a side: keys, `HELD`, `_at`, `_time` in microseconds, `_row` with the payload."""
        rows = placed(frames, self, port, self.keys)
        column = self._times(side)[0]
        time = f"unix_micros(cast({quoted_name(column)} as timestamp))" if column else "cast(null as bigint)"
        free = ", ".join(quoted([name for name in payload_of(rows) if name not in (*self.keys, PLACE)]))
        row = f"struct({free})" if free else "cast(null as boolean)"
        return rows.selectExpr(
            *quoted(self.keys),
            f"{SEQUENCE_ID} as {FROM}",
            PLACE,
            f"{POSITION} as {_AT}",
            f"{time} as {_TIME}",
            f"{row} as {_ROW}",
        )

    def _seen(self, frames: OperatorContext, side: str, sides: Mapping[str, DataFrame], clocks: Clocks) -> DataFrame:
        """Return the rows of a side that the group can pair, including the rows of its window from earlier groups.

        `LEAVES` is the id at the end of which a row leaves a window of time; null if it stays.
        """
        rows, window = sides[side], self.windows[side]
        every = rows.selectExpr("*", f"true as {IS_NEW}")
        if window not in (None, "id"):
            old = frames.kept(self, side, rows.schema, *self._asked(frames, side, sides, clocks))
            old = old.selectExpr("*", f"false as {IS_NEW}")
            every = every.unionByName(old)
        if not isinstance(window, dt.timedelta):
            return every.selectExpr("*", f"cast(null as bigint) as {LEAVES}")
        due = f"{_TIME} + {window // dt.timedelta(microseconds=1)} + 1"
        ended = every.join(clocks[side][0], on=F.expr(clock.reaches(f"({due})")), how="left")
        return ended.selectExpr(*quoted(every.columns), f"if({_TIME} is null, {FROM}, {clock.ID}) as {LEAVES}")

    def _asked(
        self, frames: OperatorContext, side: str, sides: Mapping[str, DataFrame], clocks: Clocks
    ) -> tuple[DataFrame | None, Due | None]:
        """Return the keys for which the group needs a side's state and, for a window of time, the rows that leave it.

        Other rows neither pair nor leave.
        """
        window, keys = self.windows[side], keys_of_all(frames, self, sides.values(), self.keys)
        if not isinstance(window, dt.timedelta):
            return keys, None
        lasts = window // dt.timedelta(microseconds=1) + 1
        return keys, Due(_TIME, lambda: clock.span(clocks[side][0], lasts))

    def _numbered(self, frames: OperatorContext, seen: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        """Count the rows of each row's key up to and including it: `_OWN` on its own side, `_OTHER` on the other."""
        merged = (
            seen[LEFT]
            .selectExpr("*", "0 as __side")
            .withColumnRenamed(_ROW, f"{_ROW}_{LEFT}")
            .unionByName(
                seen[RIGHT].selectExpr("*", "1 as __side").withColumnRenamed(_ROW, f"{_ROW}_{RIGHT}"),
                allowMissingColumns=True,
            )
        )
        order = f"order by {FROM}, {_AT}, __side, {PLACE} rows unbounded preceding"
        until = f"over (partition by {', '.join(quoted(self.keys))} {order})"
        counted = frames.gathered(self, merged).selectExpr(
            "*", f"sum(1 - __side) {until} as __left_rows", f"sum(__side) {until} as __right_rows"
        )
        plain = [*quoted(self.keys), *HELD, _AT, _TIME, IS_NEW, LEAVES]
        return {
            LEFT: counted.where("__side = 0").selectExpr(
                *plain, f"{_ROW}_{LEFT} as {_ROW}", f"__left_rows as {_OWN}", f"__right_rows as {_OTHER}"
            ),
            RIGHT: counted.where("__side = 1").selectExpr(
                *plain, f"{_ROW}_{RIGHT} as {_ROW}", f"__right_rows as {_OWN}", f"__left_rows as {_OTHER}"
            ),
        }

    def _pairs(self, seen: Mapping[str, DataFrame], sides: Mapping[str, DataFrame]) -> DataFrame:
        left, right = seen[LEFT].alias("l"), seen[RIGHT].alias("r")
        left_first = f"struct(l.{FROM}, l.{_AT}) <= struct(r.{FROM}, r.{_AT})"
        if self.left_window == "id":
            meets = f"l.{FROM} = r.{FROM}"
        else:
            in_left, in_right = self._within(LEFT, "l", "r"), self._within(RIGHT, "r", "l")
            meets = f"(l.{IS_NEW} or r.{IS_NEW}) and if({left_first}, {in_left}, {in_right})"
        on = F.expr(f"{same(self.keys, 'l', 'r')} and {meets}")
        if self.how == "left":
            left = left.where(IS_NEW).alias("l")
        elif self.how == "right":
            right = right.where(IS_NEW).alias("r")
        met = left.join(right, on=on, how=_OUTER.get(self.how, "inner"))
        keys = [f"if(l.{FROM} is null, r.{key}, l.{key}) as {key}" for key in quoted(self.keys)]
        is_left_last = f"r.{FROM} is null or not coalesce({left_first}, true)"
        tags = (
            f"if(l.{FROM} is null or r.{FROM} > l.{FROM}, r.{FROM}, l.{FROM}) as {SEQUENCE_ID}",
            f"if(l.{FROM} is not null and ({is_left_last}), l.{_AT}, r.{_AT}) as {POSITION}",
        )
        columns = [
            f"{alias}.{_ROW}.{quoted_name(name)} as {quoted_name(name)}"
            for alias, side in (("l", LEFT), ("r", RIGHT))
            for name in _fields(sides[side])
        ]
        return met.selectExpr(*tags, *keys, *columns)

    def _within(self, side: str, row: str, newer: str) -> str:
        """Return the SQL condition that a row is in its side's window when a newer row of the other side comes."""
        window = self.windows[side]
        if isinstance(window, dt.timedelta):
            micros = window // dt.timedelta(microseconds=1)
            in_time = f"{newer}.{_TIME} between {row}.{_TIME} and {row}.{_TIME} + {micros}"
            is_held = f"{row}.{LEAVES} is null or {row}.{LEAVES} >= {newer}.{FROM}"
            return f"coalesce({in_time} and ({is_held}), false)"
        if isinstance(window, int):
            return f"{newer}.{_OTHER} - {row}.{_OWN} < {window}"
        return "false"

    def _changes(
        self,
        frames: OperatorContext,
        side: str,
        rows: DataFrame,
        seen: DataFrame,
        clocks: Clocks,
    ) -> DataFrame:
        if self._lasts(side):
            return held_changes(seen, self.keys, [_AT, _TIME, _ROW])
        keys = quoted(self.keys)
        size = f"count(1) over (partition by {', '.join([FROM, *keys])}) as __size"
        last = rows.selectExpr("*", size).where(f"{PLACE} > __size - {self.windows[side]}")
        position = f"struct(0L as block, {PLACE} as row) as {POSITION}"
        return last.selectExpr(*keys, *HELD, _AT, _TIME, _ROW, position, f"{FROM} as {SEQUENCE_ID}")


def _clock(
    join: Join, frames: OperatorContext, side: str, sides: Mapping[str, DataFrame]
) -> tuple[DataFrame, DataFrame]:
    """Return the clock of a side's window: the event time of the other side."""
    other = sides[RIGHT if side == LEFT else LEFT].withColumnRenamed(FROM, SEQUENCE_ID)
    return clock.of_events(frames, join, other, _TIME, f"{side}-clock")


def _require_apart(join: Join, frames: OperatorContext) -> None:
    left, right = ({name for name in payload_of(frames.input(port)) if name not in join.keys} for port in join.inputs)
    if twice := sorted(left & right):
        raise OperatorFailed(
            f"{join.name!r}: both streams have a column {', '.join(twice)}",
            operator=join.name,
            location=join.location,
            remedy="rename it in a dm.functor before, or join on it",
        )


def _fields(rows: DataFrame) -> list[str]:
    kind = rows.schema[_ROW].dataType
    return list(getattr(kind, "names", []))


def _window_problem(window: Window) -> str | None:
    if window is None or window == "id":
        return None
    if isinstance(window, bool) or not isinstance(window, int | dt.timedelta):
        return "it is no window"
    if isinstance(window, dt.timedelta):
        return None if window > dt.timedelta(0) else "it is no while"
    return None if window > 0 else "it holds no rows"


def join(
    left: StreamLike,
    right: StreamLike,
    *,
    on: str | Sequence[str],
    within: tuple[dt.timedelta, dt.timedelta] | None = None,
    left_time: str | None = None,
    right_time: str | None = None,
    lateness: dt.timedelta | float | None = None,
    max_ahead: dt.timedelta | float | None = None,
    how: Literal["inner", "left", "right", "full"] = "inner",
    suffixes: tuple[str, str] = _SUFFIXES,
    kind: Literal["inner", "left", "right", "full", "latest"] = "inner",
    left_window: Window = None,
    right_window: Window = None,
    name: str | None = None,
) -> Stream:
    """Declare a join of two streams on equal keys: by event time with `within=`, by order of arrival with windows.

    **With `within=(low, high)`** the output has each pair with low ≤ right time - left time ≤ high, as SQL over the
    whole input has it, in any order of arrival; a pair comes at the id of its later row. Null keys never pair.
    Each side has a watermark: the newest event time of its rows of earlier ids, minus the lateness. A row below its
    side's watermark, or without event time, is in no pair and goes unchanged to `matched["late_left"]` or
    `matched["late_right"]`; the states `<name>-left-watermark` and `<name>-right-watermark` count these rows. A row is
    kept until the other side's watermark has passed the end of its interval: then, with `how=`, it is emitted alone if
    it was in no pair. If a side stalls, the state grows.

    **With windows** each new row pairs with the rows of its key in the other side's window, in the order of (sequence
    id, position), a left row before a right row in the same place. Rows in another order are not paired, and no count
    shows them. Null is a key like any other. The id and position of a pair are those of its later row.

    A joined row has the keys, then the columns of left and right.

    Args:
        on: key columns, of one name on both sides.
        within: lower and upper limit of (right time - left time), both inclusive; they may be negative.
        left_time, right_time: timestamp columns of `within`, and of windows that are durations.
        lateness: with `within`, how far the rows of a side may be out of order; seconds, or a `datetime.timedelta`.
        max_ahead: with `within`, the most by which one id can move a side's watermark, as in `dm.aggregate`.
        how: with `within`: `inner`; `left`, `right`, `full`: also rows of that side, or of both, without a partner.
        suffixes: with `within`, for non-key columns that both sides have: the suffix for left, and that for right.
        kind: with windows: `inner`; `left`, `right`, `full`: also rows without a partner, with nulls. A row is emitted
            alone only if no partner can come later: so `left` allows no `left_window`, `right` no `right_window`,
            unless both are `"id"`, which `full` needs. `latest` is `left` with `right_window=1`: each left row with
            the newest earlier right row of its key.
        left_window, right_window: the rows of a side with which later rows of the other side pair. A number: the last
            so many rows of each key. A `datetime.timedelta`: for rows of the other side whose event time is not earlier
            and at most that much later. `"id"`, for both sides: rows of one trigger. None: no rows. Rows leave a window
            of time once the other side's event time, in whole triggers, is past it; rows that come later miss them.
        name: identity of the state; `<left>_with_<right>` by default.

    Raises:
        UsageError: arguments of both forms are given.
        OperatorFailed: a column is missing, or its type does not fit; with windows, both streams have a non-key column
            of the same name.

    Example:
        matched = dm.join(
            orders,
            payments,
            on=["id"],
            within=(dt.timedelta(0), dt.timedelta(hours=1)),
            left_time="at",
            right_time="paid_at",
            lateness=600,
            how="left",
        )
        dm.sink(matched, dm.DeltaAppend("orders_with_payments"))
        dm.sink(matched["late_left"], dm.DeltaAppend("late_orders"))

        newest = dm.join(orders, payments, on=["id"], kind="latest", name="newest")
    """
    common: dict[str, Any] = {
        "name": name or f"{default_name(left)}_with_{default_name(right)}",
        "inputs": (port_to(left, LEFT), port_to(right, RIGHT)),
        "keys": names_of(on),
        "left_time": left_time,
        "right_time": right_time,
    }
    of_windows = kind != "inner" or left_window is not None or right_window is not None
    of_interval = within is not None or lateness is not None or max_ahead is not None or how != "inner"
    of_interval |= suffixes != _SUFFIXES
    if of_windows and of_interval:
        said = "within=, lateness=, max_ahead=, how= and suffixes= join by event time; kind= and windows by arrival"
        raise UsageError(said, location=location_of(caller()), remedy="give those of one form")
    if of_interval:
        interval: Any = tuple(within) if isinstance(within, list) else within
        made = IntervalJoin(
            **common,
            within=interval,
            lateness=duration_of(lateness),
            how=how,
            suffixes=suffixes,
            max_ahead=duration_of(max_ahead),
        )
        return declare(made)
    if kind == "latest":
        right_window = 1 if right_window is None else right_window
    how = "left" if kind == "latest" else kind
    return declare(Join(**common, how=how, left_window=left_window, right_window=right_window))
