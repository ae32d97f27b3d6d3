"""Changes applied as a slowly changing dimension of type 2: the versions of each key, by the sequence of its changes.

The changes of a key, in the order of their sequences, are its history. Rows that follow each other and differ in no
tracked column are one version: it begins with the first of them, has the values of the last, and ends with the next
change that is none of them. All changes are kept, since a late one may split a version, and needs the changes on both
sides. The versions after an id follow from the changes up to it; an id gives the difference to the versions before. A
group looks at no version that ends before its first change of the key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drainmark.jobs.frames.names import quoted, quoted_name
from drainmark.jobs.frames.tags import GONE, SEQUENCE_ID
from drainmark.jobs.graph.context import Fit, Net
from drainmark.jobs.graph.operator import Operator, StepResult
from drainmark.jobs.operators.change_shape import (
    BY,
    DELETES,
    IS_CURRENT,
    KEPT_BY,
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

_AT = "__at"
_NEXT = "__next"
_SINCE = "__since"


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
        old = known.selectExpr(
            *keys,
            f"0L as {SEQUENCE_ID}",
            f"{KEPT_BY} as {BY}",
            KNOWN_PLACE,
            f"{KEPT_DELETES} as {DELETES}",
            f"{self.shape.row} as {ROW}",
            f"false as {IS_NEW}",
        )
        new = changes.selectExpr(*keys, SEQUENCE_ID, BY, PLACE, DELETES, ROW, f"true as {IS_NEW}")
        every = self._of_ids(frames.gathered(self.operator, new.unionByName(old)))
        every = frames.once(self.operator, every)
        versions = self._versions(every)
        net = Net((*self.shape.keys, VALID_FROM), self._differences(versions, is_net=True))
        return StepResult(self._differences(versions), {"": self._kept(every)}, net=net)

    @property
    def _of_key(self) -> str:
        return f"partition by {', '.join(quoted(self.shape.keys))}"

    def _of_ids(self, every: DataFrame) -> DataFrame:
        """Return of each key, sequence and id the last change, with the id up to which it counts.

        `_NEXT` is the id with a later change of the same sequence, which replaces it. `_AT` has the ids of the group
        with changes of the key, and 0, in order. The versions begin to differ with the first new change by sequence: of
        the changes before, only the last is returned, with the beginning of its version, `_SINCE`.
        """
        in_order = f"{self._of_key} order by {BY}, {SEQUENCE_ID}, {PLACE}"
        of_all = f"({in_order} rows between unbounded preceding and unbounded following)"
        columns = [*quoted(self.shape.keys), SEQUENCE_ID, BY, PLACE, DELETES, ROW, IS_NEW]
        found = every.selectExpr(
            *columns,
            f"lead(struct({BY} as `by`, {SEQUENCE_ID} as id)) over ({in_order}) as __later",
            f"array_sort(array_union(array(0L), collect_set({SEQUENCE_ID}) over {of_all})) as {_AT}",
            f"min(if({IS_NEW}, {BY}, null)) over {of_all} as __first",
        )
        found = found.selectExpr(*columns, _AT, "__first", f"if(__later.`by` <=> {BY}, __later.id, null) as {_NEXT}")
        found = found.where(f"__first is not null and not ({_NEXT} <=> {SEQUENCE_ID})").selectExpr(
            "*",
            f"lag(struct({DELETES}, {ROW})) over ({in_order}) as __before",
            f"lead({BY}) over ({in_order}) as __after",
        )
        since = f"last(if({self._begins}, {BY}, null), true) over ({in_order}) as {_SINCE}"
        found = found.selectExpr("*", since).where(f"{BY} >= __first or __after >= __first")
        return found.selectExpr(*columns, _AT, _NEXT, f"if({BY} < __first, {_SINCE}, null) as {_SINCE}")

    @property
    def _begins(self) -> str:
        """Return the condition that a version begins with a row, if the one before it is in `__before`."""
        goes_on = self.shape.alike(ROW, f"__before.{ROW}", self.shape.tracked)
        return f"not {DELETES} and (__before is null or __before.{DELETES} or not {goes_on})"

    def _versions(self, every: DataFrame) -> DataFrame:
        """Return the versions of each key after each of its ids.

        Returns:
            keys; `__step` and `__id`, number and value of the id; `BY`, `ROW`: beginning and values of the version;
            `__end`: null if it has none; `__next_id`: the next id of the key, null if there is none.
        """
        keys = quoted(self.shape.keys)
        steps = (
            f"filter(transform({_AT}, (id, i) -> struct(i as step, id, get({_AT}, i + 1) as following)), "
            f"at -> at.id >= {SEQUENCE_ID} and ({_NEXT} is null or at.id < {_NEXT}))"
        )
        columns = [*keys, BY, DELETES, ROW, _SINCE]
        placed = every.selectExpr(*columns, f"explode({steps}) as __at_id").selectExpr(
            *columns, "__at_id.step as __step", "__at_id.id as __id", "__at_id.following as __next_id"
        )
        of_step = f"{self._of_key}, __step order by {BY}"
        near = placed.selectExpr(
            "*",
            f"lag(struct({DELETES}, {ROW})) over ({of_step}) as __before",
            f"lead(struct({BY}, {DELETES}, {ROW})) over ({of_step}) as __after",
        )
        continues = self.shape.alike(ROW, f"__after.{ROW}", self.shape.tracked)
        ends = f"not {DELETES} and (__after is null or __after.{DELETES} or not {continues})"
        since = f"last(if({self._begins}, coalesce({_SINCE}, {BY}), null), true) over ({of_step})"
        return (
            near.selectExpr("*", f"{since} as __from", f"{ends} as __ends")
            .where("__ends")
            .selectExpr(*keys, "__step", "__id", "__next_id", f"__from as {BY}", ROW, f"__after.{BY} as __end")
        )

    def _differences(self, versions: DataFrame, *, is_net: bool = False) -> DataFrame:
        """Return the versions that differ between two steps: those of the step before as gone, and those of the step.

        A version is known by its beginning.

        Args:
            is_net: return no version as gone that has a new row.
        """
        of_version = f"{self._of_key}, {BY} order by __step"
        near = versions.selectExpr(
            "*",
            f"lag(struct(__step, {ROW}, __end)) over ({of_version}) as __was",
            f"lead(struct(__step, {ROW}, __end)) over ({of_version}) as __becomes",
        )
        got = f"__step > 0 and not {self._stays('__was', '__step - 1')}"
        stays = "coalesce(__becomes.__step = __step + 1, false)" if is_net else self._stays("__becomes", "__step + 1")
        lost = f"__next_id is not null and not {stays}"
        events = (
            f"explode(filter(array(if({lost}, struct(__next_id as id, true as gone), null), "
            f"if({got}, struct(__id as id, false as gone), null)), event -> event is not null)) as __event"
        )
        return near.selectExpr(BY, ROW, "__end", events).selectExpr(
            f"__event.id as {SEQUENCE_ID}",
            f"__event.gone as {GONE}",
            f"{ROW}.*",
            f"{BY} as {VALID_FROM}",
            f"__end as {VALID_TO}",
            f"__end is null as {IS_CURRENT}",
        )

    def _stays(self, other: str, step: str) -> str:
        """Return the condition that the version is the same in a step beside it."""
        same = f"{other}.__end <=> __end and {self.shape.alike(ROW, f'{other}.{ROW}')}"
        return f"coalesce({other}.__step = {step} and {same}, false)"

    def _kept(self, every: DataFrame) -> DataFrame:
        payload = [
            quoted_name(name)
            if name in self.shape.keys
            else f"if({DELETES}, null, {self.shape.of_row(name)}) as {quoted_name(name)}"
            for name in self.shape.columns.names
        ]
        return every.where(IS_NEW).selectExpr(
            *payload,
            f"{BY} as {KEPT_BY}",
            f"{self.shape.text} as {KEPT_TEXT}",
            f"{DELETES} as {KEPT_DELETES}",
            SEQUENCE_ID,
        )

    def _kept_type(self) -> StructType:
        from pyspark.sql.types import BooleanType, LongType, StructType

        kept = StructType([*self.shape.columns.fields]).add(KEPT_BY, self.shape.by_type)
        return kept.add(KEPT_DELETES, BooleanType()).add(SEQUENCE_ID, LongType())
