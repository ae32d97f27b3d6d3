"""Operators that read the clock: after a failure or a rewind they would give other rows.

The committed rows are the computed rows, so no row is doubled or lost; but results depend on the time at which a group
was processed. The search covers the bytecode of the author's functions, the functions of their module that they call,
and SQL. It is a report for people: it sees neither into other modules nor names that are built at run time.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import dis
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from drainmark.jobs.graph.code_digests import UserFunction
from drainmark.jobs.graph.operator import Operator

_TIME = frozenset({"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"})
_NOW = frozenset({"now", "utcnow", "today"})
_SPARK = frozenset({"current_timestamp", "current_date", "curdate", "localtimestamp", "now", "current_time"})
_FUNCTIONS = "pyspark.sql.functions"
_TEXTUAL = frozenset(
    {f"time.{name}" for name in _TIME}
    | {f"{owner}.{name}" for owner in ("datetime", "Timestamp") for name in _NOW}
    | {"date.today"}
    | {f"F.{name}" for name in _SPARK}
)
"""Clocks that are recognised by their names alone, if a function imports them inside."""

_SQL = re.compile(
    r"\b(current_timestamp|current_date|localtimestamp|current_time|(?:now|curdate|unix_timestamp)\s*\(\s*\))",
    re.IGNORECASE,
)
_NO_SQL = frozenset({"name", "inputs", "location", "consistent", "autonomous", "composite", "output", "keys", "schema"})
_ROOTS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_FAST")
_PLAIN = (type(None), int, float, bytes, dt.date, dt.time, dt.timedelta)
"""Types that are no mappings; a check with `Mapping` is slow for a class that Python has not checked before."""

_BETWEEN = frozenset({"CACHE", "PUSH_NULL", "EXTENDED_ARG"})

Statement = Callable[[str], str]


def clock_reads(operator: Operator, statement: Statement | None = None) -> tuple[str, ...]:
    """Return the clocks that an operator reads, named as in its code, sorted: `datetime.now`, `current_timestamp`.

    The thread of a start may read the clock: its rows are kept, and are the same in a replay.

    Args:
        statement: returns the text of an SQL file, by its name in the operator.
    """
    found: set[str] = set()
    for field in dataclasses.fields(operator):
        value = getattr(operator, field.name)
        value = value.function if isinstance(value, UserFunction) else value
        if field.name == "statement" and isinstance(value, str):
            found.update(_in_sql(statement(value)) if statement is not None else ())
        elif field.name not in _NO_SQL:
            found.update(_in_value(value, operator))
    return tuple(sorted(found))


def _in_value(value: Any, operator: Operator) -> Iterator[str]:
    """Yield the clocks that a value of an operator reads: a function, a class, SQL, or several of them.

    Texts of sources and sinks are names of places, and a source's class is a thread: they are left out.
    """
    if isinstance(value, FunctionType):
        yield from _in_function(value, set())
    elif isinstance(value, type):
        yield from () if operator.is_source else _in_class(value)
    elif isinstance(value, str):
        yield from () if operator.is_sink or operator.is_source else _in_sql(value)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _in_value(item, operator)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _in_value(getattr(value, field.name), operator)
    elif not isinstance(value, _PLAIN) and isinstance(value, Mapping):
        for item in value.values():
            yield from _in_value(item, operator)


def _in_class(kind: type) -> Iterator[str]:
    """Yield the clocks that the methods of an author's class read, also methods inherited from classes of authors."""
    library = (
        "builtins",
        "drainmark.jobs.graph.",
        "drainmark.jobs.operators.",
        "drainmark.jobs.runtime.",
        "drainmark.jobs.state.",
    )
    own = [base for base in kind.__mro__ if not base.__module__.startswith(library)]
    seen: set[CodeType] = set()
    for method in (each for base in own for each in vars(base).values()):
        plain = inspect.unwrap(getattr(method, "__func__", method))
        if isinstance(plain, FunctionType):
            yield from _in_function(plain, seen)


def _in_sql(text: str) -> Iterator[str]:
    if not text.strip().isidentifier():  # a column's name
        yield from (found.lower().replace(" ", "") for found in _SQL.findall(text))


def _in_function(function: FunctionType, seen: set[CodeType]) -> Iterator[str]:
    """Yield the clocks that a function reads, and those that the functions of its module read which it calls."""
    for code in _codes(function.__code__):
        if code in seen:
            continue
        seen.add(code)
        for text in code.co_consts[1:]:  # the first is the docstring
            if isinstance(text, str):
                yield from _in_sql(text)
        for path in _paths(code):
            if _is_clock(path, function):
                yield ".".join(path[-2:])
            called = function.__globals__.get(path[0])
            called = inspect.unwrap(called) if callable(called) and not isinstance(called, type) else None
            if isinstance(called, FunctionType) and called.__module__ == function.__module__:
                yield from _in_function(called, seen)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def _paths(code: CodeType) -> Iterator[tuple[str, ...]]:
    """Yield the names, with their attributes, that a piece of code loads: `("dt", "datetime", "now")`."""
    path: tuple[str, ...] = ()
    for instruction in dis.get_instructions(code):
        if instruction.opname in _BETWEEN:
            continue
        if path and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            path = (*path, str(instruction.argval))
            continue
        if path:
            yield path
        path = (str(instruction.argval),) if instruction.opname in _ROOTS else ()
    if path:
        yield path


def _is_clock(path: tuple[str, ...], function: FunctionType) -> bool:
    """Say whether a name stands for a clock, without importing a module and without running code."""
    found, is_known = _root(path[0], function)
    if not is_known:
        return ".".join(path[-2:]) in _TEXTUAL
    if len(path) == 1:
        home, name = getattr(found, "__module__", None), getattr(found, "__name__", "")
        is_spark = isinstance(found, FunctionType) and str(home).startswith("pyspark.sql")
        return (home == "time" and name in _TIME) or (is_spark and name in _SPARK)
    for attribute in path[1:]:
        if isinstance(found, ModuleType):
            name = found.__name__
            if (name == "time" and attribute in _TIME) or (name == _FUNCTIONS and attribute in _SPARK):
                return True
        if isinstance(found, type) and issubclass(found, dt.date) and attribute in _NOW:
            return True
        found = _attribute(found, attribute)
    return False


def _attribute(found: Any, name: str) -> Any:
    """Return the object of a name in a module or class, None if unknown; only Drainmark's own facade may load it."""
    if isinstance(found, ModuleType) and found.__name__ == "drainmark":
        return getattr(found, name, None)
    return inspect.getattr_static(found, name, None) if isinstance(found, ModuleType | type) else None


def _root(name: str, function: FunctionType) -> tuple[Any, bool]:
    """Return the object of a name in a function, and whether it is known."""
    around = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
    if name in around:
        try:
            return around[name].cell_contents, True
        except ValueError:  # it is bound later
            return None, False
    return (function.__globals__[name], True) if name in function.__globals__ else (None, False)
