"""The catalogue: every public name of every operator file, and every kind of operator."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import Any

import jobs.operators as library
from jobs.graph.operator import Operator


@functools.cache
def exports() -> dict[str, Any]:
    """Return what the operator files make public, by name."""
    found: dict[str, Any] = {}
    for module_info in pkgutil.iter_modules(library.__path__):
        if module_info.name == "catalogue":
            continue
        module = importlib.import_module(f"{library.__name__}.{module_info.name}")
        found.update({name: getattr(module, name) for name in getattr(module, "__all__", ())})
    return found


def kinds() -> tuple[type[Operator], ...]:
    """Return the concrete operator classes of the library, sorted by kind."""
    exports()

    def concrete(base: type[Operator]) -> list[type[Operator]]:
        below = [cls for child in base.__subclasses__() for cls in concrete(child)]
        is_ours = isinstance(getattr(base, "kind", None), str) and base.__module__.startswith(library.__name__)
        return [base, *below] if is_ours else below

    return tuple(sorted(set(concrete(Operator)), key=lambda cls: cls.kind))
