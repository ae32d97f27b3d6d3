"""`F`, the functions of pyspark.sql, loaded at first use: declaring and explaining a graph needs no Spark."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


class LazyModule(ModuleType):
    """Stand-in for a module that imports it when an attribute is first asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


_F = """The functions of `pyspark.sql.functions`, loaded at first use: `dm.F`, or `from drainmark import F`.

Example:
    @dm.functor
    def shouted(orders):
        return dm.select(orders, "id", F.upper("customer").alias("customer"))
"""

F: Any = LazyModule("pyspark.sql.functions", _F)
