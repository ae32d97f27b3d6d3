"""`aggregate`: a keyed running aggregate, optionally by tumbling windows of event time; its state is the result.

It emits one row a changed key and id. The state at id N is the last row a key with an id ≤ N, so what is staged for a
group is at once the state's changelog, the operator's output, and the history of an upsert sink (design.md §3.4).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from jobs.errors import Violation
from jobs.graph.declarations import Stream, StreamLike, caller, declare, location_of, port_to, stream_name
from jobs.graph.operator import SEQUENCE_ID, Operator
from jobs.lazy import F
from jobs.state.aggregations import (
    Aggregation,
    approx_distinct,
    collect_set,
    count,
    first,
    last,
    max,  # noqa: A004 - the field's words, exported to authors as dm.max and so on
    mean,
    min,  # noqa: A004
    state_columns,
    sum,  # noqa: A004
)
from jobs.state.keyed import KeyedState

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from jobs.operators.sliding import Sliding
    from jobs.runtime.frames import GroupFrames

__all__ = [
    "Aggregation",
    "Tumbling",
    "aggregate",
    "approx_distinct",
    "collect_set",
    "count",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "sum",
    "tumbling",
]

WINDOW_START = "window_start"
_MICROSECONDS = 1_000_000
_IS_NEW = "_is_new"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tumbling:
    """Windows of event time, side by side, `size` long, aligned to 1970-01-01 UTC."""

    column: str
    size: dt.timedelta


def tumbling(column: str, **size: float) -> Tumbling:
    """Return tumbling windows over a timestamp column: `dm.tumbling("logged_at", minutes=5)`.

    Rows without event time belong to no window. Every change of a window is emitted (H20).
    """
    return Tumbling(column=column, size=dt.timedelta(**size))


@dataclass(frozen=True, kw_only=True)
class Aggregate(Operator):
    """Keyed state as typed columns: keys, values, hidden parts, `_sequence_id` of the last change.

    `is_history`: what downstream sees is the state, so an upsert sink with the same keys needs no history of its own.
    """

    kind: ClassVar[str] = "aggregate"
    summary: ClassVar[str] = "keyed running or tumbling aggregate"
    keeps_tags: ClassVar[bool] = True
    is_stateful: ClassVar[bool] = True
    state_class: ClassVar[type[KeyedState]] = KeyedState
    is_history: ClassVar[bool] = True

    keys: tuple[str, ...]
    values: Mapping[str, Aggregation]
    window: Tumbling | None = None

    @property
    def all_keys(self) -> tuple[str, ...]:
        """Return the keys of the state, the window's start included."""
        return (*self.keys, WINDOW_START) if self.window else self.keys

    @property
    def emitted(self) -> tuple[str, ...]:
        """Return the columns that downstream operators see besides the tags."""
        return (*self.all_keys, *self.values)

    @property
    def depth(self) -> int:
        """Return how many rows of a key the state keeps."""
        return 1

    def seen(self, changes: DataFrame) -> DataFrame:
        """Return what downstream operators see of the changes of a group: the parts of values are hidden."""
        return changes.select(SEQUENCE_ID, *(f"`{name}`" for name in self.emitted))

    def fingerprint(self) -> Any:
        labels = {name: aggregation.label for name, aggregation in self.values.items()}
        window = [self.window.column, self.window.size.total_seconds()] if self.window else None
        return {**super().fingerprint(), "keys": list(self.keys), "values": labels, "window": window}

    def violations(self, in_region: bool) -> Iterator[Violation]:
        taken = {SEQUENCE_ID, *self.all_keys}
        clashes = sorted(taken & set(self.values)) + sorted(name for name in self.values if name.startswith("_"))
        if clashes:
            yield self._violation("AGGREGATE_NAMES", f"values may not be called {', '.join(clashes)}", "rename them")
        if not self.all_keys:
            yield self._violation("AGGREGATE_KEYS", "an aggregate needs keys", 'give keys=["…"]')
        if not self.values:
            yield self._violation("AGGREGATE_VALUES", "an aggregate needs values", 'give values={"n": dm.count()}')
        if self.window and self.window.size <= dt.timedelta(0):
            yield self._violation("WINDOW_SIZE", f"a window of {self.window.size} is none", "give a positive size")

    def _violation(self, rule: str, message: str, remedy: str) -> Violation:
        return Violation(
            rule=rule, message=f"{self.name}: {message}", operator=self.name, location=self.location, remedy=remedy
        )

    def apply(self, frames: GroupFrames) -> DataFrame:
        """Return the changes of a group: keys, values, parts, `_sequence_id`; one row a changed key and id.

        Partials are merged in id order, a key's older state being the first of them. New rows are told by a flag and
        not by their ids: ids in a plan make Spark compile it anew for every group.
        """
        made = frames.once_a_run(self.name, lambda: _Columns.of(self))
        partials = self._with_window(frames.input(self.inputs[0])).groupBy(*made.grouping).agg(*made.partials)
        partials, before = frames.state(self, partials)
        history = partials.withColumn(_IS_NEW, made.new)
        if before is not None:
            history = frames.gathered(self, before.withColumn(_IS_NEW, made.old).unionByName(history))
        running = frames.once_a_run((self.name, _IS_NEW), lambda: self._running(frames.types_of(self, partials)))
        return history.select(*made.grouping, made.is_new, *running).where(made.is_new).select(*made.finished)

    def _with_window(self, rows: DataFrame) -> DataFrame:
        if not self.window:
            return rows
        size = int(self.window.size.total_seconds() * _MICROSECONDS)
        moment = F.unix_micros(F.col(self.window.column).cast("timestamp"))
        start = F.timestamp_micros(moment - F.pmod(moment, F.lit(size)))
        return rows.where(F.col(self.window.column).isNotNull()).withColumn(WINDOW_START, start)

    def _running(self, types: Mapping[str, Any]) -> list[Column]:
        """Return the state columns: of each row, what is merged of it and of those of its key before it."""
        from pyspark.sql import Window

        keys = [f"`{key}`" for key in self.all_keys]
        until_here = Window.partitionBy(*keys).orderBy(SEQUENCE_ID).rowsBetween(Window.unboundedPreceding, 0)
        states = []
        for column, (value, part) in state_columns(self.values).items():
            aggregation = self.values[value].parts[part]
            merged = aggregation.merge(F.col(f"`{column}`")).over(until_here)
            tidied = aggregation.tidy(merged) if aggregation.tidy else merged
            states.append(tidied.cast(types[column]).alias(column))
        return states

    def finished(self, value: str) -> Column:
        """Return a value, made of the state columns that are its parts."""
        aggregation = self.values[value]
        if aggregation.is_simple:
            return F.col(f"`{value}`")
        columns = {part: F.col(f"`{name}`") for name, (of, part) in state_columns(self.values).items() if of == value}
        finish = aggregation.finish or (lambda parts: F.struct(*(c.alias(n) for n, c in parts.items())))
        return finish(columns[""] if set(columns) == {""} else columns).alias(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """An aggregate's expressions, made once a run: each costs several calls to the JVM, and a small group little more.

    Attributes:
        grouping: keys and `_sequence_id`.
        finished: keys, values, hidden parts, `_sequence_id`.
    """

    grouping: list[Column]
    partials: list[Column]
    finished: list[Column]
    new: Column
    old: Column
    is_new: Column

    @classmethod
    def of(cls, operator: Aggregate) -> _Columns:
        keys, states = [F.col(f"`{key}`") for key in operator.all_keys], state_columns(operator.values)
        hidden = [F.col(f"`{column}`") for column in states if column not in operator.values]
        return cls(
            grouping=[*keys, F.col(SEQUENCE_ID)],
            partials=[
                operator.values[value].parts[part].partial().alias(column) for column, (value, part) in states.items()
            ],
            finished=[*keys, *map(operator.finished, operator.values), *hidden, F.col(SEQUENCE_ID)],
            new=F.lit(True),
            old=F.lit(False),
            is_new=F.col(_IS_NEW),
        )


def aggregate(
    stream: StreamLike,
    *,
    keys: Sequence[str] = (),
    values: Mapping[str, Aggregation],
    window: Tumbling | Sliding | None = None,
    name: str | None = None,
) -> Stream:
    """Declare a keyed aggregate: `dm.aggregate(words, keys=["word"], values={"count": dm.count()})`.

    Args:
        keys: key columns; null is a key.
        values: name of the value to its aggregation.
        window: `dm.tumbling(…)` adds the key `window_start`, a timestamp; `dm.sliding(…)` takes the last rows of each
            key only.
        name: identity of the state; `<stream>_by_<keys>` by default.
    """
    from jobs.operators.sliding import Sliding, SlidingAggregate

    frame = caller()
    facts: dict[str, Any] = {
        "name": name or "_by_".join([stream_name(stream), "_".join([*keys, *(["window"] if window else [])])]),
        "inputs": (port_to(stream),),
        "location": location_of(frame),
        "keys": tuple(keys),
        "values": dict(values),
    }
    if isinstance(window, Sliding):
        return declare(SlidingAggregate(rows=window.rows, **facts), frame)
    return declare(Aggregate(window=window, **facts), frame)
