"""The rows of slices: this process reads them, or, for a large group, Spark's tasks read them share by share.

Both ways give the same rows at the same positions, and the same error messages. The error of a task on another machine
also has the name of that machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

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
from drainmark.jobs.frames.origins import ORIGIN, in_origin_order, ranked_by_origin, with_origin_type
from drainmark.jobs.frames.row_types import arrow_schema
from drainmark.jobs.frames.tags import POSITION, TAGS
from drainmark.jobs.operators.sources.cell_values import CellReader, refusal, type_with_faults
from drainmark.jobs.operators.sources.contract import RowSlices
from drainmark.jobs.operators.sources.slices import Slice
from drainmark.jobs.operators.sources.source import SlicedSource
from drainmark.jobs.operators.sources.source_rows import row_type
from drainmark.jobs.runtime.input.inbox import Assigned, Group
from drainmark.jobs.runtime.input.rewound_sources import require_in_force
from drainmark.jobs.runtime.input.slices import slice_of
from drainmark.jobs.tasks.parquet_files import write_batches
from drainmark.jobs.tasks.read_files import ReadRows
from drainmark.jobs.tasks.slice_shares import (
    SHARE_BYTES,
    Share,
    ShareRows,
    ShareTask,
    TaggedRows,
    Unfit,
    read_shares,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from drainmark.jobs.runtime.input.materialisation import Materialiser
    from drainmark.jobs.runtime.outside import Engine, Outside, TaskFiles


@dataclass(slots=True, kw_only=True)
class RowIntake:
    """The intake of the rows that one start gives to a group; each instance is used once.

    Attributes:
        files: the folder for files that tasks write for this attempt.
        horizon: how many ids back the region can be rewound.
        counts: by id, the number of rows as read, including bad ones.
        remarks: by id, a text for the history.
        bad: number of bad rows, of sources that tell them.
    """

    source: SlicedSource
    reads: RowSlices
    group: Group
    outside: Outside
    materialiser: Materialiser
    files: TaskFiles
    horizon: int
    counts: dict[int, int] = field(default_factory=dict)
    remarks: dict[int, str] = field(default_factory=dict)
    bad: int = 0
    schema: StructType = field(init=False)
    _reading: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] | None = None
    _starts: dict[int, int] = field(default_factory=dict)
    _ends: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _mixed: set[int] = field(default_factory=set)
    _highest: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (records := self.reads.records) is not None:
            self.schema = read_type(records)
            self._reading = partial(read_records, records=records, expected=expected_of(records))
        else:
            self.schema = row_type(self.source, "", self.outside.reach)
        if self.reads.on_bad_cells is not None:
            self._reading = self._cell_reader()
            self.schema = type_with_faults(self.schema)
        if self.reads.has_origins:
            self.schema = with_origin_type(self.schema)

    def take(self) -> DataFrame:
        """Return the rows as read, each once: tags, columns, and for byte records what `separated` needs.

        Raises:
            BadInput: a column is missing, or its values do not fit.
            InputChanged, InputMissing: a slice can no longer be read as it was cut.
            StoreUnavailable, StoreRefused, UsageError: the source does not answer, or the executors cannot ask it.
        """
        pieces = [
            (member, piece)
            for member in self.group.members
            if (piece := slice_of(member.trigger.identity, self.source.name)) is not None
        ]
        if self.reads.has_origins:
            require_in_force(self.source, self.reads, pieces, self.outside, self.horizon)
        parsed = ReadRows()
        shares = None if self.materialiser.reads_here else self._shares(pieces)
        if shares is None:
            for member, piece in pieces:
                self.counts[member.sequence_id] = self._read_here(member, piece, parsed)
        else:
            self._read_by_tasks(shares, parsed)
        for member, piece in pieces:
            rows = self.counts.setdefault(member.sequence_id, 0)
            if (remark := self.reads.remark(piece, rows)) is not None:
                self.remarks[member.sequence_id] = remark
            if self.reads.has_origins:
                highest = self._highest.get(member.sequence_id, 0)
                member.trigger.digests[self.source.name] = str(highest)  # for `rewound_sources`, in the checkpoint row
                self.outside.reach.ids_read.note(self.source.name, member.trigger.order_index, highest)
        frame = self._numbered(self.materialiser.parsed(parsed, self.schema))
        return ranked_by_origin(frame, self._mixed) if ORIGIN in frame.columns else frame

    def _cell_reader(self) -> CellReader:
        columns = tuple((each.name, each.dataType) for each in self.schema.fields if each.name not in TAGS)
        if (why := refusal(columns)) is not None:
            raise UsageError(
                f"{self.source.name!r}: {why}",
                operator=self.source.name,
                location=self.source.location,
                remedy="declare it as string: it has the text of the database, and `dm.parse` reads JSON in it",
            )
        return CellReader(columns)

    # --- by this process ---------------------------------------------------------------------------------------------

    def _read_here(self, member: Assigned, piece: Slice, parsed: ReadRows) -> int:
        """Read one slice into memory, or into a Parquet file if the group is large; return the number of its rows."""
        import pyarrow as pa

        schema = arrow_schema(self.schema)
        with _ended(self.reads.read(piece, self.outside.reach)) as read, self._fitting():
            found = read if self._reading is None else self._reading(read)
            rows = TaggedRows(found, member.sequence_id, schema)
            if self.materialiser.small:
                table = pa.Table.from_batches(iter(rows), schema)
                self._highest[member.sequence_id] = rows.highest_id
                if table.num_rows:
                    parsed.tables.append(in_origin_order(table) if ORIGIN in table.column_names else table)
                self.bad += rows.bad
                return rows.count
            stem = f"{self.source.name}-{member.sequence_id:019d}"
            written = write_batches(iter(rows), self.files.place.for_an_attempt(), stem)
        if written is not None:
            parsed.place = self.files.place
            parsed.names.append(written.name)
            self._note_origins(member.sequence_id, rows)
        self.bad += rows.bad
        return rows.count

    # --- by tasks ----------------------------------------------------------------------------------------------------

    def _shares(self, pieces: Sequence[tuple[Assigned, Slice]]) -> list[Share] | None:
        """Return the shares of all slices in order; None if only this process can read a slice."""
        found: list[Share] = []
        most, workers = min(SHARE_BYTES, self.outside.inputs.range_bytes), _Workers(self.outside.engine)
        for member, piece in pieces:
            cut = self.reads.shares(piece, self.outside.reach, share_bytes=most, workers=workers)
            if cut is None:
                return None
            found += [
                Share(number=number, sequence_id=member.sequence_id, piece=each, size=each.size_bytes)
                for number, each in enumerate(cut, len(found))
            ]
        return found

    def _read_by_tasks(self, shares: Sequence[Share], parsed: ReadRows) -> None:
        with self.outside.reach.of_tasks(are_ours=self.outside.engine.is_ours) as reach, self._fitting():
            task = ShareTask(
                reads=self.reads,
                reach=reach,
                schema=arrow_schema(self.schema),
                reading=self._reading,
                place=self.files.place.for_an_attempt(),
                folder=self.source.name,
            )
            with self._told():
                found = read_shares(self.outside.engine.session, task, shares)
        for share, rows in zip(shares, found, strict=True):
            before = self.counts.get(share.sequence_id, 0)
            self.counts[share.sequence_id] = before + rows.rows
            self.bad += rows.bad
            self._take(share, rows, before, parsed)

    def _take(self, share: Share, rows: ShareRows, before: int, parsed: ReadRows) -> None:
        if rows.file is not None:
            parsed.place = self.files.place
            parsed.names.append(rows.file.name)
            self._note_origins(share.sequence_id, rows)
        if rows.is_numbered:
            self._starts[share.number] = before

    def _note_origins(self, sequence_id: int, rows: ShareRows | TaggedRows) -> None:
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
        if not self.outside.engine.is_ours:
            message = f"{self.source.name!r} is read by tasks, and on {facts['host']} that fails: {message}"
            if facts["variables"] and not isinstance(error, ClusterRefused):
                remedy = f"{remedy}; there its address comes from {', '.join(facts['variables'])} of the environment"
        return type(error)(message, operator=self.source.name, location=self.source.location, remedy=remedy, **facts)

    # --- both --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        """Turn the error of a column that does not fit into one that names its trigger."""
        try:
            yield
        except Unfit as unfit:
            trigger = self.group.member(unfit.sequence_id).trigger
            raise BadInput(
                f"{trigger.uri}: column {unfit.column!r} does not fit {unfit.kind}: {unfit}",
                operator=self.source.name,
                location=self.source.location,
                trigger=trigger.uri,
                remedy=f"declare another schema at {self.source.name!r}, or cast the column where it comes from",
            ) from unfit


@dataclass(frozen=True, slots=True)
class _Workers:
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


@contextmanager
def _ended(batches: Iterator[pa.RecordBatch]) -> Iterator[Iterator[pa.RecordBatch]]:
    """Close a read at the end of the block: an abandoned one may hold a connection until garbage collection."""
    try:
        yield batches
    finally:
        getattr(batches, "close", lambda: None)()
