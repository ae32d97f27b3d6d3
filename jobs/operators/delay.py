"""`delay`: holds rows back for a number of triggers, or for a duration of event time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.errors import Violation
from drainmark.jobs.frames.names import quoted
from drainmark.jobs.frames.row_order import payload_of
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID
from drainmark.jobs.graph.annotations import LONGEST, is_count, is_duration
from drainmark.jobs.graph.context import Due
from drainmark.jobs.graph.declarations import Stream, StreamLike, declare, default_name, port_to
from drainmark.jobs.graph.operator import KeptState, Measured, Operator, Positions, Retention, StepResult
from drainmark.jobs.lazy import F
from drainmark.jobs.state import clock
from drainmark.jobs.state.placed_rows import FROM, HELD, IS_NEW, LEAVES, PLACE, held_changes, placed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.context import OperatorContext

__all__ = ["delay"]

_DUE = "_due"
_AT_ONCE = -(2**63) + 1


@dataclass(frozen=True, kw_only=True)
class Delay(Operator):
    """State: the held rows, and a clock. A released row carries the id at which it leaves.

    The due time of a held row is a time of this clock, so neither part can continue with another clock.
    """

    kind: ClassVar[str] = "delay"
    summary: ClassVar[str] = "rows held back for some triggers, or a while of event time"
    keeps_tags: ClassVar[bool] = True
    positions: ClassVar[Positions] = Positions.OWN
    configurations: ClassVar[tuple[str, ...]] = ("ids", "duration")

    ids: int | None = None
    duration: dt.timedelta | None = None
    event_time: str | None = None

    @property
    def kept(self) -> tuple[KeptState, ...]:
        kept_for = Retention(of="triggers" if self.duration is None else f"microseconds of `{self.event_time}`")
        parts = (KeptState(part="held", keys=HELD, looked_up_by=HELD), clock.clock_state())
        return tuple(replace(part, retention=kept_for) for part in parts)

    @property
    def measured(self) -> tuple[Measured, ...]:
        return () if self.duration is None or self.event_time is None else (Measured(self.inputs[0], self.event_time),)

    def fingerprint(self) -> Any:
        return {**super().fingerprint(), "ids": self.ids, "duration": str(self.duration), "by": self.event_time}

    def violations(self, in_region: bool) -> Iterator[Violation]:
        if (self.ids is None) == (self.duration is None):
            message = "it is held back by triggers or by event time, one of both"
            yield self.wrong("DELAY_BY", message, "give ids=1, or duration= and event_time=")
        if self.ids is not None and not is_count(self.ids):
            yield self.wrong("DELAY_BY", f"ids={self.ids!r} is no delay", "give 1 or more")
        is_while = is_duration(self.duration, above=dt.timedelta(0)) and self.event_time is not None
        if self.duration is not None and not is_while:
            message = f"a duration is above zero, of event time, and at most {LONGEST.days} days"
            yield self.wrong("DELAY_BY", message, 'give duration=timedelta(minutes=5), event_time="sold_at"')

    def step(self, frames: OperatorContext) -> StepResult:
        rows = placed(frames, self, self.inputs[0])
        payload = [name for name in payload_of(rows) if name != PLACE]
        if self.duration is None:
            ticks, ticked = clock.of_triggers(frames, self)
            due = f"{clock.NOW} + {self.ids}"
        else:
            micros = f"unix_micros(cast(`{self.event_time}` as timestamp))"
            ticks, ticked = clock.of_events(frames, self, rows, micros)
            # A row without a time never moves the clock, and must be due even before any row has set the clock.
            began = {name: F.coalesce(name, F.lit(_AT_ONCE)) for name in (clock.BEFORE, clock.NOW)}
            ticks = ticks.withColumns(began)
            due = f"coalesce({micros} + {self.duration // dt.timedelta(microseconds=1)}, {_AT_ONCE})"
        new = rows.join(ticks, on=F.expr(f"{SEQUENCE_ID} = {clock.ID}")).selectExpr(
            f"{SEQUENCE_ID} as {FROM}", PLACE, f"cast({due} as bigint) as {_DUE}", *quoted(payload)
        )
        no_keys = new.selectExpr(*HELD).where("false")  # reads only the due rows of the state
        held = frames.kept(self, "held", new.schema, no_keys, Due(_DUE, lambda: clock.span(ticks, 0)))
        every = new.selectExpr("*", f"true as {IS_NEW}").unionByName(held.selectExpr("*", f"false as {IS_NEW}"))
        left = self._left(every, ticks)
        order = f"row_number() over (partition by {LEAVES} order by {FROM}, {PLACE})"
        position = f"struct(0L as block, cast({order} as bigint) as row) as {POSITION}"
        out = frames.gathered(self, left.where(f"{LEAVES} is not null"))
        return StepResult(
            out.selectExpr(f"{LEAVES} as {SEQUENCE_ID}", position, *quoted(payload)),
            {"held": held_changes(left, (), [_DUE, *payload]), "clock": ticked},
        )

    def _left(self, every: DataFrame, ticks: DataFrame) -> DataFrame:
        """Return the rows with `LEAVES`: the id at which a row leaves, null if it does not leave in this group."""
        by = f"{_DUE} = {clock.NOW}" if self.duration is None else clock.reaches(_DUE)
        named = [*HELD, _DUE, IS_NEW]
        payload = [name for name in every.columns if name not in named]
        return every.join(ticks, on=F.expr(by), how="left").selectExpr(
            *named, *quoted(payload), f"{clock.ID} as {LEAVES}"
        )


def delay(
    stream: StreamLike,
    *,
    ids: int | None = None,
    duration: dt.timedelta | None = None,
    event_time: str | None = None,
    name: str | None = None,
) -> Stream:
    """Declare that rows are held back: `dm.delay(readings, ids=1)` gives the readings of the previous trigger.

    A row is released with the trigger that makes it due, in the order in which it came, and carries that trigger's
    sequence id. Rows that are not due when a run ends wait in the state.

    Args:
        ids: the number of triggers that a row waits. A trigger without rows counts, and so does a trigger that was
            quarantined as a whole; a skipped trigger does not.
        duration: a row waits until the newest event time of all rows so far is this much after its own. A row without
            event time is released at once.
        event_time: the timestamp column for a duration.
        name: identity of the state; `<stream>_delayed` by default.

    Raises:
        OperatorFailed: the event time is neither timestamp nor date; raised when a run starts, before its claim.

    Example:
        an_hour_later = dm.delay(orders, duration=dt.timedelta(hours=1), event_time="at")
    """
    operator = Delay(
        name=name or f"{default_name(stream)}_delayed",
        inputs=(port_to(stream),),
        ids=ids,
        duration=duration,
        event_time=event_time,
    )
    return declare(operator)
