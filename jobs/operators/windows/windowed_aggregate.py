"""The common part of all keyed aggregates, over any windows: keys, values, and refused declarations."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.errors import Violation
from drainmark.jobs.formats.file_columns import sql_of
from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.tags import GONE, POSITION, TAGS
from drainmark.jobs.graph.operator import Measured, Operator, Retention
from drainmark.jobs.lazy import F
from drainmark.jobs.operators.windows.window import (
    EVERY_CHANGE,
    STARTS,
    WINDOW_END,
    WINDOW_NUMBER,
    WINDOW_START,
    Delta,
    Emission,
    Emit,
    EventTime,
    Marked,
    Rows,
    Session,
    Window,
    refusals,
    retention_of,
)
from drainmark.jobs.state.aggregations.aggregation import (
    Aggregation,
    StateColumn,
    finished_column,
    float_sums,
    partial_columns,
    state_columns,
)
from drainmark.jobs.state.placed_rows import ranked

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from drainmark.jobs.graph.context import OperatorContext


@dataclass(frozen=True, kw_only=True)
class KeyedValues(Operator):
    """Values of each key, or of each window of each key; a subclass decides how to keep them and when to emit them."""

    keeps_tags: ClassVar[bool] = True
    merges: ClassVar[bool] = True
    """Whether the state has the values' parts, and not rows from which the values are computed again."""

    keys: tuple[str, ...]
    values: Mapping[str, Aggregation]
    window: Window | None = None
    emission: Emission = EVERY_CHANGE

    @property
    def window_columns(self) -> tuple[str, ...]:
        """Return the columns that identify the windows of a key."""
        if isinstance(self.window, EventTime):
            return (WINDOW_START,)
        if isinstance(self.window, Session):
            return (WINDOW_START, WINDOW_END)
        if isinstance(self.window, Marked) or (isinstance(self.window, Rows | Delta) and not self.window.is_sliding):
            return (WINDOW_NUMBER,)
        return ()

    @property
    def all_keys(self) -> tuple[str, ...]:
        """Return the keys of the values, those of the windows included."""
        return (*self.keys, *self.window_columns)

    @property
    def emitted(self) -> tuple[str, ...]:
        """Return the columns that downstream operators see besides the tags."""
        return (*self.keys, *self.window_columns, *self.emission.columns, *self.values)

    @property
    def retention(self) -> Retention | None:
        """Return the retention of the state of the values."""
        kept_for = retention_of(self.window)
        if not self.merges:
            return kept_for
        values = {name: value.meaning for name, value in self.values.items() if isinstance(value, Aggregation)}
        return replace(kept_for or Retention(of="every row of a key"), values=values)

    @property
    def measured(self) -> tuple[Measured, ...]:
        if not isinstance(self.window, EventTime | Session | Delta):
            return ()
        is_time = not isinstance(self.window, Delta) or isinstance(self.window.size, dt.timedelta)
        return (Measured(self.inputs[0], self.window.column, is_time),)

    def fingerprint(self) -> Any:
        labels = {name: aggregation.fingerprint() for name, aggregation in self.values.items()}
        window = None if self.window is None else self.window.fingerprint()
        facts = {"keys": list(self.keys), "values": labels, "window": window}
        emission = {} if self.emission == EVERY_CHANGE else {"emission": self.emission.fingerprint()}
        return {**super().fingerprint(), **facts, **emission}

    def violations(self, in_region: bool) -> Iterator[Violation]:
        if wrong := [name for name, value in self.values.items() if not isinstance(value, Aggregation)]:
            message = f"{', '.join(wrong)}: a value is made by a function of drainmark"
            yield self.wrong("AGGREGATE_VALUES", message, 'such as dm.count() or dm.sum("amount")')
            return
        taken = {*TAGS, *self.keys, *self.window_columns}
        if clashes := [f"{name!r} {why}" for name in self.values if (why := _why_not(self, name))]:
            yield self.wrong("AGGREGATE_NAMES", f"values may not be called so: {', '.join(clashes)}", "rename them")
        twice = sorted((taken | set(self.values)) & set(self.emission.columns))
        if twice:
            yield self.wrong("WINDOW_COLUMNS", f"columns= has what is there anyway: {', '.join(twice)}", "drop it")
        if added := sorted(set(self.keys) & set(self.window_columns)):
            message = f"keys may not be called {', '.join(added)}: its window adds that"
            yield self.wrong("AGGREGATE_KEYS", message, "rename it in a dm.functor before")
        if not self.keys and self.window is None:
            yield self.wrong("AGGREGATE_KEYS", "an aggregate needs keys", 'give keys=["…"]')
        if not self.values:
            message = "an aggregate needs values, each with a name"
            yield self.wrong("AGGREGATE_VALUES", message, 'give values={"n": dm.count()}')
        for rule, message, remedy in refusals(self.window, self.emission):
            yield self.wrong(rule, message, remedy)

    # --- expressions that the subclasses share ----------------------------------------------------------------------

    def key_columns(self) -> list[Column]:
        return [F.col(quoted_name(key)) for key in self.keys]

    def by_key(self) -> list[Column]:
        """Return the columns by which a window of Spark is partitioned."""
        return self.key_columns() or [F.lit(0)]

    def with_window(self, rows: DataFrame) -> DataFrame:
        """Return each row once for each window of event time that it is in; all rows if there are no such windows."""
        if not isinstance(self.window, EventTime):
            return rows
        return rows.withColumn(STARTS, self.window.start()).where(F.col(STARTS).isNotNull())

    def window_start(self) -> list[Column]:
        """Return the key that identifies the window of a row of `with_window`."""
        return [F.col(STARTS).alias(WINDOW_START)] if isinstance(self.window, EventTime) else []

    def keys_as(self, prefix: str) -> list[Column]:
        """Return the keys under other names, for the other side of a join."""
        return [F.col(quoted_name(key)).alias(f"{prefix}{i}") for i, key in enumerate(self.keys)]

    def keys_equal(self, prefix: str) -> Column:
        """Return the condition that the keys equal those of `keys_as(prefix)`; null is a key."""
        same: Column = F.lit(True)
        for i, key in enumerate(self.keys):
            same = same & F.col(quoted_name(key)).eqNullSafe(F.col(f"{prefix}{i}"))
        return same

    def state_names(self) -> list[str]:
        """Return the names of the columns with the values' parts."""
        return [quoted_name(name) for name in state_columns(self.values)]

    def finished(self, value: str) -> Column:
        """Return a value, computed from the state columns of its parts."""
        return finished_column(self.values, value)

    def finished_values(self) -> list[Column]:
        return [self.finished(value).alias(value) for value in self.values]

    def partials(self, frames: OperatorContext, rows: DataFrame) -> list[Column]:
        """Return aggregate expressions of the values' parts; the rows may be in any order."""
        return partial_columns(self.values, self.float_sums(frames, rows))

    def float_sums(self, frames: OperatorContext, rows: DataFrame) -> frozenset[str]:
        return frames.once_a_run((self.name, "float sums"), lambda: float_sums(self.values, rows))

    def placed(self, frames: OperatorContext, rows: DataFrame | None = None) -> DataFrame:
        """Return the input's rows, or rows made from them one by one, in a fixed order within each id and key."""
        every_row = self.emission.emit == Emit.ROW  # its rows keep their place among all rows of the id
        return ranked(frames, self, self.inputs[0], () if every_row else self.keys, rows)

    def placed_where_order_counts(self, frames: OperatorContext, rows: DataFrame) -> DataFrame:
        """Return rows of the input, `placed` if a value depends on their order, as `first` and `last` do."""

        def counts() -> bool:
            return any(_reads_position(part) for value in self.values.values() for part in value.parts.values())

        return self.placed(frames, rows) if frames.once_a_run((self.name, "order counts"), counts) else rows


def _reads_position(part: StateColumn) -> bool:
    return POSITION in str(part.partial())


def types_of(schema: StructType) -> dict[str, str]:
    """Return the types of columns by name, without nullability: an array that may have nulls cannot be cast to one that
    must not have any."""
    return {field.name: sql_of(field.dataType) for field in schema.fields}


def _why_not(aggregate: KeyedValues, name: str) -> str:
    """Return why a value may not have a name; an empty text if it may."""
    if name in aggregate.keys:
        return "is a key"
    if name in aggregate.window_columns:
        return "is a column that the window adds"
    if name.startswith("_") or name in TAGS:
        return "is a name that Drainmark keeps for columns of its own"
    if f"_{name}" in (GONE, *TAGS) and not aggregate.values[name].is_simple:
        return f"would keep its hidden part in _{name}, a column of Drainmark's own"
    return ""
