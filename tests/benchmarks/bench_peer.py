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

from jobs.lazy import F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one run took.

    Attributes:
        whole_seconds: from the call to the end, starting and stopping included.
        span_seconds: from the beginning of the first trigger to the end of the last.
        kept: rows in the append sink.
        totals: key -> (rows, sum).
    """

    whole_seconds: float
    span_seconds: float
    triggers: int
    kept: int
    totals: Mapping[str, tuple[int, float]]


Start = Callable[["SparkSession", Path, Path, int, bool], list["StreamingQuery"]]


def two_queries(session: SparkSession, inbox: Path, home: Path, files: int, upsert: bool) -> list[StreamingQuery]:
    """Filter -> Delta append, and a stateful aggregation beside it, each its own query in one session.

    Without an upsert sink the aggregate is kept in Spark's state store alone and written nowhere.
    """
    rows = _read(session, inbox, files)
    large = rows.where(F.col("amount") > LIMIT).writeStream.format("delta")
    totals = _by_key(rows).writeStream.outputMode("update")
    if upsert:
        _create_totals(session, home)
        totals = totals.foreachBatch(lambda batch, number: _merge(batch, home, number, "source.n", "source.total"))
    else:
        totals = totals.format("noop")
    return [
        large.option("checkpointLocation", str(home / "checkpoint_large")).trigger(availableNow=True).start(str(home / "large")),
        totals.option("checkpointLocation", str(home / "checkpoint_totals")).trigger(availableNow=True).start(),
    ]


def one_query_merging(session: SparkSession, inbox: Path, home: Path, files: int, upsert: bool) -> list[StreamingQuery]:
    """One query without state: each batch is appended, and its totals are merged into a Delta table."""
    _create_totals(session, home)
    added = ("target.n + source.n", "target.total + source.total")

    def write(batch: DataFrame, number: int) -> None:
        _side_by_side(batch, lambda: _append(batch.where(F.col("amount") > LIMIT), home / "large", number),
                      lambda: _merge(_by_key(batch), home, number, *added))

    return [_each_batch(session, inbox, home, files, write)]


def one_query_appending(session: SparkSession, inbox: Path, home: Path, files: int, upsert: bool) -> list[StreamingQuery]:
    """One query without state: each batch and its totals are appended; whoever reads must add the totals up."""

    def write(batch: DataFrame, number: int) -> None:
        _side_by_side(batch, lambda: _append(batch.where(F.col("amount") > LIMIT), home / "large", number),
                      lambda: _append(_by_key(batch), home / "totals", number))

    return [_each_batch(session, inbox, home, files, write)]


def complete_mode(session: SparkSession, inbox: Path, home: Path, files: int, upsert: bool) -> list[StreamingQuery]:
    """As two_queries, the table of totals being written whole with each trigger."""
    rows = _read(session, inbox, files)
    large = rows.where(F.col("amount") > LIMIT).writeStream.format("delta")
    totals = _by_key(rows).writeStream.format("delta").outputMode("complete")
    return [
        writer.option("checkpointLocation", str(home / f"checkpoint_{name}")).trigger(availableNow=True).start(str(home / name))
        for name, writer in (("large", large), ("totals", totals))
    ]


def measure(start: Start, session: SparkSession, inbox: Path, home: Path, files: int, upsert: bool) -> Measured:
    """Run a peer over a folder until it is idle."""
    home.mkdir(parents=True)
    began = time.monotonic()
    queries = start(session, inbox, home, files, upsert)
    for query in queries:
        query.awaitTermination()
    whole = time.monotonic() - began
    span, triggers = _span(queries)
    large = session.read.format("delta").load(str(home / "large")).count()
    return Measured(
        whole_seconds=whole, span_seconds=span, triggers=triggers, kept=large, totals=_totals(session, home)
    )


# --- how ---------------------------------------------------------------------------------------------------------------


def _read(session: SparkSession, inbox: Path, files: int) -> DataFrame:
    return session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files).csv(str(inbox))


def _by_key(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(F.count(F.lit(1)).alias("n"), F.sum("amount").alias("total"))


def _each_batch(
    session: SparkSession, inbox: Path, home: Path, files: int, write: Callable[[DataFrame, int], None]
) -> StreamingQuery:
    writer = _read(session, inbox, files).writeStream.foreachBatch(write)
    return writer.option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True).start()


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


def _create_totals(session: SparkSession, home: Path) -> None:
    session.createDataFrame([], "k string, n bigint, total double").write.format("delta").save(str(home / "totals"))


def _merge(batch: DataFrame, home: Path, number: int, count: str, total: str) -> None:
    from delta.tables import DeltaTable

    table = DeltaTable.forPath(batch.sparkSession, str(home / "totals")).alias("target")
    merger = table.merge(batch.alias("source"), "target.k <=> source.k")
    merger.whenMatchedUpdate(set={"n": count, "total": total}).whenNotMatchedInsertAll().execute()


def _span(queries: list[StreamingQuery]) -> tuple[float, int]:
    """Return seconds from the first trigger's beginning to the last one's end, over all queries, and their number."""
    begins, ends, triggers = [], [], 0
    for query in queries:
        progress = [entry for entry in query.recentProgress if entry["numInputRows"]]
        triggers = max(triggers, len(progress))
        for entry in progress:
            began = dt.datetime.fromisoformat(entry["timestamp"].replace("Z", "+00:00")).timestamp()
            begins.append(began)
            ends.append(began + entry["durationMs"]["triggerExecution"] / 1000)
    return max(ends) - min(begins), triggers


def _totals(session: SparkSession, home: Path) -> dict[str, tuple[int, float]]:
    """Return the totals from the table where there is one, else from Spark's state store."""
    if (home / "totals").exists():
        rows: Any = session.read.format("delta").load(str(home / "totals"))
        rows = rows.groupBy("k").agg(F.sum("n").alias("n"), F.sum("total").alias("total"))
    else:
        store = session.read.format("statestore").load(str(home / "checkpoint_totals"))
        rows = store.select("key.k", F.col("value.count").alias("n"), F.col("value.sum").alias("total"))
    found = rows.toPandas()
    return as_totals(list(found["k"]), [int(n) for n in found["n"]], list(found["total"]))
