"""The executors of a group, which have its rows: this process, or Spark; `attempt.py` chooses the one for an input.

This process takes the rows of a small group as Arrow tables and passes them on: few as a local relation, without scan.
Otherwise, with one executor of Spark, Spark keeps rows that feed several outputs: a second job waits for the first,
block by block. Several executors would each compute rows that two jobs ask for at once, and compute the rows of a lost
executor again; so there the rows are written to files first, and every job reads the files. In each case operators
downstream see exactly the rows that were counted: two jobs from one lazy plan may give different rows.
"""

from __future__ import annotations

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs import world
from drainmark.jobs.formats.lines.content import unpacked_bytes
from drainmark.jobs.frames.arrow import arrow_of, frame_of
from drainmark.jobs.frames.tags import SEQUENCE_ID, plain_types
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.lazy import F
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.tasks.executor import Executor, Here, OnSpark
from drainmark.jobs.tasks.parquet_files import frame_of_files, require_here, write_files
from drainmark.jobs.tasks.places import MemoryPlace, Place, TooLarge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from drainmark.jobs.tasks.read_files import ReadRows

ONCE = ".once"
"""The folder of an attempt for frames that are computed once; no output of a source has this name."""

MOST_BYTES = 16 * 1024 * 1024
MOST_VALUES = 16_000_000
"""Upper bounds (inclusive) of what this process holds of a group: bytes of unpacked files, and values of rows."""

_NOT_IN_FILES = re.compile(r"(void|interval)\b")
_NO_ZONE = "timestamp[us]"


class GroupExecutor(ABC):
    """Who does the work on a group's rows, and has them; see `InMemory` and `InTasks`. `release` frees them.

    Attributes:
        place: of rows that are read.
        are_few: the rows are few, so that this process may go through them, and one partition is faster than many.
    """

    session: SparkSession
    place: Place
    are_few: ClassVar[bool]

    @property
    @abstractmethod
    def tasks(self) -> Executor:
        """Return the executor of the tasks that read the group's files."""

    @abstractmethod
    def require_fit(self, files: Iterable[Path]) -> None:
        """Check that the files do not unpack to more bytes than the executor may hold.

        Raises:
            TooLarge: they do.
        """

    @abstractmethod
    def once(self, frame: DataFrame) -> DataFrame:
        """Return a frame of the same rows that Spark computes only once."""

    @abstractmethod
    def counted(self, frame: DataFrame) -> tuple[DataFrame, dict[int, int]]:
        """Return a frame of the same rows that is computed only once, and the number of its rows by id."""

    @abstractmethod
    def joined(self, *frames: DataFrame) -> DataFrame:
        """Return the rows of all frames."""

    def read(self, rows: ReadRows, schema: StructType) -> DataFrame:
        """Return rows that were read to the place as a frame; every read of it gives the same rows."""
        if not rows.names:
            return self.session.createDataFrame([], schema)
        return self._read(rows, schema)

    @abstractmethod
    def _read(self, rows: ReadRows, schema: StructType) -> DataFrame: ...

    def local(self, table: Any, like: DataFrame | StructType) -> DataFrame:
        """Return Arrow rows as a frame of one partition: keyed operators then need no exchange.

        Args:
            like: has the types of the rows; needed for timestamps without a zone, Arrow has all other types.
        """
        if _NO_ZONE not in str(table.schema):
            return frame_of(self.session, table).coalesce(1)
        from pyspark.sql.types import StructType

        schema = like if isinstance(like, StructType) else like.schema
        columns = StructType([column for column in schema.fields if column.name in table.column_names])
        return frame_of(self.session, table, columns).coalesce(1)

    @abstractmethod
    def release(self) -> None:
        """Free the rows that Spark keeps."""


@dataclass(slots=True, kw_only=True)
class InMemory(GroupExecutor):
    """This process reads the group's input and holds the rows."""

    session: SparkSession
    place: Place = field(default_factory=lambda: MemoryPlace(MOST_VALUES))
    are_few: ClassVar[bool] = True

    @property
    def tasks(self) -> Executor:
        return Here()

    def require_fit(self, files: Iterable[Path]) -> None:
        total = 0
        for file in files:
            total += unpacked_bytes(file, MOST_BYTES - total)
            if total > MOST_BYTES:
                raise TooLarge

    def once(self, frame: DataFrame) -> DataFrame:
        return self.local(arrow_of(frame), frame)

    def counted(self, frame: DataFrame) -> tuple[DataFrame, dict[int, int]]:
        import pyarrow.compute as pc

        table = arrow_of(frame)
        found = pc.value_counts(table[SEQUENCE_ID]).to_pylist()
        return self.local(table, frame), {entry["values"]: entry["counts"] for entry in found}

    def joined(self, *frames: DataFrame) -> DataFrame:
        return _union(frames) if len(frames) < 2 else _union(frames).coalesce(1)

    def _read(self, rows: ReadRows, schema: StructType) -> DataFrame:
        import pyarrow as pa

        return self.local(pa.concat_tables(rows.tables()), schema)

    def release(self) -> None:
        """Do nothing: Spark keeps no rows."""


@dataclass(slots=True, kw_only=True)
class InTasks(GroupExecutor):
    """Spark's tasks read the group's input and have its rows.

    Attributes:
        place: for files of this attempt.
        keeps_rows: Spark has one executor, which keeps the rows of frames that are computed once.
    """

    session: SparkSession
    place: Place
    keeps_rows: bool
    are_few: ClassVar[bool] = False
    _held: list[DataFrame] = field(default_factory=list)

    @property
    def tasks(self) -> Executor:
        return OnSpark(self.session)

    def require_fit(self, files: Iterable[Path]) -> None:
        """Tasks hold a bounded number of rows, however many there are."""

    def once(self, frame: DataFrame) -> DataFrame:
        if not self.keeps_rows:
            return from_files(frame, self.place)
        once = kept(frame)
        self._held.append(once)
        return once

    def counted(self, frame: DataFrame) -> tuple[DataFrame, dict[int, int]]:
        once = self.once(frame)
        return once, {row[SEQUENCE_ID]: row["count"] for row in once.groupBy(SEQUENCE_ID).count().collect()}

    def joined(self, *frames: DataFrame) -> DataFrame:
        return _union(frames)

    def _read(self, rows: ReadRows, schema: StructType) -> DataFrame:
        return frame_of_files(self.session, rows.place, rows.names, schema)

    def release(self) -> None:
        for frame in self._held:
            frame.unpersist()
        self._held.clear()


def _union(frames: Iterable[DataFrame]) -> DataFrame:
    return functools.reduce(lambda some, others: some.unionByName(others), frames)


def from_files(frame: DataFrame, place: Place) -> DataFrame:
    """Compute a frame now, write it to files of its own, and return the rows of these files.

    If a file is lost, reading it fails; nothing is computed again.

    Raises:
        AccountingError: this process does not find the rows that Spark's tasks wrote.
    """
    if any(_NOT_IN_FILES.match(kind.simpleString()) for field in frame.schema for kind in plain_types(field.dataType)):
        return frame.localCheckpoint(eager=True)  # reading a lost block fails, too
    names = frame.columns
    renamed = frame.toDF(*(f"c{place}" for place in range(len(names))))  # for odd names, and for a name used twice
    files = write_files(renamed, place, f"{ONCE}/{world.token()}")
    require_here(place.stamp, str(place), files)
    if not files:
        return frame.sparkSession.createDataFrame([], frame.schema)
    sizes = [file.size for file in files]
    return frame_of_files(frame.sparkSession, place, [file.name for file in files], renamed.schema, sizes).toDF(*names)


# --- of operators ----------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class OperatorExecutors:
    """The executors of an attempt by operator: that of the group, but Spark behind a large state that is read whole.

    Attributes:
        in_files: operators whose state is too large for one partition.
    """

    region: RegionPlan
    group: GroupExecutor
    spark: GroupExecutor
    in_files: frozenset[str] = frozenset()
    _whole: set[str] = field(default_factory=set)

    def of(self, operator: Operator) -> GroupExecutor:
        """Return the executor that has the rows of an operator."""
        return self.spark if self._whole and self._is_behind(operator) else self.group

    def few(self, operator: Operator) -> bool:
        """Say whether the rows that an operator reads are few, those of its state included."""
        return operator.name not in self.in_files and self.of(operator).are_few

    def note_whole(self, operator: Operator) -> None:
        """Note that an operator reads a large state whole: it, and all behind it, may have as many rows."""
        self._whole.add(operator.name)

    def _is_behind(self, operator: Operator) -> bool:
        seen, ahead = set[str](), [operator]
        while ahead:
            found = ahead.pop()
            if found.name in self._whole:
                return True
            if found.name not in seen:
                seen.add(found.name)
                ahead += [self.region.operator(port.upstream) for port in found.inputs]
        return False


def kept(frame: DataFrame) -> DataFrame:
    """Return a frame of the same rows that Spark keeps from its first use until `unpersist`, also within a union.

    Spark flattens a union of unions when it is declared: it replaces a kept union by the frames of that union, and so
    computes them again, perhaps with other results. The filter makes sure that the kept frame is no union itself.
    """
    return frame.where(F.lit(True)).persist()
