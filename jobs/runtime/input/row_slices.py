"""The rows of slices: this process reads them, or, for a large group, Spark's tasks read them share by share.

The error of a task on another machine also has the name of that machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import (
    BadInput,
    DrainmarkError,
    OperatorFailed,
    StoreRefused,
    StoreUnavailable,
    UsageError,
)
from drainmark.jobs.errors.environment import ClusterRefused
from drainmark.jobs.formats.byte_records import expected_of, read_records, read_type
from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.origins import ORIGIN, ranked_by_origin, with_origin_type
from drainmark.jobs.frames.tags import POSITION, TAGS, arrow_schema
from drainmark.jobs.operators.sources.cell_values import CellReader, refusal, type_with_faults
from drainmark.jobs.operators.sources.contract import RowSlices
from drainmark.jobs.operators.sources.slices import Slice
from drainmark.jobs.operators.sources.source import SlicedSource, row_type
from drainmark.jobs.runtime.input.attempt import Attempt
from drainmark.jobs.runtime.input.inbox import Assigned
from drainmark.jobs.runtime.input.rewound_sources import require_in_force
from drainmark.jobs.runtime.input.slices import slice_of
from drainmark.jobs.tasks.executor import Here
from drainmark.jobs.tasks.read_files import ReadRows
from drainmark.jobs.tasks.slice_shares import (
    SHARE_BYTES,
    Share,
    ShareRows,
    ShareTask,
    Unfit,
    read_shares,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from drainmark.resources.spark.session import Engine


@dataclass(slots=True, kw_only=True)
class RowIntake:
    """The intake of the rows that one start gives to a group; each instance is used once.

    Attributes:
        schema: of the rows as read.
        reading: makes the rows as read rows of the columns; None if they are.
        horizon: how many ids back the region can be rewound.
        counts: by id, the number of rows as read, including bad ones.
        remarks: by id, a text for the history.
        bad: number of bad rows, of sources that tell them.
        tombstones: by id, the number of records without a row.
    """

    attempt: Attempt
    source: SlicedSource
    reads: RowSlices
    schema: StructType
    reading: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] | None
    horizon: int
    counts: dict[int, int] = field(default_factory=dict)
    remarks: dict[int, str] = field(default_factory=dict)
    bad: int = 0
    tombstones: dict[int, int] = field(default_factory=dict)
    _starts: dict[int, int] = field(default_factory=dict)
    _ends: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _mixed: set[int] = field(default_factory=set)
    _highest: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, attempt: Attempt, source: SlicedSource, reads: RowSlices, *, horizon: int) -> RowIntake:
        """Return the intake of a start.

        Raises:
            UsageError: a column has a type that its source cannot give.
        """
        reading: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] | None = None
        if (records := reads.records) is not None:
            schema = read_type(records)
            reading = partial(read_records, records=records, expected=expected_of(records))
        else:
            schema = row_type(source, "", attempt.outside.access)
        if reads.on_bad_cells is not None:
            reading = _cell_reader(source, schema)
            schema = type_with_faults(schema)
        if reads.has_origins:
            schema = with_origin_type(schema)
        return cls(attempt=attempt, source=source, reads=reads, schema=schema, reading=reading, horizon=horizon)

    def take(self) -> DataFrame:
        """Return the rows as read, each once: tags, columns, and for byte records what `separated` needs.

        Raises:
            BadInput: a column is missing, or its values do not fit.
            InputChanged, InputMissing: a slice can no longer be read as it was cut.
            StoreUnavailable, StoreRefused, UsageError: the source does not answer, or the executors cannot ask it.
        """
        pieces = [
            (member, piece)
            for member in self.attempt.group.members
            if (piece := slice_of(member.trigger.identity, self.source.name)) is not None
        ]
        if self.reads.has_origins:
            require_in_force(self.source, self.reads, pieces, self.attempt.outside, self.horizon)
        found = self._read(pieces)
        for member, piece in pieces:
            rows = self.counts.setdefault(member.sequence_id, 0)
            told = [self.reads.remark(piece, rows), _told_of(self.tombstones.get(member.sequence_id, 0))]
            if remark := "; ".join(filter(None, told)):
                self.remarks[member.sequence_id] = remark
            if self.reads.has_origins:
                highest = self._highest.get(member.sequence_id, 0)
                member.trigger.digests[self.source.name] = str(highest)  # for `rewound_sources`, in the checkpoint row
                self.attempt.outside.access.ids_read.note(self.source.name, member.trigger.order_index, highest)
        frame = self._numbered(self.attempt.executor.read(found, self.schema))
        return ranked_by_origin(frame, self._mixed) if ORIGIN in frame.columns else frame

    def _read(self, pieces: Sequence[tuple[Assigned, Slice]]) -> ReadRows:
        executor, shares = self.attempt.executor, self._cut(pieces) if self.attempt.reads_rows else None
        access = self.attempt.outside.access
        with self._fitting():
            if shares is None:
                whole = [
                    Share(number=0, sequence_id=member.sequence_id, piece=piece, size=piece.size_bytes)
                    for member, piece in pieces
                ]
                return self._taken(whole, read_shares(Here(), self._task(access, None), whole))
            with access.of_tasks(are_ours=self.attempt.engine.is_ours) as of_task, self._told():
                return self._taken(shares, read_shares(executor.tasks, self._task(of_task, of_task), shares))

    def _task(self, access: Any, of_task: Any) -> ShareTask:
        return ShareTask(
            reads=self.reads,
            access=access,
            of_task=of_task,
            schema=arrow_schema(self.schema),
            reading=self.reading,
            place=self.attempt.executor.place,
            folder=self.source.name,
        )

    def _cut(self, pieces: Sequence[tuple[Assigned, Slice]]) -> list[Share] | None:
        """Return the shares of all slices in order; None if only this process can read a slice."""
        found: list[Share] = []
        outside = self.attempt.outside
        most, workers = min(SHARE_BYTES, outside.inputs.range_bytes), _SparkWorkers(outside.engine)
        for member, piece in pieces:
            cut = self.reads.shares(piece, outside.access, share_bytes=most, workers=workers)
            if cut is None:
                return None
            found += [
                Share(number=number, sequence_id=member.sequence_id, piece=each, size=each.size_bytes)
                for number, each in enumerate(cut, len(found))
            ]
        return found

    def _taken(self, shares: Sequence[Share], found: Sequence[ShareRows]) -> ReadRows:
        read = ReadRows(place=self.attempt.executor.place)
        for share, rows in zip(shares, found, strict=True):
            before = self.counts.get(share.sequence_id, 0)
            self.counts[share.sequence_id] = before + rows.rows
            self.bad += rows.bad
            self.tombstones[share.sequence_id] = self.tombstones.get(share.sequence_id, 0) + rows.tombstones
            if rows.file is not None:
                read.names.append(rows.file.name)
                self._note_origins(share.sequence_id, rows)
            if rows.is_numbered and share.number:
                self._starts[share.number] = before
        return read

    def _note_origins(self, sequence_id: int, rows: ShareRows) -> None:
        """Note the bounds of the next rows of an id, and the id if they do not follow those before in their order."""
        if not self.reads.has_origins:
            return
        self._highest[sequence_id] = max(self._highest.get(sequence_id, 0), rows.highest_id)
        first, last = (tuple(origin) for origin in rows.origins or ((), ()))
        if not first or self._ends.get(sequence_id, first) > first:
            self._mixed.add(sequence_id)
        else:
            self._ends[sequence_id] = last

    def _numbered(self, frame: DataFrame) -> DataFrame:
        """Turn row numbers within a share, which tasks gave, into row numbers within the slice."""
        if not self._starts:
            return frame
        starts = ", ".join(f"{self._starts.get(number, 0)}L" for number in range(max(self._starts) + 1))
        row = f"{POSITION}.row + element_at(array({starts}), cast({POSITION}.block as int) + 1)"
        place = f"struct(0L as block, {row} as row) as {POSITION}"
        return frame.selectExpr(*(place if name == POSITION else quoted_name(name) for name in frame.columns))

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Add the source, and the machine of the task, to the error of a task that cannot read."""
        try:
            yield
        except (StoreUnavailable, StoreRefused, UsageError, OperatorFailed) as error:
            if "host" not in error.facts:  # the task could not write
                raise
            raise self._of_task(error) from error

    def _of_task(self, error: DrainmarkError) -> DrainmarkError:
        message, remedy, facts = error.message, error.remedy or "look there", error.facts
        if not self.attempt.engine.is_ours:
            message = f"{self.source.name!r} is read by tasks, and on {facts['host']} that fails: {message}"
            if facts["variables"] and not isinstance(error, ClusterRefused):
                remedy = f"{remedy}; there its address comes from {', '.join(facts['variables'])} of the environment"
        return type(error)(message, operator=self.source.name, location=self.source.location, remedy=remedy, **facts)

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        """Turn the error of a column that does not fit into one that names its trigger."""
        try:
            yield
        except Unfit as unfit:
            trigger = self.attempt.group.member(unfit.sequence_id).trigger
            raise BadInput(
                f"{trigger.uri}: column {unfit.column!r} does not fit {unfit.kind}: {unfit}",
                operator=self.source.name,
                location=self.source.location,
                trigger=trigger.uri,
                remedy=f"declare another schema at {self.source.name!r}, or cast the column where it comes from",
            ) from unfit


def _told_of(tombstones: int) -> str | None:
    return f"{tombstones} tombstone{'s' if tombstones > 1 else ''}" if tombstones else None


@dataclass(frozen=True, slots=True)
class _SparkWorkers:
    """Spark's workers as a source sees them (`sources.contract.Workers`)."""

    engine: Engine

    @property
    def is_ours(self) -> bool:
        return self.engine.is_ours

    def see(self, folder: Path) -> bool:
        try:
            self.engine.require_inputs([folder])
        except ClusterRefused:
            return False
        return True


def _cell_reader(source: SlicedSource, schema: StructType) -> CellReader:
    columns = tuple((each.name, each.dataType) for each in schema.fields if each.name not in TAGS)
    if (why := refusal(columns)) is not None:
        raise UsageError(
            f"{source.name!r}: {why}",
            operator=source.name,
            location=source.location,
            remedy="declare it as string: it has the text of the database, and `dm.parse` reads JSON in it",
        )
    return CellReader(columns)
