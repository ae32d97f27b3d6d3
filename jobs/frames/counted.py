"""Frames that Spark writes, counted by the tasks that write them: the count owes nothing to who lists the files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.lazy import F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MARK = "drainmark.attempt"
_COLUMNS = b"org.apache.spark.sql.parquet.row.metadata"
"""Where Spark keeps its description of the columns, what is noted beside each included."""


def write_counted(frame: DataFrame, path: Path, *, mark: str = "", compression: str = "") -> int:
    """Write a frame as Parquet files into a folder that does not exist yet; return the rows that its tasks wrote.

    Each task counts what it writes, and Spark adds up one attempt of each: so the number holds also for executors that
    write to another disk than the one that is looked at afterwards.

    Args:
        mark: put into the footer of every file, so that none is the file of another attempt.
        compression: Spark's own by default.
    """
    if mark and SEQUENCE_ID in frame.columns:
        frame = frame.withMetadata(SEQUENCE_ID, {_MARK: mark})
    observation = _observation(frame)
    writer = frame.observe(observation, F.count(F.lit(1)).alias("rows")).write
    if compression:
        writer = writer.option("compression", compression)
    writer.parquet(str(path))
    return int(observation.get["rows"])


def has_mark(file: Path, mark: str) -> bool:
    """Say whether a file that Spark wrote has the mark in its footer; one without sequence ids has none."""
    import pyarrow.parquet as pq

    found = pq.read_metadata(file)
    return SEQUENCE_ID not in found.schema.names or mark in (found.metadata or {}).get(_COLUMNS, b"").decode()


def _observation(frame: DataFrame) -> Any:
    """Return an observation of the kind that the frame's session has."""
    if type(frame).__module__.startswith("pyspark.sql.connect"):
        from pyspark.sql.connect.observation import Observation as Remote

        return Remote()
    from pyspark.sql.observation import Observation

    return Observation()
