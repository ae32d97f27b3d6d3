"""`aggregate` over a change stream: rows that are gone are taken back, so that the values are those of the rows left.

It emits a change stream: for each changed key and id the row that it emitted before, gone, and the new one. A key
without a row that is left has no new one. So whatever may read a change stream may read this one: another aggregate
takes the old values back, a filter lets the old row pass if it let it pass before, an upsert sink deletes the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from drainmark.jobs.errors import Violation
from drainmark.jobs.frames.names import quoted, quoted_name
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
    state_columns,
)
from drainmark.jobs.state.aggregations.retraction import sign
from drainmark.jobs.state.placed_rows import IS_NEW, with_state

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from drainmark.jobs.graph.context import OperatorContext

ROWS = "__rows"
"""Column of the state: the number of rows of a key that are left."""

_LEFT = "__left"
"""The same number, after the check that it can be."""

_NOW, _BEFORE, _EVENT = "__now", "__before", "__event"
_EVENTS = (
    f"inline(filter(array(if({_BEFORE}.rows > 0, struct({_BEFORE}.values as {_EVENT}, true as {GONE}), null), "
    f"if({_LEFT} > 0, struct({_NOW} as {_EVENT}, false as {GONE}), null)), event -> event is not null))"
)
"""SQL of one row for each row of a change: the one before, gone, if there was one; the new one, if one is left."""


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
        """Return the change stream and the changes of the state. Expressions are made once a run: each costs several
        calls to the JVM."""
        rows = self.with_window(frames.input(self.inputs[0]))
        values, by, parts = frames.once_a_run(self.name, lambda: self._partials(rows))
        partials = frames.once(self, rows.groupBy(*by).agg(*parts))
        kept, running, checked, before = frames.once_a_run(
            (self.name, ROWS), lambda: self._merged(values, partials.schema)
        )
        history = frames.gathered(self, with_state(frames.kept(self, "", kept, partials), partials))
        valid = history.select(*running).select("*", *checked)
        computed = frames.once(self, valid.select("*", before).where(IS_NEW))
        keys = quoted(self.all_keys)
        events = computed.selectExpr(SEQUENCE_ID, *keys, _EVENTS).select(SEQUENCE_ID, *keys, f"{_EVENT}.*", GONE)
        return StepResult(events, {"": computed.selectExpr(*quoted(kept.names), f"{_LEFT} = 0 as {GONE}")})

    def _partials(self, rows: DataFrame) -> tuple[Mapping[str, Retractable], list[Column], list[Column]]:
        """Return the values in their form over changes, the columns to group rows by, and the parts of each group."""
        values = self._over_changes(rows)
        return values, self.grouping(), [F.sum(sign()).alias(ROWS), *partial_columns(values, ())]

    def _merged(
        self, values: Mapping[str, Retractable], partials: StructType
    ) -> tuple[StructType, list[Column], list[Column], Column]:
        """Return the columns of the state; of a history, those at the end of each id; of these, the number of rows that
        are left and the values; and of these, the same of the id before."""
        from pyspark.sql.types import StructType

        kept = StructType([partials[name] for name in (*self.all_keys, ROWS, *state_columns(values), SEQUENCE_ID)])
        left = F.sum(ROWS).over(self.until_here(*self.window_columns)).alias(ROWS)
        now = F.struct(*(finished_column(values, name).alias(name) for name in values)).alias(_NOW)
        in_order = self.of_key(*self.window_columns).orderBy(SEQUENCE_ID)
        before = F.lag(F.struct(F.col(_LEFT).alias("rows"), F.col(_NOW).alias("values"))).over(in_order)
        running = [left, *self.running(types_of(kept), values)]
        return kept, running, [self._rows_left(values).alias(_LEFT), now], before.alias(_BEFORE)

    def _over_changes(self, rows: DataFrame) -> dict[str, Retractable]:
        """Return the values in their form over changes, which depends on the types of their columns."""
        found = {}
        for name, value in self.values.items():
            argument = rows.select(*(F.col(column) for column in (value.columns or ())[:1])).schema.fields
            assert value.over_changes is not None  # noqa: S101 - `violations` sees to it
            kind = argument[0].dataType if argument else None
            said = "" if kind is None else kind.simpleString() if kind.typeName() == "decimal" else kind.typeName()
            found[name] = value.over_changes(said)
        return found

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
