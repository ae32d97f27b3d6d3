"""Loading of an author's module without a Spark session: for `graph` there never is one, for a run it comes later.

pyspark binds a function to a session when its decorator, such as `@udf` at the top of a module, is called, and reads
types in DDL with the parser of that session. Here it is bound at its first use instead: pyspark's own factory is called
then, and makes the function for the session of the run, classic or Spark Connect. Code that cannot wait, a Column at
the top of a module or a session of the author's own, is refused with its line.

This is the only module that changes pyspark, which has no hook for either; `test_sessionless.py` fails if pyspark
changes. Loading it loads no Spark: pyspark is changed when an author's module, or a run, imports it.
"""

from __future__ import annotations

import functools
import importlib
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, TracebackType
from typing import Any

from drainmark.jobs.errors import DeclarationError, Violation
from drainmark.jobs.graph.own_modules import authors_line

FACTORIES = ("udf", "pandas_udf", "arrow_udf", "udtf", "arrow_udtf")
"""The factories of pyspark that make functions for workers out of functions of the author's."""

_NAMES = ("pyspark.sql.functions", "pyspark.sql.functions.builtin", "pyspark.sql.pandas.functions")
_NO_SESSION = {
    "SESSION_OR_CONTEXT_NOT_EXISTS", "NO_ACTIVE_OR_DEFAULT_SESSION", "NO_ACTIVE_SESSION", "CONNECT_URL_NOT_SET",
}  # fmt: skip
_loading: ContextVar[bool] = ContextVar("loading", default=False)
_calling: ContextVar[bool] = ContextVar("calling", default=False)


class LateFunction:
    """The result of `udf` and its kin: the user-defined function that pyspark makes at its first use in a session."""

    def __init__(self, make: Callable[[], Any], function: Any) -> None:
        self.func = function
        self._make = make
        self._made: tuple[Any, Any] | None = None
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *columns: Any, **named: Any) -> Any:
        return self._bound()(*columns, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._bound(), name)

    def __reduce__(self) -> Any:
        return LateFunction, (self._make, self.func)

    def asNondeterministic(self) -> LateFunction:
        """Return the same function, which may give other values when it is called again."""
        return LateFunction(lambda: self._make().asNondeterministic(), self.func)

    def asDeterministic(self) -> LateFunction:
        """Return the same table function, which gives the same rows when it is called again."""
        return LateFunction(lambda: self._make().asDeterministic(), self.func)

    def _bound(self) -> Any:
        session = _session()
        if self._made is None or self._made[0] is not session:
            with warnings.catch_warnings():  # pyspark warns about hints of plain types, `str -> str`
                warnings.filterwarnings("ignore", message="Cannot infer the eval type")
                self._made = session, self._make()
        return self._made[1]


@contextmanager
def module_loading(name: str) -> Iterator[None]:
    """Load an application's module inside the block; code that needs a Spark session is refused.

    Raises:
        DeclarationError: rule NEEDS_SESSION, with file and line.
    """
    change_pyspark()
    token = _loading.set(True)
    try:
        yield
    except Exception as error:
        condition = getattr(error, "getCondition", None)
        if condition is not None and condition() in _NO_SESSION:
            raise _refusal(name, "a Column, a window or a type in DDL is made", error.__traceback__) from error
        if isinstance(error, _SessionAtImport):
            raise _refusal(name, "a Spark session is asked for", error.__traceback__) from None
        raise
    finally:
        _loading.reset(token)


@contextmanager
def function_called() -> Iterator[None]:
    """Call a function of the author's inside the block: if it asks for a session, it gets the one of the run."""
    token = _calling.set(True)
    try:
        yield
    finally:
        _calling.reset(token)


class _SessionAtImport(Exception):
    pass


def _refusal(name: str, what: str, trace: TracebackType | None) -> DeclarationError:
    location = authors_line((frame.filename, frame.lineno) for frame in reversed(traceback.extract_tb(trace)))
    violation = Violation(
        rule="NEEDS_SESSION",
        message=f"{what} while the module is loaded, when there is no Spark session",
        location=location,
        remedy="move it into the function that uses it; the session is `frame.sparkSession` of a stream there;"
        " dm.aggregate takes dm.sum(…), not F.sum(…)",
    )
    return DeclarationError(name, [violation])


# --- the changes of pyspark ---------------------------------------------------------------------------------------


def change_pyspark() -> None:
    """Change the modules of pyspark, those not loaded yet when they are loaded; a repeated call does nothing.

    A module that another thread is loading, such as one that connects to Spark, is waited for.
    """
    for name in _CHANGES:
        if name in sys.modules:
            _change(importlib.import_module(name))
    if not any(isinstance(finder, _Changing) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Changing())


def _change_functions(_: ModuleType) -> None:
    for home in map(importlib.import_module, _NAMES):
        for name in FACTORIES:
            if name in vars(home):
                setattr(home, name, _late(getattr(home, name)))


def _late(factory: Any) -> Any:
    """Return a factory that has the given one make its functions, later."""

    @functools.wraps(factory)
    def declare(*arguments: Any, **named: Any) -> Any:
        function = arguments[0] if arguments else named.get("f", named.get("cls"))
        if callable(function):
            return LateFunction(lambda: factory(*arguments, **named), function)
        return lambda function: LateFunction(lambda: factory(*arguments, **named)(function), function)

    return declare


def _change_session(module: ModuleType) -> None:
    builder: Any = module.SparkSession.Builder
    original = builder.getOrCreate

    @functools.wraps(original)
    def get_or_create(self: Any) -> Any:
        if _loading.get():
            raise _SessionAtImport
        return _session_of_the_run(module.SparkSession) if _calling.get() else original(self)

    builder.getOrCreate = get_or_create


def _session_of_the_run(session: Any) -> Any:
    from pyspark.sql.utils import is_remote

    return session.active() if is_remote() else session._instantiatedSession  # the active one is the thread's


def _change_context(module: ModuleType) -> None:
    context: Any = module.SparkContext
    original = context.__init__

    @functools.wraps(original)
    def start(self: Any, *arguments: Any, **named: Any) -> None:
        if _loading.get():
            raise _SessionAtImport
        original(self, *arguments, **named)

    context.__init__ = start


_CHANGES: dict[str, Callable[[ModuleType], None]] = {
    "pyspark.sql.functions": _change_functions,
    "pyspark.sql.session": _change_session,
    "pyspark.core.context": _change_context,
}
_changed: dict[str, ModuleType] = {}


def _change(module: ModuleType) -> None:
    if _changed.get(module.__name__) is not module:
        _changed[module.__name__] = module
        _CHANGES[module.__name__](module)


class _Changing(MetaPathFinder):
    """A finder that finds the modules to be changed as usual, and changes each after it was loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in _CHANGES else None
        if spec is not None and spec.loader is not None:
            _change_when_loaded(spec.loader)
        return spec


def _change_when_loaded(loader: Loader) -> None:
    original = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        original(module)
        _change(module)

    loader.exec_module = exec_module  # type: ignore[method-assign]


def _session() -> Any:
    """Return the object that functions are bound to: a classic context, or one text for all of Spark Connect."""
    from pyspark.sql.utils import is_remote

    if is_remote():
        return "connect"
    from pyspark import SparkContext

    return SparkContext._active_spark_context
