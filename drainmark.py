"""Drainmark: exactly-once, rewindable pipelines on Spark and Delta Lake. `import drainmark as dm`.

Everything an author of applications uses, and nothing else. Importing it starts no Spark.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from jobs.errors import DrainmarkError
from jobs.graph.annotations import Autonomous, Buffered, Control
from jobs.graph.application import application, build_application, load_application
from jobs.graph.composites import composite
from jobs.graph.declarations import Stream, autonomous, buffered, consistent
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
from jobs.operators.barrier import barrier, pair
from jobs.operators.beacon import Beacon
from jobs.operators.custom import custom
from jobs.operators.database_sinks import DatabaseAppend, DatabaseUpsert
from jobs.operators.database_source import DatabaseSource
from jobs.operators.decompress import decompress
from jobs.operators.deduplicate import deduplicate
from jobs.operators.delay import delay
from jobs.operators.delta_append import DeltaAppend
from jobs.operators.delta_overwrite import DeltaOverwrite
from jobs.operators.delta_upsert import DeltaUpsert
from jobs.operators.directory_scan import DirectoryScan, source
from jobs.operators.dynamic_filter import dynamic_filter
from jobs.operators.file_sink import FileSink
from jobs.operators.file_source import FileSource
from jobs.operators.filter import filter  # noqa: A004
from jobs.operators.functor import functor, select
from jobs.operators.handled import Checkpoint, Copied, CowDict, SerialisedCopy, StateHandler, operator
from jobs.operators.join import join
from jobs.operators.kafka_source import KafkaSource
from jobs.operators.lookup import lookup
from jobs.operators.parallel_map import parallel_map
from jobs.operators.parse import format, parse  # noqa: A004
from jobs.operators.per_trigger import per_trigger
from jobs.operators.punctor import punctor
from jobs.operators.quarantine import quarantine
from jobs.operators.replayable_start import ReplayableStart
from jobs.operators.sink import sink
from jobs.operators.sort import sort
from jobs.operators.split import split
from jobs.operators.sql import sql
from jobs.operators.table_source import TableSource
from jobs.operators.threaded_start import StartHandler, ThreadedStart
from jobs.operators.throttle import throttle
from jobs.operators.union import union
from jobs.operators.unsupported import gate, switch, tcp_sink, tcp_source, udp_sink, udp_source
from jobs.operators.windows import session, sliding, tumbling

if TYPE_CHECKING:
    import pyarrow as pa

    import jobs.counting as counting  # noqa: PLR0402
    import orchestration.testing as testing  # noqa: PLR0402 - mypy finds the other form only outside of a cycle

__all__ = [
    "Aggregation",
    "Autonomous",
    "Beacon",
    "Buffered",
    "Checkpoint",
    "Control",
    "Copied",
    "CowDict",
    "DatabaseAppend",
    "DatabaseSource",
    "DatabaseUpsert",
    "DeltaAppend",
    "DeltaOverwrite",
    "DeltaUpsert",
    "DirectoryScan",
    "DrainmarkError",
    "F",
    "FileSink",
    "FileSource",
    "KafkaSource",
    "Params",
    "ReplayableStart",
    "SerialisedCopy",
    "StartHandler",
    "StateHandler",
    "Stream",
    "TableSource",
    "ThreadedStart",
    "aggregate",
    "application",
    "approx_distinct",
    "autonomous",
    "barrier",
    "buffered",
    "build_application",
    "collect_set",
    "composite",
    "consistent",
    "count",
    "counting",
    "custom",
    "decompress",
    "deduplicate",
    "delay",
    "dynamic_filter",
    "filter",
    "first",
    "format",
    "functor",
    "gate",
    "join",
    "last",
    "load_application",
    "lookup",
    "max",
    "mean",
    "min",
    "operator",
    "pair",
    "parallel_map",
    "parse",
    "per_trigger",
    "punctor",
    "push",
    "quarantine",
    "read",
    "select",
    "session",
    "sink",
    "sliding",
    "sort",
    "source",
    "split",
    "sql",
    "sum",
    "switch",
    "tcp_sink",
    "tcp_source",
    "testing",
    "throttle",
    "tumbling",
    "udp_sink",
    "udp_source",
    "union",
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


def push(region: str, rows: Iterable[Mapping[str, Any]], *, start: str | None = None, home: str | None = None) -> int:
    """Append rows to the buffer of a `ReplayableStart`, all in one segment; return its number.

    They are durable when this returns. From then on they are triggers like any other input.

    Args:
        region: `APP/START`, or `APP` where it has one region.
        rows: by column, values of JSON; times as ISO texts.
        start: which start, where several take rows.
        home: DRAINMARK_HOME, found as the command line finds it by default.

    Raises:
        UnknownName: no such region, or its code cannot be found.
        UsageError: the region has no such start, or a row is no JSON object; nothing was appended.
    """
    from orchestration.assembly import Workplace
    from orchestration.pushing import push as push_rows
    from resources.settings import load_settings

    place = Workplace(load_settings(home=home))
    try:
        return push_rows(place, region, rows, start=start)
    finally:
        place.registry.close()


_PACKAGES = {"counting": "jobs.counting", "testing": "orchestration.testing"}


def __getattr__(name: str) -> Any:
    """Find a package of the facade, or what an operator file of the library exports and this facade does not name."""
    if name in _PACKAGES:
        return importlib.import_module(_PACKAGES[name])
    from jobs.operators.catalogue import exports

    try:
        return exports()[name]
    except KeyError:
        msg = f"module 'drainmark' has no attribute {name!r}"
        raise AttributeError(msg) from None
