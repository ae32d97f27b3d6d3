"""`join(…, within=(low, high))`: joins rows of two streams with close event times, in any order of arrival.

Each side has a watermark; for the rows of an id it is computed from earlier ids. A row below its side's watermark is
late and meets nothing. All other rows meet every partner that SQL over the whole input would give them: a row is kept
until the other side's watermark has passed the end of its interval, and a partner that comes later is late itself.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.errors import OperatorFailed, Violation
from drainmark.jobs.frames.names import quoted
from drainmark.jobs.frames.row_order import payload_of
from drainmark.jobs.frames.tags import GONE, POSITION, SEQUENCE_ID, TAGS
from drainmark.jobs.graph.annotations import LONGEST, micros
from drainmark.jobs.graph.context import Due
from drainmark.jobs.graph.operator import KeptState, Measured, Operator, Retention, StepResult
from drainmark.jobs.graph.ports import Input
from drainmark.jobs.lazy import F
from drainmark.jobs.operators.windows.watermarks import BEFORE, LATE_ROWS, Watermark, unread_late_rows
from drainmark.jobs.state.placed_rows import (
    FROM,
    HELD,
    IS_NEW,
    LEAVES,
    PLACE,
    held_changes,
    keys_of_all,
    placed,
    require_columns,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.context import OperatorContext

LEFT, RIGHT = "left", "right"
LATE_LEFT, LATE_RIGHT = "late_left", "late_right"

_ALONE: Mapping[str, tuple[str, ...]] = {"inner": (), "left": (LEFT,), "right": (RIGHT,), "full": (LEFT, RIGHT)}

_AT, _TIME, _ROW, _MET = "_at", "_time", "_row", "_met"
_BUCKET = "__bucket"
_FIRST_MET = "__first_met"


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a group.

    Attributes:
        late: rows that are below the watermark or have no event time, unchanged.
        new: all other rows: keys, `HELD`, `_at` (the position), `_time`, `_row` (the payload). If rows without a
            partner are put out, also `_met`: whether the row met a partner before this group.
    """

    watermark: Watermark
    late: DataFrame
    new: DataFrame


@dataclass(frozen=True, kw_only=True)
class IntervalJoin(Operator):
    """State: for each side, the rows that may still meet a partner, and the watermark."""

    kind: ClassVar[str] = "interval join"
    summary: ClassVar[str] = "join of two streams on equal keys and close event times, in any order of arrival"
    keeps_tags: ClassVar[bool] = True
    configurations: ClassVar[tuple[str, ...]] = ("inner", "left", "right", "full")

    keys: tuple[str, ...]
    how: str
    within: tuple[dt.timedelta, dt.timedelta]
    left_time: str
    right_time: str
    lateness: dt.timedelta
    suffixes: tuple[str, str]
    max_ahead: dt.timedelta | None = None

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("", LATE_LEFT, LATE_RIGHT)

    @property
    def alone(self) -> tuple[str, ...]:
        """Return the sides that also put out rows without a partner."""
        return _ALONE.get(self.how, ())

    @property
    def kept(self) -> tuple[KeptState, ...]:
        low, high = self.within
        marks = tuple(KeptState(part=_mark_of(side), evolves=True) for side in (LEFT, RIGHT))
        return (*marks, self._held(LEFT, high), self._held(RIGHT, -low))

    @property
    def measured(self) -> tuple[Measured, ...]:
        return tuple(map(Measured, self.inputs, (self.left_time, self.right_time)))

    def _held(self, side: str, extent: dt.timedelta) -> KeptState:
        """Return the state of a side's rows; if rows without a partner are put out, it also keeps whether a row met."""
        what = "rows, and whether they met," if side in self.alone else "rows"
        of = f"seconds between {what} by `{self.left_time}` and `{self.right_time}`"
        retention = Retention(of=of, extent=extent.total_seconds())
        return KeptState(part=side, keys=(*self.keys, *HELD), looked_up_by=self.keys, retention=retention)

    def fingerprint(self) -> Any:
        return {
            **super().fingerprint(),
            "on": list(self.keys),
            "how": self.how,
            "within": [bound.total_seconds() for bound in self.within],
            "by": [self.left_time, self.right_time],
            "lateness": self.lateness.total_seconds(),
            "suffixes": list(self.suffixes),
            **({} if self.max_ahead is None else {"max_ahead": self.max_ahead.total_seconds()}),
        }

    def notes(self, read: Collection[str]) -> Iterator[str]:
        yield from unread_late_rows(self, (LATE_LEFT, LATE_RIGHT), read)

    # --- refusals ---------------------------------------------------------------------------------------------------

    def violations(self, in_region: bool) -> Iterator[Violation]:
        if not self.keys:
            yield self.wrong("JOIN_KEYS", "it has no columns to join on", 'give on=["order"]')
        if self.how not in _ALONE:
            yield self.wrong("JOIN_HOW", f"how={self.how!r} is not known", "inner, left, right or full")
        if self.inputs[0].stream == self.inputs[1].stream:
            yield self.wrong("JOIN_INPUTS", "it joins a stream with itself", "give one side a name by dm.functor")
        if problem := self._wrong_interval():
            example = "within=(dt.timedelta(0), dt.timedelta(hours=1)), for right rows up to an hour after left ones"
            yield self.wrong("JOIN_WITHIN", f"within={self.within!r}: {problem}", f"such as {example}")
        if wrong := [time for time in (self.left_time, self.right_time) if not isinstance(time, str) or not time]:
            message = f"{wrong[0]!r} is no column of event time, and both sides need one"
            yield self.wrong("JOIN_TIME", message, 'give left_time="ordered_at", right_time="paid_at"')
        if problem := _wrong_lateness(self.lateness):
            yield self.wrong("JOIN_LATENESS", problem, "lateness=600 (seconds), or a timedelta; 0 for none")
        if self.max_ahead is not None and not _is_bound(self.max_ahead):
            message = f"max_ahead={self.max_ahead!r} bounds no watermark"
            yield self.wrong("JOIN_LATENESS", message, "seconds above 0, or a timedelta; leave it out for no bound")
        if not _is_pair(self.suffixes, str) or self.suffixes[0] == self.suffixes[1]:
            message = f"suffixes={self.suffixes!r} do not tell columns of one name apart"
            yield self.wrong("JOIN_SUFFIXES", message, 'give two texts, such as suffixes=("_ordered", "_paid")')

    def _wrong_interval(self) -> str | None:
        if not _is_pair(self.within, dt.timedelta):
            return "give a pair of timedeltas: the least and the most by which a right row is later than its left row"
        low, high = self.within
        if low > high:
            return "the least is above the most"
        return f"a bound is over {LONGEST.days} days" if max(abs(low), abs(high)) > LONGEST else None

    # --- a group ----------------------------------------------------------------------------------------------------

    def step(self, frames: OperatorContext) -> StepResult:
        names = frames.once_a_run((self.name, "names"), lambda: self._names(frames))
        left = self._side(frames, LEFT, self.inputs[0], self.left_time)
        right = self._side(frames, RIGHT, self.inputs[1], self.right_time)
        asked = keys_of_all(frames, self, (left.new, right.new), self.keys)
        held = {
            LEFT: self._held_rows(frames, LEFT, left.new, asked, right.watermark),
            RIGHT: self._held_rows(frames, RIGHT, right.new, asked, left.watermark),
        }
        pairs = self._pairs(held[LEFT], held[RIGHT])
        if self.alone:
            pairs = frames.once(self, pairs)
            held |= {side: self._met(held[side], pairs, side) for side in self.alone}
        output = self._joined(pairs, names)
        for side in self.alone:
            output = output.unionByName(_lonely(held[side], self.keys, names[side]), allowMissingColumns=True)
        changes = {side: self._changes(rows, side in self.alone) for side, rows in held.items()}
        for side, found in ((LEFT, left), (RIGHT, right)):
            late_rows = found.late.groupBy(SEQUENCE_ID).agg(F.count(F.lit(1)).alias(LATE_ROWS))
            changes[_mark_of(side)] = found.watermark.changes(late_rows)
        return StepResult(None, changes, outputs={"": output, LATE_LEFT: left.late, LATE_RIGHT: right.late})

    def _names(self, frames: OperatorContext) -> Mapping[str, Mapping[str, str]]:
        """Return, by side, the output name of each column; columns with the same name get the suffixes.

        Raises:
            OperatorFailed: a column is missing or its type does not fit; output names are the same despite suffixes.
        """
        for each in self.measured:
            require_columns(self, each.port, frames.input(each.port), [*self.keys, each.column])
        _require_comparable(self, frames)
        left, right = (
            [name for name in payload_of(frames.input(port)) if name not in self.keys] for port in self.inputs
        )
        both = {name.lower() for name in left} & {name.lower() for name in right}
        named = {
            side: {name: name + suffix if name.lower() in both else name for name in own}
            for side, own, suffix in ((LEFT, left, self.suffixes[0]), (RIGHT, right, self.suffixes[1]))
        }
        every = [*TAGS, *self.keys, *named[LEFT].values(), *named[RIGHT].values()]
        lower = [name.lower() for name in every]
        if twice := sorted({name for name in every if lower.count(name.lower()) > 1}):
            raise _failed(
                self,
                f"the output would have several columns {', '.join(twice)}",
                'rename one in a dm.functor before, or give suffixes=("_left", "_right")',
            )
        return named

    def _side(self, frames: OperatorContext, side: str, port: Input, time: str) -> _Side:
        """Return the watermark of a side, and its new rows divided into late ones and others."""
        moment = F.unix_micros(F.col(f"`{time}`").cast("timestamp"))
        rows = placed(frames, self, port, self.keys)
        watermark = Watermark.of(
            self, frames, rows, moment, self.lateness, max_ahead=self.max_ahead, part=_mark_of(side)
        )
        watermark = replace(watermark, ids=frames.once(self, watermark.ids))  # both sides use it
        judged = watermark.judge(rows)
        is_late = moment.isNull() | F.coalesce(moment < F.col(BEFORE), F.lit(False))
        added = [BEFORE, PLACE, *(name for name in TAGS if name not in frames.input(port).columns)]
        free = ", ".join(quoted([name for name in payload_of(rows) if name not in (*self.keys, PLACE)]))
        new = judged.where(~is_late).select(
            *quoted(self.keys),
            F.col(SEQUENCE_ID).alias(FROM),
            PLACE,
            F.col(POSITION).alias(_AT),
            moment.alias(_TIME),
            F.expr(f"struct({free})" if free else "cast(null as boolean)").alias(_ROW),
            *([F.lit(False).alias(_MET)] if side in self.alone else []),
        )
        return _Side(watermark, judged.where(is_late).drop(*added), new)

    def _held_rows(
        self, frames: OperatorContext, side: str, new: DataFrame, asked: DataFrame | None, other: Watermark
    ) -> DataFrame:
        """Return the rows of a side, new ones and held ones, that may meet a partner in this group, or leave.

        They have `IS_NEW`, and `LEAVES`: the id after which no partner can come. A partner at the end of the interval
        can come as long as the other side's watermark is not above it. Null equals nothing, so a row with a null key
        meets no partner and leaves at its own id.

        Args:
            asked: the keys of both sides' new rows.
            other: the watermark of the other side.
        """
        low, high = map(micros, self.within)
        extent = high if side == LEFT else -low
        like = frames.once_a_run((self.name, side), lambda: new.schema)
        due = Due(_TIME, lambda: other.reached(lambda mark: mark - F.lit(extent + 1)))
        old = frames.kept(self, side, like, asked, due).withColumn(IS_NEW, F.lit(False))
        held = frames.gathered(self, new.withColumn(IS_NEW, F.lit(True)).unionByName(old))
        rows = other.leaving(held, F.col(_TIME) + F.lit(extent + 1))
        has_null = " or ".join(f"{key} is null" for key in quoted(self.keys))
        rows = rows.withColumn(LEAVES, F.expr(f"if({has_null}, {FROM}, {LEAVES})"))
        return frames.once(self, rows) if frames.is_local(self) else rows  # a large state is not copied

    def _pairs(self, left: DataFrame, right: DataFrame) -> DataFrame:
        """Return the pairs with a new row: `_left`, `_right` (rows of the sides), `SEQUENCE_ID`, `POSITION`.

        New rows are compared with all rows, held rows with new rows: two rows of the state are never compared. Times
        are cut into buckets as wide as the interval, so a row is compared only with rows of its key that are near it.
        """
        low, high = map(micros, self.within)
        width = max(high - low, 1)
        spread = f"sequence({_floor(low, width)}, {_floor(high, width)}, {width}L)"
        near = left.selectExpr("*", f"explode({spread}) as {_BUCKET}")
        other = right.selectExpr("*", f"{_floor(0, width)} as {_BUCKET}")
        same = " and ".join(f"l.{key} = r.{key}" for key in quoted([*self.keys, _BUCKET]))
        interval = f"r.{_TIME} between l.{_TIME} + ({low}L) and l.{_TIME} + ({high}L)"

        def met(some: DataFrame, others: DataFrame) -> DataFrame:
            return (
                some.alias("l")
                .join(others.alias("r"), on=F.expr(f"{same} and {interval}"), how="inner")
                .selectExpr(
                    *sides,
                    f"greatest(l.{FROM}, r.{FROM}) as {SEQUENCE_ID}",
                    f"if({left_last}, l.{_AT}, r.{_AT}) as {POSITION}",
                )
            )

        left_last = f"struct(l.{FROM}, l.{_AT}) > struct(r.{FROM}, r.{_AT})"
        sides = [
            f"struct({', '.join(f'{alias}.{name}' for name in quoted([*self.keys, *HELD, _ROW]))}) as _{side}"
            for alias, side in (("l", LEFT), ("r", RIGHT))
        ]
        return met(near.where(IS_NEW), other).unionByName(met(near.where(f"not {IS_NEW}"), other.where(IS_NEW)))

    def _joined(self, pairs: DataFrame, names: Mapping[str, Mapping[str, str]]) -> DataFrame:
        keys = [f"coalesce(_{LEFT}.{key}, _{RIGHT}.{key}) as {key}" for key in quoted(self.keys)]
        columns = [
            f"_{side}.{_ROW}.`{name}` as `{shown}`" for side in (LEFT, RIGHT) for name, shown in names[side].items()
        ]
        return pairs.selectExpr(SEQUENCE_ID, POSITION, *keys, *columns)

    def _met(self, held: DataFrame, pairs: DataFrame, side: str) -> DataFrame:
        """Return a side's rows with `_FIRST_MET`: the id of this group at which a row met its first partner."""
        by = [*self.keys, *HELD]
        first = pairs.groupBy(*(F.col(f"_{side}.`{name}`").alias(f"__met_{at}") for at, name in enumerate(by))).agg(
            F.min(SEQUENCE_ID).alias(_FIRST_MET)
        )
        same = " and ".join(f"`{name}` = __met_{at}" for at, name in enumerate(by))
        return held.join(first, on=F.expr(same), how="left").drop(*(f"__met_{at}" for at in range(len(by))))

    def _changes(self, held: DataFrame, may_be_alone: bool) -> DataFrame:
        """Return the changes of a side's state; a row that meets its first partner at a later id is written again."""
        kept = [_AT, _TIME, _ROW]
        if not may_be_alone:
            return held_changes(held, self.keys, kept)
        others = [name for name in held.columns if name != _MET]
        met_at_once = f"{_MET} or coalesce({_FIRST_MET} <= {FROM}, false) as {_MET}"
        changes = held_changes(held.selectExpr(*quoted(others), met_at_once), self.keys, [*kept, _MET])
        met_later = f"not {_MET} and {_FIRST_MET} > {FROM} and ({LEAVES} is null or {LEAVES} > {_FIRST_MET})"
        noted = held.where(met_later).selectExpr(
            *quoted(self.keys), *HELD, *kept, f"true as {_MET}", f"false as {GONE}", f"{_FIRST_MET} as {SEQUENCE_ID}"
        )
        return changes.unionByName(noted)


def _lonely(held: DataFrame, keys: Sequence[str], names: Mapping[str, str]) -> DataFrame:
    """Return the rows that leave without having met a partner, at the ids at which they leave."""
    columns = [f"{_ROW}.`{name}` as `{shown}`" for name, shown in names.items()]
    return held.where(f"{LEAVES} is not null and not {_MET} and {_FIRST_MET} is null").selectExpr(
        f"{LEAVES} as {SEQUENCE_ID}", f"{_AT} as {POSITION}", *quoted(keys), *columns
    )


def _require_comparable(join: IntervalJoin, frames: OperatorContext) -> None:
    from pyspark.sql.types import NumericType

    left, right = (frames.input(port).schema for port in join.inputs)
    for key in join.keys:
        kinds = left[key].dataType, right[key].dataType
        if kinds[0] != kinds[1] and not all(isinstance(kind, NumericType) for kind in kinds):
            names = " and ".join(kind.simpleString() for kind in kinds)
            raise _failed(join, f"the key `{key}` is {names}", "give both sides one type in a dm.functor before")


def _failed(join: IntervalJoin, message: str, remedy: str) -> OperatorFailed:
    return OperatorFailed(f"{join.name!r}: {message}", operator=join.name, location=join.location, remedy=remedy)


def _mark_of(side: str) -> str:
    return f"{side}-watermark"


def _floor(add: int, width: int) -> str:
    """Return SQL for the start of the bucket that holds a row's time plus `add` microseconds."""
    moved = f"({_TIME} + ({add}L))"
    return f"({moved} - pmod({moved}, {width}L))"


def _is_pair(given: object, kind: type) -> bool:
    return isinstance(given, list | tuple) and len(given) == 2 and all(isinstance(one, kind) for one in given)


def _is_bound(given: object) -> bool:
    return isinstance(given, dt.timedelta) and dt.timedelta(0) < given <= LONGEST


def _wrong_lateness(lateness: object) -> str | None:
    if lateness is None:
        return "nothing says how late rows may be"
    if not isinstance(lateness, dt.timedelta) or not dt.timedelta(0) <= lateness <= LONGEST:
        return f"a lateness of {lateness!r} is none"
    return None
