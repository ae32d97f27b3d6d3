"""Drainmark: exactly-once, rewindable pipelines on Spark and Delta Lake. `import drainmark as dm`.

Everything an author of applications uses, and nothing else. Importing it starts no Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jobs.errors import DrainmarkError
from jobs.graph.annotations import Autonomous, Control
from jobs.graph.application import application, build_application, load_application
from jobs.graph.declarations import Stream, autonomous, consistent
from jobs.graph.params import Params
from jobs.lazy import F
from jobs.operators.aggregate import (
    Aggregation,
    aggregate,
    approx_distinct,
    collect_set,
    count,
    first,
    last,
    max,  # noqa: A004 - the field's words: users write dm.max, dm.sum
    mean,
    min,  # noqa: A004
    sum,  # noqa: A004
)
from jobs.operators.custom import custom
from jobs.operators.delta_append import DeltaAppend
from jobs.operators.delta_upsert import DeltaUpsert, sink
from jobs.operators.directory_scan import DirectoryScan, source
from jobs.operators.filter import filter  # noqa: A004
from jobs.operators.functor import functor, select
from jobs.operators.lookup import lookup
from jobs.operators.per_trigger import per_trigger
from jobs.operators.sql import sql
from jobs.operators.windows import session, sliding, tumbling

if TYPE_CHECKING:
    import pyarrow as pa

    import orchestration.testing as testing  # noqa: PLR0402 - mypy finds the other form only outside of a cycle

__all__ = [
    "Aggregation",
    "Autonomous",
    "Control",
    "DeltaAppend",
    "DeltaUpsert",
    "DirectoryScan",
    "DrainmarkError",
    "F",
    "Params",
    "Stream",
    "aggregate",
    "application",
    "approx_distinct",
    "autonomous",
    "build_application",
    "collect_set",
    "consistent",
    "count",
    "custom",
    "filter",
    "first",
    "functor",
    "last",
    "load_application",
    "lookup",
    "max",
    "mean",
    "min",
    "per_trigger",
    "read",
    "select",
    "session",
    "sink",
    "sliding",
    "source",
    "sql",
    "sum",
    "testing",
    "tumbling",
]


def read(region: str, table: str, *, at: int | None = None, home: str | None = None) -> pa.Table:
    """Return a sink of a region as it was at a consistent state, every table at the same one.

    Args:
        region: `APP/START`, or `APP` where it has one region.
        table: name of the sink's table, e.g. `log_watch_hosts`.
        at: a sequence id; the last committed one by default.
        home: DRAINMARK_HOME, found as the command line finds it by default.

    Raises:
        UnknownName: no such region or table.
        RewindRefused: `at` is no effective committed id.
    """
    from resources.reading import read_at

    return read_at(region, table, at=at, home=home)


def __getattr__(name: str) -> Any:
    """Find the test kit, or what an operator file of the library exports and this facade does not name yet."""
    if name == "testing":
        return importlib.import_module("orchestration.testing")
    from jobs.operators.catalogue import exports

    try:
        return exports()[name]
    except KeyError:
        msg = f"module 'drainmark' has no attribute {name!r}"
        raise AttributeError(msg) from None
