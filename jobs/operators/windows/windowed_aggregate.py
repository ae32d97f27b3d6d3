"""The common part of all keyed aggregates, over any windows: keys, values, and refused declarations."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.errors import Violation
from drainmark.jobs.formats.file_columns import sql_of
from drainmark.jobs.frames.names import quoted, quoted_name
from drainmark.jobs.frames.tags import GONE, POSITION, SEQUENCE_ID, TAGS
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
    Mergeable,
    StateColumn,
    finished_column,
    float_sums,
    partial_columns,
    running_columns,
    state_columns,
)
from drainmark.jobs.state.placed_rows import IS_NEW, ranked, with_state

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, WindowSpec
    from pyspark.sql.types import StructType

    from drainmark.jobs.graph.context import OperatorContext

UNBOUNDED = 2**63
"""As a bound of a window of Spark: all rows before (negative) or after a row."""


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

    def of_key(self, *further: str) -> WindowSpec:
        """Return Spark's window over the rows of a key, or over those of a part of it."""
        from pyspark.sql import Window as Over

        return Over.partitionBy(*(self.key_columns() or [F.lit(0)]), *further)

    def until_here(self, *further: str) -> WindowSpec:
        """Return Spark's window over the rows of a key, or of a part of it, up to a row's id."""
        return self.of_key(*further).orderBy(SEQUENCE_ID).rowsBetween(-UNBOUNDED, 0)

    def with_window(self, rows: DataFrame) -> DataFrame:
        """Return each row once for each window of event time that it is in; all rows if there are no such windows."""
        if not isinstance(self.window, EventTime):
            return rows
        return rows.withColumn(STARTS, self.window.start()).where(F.col(STARTS).isNotNull())

    def history(self, frames: OperatorContext, new: DataFrame) -> DataFrame:
        """Return new rows of the state that the output is, and its older rows with their keys, with `IS_NEW`."""
        new, before = frames.state(self, new)
        history = with_state(before, new)
        return history if before is None else frames.gathered(self, history)

    def running(self, types: Mapping[str, Any], values: Mapping[str, Mergeable] | None = None) -> list[Column]:
        """Return the columns of a history at the end of each id: keys, those of windows included, `_sequence_id`,
        `IS_NEW`, and the parts of the values, merged from a row and all earlier rows of its key or window.

        Args:
            types: of the parts.
            values: in another form than that of plain rows.
        """
        keys = [F.col(quoted_name(key)) for key in self.all_keys]
        parts = running_columns(values or self.values, self.until_here(*self.window_columns), types)
        return [*keys, F.col(SEQUENCE_ID), F.col(IS_NEW), *parts]

    def grouping(self) -> list[Column]:
        """Return the columns by which rows of `with_window` are put together: the keys, `_sequence_id`."""
        start = [F.col(STARTS).alias(WINDOW_START)] if isinstance(self.window, EventTime) else []
        return [*self.key_columns(), *start, F.col(SEQUENCE_ID)]

    def state_names(self) -> list[str]:
        """Return the names of the columns with the values' parts."""
        return [quoted_name(name) for name in state_columns(self.values)]

    def finished_values(self) -> list[Column]:
        """Return the values, computed from the state columns of their parts."""
        return [finished_column(self.values, value).alias(value) for value in self.values]

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


def keys_as(keys: Sequence[str], prefix: str) -> list[Column]:
    """Return keys under other names, for the other side of a join."""
    return [F.col(quoted_name(key)).alias(f"{prefix}{i}") for i, key in enumerate(keys)]


def keys_equal(keys: Sequence[str], prefix: str) -> Column:
    """Return the condition that keys equal those of `keys_as`; null is a key."""
    return F.expr(" and ".join(f"{key} <=> {prefix}{i}" for i, key in enumerate(quoted(keys))) or "true")


def is_last_of_id(in_order: WindowSpec) -> Column:
    """Say whether a row is the last of its id in an ordered window of Spark."""
    return F.coalesce(F.lead(SEQUENCE_ID).over(in_order) != F.col(SEQUENCE_ID), F.lit(True))


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
