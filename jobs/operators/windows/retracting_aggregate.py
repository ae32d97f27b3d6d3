"""`aggregate` over a change stream: rows that are gone are taken back, so that the values are those of the rows left.

It emits a change stream: for each changed key and id the row that it emitted before, gone, and the new one. A key
without a row that is left has no new one. So whatever may read a change stream may read this one: another aggregate
takes the old values back, a filter lets the old row pass if it let it pass before, an upsert sink deletes the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.errors import Violation
from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.tags import GONE, SEQUENCE_ID
from drainmark.jobs.graph.operator import KeptState, Retention, StepResult
from drainmark.jobs.lazy import F
from drainmark.jobs.operators.windows.windowed_aggregate import KeyedValues, types_of
from drainmark.jobs.state.aggregations.aggregation import (
    Aggregation,
    Retractable,
    finished_column,
    partial_columns,
    parts_of,
    running_columns,
    state_columns,
)
from drainmark.jobs.state.aggregations.retraction import sign

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from drainmark.jobs.graph.context import OperatorContext

ROWS = "__rows"
"""Column of the state: the number of rows of a key that are left."""

_LEFT = "__left"
"""The same number, after the check that it can be."""

_IS_NEW, _NOW, _BEFORE, _EVENT = "__is_new", "__now", "__before", "__event"


@dataclass(frozen=True, kw_only=True)
class RetractingAggregate(KeyedValues):
    """Values of the rows of each key, or of each open window of a key, that are left of a change stream.

    Attributes:
        changes_of: the operator that the changes come from.
    """

    kind: ClassVar[str] = "aggregate over changes"
    summary: ClassVar[str] = "keyed running or tumbling aggregate of the rows that are left of a change stream"
    configurations: ClassVar[tuple[str, ...]] = ("running", "windows")

    changes_of: str

    @property
    def takes_changes(self) -> bool:
        return True

    @property
    def kept(self) -> tuple[KeptState, ...]:
        return (KeptState(keys=self.all_keys, looked_up_by=self.all_keys, retention=self.retention),)

    @property
    def retention(self) -> Retention | None:
        kept = super().retention
        return None if kept is None else replace(kept, of=f"{kept.of} that is left of changes")

    def violations(self, in_region: bool) -> Iterator[Violation]:
        yield from super().violations(in_region)
        for name, value in self.values.items():
            if isinstance(value, Aggregation) and value.over_changes is None:
                message = f"{self.inputs[0].stream!r} has the changes of {self.changes_of!r}, rows that are gone among"
                message = f"{message} them; {value.label}, the value {name!r}, cannot take a row back"
                yield self.wrong("CHANGES", message, value.instead)

    def step(self, frames: OperatorContext) -> StepResult:
        rows = self.with_window(frames.input(self.inputs[0]))
        made = frames.once_a_run(self.name, lambda: self._expressions(rows))
        partials = frames.once(self, rows.groupBy(*made.by).agg(*made.partials))
        kept = frames.once_a_run((self.name, "kept"), lambda: partials.select(*made.state).schema)
        running = frames.once_a_run((self.name, "running"), lambda: self._running(made.values, types_of(kept)))
        before = frames.kept(self, "", kept, partials).withColumn(_IS_NEW, F.lit(False))
        history = frames.gathered(self, before.unionByName(partials.withColumn(_IS_NEW, F.lit(True))))
        valid = history.select(*running).select("*", *made.valid)
        computed = frames.once(self, valid.select("*", made.before).where(_IS_NEW))
        changes = computed.select(*made.state, (F.col(_LEFT) == 0).alias(GONE))
        return StepResult(computed.select(*made.events).select(*made.emitted), changes={"": changes})

    def _expressions(self, rows: DataFrame) -> _Expressions:
        from pyspark.sql import Window as Over

        values, keys = self._over_changes(rows), [quoted_name(key) for key in self.all_keys]
        in_order = Over.partitionBy(*keys).orderBy(SEQUENCE_ID)
        now = F.struct(*(finished_column(values, name).alias(name) for name in values))
        return _Expressions(
            values=values,
            by=[*self.key_columns(), *self.window_start(), F.col(SEQUENCE_ID)],
            partials=[F.sum(sign()).alias(ROWS), *partial_columns(values, ())],
            state=[*keys, ROWS, *(quoted_name(name) for name in state_columns(values)), SEQUENCE_ID],
            valid=[self._rows_left(values).alias(_LEFT), now.alias(_NOW)],
            before=F.lag(F.struct(F.col(_LEFT).alias("rows"), F.col(_NOW).alias("values")))
            .over(in_order)
            .alias(_BEFORE),
            events=[SEQUENCE_ID, *keys, _event().alias(_EVENT)],
            emitted=[
                SEQUENCE_ID,
                *keys,
                *(F.col(_EVENT)["values"][name].alias(name) for name in self.values),
                F.col(_EVENT)[GONE].alias(GONE),
            ],
        )

    def _over_changes(self, rows: DataFrame) -> dict[str, Retractable]:
        """Return the values in their form over changes, which depends on the types of their columns."""
        found = {}
        for name, value in self.values.items():
            argument = rows.select(*(F.col(column) for column in (value.columns or ())[:1])).schema.fields
            assert value.over_changes is not None  # noqa: S101 - `violations` sees to it
            found[name] = value.over_changes(argument[0].dataType.typeName() if argument else "")
        return found

    def _running(self, values: Mapping[str, Retractable], types: Mapping[str, Any]) -> list[Column | str]:
        """Return the state at the end of each id: for each row, the merge of it and of all earlier rows of its key."""
        from pyspark.sql import Window as Over

        keys = [quoted_name(key) for key in self.all_keys]
        until_here = Over.partitionBy(*keys).orderBy(SEQUENCE_ID).rowsBetween(Over.unboundedPreceding, 0)
        left = F.sum(ROWS).over(until_here).alias(ROWS)
        return [*keys, SEQUENCE_ID, _IS_NEW, left, *running_columns(values, until_here, types)]

    def _rows_left(self, values: Mapping[str, Retractable]) -> Column:
        """Return the number of rows of a key that are left; an error if more of them were taken back than came."""
        is_short = F.col(ROWS) < 0
        for name, value in values.items():
            parts = parts_of(values, name)
            is_short = is_short | value.is_short(parts) | (value.rows(parts) > F.col(ROWS))
        said = F.concat(
            F.lit(f"{self.name!r}: rows were taken back that had not come, or with other values: key "),
            F.to_json(F.struct(*(quoted_name(key) for key in self.all_keys))),
            F.lit(", id "),
            F.col(SEQUENCE_ID).cast("string"),
            F.lit(f"; look at the changes of {self.changes_of!r}"),
        )
        return F.when(is_short, F.raise_error(said).cast("bigint")).otherwise(F.col(ROWS))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expressions:
    """Expressions that are made once a run: each costs several calls to the JVM.

    Attributes:
        values: in their form over changes.
        by: keys and `_sequence_id` of the input's rows.
        state: keys, parts of the values, `_sequence_id`.
        valid: the rows that are left, and the values.
        before: the same of the id before.
    """

    values: Mapping[str, Retractable]
    by: list[Column]
    partials: list[Column]
    state: list[str]
    valid: list[Column]
    before: Column
    events: list[Column | str]
    emitted: list[Column | str]


def _event() -> Column:
    """Return one row for each row of a change: the one before, gone, if there was one; the new one, if one is left."""
    old = F.struct(F.lit(True).alias(GONE), F.col(_BEFORE)["values"].alias("values"))
    new = F.struct(F.lit(False).alias(GONE), F.col(_NOW).alias("values"))
    events = F.array(F.when(F.col(_BEFORE)["rows"] > 0, old), F.when(F.col(_LEFT) > 0, new))
    return F.explode(F.array_compact(events))
