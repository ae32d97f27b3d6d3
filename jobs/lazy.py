"""`F`, the functions of pyspark.sql, loaded at first use: declaring and explaining a graph needs no Spark."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


class LazyModule(ModuleType):
    """A stand-in for a module; it imports the module when an attribute is first read."""

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
