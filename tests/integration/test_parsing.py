"""Rows that are parsed reach Spark whole, and every record of a group is in a sink or in the quarantine."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import drainmark as dm
from drainmark.jobs.frames.arrow import frame_of
from drainmark.orchestration.testing.running import Result
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark


def test_rows_behind_an_empty_chunk_reach_spark(engine: SparkEngine) -> None:
    """pyspark 4.2 stops reading at a record batch without rows, and reports nothing."""
    chunks = [[1, 2], [], [3], [], [4]]
    rows = pa.concat_tables([pa.table({"n": pa.array(chunk, pa.int64())}) for chunk in chunks])
    assert sorted(row["n"] for row in frame_of(engine.session, rows).collect()) == [1, 2, 3, 4]


def test_a_table_without_rows_has_its_types_without_being_asked(engine: SparkEngine) -> None:
    """Spark Connect infers types from rows: an application with an empty quarantine failed there."""
    kinds = [("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("many", pa.list_(pa.float64()))]
    rows = pa.table({"n": [1], "at": [0], "many": [[0.5]]}, schema=pa.schema(kinds))
    empty = rows.slice(0, 0)

    class Session:
        """A session that passes its arguments on, including types, because it cannot infer types."""

        def createDataFrame(self, data: Any, schema: Any) -> Any:
            return engine.session.createDataFrame(data, schema)

    assert frame_of(Session(), empty).schema == frame_of(engine.session, rows).schema  # type: ignore[arg-type]


def both_sinks() -> None:
    scan = dm.DirectoryScan(path="inbox", format="csv", schema="n bigint, word string", settle=0, on_bad="quarantine")

    @dm.consistent(trigger="operator-driven")
    @dm.source(scan)
    def rows(scanned: Any) -> Any:
        return scanned

    dm.sink(dm.filter(lambda rows: dm.F.expr("n % 2 = 1"), name="odd", inputs=[rows]), dm.DeltaAppend("odd"))
    dm.sink(rows, dm.DeltaAppend("all_rows"))


@pytest.mark.parametrize("max_group", [pytest.param(1, marks=pytest.mark.slow), 9])
def test_plain_and_odd_files_share_a_group(run_app: Callable[..., Result], max_group: int) -> None:
    """Rows in = rows out + quarantined, whether a file is read at once or record by record (I9)."""
    files = {
        "1.csv": b"1,a\n2,b\n",
        "2.csv": b'3,"c, ""d"""\n',
        "3.csv": b"",
        "4.csv": b"4,e\nx,f\n5,g\n7,h\n",
        "5.csv.gz": gzip.compress(b"6,i\n"),
        "6.csv": b"8,j\n\n9,k\n",
    }
    result = run_app(both_sinks, files, max_group=max_group)
    kept = {row["n"]: row["source_file"].rpartition("/")[2] for row in result.sink("all_rows")}
    assert kept == {1: "1.csv", 2: "1.csv", 3: "2.csv", 4: "4.csv", 5: "4.csv", 7: "4.csv", 6: "5.csv.gz", 8: "6.csv",
                    9: "6.csv"}  # fmt: skip
    assert sorted(row["n"] for row in result.sink("odd")) == [1, 3, 5, 7, 9]
    assert [row["raw"] for row in result.quarantine()] == ["x,f"]
    assert [state["rows_in"] for state in result.history] == [2, 1, 0, 4, 1, 2]
