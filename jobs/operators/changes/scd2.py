"""Changes applied as a slowly changing dimension of type 2: the versions of each key, by the sequence of its changes.

The changes of a key, in the order of their sequences, are its history. Rows that follow each other and differ in no
tracked column are one version: it begins with the first of them, has the values of the last, and ends with the next
change that is none of them. All changes are kept, since a late one may split a version, and needs the changes on both
sides. The versions after an id follow from the changes up to it; an id gives the difference to the versions before.

A row of the state is a change. If a version begins with it, the row also has the end of that version; else it says that
it is gone, since no version begins there. So the state is the history of a table of versions, provided that all columns
are tracked: a version then has the values of its first change. A group looks at no change before the last one that
began or ended a version before the first new change of the key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drainmark.jobs.frames.names import quoted
from drainmark.jobs.frames.tags import GONE, SEQUENCE_ID
from drainmark.jobs.graph.context import Fit, Net
from drainmark.jobs.graph.operator import Operator, StepResult
from drainmark.jobs.operators.changes.change_shape import (
    BY,
    DELETES,
    IS_CURRENT,
    KEPT_DELETES,
    KEPT_TEXT,
    KNOWN_PLACE,
    PLACE,
    ROW,
    VALID_FROM,
    VALID_TO,
    ChangeShape,
)
from drainmark.jobs.state.placed_rows import IS_NEW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from drainmark.jobs.graph.context import OperatorContext

_BEGINS, _END, _SHOWN = "__begins", "__end", "__shown"
"""Whether a version begins with a change, the end of that version, and its row."""

_WAS = "__was"
"""The same of a change after the id before, with the change: null if it was not there."""

_AT, _NEXT, _ID = "__at", "__next", "__id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """The versions of each key."""

    operator: Operator
    shape: ChangeShape

    def step(self, frames: OperatorContext, changes: DataFrame) -> StepResult:
        """Return the versions that are lost and got at each id, and the changes as rows of the state.

        Args:
            changes: keys, `_sequence_id`, `BY`, `PLACE`, `DELETES`, `ROW`; computed once.
        """
        keys = quoted(self.shape.keys)
        known = frames.kept(self.operator, "", self._kept_type(), changes.selectExpr(*keys), fit=Fit.RAW)
        old = known.where(f"{KEPT_DELETES} is not null").selectExpr(  # null: the change was erased
            *keys,
            f"0L as {SEQUENCE_ID}",
            f"{VALID_FROM} as {BY}",
            KNOWN_PLACE,
            f"{KEPT_DELETES} as {DELETES}",
            f"{self.shape.row} as {ROW}",
            f"false as {IS_NEW}",
            f"not coalesce({GONE}, false) as {_BEGINS}",
            f"{VALID_TO} as {_END}",
        )
        new = changes.selectExpr(
            *keys, SEQUENCE_ID, BY, PLACE, DELETES, ROW, f"true as {IS_NEW}", f"false as {_BEGINS}",
            f"if(false, {BY}, null) as {_END}",
        )  # fmt: skip
        every = frames.gathered(self.operator, new.unionByName(old))
        placed = self._placed(self._of_ids(every))
        if frames.reads(self.operator, ""):
            placed = frames.once(self.operator, placed)
        net = Net((*self.shape.keys, VALID_FROM), self._differences(placed, is_net=True))
        return StepResult(self._differences(placed), {"": self._kept(placed)}, net=net)

    @property
    def _of_key(self) -> str:
        return f"partition by {', '.join(quoted(self.shape.keys))}"

    @property
    def _is_plain(self) -> bool:
        """Say whether all columns are tracked, so that a version has the values of its first change."""
        return {*self.shape.keys, *self.shape.tracked} >= {*self.shape.columns.names}

    def _of_ids(self, every: DataFrame) -> DataFrame:
        """Return of each key, sequence and id the last change, with the ids of the group at which it is there.

        `_NEXT` is the id with a later change of the same sequence, which replaces it. The ids, in order, are those with
        changes of the key. Untracked columns that a version had before the group are computed from the changes up to
        then: 0 is among the ids.
        """
        in_order = f"{self._of_key} order by {BY}, {SEQUENCE_ID}, {PLACE}"
        of_all = f"({in_order} rows between unbounded preceding and unbounded following)"
        columns = [*quoted(self.shape.keys), SEQUENCE_ID, BY, DELETES, ROW, IS_NEW, _BEGINS, _END]
        ids = f"collect_set(if({IS_NEW}, {SEQUENCE_ID}, {'null' if self._is_plain else '0L'})) over {of_all}"
        found = every.selectExpr(
            *columns,
            PLACE,
            f"lead(struct({BY} as `by`, {SEQUENCE_ID} as id)) over ({in_order}) as __later",
            f"array_sort({ids}) as {_AT}",
            f"min(if({IS_NEW}, {BY}, null)) over {of_all} as __first",
        )
        found = found.selectExpr(
            *columns, PLACE, _AT, "__first", f"if(__later.`by` <=> {BY}, __later.id, null) as {_NEXT}"
        )
        found = found.where(f"__first is not null and not ({_NEXT} <=> {SEQUENCE_ID})")
        is_edge = f"not {IS_NEW} and ({DELETES} or {_BEGINS}) and {BY} < __first"
        facts = self._facts(ROW)
        found = found.selectExpr(
            "*",
            f"max(if({is_edge}, {BY}, null)) over {of_all} as __edge",
            f"lag(struct({BY} as `by`, {facts} as facts)) over ({in_order}) as __before",
        ).where(f"{BY} >= coalesce(__edge, {BY})")
        known = f"if({IS_NEW}, if(__before.`by` <=> {BY}, __before.facts, null), {facts})"
        there = f"filter({_AT}, id -> id >= {SEQUENCE_ID} and ({_NEXT} is null or id < {_NEXT}))"
        change = [*quoted(self.shape.keys), BY, DELETES, ROW]
        return found.selectExpr(
            *change, f"{known if self._is_plain else 'null'} as {_WAS}", f"explode({there}) as {_ID}"
        )

    def _facts(self, shown: str) -> str:
        """Return the SQL of what is compared with the id before: a change, and the version that begins with it."""
        more = "" if self._is_plain else f", {shown} as shown"
        return f"struct({DELETES} as deletes, {ROW} as row, {_BEGINS} as begins, {_END} as `end`{more})"

    @property
    def _is_shown_again(self) -> str:
        """Return the condition that the row of a version is that of the id before."""
        return self.shape.alike(_SHOWN, self._was_shown)

    @property
    def _was_shown(self) -> str:
        return f"{_WAS}.{'row' if self._is_plain else 'shown'}"

    def _placed(self, every: DataFrame) -> DataFrame:
        """Return the changes at the ids at which they, or the versions that begin with them, become others.

        Returns:
            keys, `BY`, `DELETES`, `ROW`, `_ID`, `_BEGINS`, `_END`, `_SHOWN`, `_WAS`.
        """
        change = [*quoted(self.shape.keys), BY, DELETES, ROW, _ID]
        of_step = f"({self._of_key}, {_ID} order by {BY})"
        goes_on = self.shape.alike(ROW, f"__before.{ROW}", self.shape.tracked)
        begins = f"not {DELETES} and (__before is null or __before.{DELETES} or not {goes_on})"
        near = every.selectExpr("*", f"lag(struct({DELETES}, {ROW})) over {of_step} as __before")
        near = near.selectExpr(*change, _WAS, f"{begins} as {_BEGINS}")
        is_edge, shown = f"({DELETES} or {_BEGINS})", ROW
        end = f"if({_BEGINS}, lead(if({is_edge}, {BY}, null)) ignore nulls over {of_step}, null) as {_END}"
        if self._is_plain:
            near = near.selectExpr("*", end)
        else:  # the values of its last change
            near = near.selectExpr("*", end, f"lead({is_edge}, 1, true) over {of_step} as __ends")
            shown = f"if(__ends, {ROW}, lead(if(__ends, {ROW}, null)) ignore nulls over {of_step})"
        near = near.selectExpr(*change, _WAS, _BEGINS, _END, f"{shown} as {_SHOWN}")
        before = f"lag({self._facts(_SHOWN)}) over ({self._of_key}, {BY} order by {_ID})"
        before = f"coalesce({before}, {_WAS})" if self._is_plain else before
        found = near.selectExpr(*change, _BEGINS, _END, _SHOWN, f"{before} as {_WAS}")
        stays = f"{_WAS}.deletes <=> {DELETES} and {_WAS}.begins <=> {_BEGINS} and {_WAS}.`end` <=> {_END}"
        rows = f"{self.shape.alike(ROW, f'{_WAS}.row')} and {self._is_shown_again}"
        return found.where(f"{_ID} > 0 and not coalesce({stays} and {rows}, false)")

    def _differences(self, placed: DataFrame, *, is_net: bool = False) -> DataFrame:
        """Return the versions that differ from those of the id before: those of then as gone, and the new ones.

        A version is known by its beginning.

        Args:
            is_net: return no version as gone that has a new row.
        """
        was = f"coalesce({_WAS}.begins, false)"
        same = f"({was} and {_BEGINS} and {_WAS}.`end` <=> {_END} and {self._is_shown_again})"
        lost = f"{was} and not {_BEGINS if is_net else same}"
        left = f"struct({self._was_shown} as row, {_WAS}.`end` as `end`, true as gone)"
        came = f"struct({_SHOWN} as row, {_END} as `end`, false as gone)"
        listed = f"array(if({lost}, {left}, null), if({_BEGINS} and not {same}, {came}, null))"
        events = f"explode(filter({listed}, event -> event is not null)) as __event"
        return placed.selectExpr(BY, _ID, events).selectExpr(
            f"{_ID} as {SEQUENCE_ID}",
            f"__event.gone as {GONE}",
            "__event.row.*",
            f"{BY} as {VALID_FROM}",
            f"__event.`end` as {VALID_TO}",
            f"__event.`end` is null as {IS_CURRENT}",
        )

    def _kept(self, placed: DataFrame) -> DataFrame:
        return placed.selectExpr(
            *self.shape.kept_row,
            f"{BY} as {VALID_FROM}",
            f"{_END} as {VALID_TO}",
            f"if({_BEGINS}, {_END} is null, null) as {IS_CURRENT}",
            f"{self.shape.text} as {KEPT_TEXT}",
            f"{DELETES} as {KEPT_DELETES}",
            f"not {_BEGINS} as {GONE}",
            f"{_ID} as {SEQUENCE_ID}",
        )

    def _kept_type(self) -> StructType:
        from pyspark.sql.types import BooleanType, LongType, StructType

        kept = StructType([*self.shape.columns.fields]).add(VALID_FROM, self.shape.by_type)
        kept = kept.add(VALID_TO, self.shape.by_type).add(KEPT_DELETES, BooleanType()).add(GONE, BooleanType())
        return kept.add(SEQUENCE_ID, LongType())
