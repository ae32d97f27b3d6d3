"""`deduplicate`: the first row of each key, for ever or for a while."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.errors import Violation
from drainmark.jobs.frames.names import quoted, quoted_name
from drainmark.jobs.frames.row_order import payload_of, same, tags_in
from drainmark.jobs.frames.tags import GONE, SEQUENCE_ID
from drainmark.jobs.graph.annotations import LONGEST, is_count, is_duration
from drainmark.jobs.graph.context import Due
from drainmark.jobs.graph.declarations import Stream, StreamLike, declare, default_name, port_to
from drainmark.jobs.graph.operator import KeptState, Measured, Operator, Positions, Retention, StepResult, names_of
from drainmark.jobs.lazy import F
from drainmark.jobs.state import clock
from drainmark.jobs.state.placed_rows import FROM, IS_NEW, PLACE, placed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.context import OperatorContext

__all__ = ["deduplicate"]

_AT = "_at"
_TIME = "__time"
_LATEST = "__latest"
_PASS = f"struct<id: bigint, place: bigint, {_TIME}: bigint>"


@dataclass(frozen=True, kw_only=True)
class Deduplicate(Operator):
    """State: the keys that passed, and when; a key is kept as long as its later rows are duplicates."""

    kind: ClassVar[str] = "deduplicate"
    summary: ClassVar[str] = "the first row of each key, for ever or for a while"
    keeps_tags: ClassVar[bool] = True
    positions: ClassVar[Positions] = Positions.KEPT
    configurations: ClassVar[tuple[str, ...]] = ("forever", "within ids", "within duration")

    keys: tuple[str, ...]
    within: int | dt.timedelta | None = None
    event_time: str | None = None

    @property
    def kept(self) -> tuple[KeptState, ...]:
        seen = KeptState(keys=self.keys, looked_up_by=self.keys, retention=self._retention())
        return (seen,) if self.within is None else (seen, clock.clock_state())

    def _retention(self) -> Retention | None:
        if isinstance(self.within, dt.timedelta):
            return Retention(of=f"seconds of `{self.event_time}`", extent=self.within.total_seconds())
        return None if self.within is None else Retention(of="triggers", extent=self.within)

    @property
    def measured(self) -> tuple[Measured, ...]:
        return () if self.within is None or self.event_time is None else (Measured(self.inputs[0], self.event_time),)

    def fingerprint(self) -> Any:
        return {**super().fingerprint(), "keys": list(self.keys), "within": str(self.within), "by": self.event_time}

    def violations(self, in_region: bool) -> Iterator[Violation]:
        if not self.keys:
            yield self.wrong("DEDUPLICATE_KEYS", "it has no keys", 'give keys=["order_id"]')
        if isinstance(self.within, dt.timedelta):
            if not is_duration(self.within, above=dt.timedelta(0)):
                remedy = f"give a time above zero, and at most {LONGEST.days} days"
                yield self.wrong("DEDUPLICATE_WITHIN", f"within={self.within} is no while", remedy)
            if self.event_time is None:
                message = "a duration is one of event time, and no column says which"
                yield self.wrong("DEDUPLICATE_TIME", message, 'give event_time="sold_at", or within a number of ids')
        elif self.within is not None and not is_count(self.within, 0):
            message = f"within={self.within!r} is no number of ids"
            yield self.wrong("DEDUPLICATE_WITHIN", message, "give 0 or more, or a timedelta")

    def step(self, frames: OperatorContext) -> StepResult:
        return self._for_ever(frames) if self.within is None else self._for_a_while(frames)

    def _for_ever(self, frames: OperatorContext) -> StepResult:
        rows = frames.input(self.inputs[0])
        first = placed(frames, self, self.inputs[0], self.keys).where(f"{PLACE} = 1")
        keys = ", ".join(quoted(self.keys))
        first = first.selectExpr("*", f"row_number() over (partition by {keys} order by {SEQUENCE_ID}) as __nth").where(
            "__nth = 1"
        )
        known = frames.kept(self, "", first.selectExpr(*quoted(self.keys)).schema, changed=first)
        new = first.alias("new").join(known.alias("known"), on=self._same("new", "known"), how="left_anti")
        return StepResult(
            new.selectExpr(*tags_in(rows.columns), *quoted(payload_of(rows))),
            {"": new.selectExpr(*quoted(self.keys), SEQUENCE_ID)},
        )

    def _same(self, left: str, right: str) -> Any:
        return F.expr(same(self.keys, left, right))

    def _for_a_while(self, frames: OperatorContext) -> StepResult:
        """Go through the rows of each key in order: a row soon after the last row that passed is a duplicate.

        "Soon" depends on the row's time, or on the clock's time before its id if that is later.
        """
        rows = placed(frames, self, self.inputs[0], self.keys, extra=[f"{self._micros()} as {_TIME}"])
        payload = [name for name in payload_of(rows) if name not in (PLACE, _TIME)]
        ticks, ticked = self._clock(frames, rows)
        shape = rows.selectExpr(*quoted(self.keys), f"{_TIME} as {_AT}").schema
        known = frames.kept(self, "", shape, rows, Due(_AT, lambda: clock.span(ticks, self._while)))
        passed = self._passed(frames, rows, known, ticks)
        returned = rows.alias("rows").join(
            passed.alias("passed"),
            on=F.expr(
                f"rows.{SEQUENCE_ID} = passed.{FROM} and rows.{PLACE} = passed.{PLACE} and "
                + same(self.keys, "rows", "passed")
            ),
            how="left_semi",
        )
        if self.event_time is not None:
            returned = returned.unionByName(rows.where(f"{_TIME} is null"))
        return StepResult(
            returned.selectExpr(*tags_in(rows.columns), *quoted(payload)),
            {"": self._changes(known, passed, ticks), "clock": ticked},
        )

    def _micros(self) -> str:
        return (
            f"unix_micros(cast({quoted_name(self.event_time)} as timestamp))"
            if self.event_time
            else "cast(null as bigint)"
        )

    @property
    def _while(self) -> int:
        """Return the time after which a row of the key passes again: microseconds, or a number of triggers."""
        if isinstance(self.within, dt.timedelta):
            return self.within // dt.timedelta(microseconds=1)
        return (self.within or 0) + 1

    def _clock(self, frames: OperatorContext, rows: DataFrame) -> tuple[DataFrame, DataFrame]:
        if self.event_time is None:
            return clock.of_triggers(frames, self)
        return clock.of_events(frames, self, rows, _TIME)

    def _passed(self, frames: OperatorContext, rows: DataFrame, known: DataFrame, ticks: DataFrame) -> DataFrame:
        """Return the rows that pass: keys, `_from`, `_place`, `_at`."""
        keys = quoted(self.keys)
        timed = rows.join(ticks, on=F.expr(f"{SEQUENCE_ID} = {clock.ID}"))
        if self.event_time is None:
            timed = timed.where(f"{PLACE} = 1").selectExpr(
                *keys, SEQUENCE_ID, PLACE, f"{clock.NOW} as {_TIME}", f"{clock.NOW} as {_LATEST}"
            )
        else:
            timed = timed.where(f"{_TIME} is not null").selectExpr(
                *keys, SEQUENCE_ID, PLACE, _TIME, f"greatest({_TIME}, {clock.BEFORE}) as {_LATEST}"
            )
        row = f"struct({SEQUENCE_ID} as id, {PLACE} as place, {_TIME}, {_LATEST})"
        new = timed.selectExpr(*keys, f"{row} as __row", f"cast(null as bigint) as {_AT}")
        old = known.selectExpr(*keys, "null as __row", _AT)
        gathered = (
            frames.gathered(self, new.unionByName(old))
            .groupBy(*keys)
            .agg(F.expr("array_sort(collect_list(__row)) as __rows"), F.expr(f"max({_AT}) as {_AT}"))
        )
        soon = f"done.last is not null and row.{_LATEST} < done.last + {self._while}L"
        passes = f"struct(row.id as id, row.place as place, row.{_TIME} as {_TIME})"
        folded = (
            f"aggregate(__rows, struct({_AT} as last, cast(array() as array<{_PASS}>) as passed), (done, row) -> "
            f"if({soon}, done, struct(row.{_TIME} as last, concat(done.passed, array({passes})) as passed)))"
        )
        return (
            gathered.where("size(__rows) > 0")
            .selectExpr(*keys, f"explode(({folded}).passed) as __pass")
            .selectExpr(*keys, f"__pass.id as {FROM}", f"__pass.place as {PLACE}", f"__pass.{_TIME} as {_AT}")
        )

    def _changes(self, known: DataFrame, passed: DataFrame, ticks: DataFrame) -> DataFrame:
        """Return the last pass of each key and id, and the keys to forget: no later row is a duplicate of them."""
        keys = quoted(self.keys)
        of_key = f"over (partition by {', '.join(keys)} order by {FROM})"
        last = passed.groupBy(*keys, FROM).agg(F.expr(f"max_by({_AT}, {PLACE}) as {_AT}"))
        old = known.selectExpr(*keys, f"0L as {FROM}", _AT, f"false as {IS_NEW}")
        every = last.selectExpr(*keys, FROM, _AT, f"true as {IS_NEW}").unionByName(old)
        ended = every.selectExpr("*", f"lead({FROM}) {of_key} as __next", f"{_AT} + {self._while} as __due").join(
            ticks, on=F.expr(clock.reaches("__due")), how="left"
        )
        came = f"if({IS_NEW}, struct({FROM} as id, {FROM} <=> {clock.ID} as gone), null)"
        is_over = f"{clock.ID} > {FROM} and (__next is null or __next > {clock.ID})"
        went = f"if({is_over}, struct({clock.ID} as id, true as gone), null)"
        return ended.selectExpr(
            *keys, _AT, f"explode(filter(array({came}, {went}), event -> event is not null)) as __event"
        ).selectExpr(
            *keys, f"if(__event.gone, null, {_AT}) as {_AT}", f"__event.gone as {GONE}", f"__event.id as {SEQUENCE_ID}"
        )


def deduplicate(
    stream: StreamLike,
    *,
    keys: Sequence[str],
    within: int | dt.timedelta | None = None,
    event_time: str | None = None,
    name: str | None = None,
) -> Stream:
    """Declare that later rows of a key are dropped: `dm.deduplicate(orders, keys=["order_id"])`.

    The first row of each key, by (sequence id, position), passes. Null is a key.

    Args:
        keys: key columns.
        within: how long later rows of a key are duplicates of a row that passed. By default for ever; the state then
            holds every key. A number: for the rest of its trigger and that many triggers after it (0: each trigger on
            its own). A `datetime.timedelta`: for that much event time. A duplicate does not prolong it.
        event_time: the timestamp column for a duration. The time of a row is the newest event time of all rows of
            earlier triggers, or its own if that is later: a duplicate that comes too late to be recognised passes.
            Rows without event time pass.
        name: identity of the state; `<stream>_deduplicated` by default.

    Raises:
        OperatorFailed: the event time is neither timestamp nor date; raised when a run starts, before its claim.

    Example:
        once = dm.deduplicate(orders, keys=["id"], within=dt.timedelta(days=7), event_time="at")
    """
    operator = Deduplicate(
        name=name or f"{default_name(stream)}_deduplicated",
        inputs=(port_to(stream),),
        keys=names_of(keys),
        within=within,
        event_time=event_time,
    )
    return declare(operator)
