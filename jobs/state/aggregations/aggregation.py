"""Mergeable aggregations: partials of each trigger, merged in id order with the state before.

An aggregation has one or more parts. A part has a partial over a trigger's rows and one aggregate function that merges
partials; the running state of a key is the merge of its partials in the order of ids, for any grouping.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.tags import POSITION, TAGS
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
        is_invertible: each part is a sum of numbers, so the partial of some rows can be subtracted again: `subtracted`.
        over_changes: of an aggregation of the library that can take rows back: its form over a change stream, made from
            Spark's name for the type of its column, such as "double" or "decimal(20,4)"; "" if it has none.
        instead: of one that cannot, what to declare over a change stream.

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
    is_invertible: bool = field(default=False, repr=False)
    over_changes: Callable[[str], Retractable] | None = field(default=None, repr=False)
    instead: str = field(default="compute the value from dm.count, dm.sum and so on in a dm.functor after", repr=False)

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


class Mergeable(Protocol):
    """The part of an aggregation that keeps a state and finishes a value."""

    @property
    def parts(self) -> Mapping[str, StateColumn]: ...
    @property
    def is_simple(self) -> bool: ...
    @property
    def finish(self) -> Callable[[Any], Column] | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Retractable:
    """An aggregation in its form over a change stream: the partials take the rows with `GONE` back.

    Its parts are those of the rows that are left, in whichever order these came and others went, and never null.

    Attributes:
        parts: by name.
        finish: from the parts to the value, of the type that the aggregation has over plain rows.
        rows: from the parts, the number of rows in the value; bigint.
        is_short: from the parts, whether a value was taken back more often than it came; never null.
    """

    parts: Mapping[str, StateColumn]
    finish: Callable[[Any], Column]
    rows: Callable[[Mapping[str, Column]], Column]
    is_short: Callable[[Mapping[str, Column]], Column]

    @property
    def is_simple(self) -> bool:
        return False


def place() -> Column:
    """Return the order of the rows of one id for `min_by` and `max_by`; never null, since both ignore rows with null.

    A union with an aggregate has rows without a position: they come first, as in a window that is ordered by it.
    """
    return F.struct(F.col(POSITION).isNotNull(), F.col(POSITION))


def state_columns(values: Mapping[str, Mergeable]) -> dict[str, tuple[str, str]]:
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


def subtracted(
    values: Mapping[str, Aggregation], state: Callable[[str], Column], part: Callable[[str], Column]
) -> list[Column]:
    """Return the state columns without the rows of a part: `state` minus `part`, for invertible aggregations.

    Sums of integers and decimals, counts, variances come out exactly; the columns of `float_sums` were rounded when the
    part was added, so they come out within rounding. A sum of which only nulls are left is 0, not null: the state does
    not know that no number is left.

    Args:
        state, part: return a state column of the whole, and of the part, by its name.
    """
    if odd := [value for value, aggregation in values.items() if not aggregation.is_invertible]:
        msg = f"{', '.join(odd)}: nothing can be subtracted from such a value"
        raise ValueError(msg)
    columns = state_columns(values)
    less = {name: F.when(part(name).isNotNull(), state(name) - part(name)).otherwise(state(name)) for name in columns}
    return [column.alias(name) for name, column in less.items()]


def partial_columns(values: Mapping[str, Mergeable], floats: Collection[str]) -> list[Column]:
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


def running_columns(values: Mapping[str, Mergeable], over: Any, types: Mapping[str, Any]) -> list[Column]:
    """Return the state columns as merges of the partials in a window, in the state's types."""
    states = []
    for column, (value, part) in state_columns(values).items():
        aggregation = values[value].parts[part]
        merged = aggregation.merge(F.col(quoted_name(column))).over(over)
        tidied = aggregation.tidy(merged) if aggregation.tidy else merged
        states.append(tidied.cast(types[column]).alias(column))
    return states


def finished_column(values: Mapping[str, Mergeable], value: str) -> Column:
    """Return a value, computed from the state columns that are its parts."""
    aggregation = values[value]
    if aggregation.is_simple:
        return F.col(quoted_name(value))
    return _finish(aggregation, parts_of(values, value)).alias(value)


def value_over(aggregation: Aggregation, window: Any) -> Column:
    """Return a value over the rows of a window, which must have a unique order."""
    parts = {name: part.partial().over(window) for name, part in aggregation.parts.items()}
    return parts[""] if aggregation.is_simple else _finish(aggregation, parts)


def value_of(value: str, aggregation: Aggregation, floats: Collection[str]) -> Column:
    """Return a value as an aggregate expression over rows in any order; see `partial_columns`."""
    found = {column: part for column, (_, part) in state_columns({value: aggregation}).items()}
    parts = {part: _unordered(aggregation.parts[part], column in floats) for column, part in found.items()}
    return parts[""] if aggregation.is_simple else _finish(aggregation, parts)


def _finish(aggregation: Mergeable, parts: Mapping[str, Column]) -> Column:
    finish = aggregation.finish or (lambda found: F.struct(*(part.alias(name) for name, part in found.items())))
    return finish(parts[""] if set(parts) == {""} else parts)


def parts_of(values: Mapping[str, Mergeable], value: str) -> dict[str, Column]:
    """Return the state columns of a value, by its parts."""
    return {part: F.col(quoted_name(name)) for name, (of, part) in state_columns(values).items() if of == value}


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
