"""The changes of one group: what Spark computes of them by SQL, what is known of their keys, and who applies them."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from drainmark.jobs.frames.names import quoted
from drainmark.jobs.frames.tags import GONE, POSITION, SEQUENCE_ID
from drainmark.jobs.graph.context import Due, Fit, Net
from drainmark.jobs.graph.operator import Operator, StepResult
from drainmark.jobs.lazy import F
from drainmark.jobs.operators.changes.change_shape import (
    BLOCK,
    BY,
    DELETES,
    IN_BLOCK,
    IS_CURRENT,
    KEPT_BY,
    KEPT_DELETED_AT,
    KEPT_FORGOTTEN,
    KEPT_TEXT,
    TRUNCATES,
    VALID_FROM,
    WHY,
    ChangeShape,
)
from drainmark.jobs.operators.changes.newest import While
from drainmark.jobs.operators.changes.numbered_changes import NET
from drainmark.jobs.operators.changes.rules import ChangeRules
from drainmark.jobs.operators.sinks.quarantine import refused_rows
from drainmark.jobs.state import clock
from drainmark.jobs.state.run_files import KEY_HASH, key_hash

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.context import OperatorContext

TRUNCATED = "truncates"
"""The part of the state with the last truncate."""

UNTIL = "__truncated"
"""Column of changes on their way: the last truncate before the group."""


@dataclass(slots=True, kw_only=True)
class GroupChanges:
    """The changes of one group.

    Attributes:
        judged: rows of the stream with `BY`, `DELETES`, `TRUNCATES` and `WHY`.
        has_truncates: a change may delete all keys.
        within: how long deletes are remembered; None for ever.
        rules: how the changes are applied.
        states: the changes of other parts of the state.
        ticks: of the clock, if deletes are forgotten.
    """

    operator: Operator
    frames: OperatorContext
    shape: ChangeShape
    judged: DataFrame
    has_truncates: bool
    within: int | dt.timedelta | None
    rules: ChangeRules = field(init=False)
    states: dict[str, DataFrame] = field(default_factory=dict)
    ticks: DataFrame | None = None

    def applied(self) -> StepResult:
        """Return the rows that keys lose and get at each id, and the changes of the states."""
        frames, operator = self.frames, self.operator
        self.rules = ChangeRules(shape=self.shape, has_output=frames.reads(operator, ""))
        if frames.is_local(operator) and not self.has_truncates and self.within is None:
            return self._of_keys()
        changes = self._as_kept(self.judged.where(f"{WHY} is null"), TRUNCATES)
        if self.within is not None:
            self._begin_while(changes)
        if self.has_truncates:
            changes = self._cut(changes)
        changes = changes.where(f"not {TRUNCATES}").drop(TRUNCATES)
        known = self._known(changes)
        if frames.is_local(operator):  # it is not behind a large state that is read whole
            result = self._here(frames.collect(operator, changes), frames.collect(operator, known))
        else:
            result = self._in_tasks(changes, known)
        return replace(result, changes={**self.states, **result.changes}, refused=self._refused())

    def _of_keys(self) -> StepResult:
        """Apply the changes here, where the state looks up the rows of their keys; no other job is started."""
        import pyarrow.compute as pc

        frames, operator = self.frames, self.operator
        rows = self._as_kept(self.judged, f"{WHY} is not null as {WHY}")
        looks_up = frames.looks_up(operator, "")
        rows = frames.collect(operator, rows.select("*", key_hash(self.shape.keys)) if looks_up else rows)
        is_refused = rows[WHY]
        refused = self._refused() if pc.any(is_refused).as_py() else None
        rows = rows.filter(pc.invert(is_refused)) if refused is not None else rows
        keys = rows.select([*self.shape.keys, *([KEY_HASH] if looks_up else [])])
        known = frames.read_kept_rows(operator, "", keys)
        return replace(self._here(rows, known), refused=refused)

    def _as_kept(self, judged: DataFrame, *more: str) -> DataFrame:
        """Return changes as rows of the state, with their places."""
        is_of_events = isinstance(self.within, dt.timedelta)
        return judged.selectExpr(
            *quoted(self.shape.columns.names),
            SEQUENCE_ID,
            f"{POSITION}.block as {BLOCK}",
            f"{POSITION}.row as {IN_BLOCK}",
            f"{BY} as {self.shape.by}",
            f"{DELETES} as {self.shape.deletes}",
            *([f"{self.shape.text} as {KEPT_TEXT}"] if self.shape.is_history else []),
            *([f"unix_micros(cast({BY} as timestamp)) as {KEPT_DELETED_AT}"] if is_of_events else []),
            *more,
        )

    def _refused(self) -> DataFrame:
        hidden = [BY, DELETES, TRUNCATES, WHY]
        return refused_rows(self.judged.where(f"{WHY} is not null"), F.col(WHY), hidden=hidden)

    # --- deletes that are forgotten, and truncates --------------------------------------------------------------------

    def _begin_while(self, changes: DataFrame) -> None:
        """Read the clock: microseconds of events, or the number of triggers."""
        frames, operator, within = self.frames, self.operator, self.within
        if isinstance(within, dt.timedelta):
            self.ticks, self.states["clock"] = clock.of_events(frames, operator, changes, KEPT_DELETED_AT)
            length = within // dt.timedelta(microseconds=1)
        else:
            self.ticks, self.states["clock"] = clock.of_triggers(frames, operator)
            length = (within or 0) + 1
        if frames.is_run:
            ticks = frames.collect(operator, self.ticks).sort_by(clock.ID)
            self.ticks = frames.local(operator, ticks, self.ticks.schema)
            while_ = While(ticks=ticks, length=length, is_of_events=isinstance(within, dt.timedelta))
            self.rules = replace(self.rules, while_=while_)

    def _cut(self, changes: DataFrame) -> DataFrame:
        """Return the changes that no earlier truncate makes void."""
        from pyspark.sql.types import StructField, StructType

        frames, operator = self.frames, self.operator
        known = frames.kept(operator, TRUNCATED, StructType([StructField(KEPT_BY, self.shape.by_type)]))
        changes = changes.crossJoin(known.agg(F.expr(f"max({KEPT_BY}) as {UNTIL}")))
        changes = changes.where(f"{UNTIL} is null or {KEPT_BY} >= {UNTIL}").drop(UNTIL)
        last = F.expr(f"max(struct({KEPT_BY}, {BLOCK}, {IN_BLOCK})) as last")
        cuts = changes.where(TRUNCATES).groupBy(SEQUENCE_ID).agg(last)
        cuts = cuts.selectExpr("last.*", SEQUENCE_ID, f"true as {GONE}", f"true as {KEPT_FORGOTTEN}")
        if frames.is_run:  # almost no group has a truncate; one that has reads the whole state
            found = frames.collect(operator, cuts)
            cuts = frames.local(operator, found, cuts.schema)
            self.rules = replace(self.rules, cuts=found if found.num_rows else None)
        before = f"max({KEPT_BY}) over (order by {SEQUENCE_ID} rows between unbounded preceding and 1 preceding)"
        moved = cuts.selectExpr(KEPT_BY, SEQUENCE_ID, f"{before} as before")
        self.states[TRUNCATED] = moved.where(f"before is null or {KEPT_BY} > before").drop("before")
        return changes

    def _known(self, changes: DataFrame) -> DataFrame:
        """Return what is known of the keys of changes; of all keys, if there is a truncate."""
        from pyspark.sql.types import StructType

        kept = StructType([column for column in self.shape.kept.fields if column.name != IS_CURRENT])
        asked = changes.selectExpr(*quoted(self.shape.keys)) if self.rules.cuts is None else None
        if (ticks := self.ticks) is None:
            return self.frames.kept(self.operator, "", kept, asked, fit=Fit.RAW)
        length = self.rules.while_.length if self.rules.while_ is not None else 0
        due = Due(KEPT_DELETED_AT, lambda: clock.span(ticks, length))
        return self.frames.kept(self.operator, "", kept, asked, due, fit=Fit.OTHERS)

    # --- results ------------------------------------------------------------------------------------------------------

    def _here(self, rows: pa.Table, known: pa.Table | None) -> StepResult:
        import pyarrow as pa

        known = pa.table({SEQUENCE_ID: pa.array([], pa.int64())}) if known is None else known
        applied = self.rules.apply(rows, known)
        local = partial(self.frames.local, self.operator, schema=self.shape.output)
        if applied.output is None:
            return StepResult(local(None), changed_rows={"": applied.kept})
        output = applied.output.drop_columns([NET])
        net = Net(self._history_of, local(output.filter(applied.output[NET])))
        return StepResult(local(output), changed_rows={"": applied.kept}, net=net)

    @property
    def _history_of(self) -> tuple[str, ...]:
        return (*self.shape.keys, VALID_FROM) if self.shape.is_history else self.shape.keys

    def _in_tasks(self, changes: DataFrame, known: DataFrame) -> StepResult:
        made = self.rules.apply_in_tasks(changes, known)
        made = self.frames.once(self.operator, made) if self.rules.has_output else made
        output = self.rules.output_of(made)
        net = Net(self._history_of, output.where(NET).drop(NET))
        return StepResult(output.drop(NET), {"": self.rules.kept_of(made)}, net=net)
