"""Gets an author's functions to Spark's Python workers: no import path leads a worker to an application's file."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder

from jobs.graph.operator import Operator, UserFunction


def ship_by_value(operators: Iterable[Operator]) -> None:
    """Have functions of modules that a worker cannot import pickled whole, with the globals that they use.

    That is an application given as a Python file: what its UDFs refer to at module level would else be looked up in a
    module that only this process has.
    """
    from pyspark.cloudpickle import register_pickle_by_value

    for operator in operators:
        function: UserFunction | None = getattr(operator, "function", None)
        name = getattr(function.function, "__module__", None) if function else None
        if name in sys.modules and name != "__main__" and not _can_be_imported(name):
            register_pickle_by_value(sys.modules[name])


def _can_be_imported(name: str) -> bool:
    """Say whether a worker would find the module: it has what is installed, not what this process has on its path."""
    top = name.partition(".")[0]
    installed = [entry for entry in sys.path if entry.startswith((sys.prefix, sys.base_prefix))]
    if top in sys.builtin_module_names or PathFinder.find_spec(top, installed) is not None:
        return True
    editable = (finder for finder in sys.meta_path if getattr(finder, "__module__", "").startswith("__editable__"))
    return any(finder.find_spec(top, None) is not None for finder in editable)
