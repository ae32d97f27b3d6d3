"""Changes applied as a slowly changing dimension of type 1: of each key the newest row, by its sequence.

A change is applied unless a change with a later sequence is applied already. Of changes with one sequence, the later in
the stream is applied. A delete is applied like a row, and remembered like one: it is the key's last change. A truncate
is a delete of every key; what is remembered of all truncates is the last by sequence.

The state is the history of a table of the newest rows: it has the last change of each key and id, with `_gone` in a
delete. A key leaves the state by `_forgotten`.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drainmark.jobs.frames.names import quoted
from drainmark.jobs.frames.tags import GONE, SEQUENCE_ID
from drainmark.jobs.graph.context import Due, Fit, Net
from drainmark.jobs.graph.operator import Operator, StepResult
from drainmark.jobs.lazy import F
from drainmark.jobs.operators.changes.change_shape import (
    BY,
    DELETES,
    KEPT_BY,
    KEPT_DELETED_AT,
    KEPT_FORGOTTEN,
    KNOWN_PLACE,
    OLD,
    PLACE,
    ROW,
    TRUNCATES,
    ChangeShape,
)
from drainmark.jobs.state import clock
from drainmark.jobs.state.placed_rows import FROM, IS_NEW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from drainmark.jobs.graph.context import OperatorContext

TRUNCATED = "truncates"
"""The part of the state with the last truncate."""

_UNTIL = "__truncated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """The newest row of each key.

    Attributes:
        has_truncates: a change may delete all keys.
        within: how long deletes are remembered; None for ever.
    """

    operator: Operator
    shape: ChangeShape
    has_truncates: bool
    within: int | dt.timedelta | None

    def step(self, frames: OperatorContext, changes: DataFrame) -> StepResult:
        """Return the rows that keys lose and get at each id, and the changes of the states.

        Args:
            changes: keys, `_sequence_id`, `BY`, `PLACE`, `DELETES`, `TRUNCATES`, `ROW`; computed once.
        """
        kept: dict[str, DataFrame] = {}
        ticks = cuts = None
        if self.within is not None:
            ticks, kept["clock"] = self._clock(frames, changes)
        if self.has_truncates:
            cuts, changes, kept[TRUNCATED] = self._cut(frames, changes)
        every = self._with_known(frames, changes, cuts, ticks)
        applied = self._applied(every) if ticks is None else self._applied_in_time(every, ticks)
        if frames.reads(self.operator, ""):
            applied = frames.once(self.operator, applied)
        kept[""] = self._kept(applied) if ticks is None else self._kept_for_a_while(applied, ticks)
        return StepResult(self._output(applied), kept, net=Net(self.shape.keys, self._net(applied)))

    # --- truncates --------------------------------------------------------------------------------------------------

    def _cut(self, frames: OperatorContext, changes: DataFrame) -> tuple[DataFrame | None, DataFrame, DataFrame]:
        """Return the last truncate of each id, None if there is none; the other changes that no earlier truncate makes
        void; and the changes of the state of truncates."""
        from pyspark.sql.types import StructField, StructType

        known = frames.kept(self.operator, TRUNCATED, StructType([StructField(KEPT_BY, self.shape.by_type)]))
        changes = changes.crossJoin(known.agg(F.expr(f"max({KEPT_BY}) as {_UNTIL}")))
        changes = changes.where(f"{_UNTIL} is null or {BY} >= {_UNTIL}").drop(_UNTIL)
        last = f"max(struct({BY}, {PLACE})) as last"
        cuts = changes.where(TRUNCATES).groupBy(SEQUENCE_ID).agg(F.expr(last))
        cuts = cuts.selectExpr(SEQUENCE_ID, f"last.{BY} as {BY}", f"last.{PLACE} as {PLACE}")
        has_cuts = False
        if frames.is_run:  # almost no group has a truncate; one that has reads the whole state
            found = frames.collect(self.operator, cuts)
            cuts, has_cuts = frames.local(self.operator, found, cuts.schema), found.num_rows > 0
        before = f"max({BY}) over (order by {SEQUENCE_ID} rows between unbounded preceding and 1 preceding)"
        moved = cuts.selectExpr(f"{BY} as {KEPT_BY}", SEQUENCE_ID, f"{before} as before")
        moved = moved.where(f"before is null or {KEPT_BY} > before").selectExpr(KEPT_BY, SEQUENCE_ID)
        return cuts if has_cuts else None, changes.where(f"not {TRUNCATES}"), moved

    def _of_all_keys(self, every: DataFrame, cuts: DataFrame) -> DataFrame:
        """Return changes with each truncate as a delete of each of their keys."""
        keys = quoted(self.shape.keys)
        made = every.selectExpr(*keys).distinct().crossJoin(cuts)
        nothing = {DELETES: "true", TRUNCATES: "true", IS_NEW: "true"}
        columns = [name for name in every.columns if name not in self.shape.keys]
        types = {field.name: field.dataType for field in every.schema.fields}
        return every.unionByName(
            made.select(
                *keys,
                *(
                    F.col(name)
                    if name in (SEQUENCE_ID, BY, PLACE)
                    else F.expr(nothing.get(name, "null")).cast(types[name]).alias(name)
                    for name in columns
                ),
            )
        )

    # --- which changes are applied ----------------------------------------------------------------------------------

    def _with_known(
        self, frames: OperatorContext, changes: DataFrame, cuts: DataFrame | None, ticks: DataFrame | None
    ) -> DataFrame:
        """Return the changes with those of each key before the group, which have the id 0."""
        keys = quoted(self.shape.keys)
        asked = changes.selectExpr(*keys) if cuts is None else None
        due = None if ticks is None else Due(KEPT_DELETED_AT, lambda: clock.span(ticks, self._while))
        fit = Fit.RAW if ticks is None else Fit.OTHERS
        known = frames.kept(self.operator, "", self._kept_type(), asked, due, fit=fit)
        at = [] if ticks is None else [KEPT_DELETED_AT]
        old = known.selectExpr(
            *keys,
            f"0L as {SEQUENCE_ID}",
            f"{KEPT_BY} as {BY}",
            KNOWN_PLACE,
            f"coalesce({GONE}, false) as {DELETES}",
            f"coalesce({KEPT_FORGOTTEN}, false) as {TRUNCATES}",
            f"{self.shape.row} as {ROW}",
            f"false as {IS_NEW}",
            *at,
        )
        new = changes.selectExpr(
            *keys,
            SEQUENCE_ID,
            BY,
            PLACE,
            DELETES,
            TRUNCATES,
            ROW,
            f"true as {IS_NEW}",
            *([f"cast(null as bigint) as {KEPT_DELETED_AT}"] if at else []),
        )
        every = new.unionByName(old)
        return frames.gathered(self.operator, every if cuts is None else self._of_all_keys(every, cuts))

    @property
    def _of_key(self) -> str:
        return f"partition by {', '.join(quoted(self.shape.keys))} order by {SEQUENCE_ID}, {BY}, {PLACE}"

    def _of_ids(self, every: DataFrame, *more: str) -> DataFrame:
        """Return of each key and id the last change by sequence: the others have no effect that lasts."""
        following = f"lead({SEQUENCE_ID}) over ({self._of_key}) as __following"
        return every.selectExpr("*", following, *more).where(f"not (__following <=> {SEQUENCE_ID})").drop("__following")

    def _applied(self, every: DataFrame) -> DataFrame:
        """Return the changes that are applied at their ids, each with the change that was applied before."""
        before = f"max({BY}) over ({self._of_key} rows between unbounded preceding and 1 preceding) as __before"
        applied = self._of_ids(every, before).where(f"__before is null or {BY} >= __before")
        old = f"lag(struct({ROW}, {DELETES}, {TRUNCATES}, {BY})) over ({self._of_key}) as {OLD}"
        return applied.selectExpr("*", old).where(IS_NEW).drop("__before", IS_NEW, PLACE)

    # --- deletes that are forgotten ---------------------------------------------------------------------------------

    @property
    def _while(self) -> int:
        """Return the time after which a delete is forgotten: microseconds, or a number of triggers."""
        if isinstance(self.within, dt.timedelta):
            return self.within // dt.timedelta(microseconds=1)
        return (self.within or 0) + 1

    @property
    def _micros(self) -> str:
        return f"unix_micros(cast({BY} as timestamp))"

    def _clock(self, frames: OperatorContext, changes: DataFrame) -> tuple[DataFrame, DataFrame]:
        if isinstance(self.within, dt.timedelta):
            return clock.of_events(frames, self.operator, changes, self._micros)
        return clock.of_triggers(frames, self.operator)

    def _applied_in_time(self, every: DataFrame, ticks: DataFrame) -> DataFrame:
        """Return what `_applied` returns, if deletes are forgotten: a key without a last change takes any change.

        The known last changes are among the rows, since their time may come in this group.
        """
        keys = quoted(self.shape.keys)
        at = self._micros if isinstance(self.within, dt.timedelta) else clock.NOW
        timed = self._of_ids(every).join(ticks, on=F.expr(f"{SEQUENCE_ID} = {clock.ID}"), how="left")
        since = f"case when not {IS_NEW} then {KEPT_DELETED_AT} when not {TRUNCATES} then {at} end"
        change = f"struct({BY}, {DELETES}, {TRUNCATES}, {ROW}, {since} as {KEPT_DELETED_AT})"
        row = f"struct({SEQUENCE_ID} as id, {IS_NEW} as is_new, {clock.BEFORE} as before, {change} as change)"
        gathered = timed.selectExpr(*keys, f"{row} as __change").groupBy(*keys)
        # sorted by id alone: a map in a row has no order
        by_id = "(one, other) -> cast(sign(one.id - other.id) as int)"
        listed = gathered.agg(F.expr(f"array_sort(collect_list(__change), {by_id}) as __all"))
        nothing = "if(false, __all[0].change, null)"
        is_over = (
            f"coalesce(done.last.{DELETES} and done.last.{KEPT_DELETED_AT} + {self._while}L <= next.before, false)"
        )
        last = f"if({is_over}, null, done.last)"
        counts = f"({last} is null or next.change.{BY} >= ({last}).{BY})"
        passed = f"struct(next.id as id, next.is_new as is_new, next.change as change, {last} as old)"
        empty = "filter(transform(__all, next -> struct(next.id as id, next.is_new as is_new, next.change as change, "
        empty += "if(false, next.change, null) as old)), each -> false)"
        folded = (
            f"aggregate(__all, struct({nothing} as last, {empty} as passed), (done, next) -> "
            f"if({counts}, struct(next.change as last, concat(done.passed, array({passed})) as passed), done))"
        )
        return listed.selectExpr(*keys, f"explode(({folded}).passed) as __passed").selectExpr(
            *keys,
            f"__passed.id as {SEQUENCE_ID}",
            f"__passed.is_new as {IS_NEW}",
            "__passed.change.*",
            f"__passed.old as {OLD}",
        )

    def _kept_for_a_while(self, applied: DataFrame, ticks: DataFrame) -> DataFrame:
        """Return the applied changes as `_kept` does, and the deletes to forget at the ids at which they are due."""
        of_key = f"partition by {', '.join(quoted(self.shape.keys))} order by {SEQUENCE_ID}"
        timed = applied.selectExpr(
            "*",
            f"{SEQUENCE_ID} as {FROM}",
            f"lead({SEQUENCE_ID}) over ({of_key}) as __next",
            f"if({DELETES}, {KEPT_DELETED_AT} + {self._while}, null) as __due",
        ).join(ticks, on=F.expr(clock.reaches("__due")), how="left")
        is_new = f"{IS_NEW} and {self._is_kept}"
        came = f"if({is_new}, struct({FROM} as id, {TRUNCATES} or {FROM} <=> {clock.ID} as gone), null)"
        is_over = f"{clock.ID} > {FROM} and (__next is null or __next > {clock.ID})"
        went = f"if({is_over}, struct({clock.ID} as id, true as gone), null)"
        events = f"explode(filter(array({came}, {went}), event -> event is not null)) as __event"
        found = timed.selectExpr("*", events).drop(SEQUENCE_ID)
        return found.selectExpr(
            *self._kept_columns(),
            f"if({DELETES}, {KEPT_DELETED_AT}, null) as {KEPT_DELETED_AT}",
            f"__event.gone as {KEPT_FORGOTTEN}",
            f"__event.id as {SEQUENCE_ID}",
        )

    # --- results ----------------------------------------------------------------------------------------------------

    def _output(self, applied: DataFrame) -> DataFrame:
        lost = f"if({self._was}, struct({OLD}.{ROW} as row, true as gone), null)"
        got = f"if(not {DELETES}, struct({ROW} as row, false as gone), null)"
        events = f"explode(filter(array({lost}, {got}), event -> event is not null)) as __event"
        shown = self._shown(applied).selectExpr(SEQUENCE_ID, events)
        return shown.selectExpr(SEQUENCE_ID, f"__event.gone as {GONE}", "__event.row.*")

    def _net(self, applied: DataFrame) -> DataFrame:
        row = f"if({DELETES}, {OLD}.{ROW}, {ROW}) as __shown"
        shown = self._shown(applied).selectExpr(SEQUENCE_ID, f"{DELETES} as {GONE}", row)
        return shown.selectExpr(SEQUENCE_ID, GONE, "__shown.*")

    def _shown(self, applied: DataFrame) -> DataFrame:
        """Return the changes that another row, or none, follows from than from the change before."""
        shown = f"if({DELETES}, {self._was}, not ({self._was} and {self.shape.alike(ROW, f'{OLD}.{ROW}')}))"
        return applied.where(f"{IS_NEW} and {shown}" if IS_NEW in applied.columns else shown)

    @property
    def _was(self) -> str:
        """Return the condition that the key had a row before."""
        return f"coalesce(not {OLD}.{DELETES}, false)"

    @property
    def _is_kept(self) -> str:
        """Return the condition that a change leads to one of the state: not if it is the last one again, nor if it is a
        truncate of a key without state."""
        is_again = f"{OLD}.{BY} = {BY} and {self.shape.alike(ROW, f'{OLD}.{ROW}')}"
        is_same = f"coalesce(not {DELETES} and not {OLD}.{DELETES} and {is_again}, false)"
        return f"(if({TRUNCATES}, coalesce(not {OLD}.{TRUNCATES}, false), not {is_same}))"

    def _kept(self, applied: DataFrame) -> DataFrame:
        """Return the applied changes as rows of the state; a key that was truncated leaves it."""
        forgotten = f"{TRUNCATES} as {KEPT_FORGOTTEN}"
        return applied.where(self._is_kept).selectExpr(*self._kept_columns(), forgotten, SEQUENCE_ID)

    def _kept_columns(self) -> list[str]:
        """Return the columns of the state: of a delete it keeps the key and the sequence."""
        return [*self.shape.kept_row, f"{BY} as {KEPT_BY}", f"{DELETES} as {GONE}"]

    def _kept_type(self) -> StructType:
        from pyspark.sql.types import BooleanType, LongType, StructType

        kept = StructType([*self.shape.columns.fields]).add(KEPT_BY, self.shape.by_type)
        kept = kept.add(GONE, BooleanType()).add(KEPT_FORGOTTEN, BooleanType()).add(SEQUENCE_ID, LongType())
        return kept if self.within is None else kept.add(KEPT_DELETED_AT, LongType())
