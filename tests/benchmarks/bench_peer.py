"""The peer: Structured Streaming with Delta sinks, doing the job as a competent Spark engineer would write it."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_input import LIMIT, SCHEMA, as_totals

from drainmark.jobs.lazy import F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The times and the result of one run.

    Attributes:
        whole_seconds: from the call to the end, including start and stop.
        span_seconds: from the beginning of the first trigger to the end of the last.
        kept: number of rows in the append sink.
        totals: key -> (rows, sum).
    """

    whole_seconds: float
    span_seconds: float
    triggers: int
    kept: int
    totals: Mapping[str, tuple[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job of a peer.

    Attributes:
        inbox: folder of the files.
        home: folder of this run alone, for tables and query checkpoints.
        files: the most files in a trigger.
        upsert: the totals go to a Delta table with one row for each key.
    """

    session: SparkSession
    inbox: Path
    home: Path
    files: int
    upsert: bool


Start = Callable[[Job], list["StreamingQuery"]]


def two_queries(job: Job) -> list[StreamingQuery]:
    """Start two queries in one session: filter -> Delta append, and a stateful aggregation.

    Without an upsert sink, only Spark's state store keeps the aggregate; it is written nowhere else.
    """
    rows = _read(job)
    large = rows.where(F.col("amount") > LIMIT).writeStream.format("delta")
    totals = _by_key(rows).writeStream.outputMode("update")
    if job.upsert:
        _create_totals(job)
        totals = totals.foreachBatch(lambda batch, number: _merge(batch, job.home, "source.n", "source.total"))
    else:
        totals = totals.format("noop")
    return [
        _idle_soon(large, job.home / "checkpoint_large").start(str(job.home / "large")),
        _idle_soon(totals, job.home / "checkpoint_totals").start(),
    ]


def one_query_merging(job: Job) -> list[StreamingQuery]:
    """Start one query without state: each batch is appended, and its totals are merged into a Delta table."""
    _create_totals(job)
    added = ("target.n + source.n", "target.total + source.total")

    def write(batch: DataFrame, number: int) -> None:
        _side_by_side(
            batch,
            lambda: _append(batch.where(F.col("amount") > LIMIT), job.home / "large", number),
            lambda: _merge(_by_key(batch), job.home, *added),
        )

    return [_each_batch(job, write)]


def one_query_appending(job: Job) -> list[StreamingQuery]:
    """Start one query without state: each batch and its totals are appended; a reader must add up the totals."""

    def write(batch: DataFrame, number: int) -> None:
        _side_by_side(
            batch,
            lambda: _append(batch.where(F.col("amount") > LIMIT), job.home / "large", number),
            lambda: _append(_by_key(batch), job.home / "totals", number),
        )

    return [_each_batch(job, write)]


def complete_mode(job: Job) -> list[StreamingQuery]:
    """Start the queries of `two_queries`, but write the whole table of totals with each trigger."""
    rows = _read(job)
    large = rows.where(F.col("amount") > LIMIT).writeStream.format("delta")
    totals = _by_key(rows).writeStream.format("delta").outputMode("complete")
    return [
        _idle_soon(writer, job.home / f"checkpoint_{name}").start(str(job.home / name))
        for name, writer in (("large", large), ("totals", totals))
    ]


def measure(start: Start, job: Job) -> Measured:
    """Run a peer over a folder until it is idle."""
    job.home.mkdir(parents=True)
    began = time.monotonic()
    queries = start(job)
    for query in queries:
        query.awaitTermination()
    whole = time.monotonic() - began
    span, triggers = _span(queries)
    kept = job.session.read.format("delta").load(str(job.home / "large")).count()
    return Measured(whole_seconds=whole, span_seconds=span, triggers=triggers, kept=kept, totals=_totals(job))


# --- how ----------------------------------------------------------------------------------------------------------


def _read(job: Job) -> DataFrame:
    """Return the folder as a stream. A query parses only the columns that it needs; our own session forbids that."""
    reader = job.session.readStream.schema(SCHEMA).option("columnPruning", True)
    return reader.option("maxFilesPerTrigger", job.files).csv(str(job.inbox))


def _by_key(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(F.count(F.lit(1)).alias("n"), F.sum("amount").alias("total"))


def _idle_soon(writer: Any, checkpoint: Path) -> Any:
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)


def _each_batch(job: Job, write: Callable[[DataFrame, int], None]) -> StreamingQuery:
    query: StreamingQuery = _idle_soon(_read(job).writeStream.foreachBatch(write), job.home / "checkpoint").start()
    return query


def _side_by_side(batch: DataFrame, *actions: Callable[[], None]) -> None:
    batch.persist()
    try:
        with ThreadPoolExecutor(len(actions)) as pool:
            for done in [pool.submit(action) for action in actions]:
                done.result()
    finally:
        batch.unpersist()


def _append(rows: DataFrame, path: Path, number: int) -> None:
    options = {"txnAppId": "bench", "txnVersion": str(number)}
    rows.write.format("delta").options(**options).mode("append").save(str(path))


def _create_totals(job: Job) -> None:
    empty = job.session.createDataFrame([], "k string, n bigint, total double")
    empty.write.format("delta").save(str(job.home / "totals"))


def _merge(batch: DataFrame, home: Path, count: str, total: str) -> None:
    from delta.tables import DeltaTable

    table = DeltaTable.forPath(batch.sparkSession, str(home / "totals")).alias("target")
    merger = table.merge(batch.alias("source"), "target.k <=> source.k")
    merger.whenMatchedUpdate(set={"n": count, "total": total}).whenNotMatchedInsertAll().execute()


def _span(queries: list[StreamingQuery]) -> tuple[float, int]:
    """Return the seconds from the first trigger's start to the last one's end over all queries, and the triggers."""
    begins, ends, triggers = [], [], 0
    for query in queries:
        progress = [entry for entry in query.recentProgress if entry["numInputRows"]]
        triggers = max(triggers, len(progress))
        for entry in progress:
            began = dt.datetime.fromisoformat(entry["timestamp"].replace("Z", "+00:00")).timestamp()
            begins.append(began)
            ends.append(began + entry["durationMs"]["triggerExecution"] / 1000)
    return max(ends) - min(begins), triggers


def _totals(job: Job) -> dict[str, tuple[int, float]]:
    """Return the totals from the table if there is one, else from Spark's state store."""
    if (job.home / "totals").exists():
        rows: Any = job.session.read.format("delta").load(str(job.home / "totals"))
        rows = rows.groupBy("k").agg(F.sum("n").alias("n"), F.sum("total").alias("total"))
    else:
        store = job.session.read.format("statestore").load(str(job.home / "checkpoint_totals"))
        rows = store.select("key.k", F.col("value.count").alias("n"), F.col("value.sum").alias("total"))
    found = rows.toPandas()
    return as_totals(list(found["k"]), [int(n) for n in found["n"]], list(found["total"]))
