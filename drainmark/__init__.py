"""Drainmark: exactly-once, rewindable pipelines on Spark and Delta Lake. `import drainmark as dm`.

All that an author of an application may write is in `api.py`, and loaded at first use: parts of this package are
imported without it, by `status` and by Spark's workers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drainmark.api import *  # noqa: F403
else:  # a name that is not there is an error to a type checker, too

    def __getattr__(name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        return getattr(importlib.import_module("drainmark.api"), name)


def __dir__() -> list[str]:
    return sorted(importlib.import_module("drainmark.api").__all__)
