"""Names of columns as the author wrote them, in SQL and in the functions of Spark's tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def quoted_name(name: str) -> str:
    """Return a name quoted for SQL."""
    return f"`{name.replace('`', '``')}`"


def quoted(names: Sequence[str]) -> list[str]:
    """Return column names quoted for SQL."""
    return [quoted_name(name) for name in names]


def literal(value: str) -> str:
    """Return a text as a literal of SQL."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def without_points(frame: DataFrame) -> DataFrame:
    """Return a frame without points and backticks in its column names: in rows for Python, Spark reads these as SQL."""
    if not any(_is_odd(name) for name in frame.columns):
        return frame
    return frame.toDF(*(f"_column_{place}" if _is_odd(name) else name for place, name in enumerate(frame.columns)))


def in_tasks(frame: DataFrame, task: BatchTask, made: str | StructType) -> DataFrame:
    """Return what a task makes of the rows of each partition; it gets them under their own names.

    Args:
        made: columns that the task returns.
    """
    plain = without_points(frame)
    return plain.mapInArrow(task if plain is frame else _RenamedTask(task, tuple(frame.columns)), made)


BatchTask = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


@dataclass(frozen=True, slots=True)
class _RenamedTask:
    """A task that gets its rows under other names than those by which Spark passes them."""

    task: BatchTask
    names: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.task(batch.rename_columns(list(self.names)) for batch in batches)


def _is_odd(name: str) -> bool:
    return "." in name or "`" in name
