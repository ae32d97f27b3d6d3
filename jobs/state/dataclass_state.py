"""State that authors write as a dataclass, stored as typed columns: no pickle, and new code reads an old state.

A field is a column of the state's table; the annotation gives its type. If older rows lack a field, it takes its
default.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import UsageError
from drainmark.jobs.state.columns import differs, holder_of, plain

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_SIMPLE = {
    int: "LongType",
    float: "DoubleType",
    str: "StringType",
    bool: "BooleanType",
    bytes: "BinaryType",
    dt.datetime: "TimestampType",
    dt.date: "DateType",
}
_REMEDY = "int, float, str, bool, bytes, datetime, date, Decimal, list, tuple[T, ...], dict, or a dataclass of these"


def struct_of(state_class: type) -> StructType:
    """Return the columns of a state class.

    Raises:
        UsageError: the class is no dataclass, or a field has a type that no column can hold.
    """
    struct: StructType = _spark_type(("struct", check_state(state_class)))
    return struct


def check_state(state_class: type) -> dict[str, Any]:
    """Return the columns of a state class by name, without Spark: `("simple", "LongType")`, `("array", …)` and so on.

    Raises:
        UsageError: as `struct_of`.
    """
    if not (isinstance(state_class, type) and dataclasses.is_dataclass(state_class)):
        raise UsageError(f"the state {state_class!r} is no dataclass", remedy="write @dataclass above the class")
    hints = typing.get_type_hints(state_class)
    return {
        field.name: _column_of(hints[field.name], f"{state_class.__name__}.{field.name}")
        for field in dataclasses.fields(state_class)
    }


def _column_of(hint: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        present = [argument for argument in arguments if argument is not type(None)]
        if len(present) == 1:
            return _column_of(present[0], where)
    elif hint in _SIMPLE:
        return "simple", _SIMPLE[hint]
    elif hint is decimal.Decimal:
        return ("decimal",)
    elif origin is list or (origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis):
        return "array", _column_of(arguments[0], where)
    elif origin is dict:
        return "map", _column_of(arguments[0], where), _column_of(arguments[1], where)
    elif isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return "struct", check_state(hint)
    raise UsageError(f"{where} is a {hint}, which no column can hold", remedy=_REMEDY)


def _spark_type(column: Any) -> Any:
    from pyspark.sql import types as spark

    kind, *parts = column
    if kind == "simple":
        return getattr(spark, parts[0])()
    if kind == "decimal":
        return spark.DecimalType(38, 18)
    if kind == "array":
        return spark.ArrayType(_spark_type(parts[0]), True)
    if kind == "map":
        return spark.MapType(_spark_type(parts[0]), _spark_type(parts[1]), True)
    return spark.StructType([spark.StructField(name, _spark_type(one), True) for name, one in parts[0].items()])


def reader_of(state_class: type) -> Callable[[Mapping[str, Any]], Any]:
    """Return a function that makes a state from its columns; a field that must not be None takes its default for null.

    Annotations are resolved at once: a worker has the class, but not always the module that defines it.
    """
    hints = typing.get_type_hints(state_class)
    fields = [
        (field.name, _reader(hints[field.name]), _has_default(field) and not _takes_none(hints[field.name]))
        for field in dataclasses.fields(state_class)
    ]

    def read(row: Mapping[str, Any]) -> Any:
        found = ((name, typed, row.get(name), falls_back) for name, typed, falls_back in fields)
        values = {name: typed(value) for name, typed, value, falls_back in found if value is not None or not falls_back}
        return state_class(**values)

    return read


def keeper_of(
    restore: Callable[[dict[str, Any]], Any], kinds: Mapping[str, pa.DataType]
) -> Callable[[Any], tuple[dict[str, Any], Any]]:
    """Return a function that gives a state's columns, and the state that a later run makes from them.

    The function raises ValueError, which names the field, if that state differs from the given one. Otherwise the
    grouping would matter: after a group of one trigger the field has its column's value, within a larger group its own.

    Args:
        restore: the function that `reader_of` returned.
        kinds: the columns' types by field.
    """
    holders = [(name, holder_of(kind), kind) for name, kind in kinds.items()]

    def keep(state: Any) -> tuple[dict[str, Any], Any]:
        row: dict[str, Any] = plain(state)
        held: dict[str, Any] = {}
        for name, hold, _ in holders:
            try:
                held[name] = hold(row.get(name))
            except ValueError as error:
                raise ValueError(f"the state's field {name!r}: {error}") from error
        restored = restore(held)
        for name, _, kind in holders:
            if held[name] is None or isinstance(held[name], list | dict):
                again = plain(getattr(restored, name))
                if differs(held[name], again, kind):
                    raise ValueError(f"the state's field {name!r}: {row[name]!r} comes back as {again!r}")
        return held, restored

    return keep


def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return a function that makes a field's value from the value in its column."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _reader(next(argument for argument in arguments if argument is not type(None)))
    if origin in (list, tuple):
        item = _reader(arguments[0])
        return lambda value: None if value is None else origin(map(item, value))
    if origin is dict:
        key, item = map(_reader, arguments)
        return lambda value: None if value is None else {key(each): item(one) for each, one in _pairs(value)}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        read = reader_of(hint)
        return lambda value: None if value is None else read(value)
    return _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _pairs(value: Any) -> Iterable[tuple[Any, Any]]:
    return value.items() if isinstance(value, Mapping) else value


def _takes_none(hint: Any) -> bool:
    return type(None) in typing.get_args(hint)


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
