"""Mergeable aggregations: partials of each trigger, merged in id order with the state before.

An aggregation has one or more parts. A part has a partial over a trigger's rows and one aggregate function that merges
partials; the running state of a key is the merge of its partials in the order of ids, for any grouping.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID, TAGS
from drainmark.jobs.graph.code_digests import code_digest
from drainmark.jobs.graph.operator import Meaning
from drainmark.jobs.lazy import F
from drainmark.jobs.state.aggregations.exact_sums import exact_sum

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_OURS = f"{__name__.rpartition('.')[0]}."
"""The package of the library's own aggregations, with a dot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateColumn:
    """One column of an aggregation's state.

    Attributes:
        partial: aggregate expression over the rows of one key and one id.
        merge: ONE aggregate function over partials; the runtime runs it over a window in id order.
        tidy: applied after each merge (e.g. to make a set out of a list of sets); keeps the partial's type.
        addend: of a part that is a sum: the value that is added. If it is a float, the partial would depend on the
            order of the rows, so `exact_sum` takes its place.
    """

    partial: Callable[[], Column]
    merge: Callable[[Column], Column]
    tidy: Callable[[Column], Column] | None = None
    addend: Callable[[], Column] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """Your own aggregation: a value that can be merged with older state.

    Law (the test kit checks it): for any split of the rows into triggers, the partials, merged in id order and
    finished, give the same value as one partial of all rows, finished.

    Args:
        partial: aggregate expression over rows, or a mapping of several named ones.
        merge: for a single partial: one aggregate function over partials; for several: a mapping of them.
        finish: from the merged partial (a Column, or a mapping of them) to the value; identity by default.
        label: the text in `graph` and in the fingerprint.
        columns: columns that the partial reads: a sliding window keeps them. If None, it keeps all columns.
        identity: the meaning of the state, in your words. If the code of `partial`, `merge` or `tidy` changes, a state
            cannot go on (STATE_INCOMPATIBLE); while the identity stays the same, it can.
        addends: by part, the value that an `F.sum` partial adds: with it, a sum of floats is the same for any order of
            a trigger's rows.

    Example:
        product = dm.Aggregation(
            partial=lambda: F.product("amount"), merge=lambda partial: F.product(partial), label="product"
        )
        products = dm.aggregate(orders, keys=["item"], values={"product": product}, name="products")
    """

    partial: Callable[[], Column] | Mapping[str, Callable[[], Column]]
    merge: Callable[[Column], Column] | Mapping[str, Callable[[Column], Column]]
    finish: Callable[[Any], Column] | None = None
    label: str = "aggregation"
    tidy: Callable[[Column], Column] | None = None
    columns: tuple[str, ...] | None = None
    identity: str = ""
    addends: Mapping[str, Callable[[], Column]] | None = field(default=None, repr=False)

    @property
    def meaning(self) -> Meaning:
        """Return the meaning of the value, which the description of the state keeps."""
        named = self._functions()
        if all(str(getattr(each, "__module__", None)).startswith(_OURS) for each in named):  # its label says all
            return Meaning(of=self.label, identity=self.identity)
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        return Meaning(of=self.label, code=code_digest(*named), python=python, identity=self.identity)

    def fingerprint(self) -> Any:
        """Return a JSON value that changes when the aggregation computes another value."""
        code = self.meaning.code
        return [self.label, code, code_digest(self.finish)] if code else self.label

    def _functions(self) -> list[Any]:
        """Return the functions that make the state, in a fixed order; `finish` is not one of them."""
        given = [
            [each[name] for name in sorted(each)] if isinstance(each, Mapping) else [each]
            for each in (self.partial, self.merge)
        ]
        return [each for functions in given for each in functions] + ([self.tidy] if self.tidy else [])

    @property
    def parts(self) -> Mapping[str, StateColumn]:
        """Return the parts by name; an aggregation with a single partial has one part, named ""."""
        if isinstance(self.partial, Mapping):
            if not isinstance(self.merge, Mapping) or set(self.merge) != set(self.partial):
                msg = f"{self.label}: partial and merge must name the same parts"
                raise TypeError(msg)
            return {
                name: StateColumn(
                    partial=self.partial[name], merge=self.merge[name], addend=(self.addends or {}).get(name)
                )
                for name in self.partial
            }
        if isinstance(self.merge, Mapping):
            msg = f"{self.label}: partial and merge must name the same parts"
            raise TypeError(msg)
        addend = (self.addends or {}).get("")
        return {"": StateColumn(partial=self.partial, merge=self.merge, tidy=self.tidy, addend=addend)}

    @property
    def is_simple(self) -> bool:
        """Say whether the value itself is the state, so that it is stored once."""
        return self.finish is None and not isinstance(self.partial, Mapping)


def count(column: str | None = None) -> Aggregation:
    """Count rows, or non-null values of a column; bigint.

    Example:
        values = {"rows": dm.count(), "priced": dm.count("amount")}
        counted = dm.aggregate(orders, keys=["item"], values=values, name="counted")
    """
    return Aggregation(
        partial=lambda: F.count(F.lit(1) if column is None else F.col(column)),
        merge=lambda p: F.sum(p),
        label=f"count({column or ''})",
        columns=() if column is None else (column,),
    )


def sum(column: str) -> Aggregation:  # noqa: A001 - the field's word; users write dm.sum
    """Add up a column, in the type of Spark's sum. A sum of floats is the same for any order of rows.

    Example:
        sums = dm.aggregate(orders, keys=["item"], values={"sold": dm.sum("amount")}, name="sums")
    """
    return Aggregation(
        partial=lambda: F.sum(F.col(column)),
        merge=lambda p: F.sum(p),
        label=f"sum({column})",
        columns=(column,),
        addends={"": lambda: F.col(column)},
    )


def min(column: str) -> Aggregation:  # noqa: A001
    """Find the smallest value of a column.

    Example:
        smallest = dm.aggregate(orders, keys=["item"], values={"least": dm.min("amount")}, name="smallest")
    """
    return Aggregation(
        partial=lambda: F.min(F.col(column)), merge=lambda p: F.min(p), label=f"min({column})", columns=(column,)
    )


def max(column: str) -> Aggregation:  # noqa: A001
    """Find the largest value of a column.

    Example:
        largest = dm.aggregate(orders, keys=["item"], values={"most": dm.max("amount")}, name="largest")
    """
    return Aggregation(
        partial=lambda: F.max(F.col(column)), merge=lambda p: F.max(p), label=f"max({column})", columns=(column,)
    )


def mean(column: str) -> Aggregation:
    """Compute the arithmetic mean of the non-null values; double.

    Example:
        means = dm.aggregate(orders, keys=["item"], values={"mean": dm.mean("amount")}, name="means")
    """
    return Aggregation(
        partial={"sum": lambda: F.sum(F.col(column).cast("double")), "count": lambda: F.count(F.col(column))},
        merge={"sum": lambda p: F.sum(p), "count": lambda p: F.sum(p)},
        finish=lambda parts: F.when(parts["count"] > 0, parts["sum"] / parts["count"]),
        label=f"mean({column})",
        columns=(column,),
        addends={"sum": lambda: F.col(column).cast("double")},
    )


def first(column: str) -> Aggregation:
    """Take the value of the first row by (sequence id, position in the file); in an id, rows without position go first.

    Example:
        beginnings = dm.aggregate(orders, keys=["customer"], values={"first_item": dm.first("item")}, name="beginnings")
    """
    return _extreme(column, "first")


def last(column: str) -> Aggregation:
    """Take the value of the last row by (sequence id, position in the file); in an id, rows without position go first.

    Example:
        latest = dm.aggregate(orders, keys=["customer"], values={"last_item": dm.last("item")}, name="latest")
    """
    return _extreme(column, "last")


def place() -> Column:
    """Return the order of the rows of one id for `min_by` and `max_by`; never null, since both ignore rows with null.

    A union with an aggregate has rows without a position: they come first, as in a window that is ordered by it.
    """
    return F.struct(F.col(POSITION).isNotNull(), F.col(POSITION))


def _extreme(column: str, which: str) -> Aggregation:
    def pick(value: Any, by: Any) -> Any:
        return F.min_by(value, by) if which == "first" else F.max_by(value, by)

    return Aggregation(
        partial=lambda: pick(F.struct(F.col(SEQUENCE_ID).alias("id"), F.col(column).alias("value")), place()),
        merge=lambda p: pick(p, p["id"]),
        finish=lambda p: p["value"],
        label=f"{which}({column})",
        columns=(column,),
    )


def collect_set(column: str) -> Aggregation:
    """Collect the distinct non-null values in a sorted array.

    Example:
        baskets = dm.aggregate(orders, keys=["customer"], values={"items": dm.collect_set("item")}, name="baskets")
    """
    return Aggregation(
        partial=lambda: F.collect_set(F.col(column)),
        merge=lambda p: F.collect_list(p),
        tidy=lambda lists: F.array_distinct(F.flatten(lists)),
        finish=lambda values: F.sort_array(values),
        label=f"collect_set({column})",
        columns=(column,),
    )


def approx_distinct(column: str) -> Aggregation:
    """Estimate the number of distinct values with a HyperLogLog sketch; bigint, the same for the same values.

    A sketch that was filled row by row keeps a second estimate, which depends on the order; a union drops it. So the
    estimate is always taken from a union of the sketch with itself.

    Example:
        reach = dm.aggregate(orders, keys=["item"], values={"customers": dm.approx_distinct("customer")}, name="reach")
    """
    return Aggregation(
        partial=lambda: F.hll_sketch_agg(F.col(column)),
        merge=lambda p: F.hll_union_agg(p),
        finish=lambda sketch: F.hll_sketch_estimate(F.hll_union(sketch, sketch)),
        label=f"approx_distinct({column})",
        columns=(column,),
    )


def state_columns(values: Mapping[str, Aggregation]) -> dict[str, tuple[str, str]]:
    """Return the columns that hold state: column -> (value, part).

    The value of a simple aggregation is its state; the parts of other aggregations are hidden columns `_<value>` or
    `_<value>_<part>` beside the value.
    """
    columns: dict[str, tuple[str, str]] = {}
    for value, aggregation in values.items():
        for part in aggregation.parts:
            columns[value if aggregation.is_simple else f"_{value}{f'_{part}' if part else ''}"] = (value, part)
    return columns


def float_sums(values: Mapping[str, Aggregation], rows: DataFrame) -> frozenset[str]:
    """Return the state columns that are sums of floats, by the types of the rows."""
    addends = {
        column: addend
        for column, (value, part) in state_columns(values).items()
        if (addend := values[value].parts[part].addend) is not None
    }
    if not addends:
        return frozenset()
    kinds = rows.select(*(addend().alias(column) for column, addend in addends.items())).schema.fields
    return frozenset(kind.name for kind in kinds if kind.dataType.typeName() in ("float", "double"))


def partial_columns(values: Mapping[str, Aggregation], floats: Collection[str]) -> list[Column]:
    """Return the state columns as aggregate expressions over rows in any order.

    Args:
        floats: see `float_sums`.
    """
    return [
        _unordered(values[value].parts[part], column in floats).alias(column)
        for column, (value, part) in state_columns(values).items()
    ]


def _unordered(part: StateColumn, is_float: bool) -> Column:
    return exact_sum(part.addend()) if is_float and part.addend is not None else part.partial()


def running_columns(values: Mapping[str, Aggregation], over: Any, types: Mapping[str, Any]) -> list[Column]:
    """Return the state columns as merges of the partials in a window, in the state's types."""
    states = []
    for column, (value, part) in state_columns(values).items():
        aggregation = values[value].parts[part]
        merged = aggregation.merge(F.col(quoted_name(column))).over(over)
        tidied = aggregation.tidy(merged) if aggregation.tidy else merged
        states.append(tidied.cast(types[column]).alias(column))
    return states


def finished_column(values: Mapping[str, Aggregation], value: str) -> Column:
    """Return a value, computed from the state columns that are its parts."""
    aggregation = values[value]
    if aggregation.is_simple:
        return F.col(quoted_name(value))
    columns = {part: F.col(quoted_name(name)) for name, (of, part) in state_columns(values).items() if of == value}
    return _finish(aggregation, columns).alias(value)


def value_over(aggregation: Aggregation, window: Any) -> Column:
    """Return a value over the rows of a window, which must have a unique order."""
    parts = {name: part.partial().over(window) for name, part in aggregation.parts.items()}
    return parts[""] if aggregation.is_simple else _finish(aggregation, parts)


def value_of(value: str, aggregation: Aggregation, floats: Collection[str]) -> Column:
    """Return a value as an aggregate expression over rows in any order; see `partial_columns`."""
    found = {column: part for column, (_, part) in state_columns({value: aggregation}).items()}
    parts = {part: _unordered(aggregation.parts[part], column in floats) for column, part in found.items()}
    return parts[""] if aggregation.is_simple else _finish(aggregation, parts)


def _finish(aggregation: Aggregation, parts: Mapping[str, Column]) -> Column:
    finish = aggregation.finish or (lambda found: F.struct(*(part.alias(name) for name, part in found.items())))
    return finish(parts[""] if set(parts) == {""} else parts)


def argument_columns(values: Iterable[Aggregation], columns: Iterable[str], keys: Iterable[str]) -> list[str]:
    """Return the columns that the values read, without tags and keys; all, if those of a value are not known.

    A value reads a field of a struct as `s.charge`, and a column whose own name has a point between backticks.
    """
    named = [aggregation.columns for aggregation in values]
    free = [name for name in columns if name not in {*TAGS, *keys}]
    if any(names is None for names in named):
        return free
    wanted = {name for names in named for name in names or ()}
    roots = {_root(name) for name in wanted - set(free)}
    return [name for name in free if name in wanted | roots]


def _root(argument: str) -> str:
    """Return the column in which an argument's value is."""
    return argument[1:].partition("`")[0] if argument.startswith("`") else argument.partition(".")[0]


__all__ = [
    "Aggregation",
    "approx_distinct",
    "collect_set",
    "count",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "sum",
]
