"""The materialisation of frames that feed several outputs: two Spark jobs from one lazy plan may give different rows.

The driver takes the rows of a small group as Arrow and passes them on as a local relation, which costs no further scan.
For a large group and one executor, Spark keeps the rows: a second job waits for the first, block by block. Several
executors would each compute rows that two jobs ask for at once, and compute the rows of a lost executor again; so there
the rows are written to files first, and every job reads the files. In each case, operators downstream see exactly the
rows that were counted.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.frames.arrow import arrow_of, frame_of
from drainmark.jobs.frames.kept import kept
from drainmark.jobs.frames.row_types import plain_types
from drainmark.jobs.tasks.parquet_files import frame_of_files, require_here, write_files
from drainmark.jobs.tasks.places import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from drainmark.jobs.runtime.input.inbox import Group
    from drainmark.jobs.runtime.outside import Outside, TaskFiles
    from drainmark.jobs.tasks.read_files import ReadRows

ONCE = ".once"
"""The folder of an attempt for frames that are computed once; no output of a source has this name."""

_NOT_IN_FILES = re.compile(r"(void|interval)\b")
_NO_ZONE = "timestamp[us]"


@dataclass(slots=True, kw_only=True)
class Materialiser:
    """The materialised frames of one attempt; `release` frees them at its end.

    Args:
        small: the group is small enough for Arrow.
        reads_here: the group is so small that this process reads the rows of sources itself.
        place: for files of frames that are computed once; None if Spark has one executor, which keeps the rows.
    """

    session: SparkSession
    small: bool
    reads_here: bool = True
    place: Place | None = None
    held: list[DataFrame] = field(default_factory=list)

    def once(self, frame: DataFrame) -> DataFrame:
        """Return a frame of the same rows that Spark computes only once."""
        if self.small:
            return self.local(arrow_of(frame), frame)
        if self.place is not None:
            return from_files(frame, self.place)
        once = kept(frame)
        self.held.append(once)
        return once

    def parsed(self, parsed: ReadRows, schema: StructType) -> DataFrame:
        """Return the parsed rows as a frame; every read of it gives the same rows."""
        import pyarrow as pa

        if parsed.tables:
            return self.local(pa.concat_tables(parsed.tables), schema)
        if parsed.place is not None and parsed.names:
            return frame_of_files(self.session, parsed.place, parsed.names, schema)
        return self.session.createDataFrame([], schema)

    def joined(self, *frames: DataFrame) -> DataFrame:
        """Return the rows of all frames, in one partition if the group is small."""
        rows = functools.reduce(lambda some, others: some.unionByName(others), frames)
        return rows.coalesce(1) if self.small and len(frames) > 1 else rows

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

    def release(self) -> None:
        for frame in self.held:
            frame.unpersist()
        self.held.clear()


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


def materialiser_of(outside: Outside, group: Group, *, small: bool) -> Materialiser:
    """Return the materialiser of an attempt at a group; its files are deleted together with the attempt's inbox."""
    engine = outside.engine
    place = None if engine.is_local else files_of(outside, group).place.for_an_attempt()
    # Executors that do not share the driver's disk could not read files that the driver fetched to it.
    return Materialiser(session=engine.session, small=small and engine.shares_disk, reads_here=small, place=place)


def files_of(outside: Outside, group: Group) -> TaskFiles:
    """Return the folder for files that tasks write for an attempt at a group."""
    return outside.store.task_files(group.epoch, group.attempt, on_disk=outside.engine.shares_disk)
