"""The public names of Drainmark, `dm.…`, for authors of applications. Importing it starts no Spark."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import DrainmarkError
from drainmark.jobs.graph.annotations import Autonomous, Buffered, Control
from drainmark.jobs.graph.application import application, build_application, load_application
from drainmark.jobs.graph.composites import composite
from drainmark.jobs.graph.declarations import Stream, autonomous, buffered, consistent
from drainmark.jobs.graph.params import Params
from drainmark.jobs.lazy import F
from drainmark.jobs.operators.changes.apply_changes import apply_changes
from drainmark.jobs.operators.custom import custom
from drainmark.jobs.operators.deduplicate import deduplicate
from drainmark.jobs.operators.delay import delay
from drainmark.jobs.operators.dynamic_filter import dynamic_filter
from drainmark.jobs.operators.handler import Checkpoint, Copied, CowDict, SerialisedCopy, StateHandler, operator
from drainmark.jobs.operators.joins.as_of_join import join_as_of
from drainmark.jobs.operators.joins.barrier import barrier, pair
from drainmark.jobs.operators.joins.join import join
from drainmark.jobs.operators.joins.lookup import lookup
from drainmark.jobs.operators.per_trigger import per_trigger
from drainmark.jobs.operators.punctor import punctor
from drainmark.jobs.operators.row_wise.decompress import decompress
from drainmark.jobs.operators.row_wise.expect import expect
from drainmark.jobs.operators.row_wise.filter import filter  # noqa: A004
from drainmark.jobs.operators.row_wise.functor import functor, select
from drainmark.jobs.operators.row_wise.parallel_map import parallel_map
from drainmark.jobs.operators.row_wise.parse import format, parse  # noqa: A004
from drainmark.jobs.operators.row_wise.split import split
from drainmark.jobs.operators.sinks.database_sinks import DatabaseAppend, DatabaseUpsert
from drainmark.jobs.operators.sinks.delta_append import DeltaAppend
from drainmark.jobs.operators.sinks.delta_overwrite import DeltaOverwrite
from drainmark.jobs.operators.sinks.delta_upsert import DeltaUpsert
from drainmark.jobs.operators.sinks.file_sink import FileSink
from drainmark.jobs.operators.sinks.quarantine import quarantine
from drainmark.jobs.operators.sinks.sink import sink
from drainmark.jobs.operators.sort import sort
from drainmark.jobs.operators.sources.beacon import Beacon
from drainmark.jobs.operators.sources.database_source import DatabaseSource
from drainmark.jobs.operators.sources.files.directory_scan import DirectoryScan
from drainmark.jobs.operators.sources.files.directory_source import source
from drainmark.jobs.operators.sources.files.file_source import FileSource
from drainmark.jobs.operators.sources.kafka_source import KafkaSource
from drainmark.jobs.operators.sources.pushed.replayable_start import ReplayableStart
from drainmark.jobs.operators.sources.pushed.threaded_start import StartHandler, ThreadedStart
from drainmark.jobs.operators.sources.table_source import TableSource
from drainmark.jobs.operators.sql import sql
from drainmark.jobs.operators.throttle import throttle
from drainmark.jobs.operators.union import union
from drainmark.jobs.operators.unsupported_operators import gate, switch, tcp_sink, tcp_source, udp_sink, udp_source
from drainmark.jobs.operators.windows.aggregate import (
    Aggregation,
    aggregate,
    approx_distinct,
    bottom,
    collect_list,
    collect_set,
    count,
    count_distinct,
    first,
    last,
    max,  # noqa: A004 - the field's words, exported to authors as dm.max and so on
    mean,
    min,  # noqa: A004
    percentile,
    stddev,
    sum,  # noqa: A004
    top,
    variance,
)
from drainmark.jobs.operators.windows.window import session, sliding, tumbling

if TYPE_CHECKING:
    import datetime as dt

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    import drainmark.jobs.streams as counting
    import drainmark.orchestration.testing as testing  # noqa: PLR0402 - mypy finds the other form only outside of a cycle

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
    "apply_changes",
    "approx_distinct",
    "autonomous",
    "barrier",
    "bottom",
    "buffered",
    "build_application",
    "changes",
    "collect_list",
    "collect_set",
    "composite",
    "consistent",
    "count",
    "count_distinct",
    "counting",
    "custom",
    "decompress",
    "deduplicate",
    "delay",
    "dynamic_filter",
    "expect",
    "filter",
    "first",
    "format",
    "functor",
    "gate",
    "join",
    "join_as_of",
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
    "percentile",
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
    "spark_session",
    "split",
    "sql",
    "stddev",
    "sum",
    "switch",
    "tables",
    "tcp_sink",
    "tcp_source",
    "testing",
    "throttle",
    "top",
    "tumbling",
    "udp_sink",
    "udp_source",
    "union",
    "variance",
    "view",
]


def read(region: str, table: str, *, at: int | dt.datetime | None = None, home: str | None = None) -> pa.Table:
    """Read a table of a region as it is, or as it was at a consistent state.

    Args:
        region: `APP/START`, or `APP` where it has one region.
        table: name of the sink's table, e.g. `log_watch_hosts`.
        at: a sequence id, or a time: the last state committed by then; a time without an offset is UTC. The last
            committed state by default.
        home: DRAINMARK_HOME, found as the command line finds it by default.

    Raises:
        UnknownName: no such region or table.
        UsageError: `at` is neither an id nor a time.
        RewindRefused: `at` is no effective committed id.

    Example:
        newest = dm.read("shop/shop", "order_rows")  # pyarrow.Table
        after_the_first_file = dm.read("shop/shop", "order_rows", at=1)
        print(newest.num_rows, after_the_first_file.num_rows)
    """
    from drainmark.resources.checkpoints.as_of import read_at

    return read_at(region, table, at=at, home=home)


def changes(table: str, *, after: int, through: int | None = None, home: str | None = None) -> pa.Table:
    """Read what changed in a table between two consistent states, further back than Delta's log.

    Args:
        table: name of the sink's table, e.g. `order_rows`.
        after: a sequence id; the changes are those that came after it. 0 is the empty table.
        through: a sequence id, the last one whose changes count; the last committed one by default.
        home: DRAINMARK_HOME, found as the command line finds it by default.

    Returns:
        The columns of the table and `_change_type`, in the words of Delta's change data feed: `insert`, `delete`,
        `update_preimage`, `update_postimage`; in the order of `_sequence_id`, which is that of the state that wrote
        the row. `polars.from_arrow` and `to_pandas` take it.

    Raises:
        UnknownName: no region writes such a table.
        UsageError: `after` lies behind `through`.
        RewindRefused: one of them is no effective committed id, or its rows are out of reach.

    Example:
        since_the_first_file = dm.changes("order_rows", after=1)  # pyarrow.Table
        print(since_the_first_file["_change_type"].to_pylist())
    """
    from drainmark.resources.checkpoints.table_changes import changes as changes_between

    return changes_between(table, after=after, through=through, home=home)


def view(spark: SparkSession, table: str, *, at: int | dt.datetime | None = None, home: str | None = None) -> DataFrame:
    """Return a Delta sink as a Spark DataFrame, at the last committed state or at an earlier one.

    Without `at` it is the Delta table; of a `DeltaUpsert` that lags behind what is committed, the rows that are missing
    there are put over it. With `at` it is made of the files of its history, which no rewind changes; `gc` deletes those
    of withdrawn ids. Views with the same `at` of one region belong together.

    Args:
        spark: a session with Delta's jars and extensions, such as `dm.spark_session()`.
        table: name of the sink's table, e.g. `log_watch_hosts`.
        at: a sequence id, or a time, as for `dm.read`.
        home: DRAINMARK_HOME, found as the command line finds it by default.

    Raises:
        UnknownName: no region writes such a table.
        UsageError: it is no Delta table, or `at` is neither an id nor a time.
        RewindRefused: `at` is no effective committed id, or its rows are out of reach.

    Example:
        spark = dm.spark_session()
        dm.view(spark, "order_rows").where("amount > 100").show()
        dm.view(spark, "order_rows", at=1).createOrReplaceTempView("first_orders")
    """
    from drainmark.resources.checkpoints.spark_views import view_of
    from drainmark.resources.settings import load_settings

    return view_of(spark, load_settings(home=home), table, at)


def tables(region: str | None = None, *, home: str | None = None) -> list[dict[str, Any]]:
    """List the tables of a project, of an application, or of one region; Spark is not started.

    Args:
        region: `APP/START`, or `APP` for all its regions and autonomous operators; the whole project by default.
        home: DRAINMARK_HOME, found as the command line finds it by default.

    Returns:
        a mapping for each table, with the fields of `drainmark tables --json`: `table`, `region`, `role` (`sink`,
        `history`, `state`, `outside`), `operator`, `rows`, `bytes`, `files`, `last_sequence_id`, `is_of_code`,
        `left_after`, `is_there`, `is_adopted`. `pandas.DataFrame` takes the list.

    Raises:
        UnknownName: no such region or application.

    Example:
        sinks = [found["table"] for found in dm.tables() if found["role"] == "sink"]
        print(sinks)
    """
    from drainmark.orchestration.inspection.tables import tables_of_home
    from drainmark.orchestration.workplace.workplace import Workplace
    from drainmark.resources.settings import load_settings

    place = Workplace(load_settings(home=home))
    try:
        return tables_of_home(place, region)
    finally:
        if place.has_registry:
            place.registry.close()


def spark_session(*, home: str | None = None) -> SparkSession:
    """Return a Spark session with Delta, as the settings of a project ask for it; for notebooks and scripts.

    It has the master, `spark_conf`, the access to buckets and the zone, UTC, of the project's runs. A session that this
    process has already is returned, whoever made it. It ends with the process, or by `stop()`.

    Args:
        home: DRAINMARK_HOME, found as the command line finds it by default.

    Raises:
        JavaMissing: no Java runtime is found.
        SparkLost: Spark does not start, or its server does not answer.

    Example:
        spark = dm.spark_session()
        print(dm.view(spark, "order_rows").count())
    """
    from drainmark.orchestration.workplace.spark_choice import make_engine
    from drainmark.resources.settings import load_settings

    return make_engine(load_settings(home=home), is_service=False).session


def push(region: str, rows: Iterable[Mapping[str, Any]], *, start: str | None = None, home: str | None = None) -> int:
    """Append rows to the buffer of a `ReplayableStart`, all in one segment, and return its number.

    They are durable when this returns. From then on they are triggers like any other input.

    Args:
        region: `APP/START`, or `APP` where it has one region.
        rows: each a mapping of columns to JSON values; times as ISO texts.
        start: name of the start, if several take rows.
        home: DRAINMARK_HOME, found as the command line finds it by default.

    Raises:
        UnknownName: no such region, or its code cannot be found.
        UsageError: the region has no such start, or a row is no JSON object; nothing was appended.

    Example:
        number = dm.push("shop/reviews", [{"item": "tea", "stars": 5}])
        print(number)
    """
    from drainmark.orchestration.verbs.inputs.push import push as push_rows
    from drainmark.orchestration.workplace.workplace import Workplace
    from drainmark.resources.settings import load_settings

    place = Workplace(load_settings(home=home))
    try:
        return push_rows(place, region, rows, start=start)
    finally:
        place.registry.close()


_PACKAGES = {"counting": "drainmark.jobs.streams", "testing": "drainmark.orchestration.testing"}


def __getattr__(name: str) -> Any:
    """Find a package of the facade, or what an operator file of the library exports and this facade does not name."""
    if name in _PACKAGES:
        return importlib.import_module(_PACKAGES[name])
    from drainmark.jobs.operators.catalogue import exports

    try:
        return exports()[name]
    except KeyError:
        close = difflib.get_close_matches(name, [*__all__, *exports()], n=1)
        meant = f", but {close[0]!r}" if close else ""
        msg = f"module 'drainmark' has no attribute {name!r}{meant}"
        raise AttributeError(msg) from None
