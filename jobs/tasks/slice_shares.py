"""Slices of rows, read by tasks: each share of a slice becomes a file of rows, and its facts go to the driver.

A task gets a description of the rows to read, but no password. It streams the rows into its file: the rows in memory
are bounded, however large a share is.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from drainmark.jobs.errors import (
    DrainmarkError,
    InputChanged,
    InputMissing,
    OperatorFailed,
    StoreRefused,
    StoreUnavailable,
    UsageError,
)
from drainmark.jobs.errors.environment import ClusterRefused, EnvironmentFailed
from drainmark.jobs.errors.machine_faults import machine_fault
from drainmark.jobs.formats.byte_records import BAD, TOMBSTONE
from drainmark.jobs.frames.origins import ORIGIN, OriginsSeen
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID
from drainmark.jobs.tasks.executor import Executor, Facts
from drainmark.jobs.tasks.parquet_files import WrittenFile, require_here, write_batches
from drainmark.jobs.tasks.places import Place

if TYPE_CHECKING:
    import pyarrow as pa

SHARE_BYTES = 32 * 1024 * 1024
"""The bytes of rows in one share, about: one or two seconds of work for a core."""

_TOLD = {
    kind.id: kind
    for kind in (
        *(InputChanged, InputMissing, StoreRefused, StoreUnavailable),
        *(UsageError, ClusterRefused, EnvironmentFailed),
    )
}
"""Error classes that keep their class on the way from a task to the driver."""


class Reads(Protocol):
    """The reader of a share (`jobs.operators.sources.contract.RowSlices`)."""

    def read(self, piece: Any, access: Any) -> Iterator[pa.RecordBatch]: ...


class Reached(Protocol):
    """The connections of a task (`jobs.operators.sources.contract.TaskConnections`)."""

    @property
    def variables(self) -> Sequence[str]: ...
    def redacted(self, text: str) -> str: ...


class Unfit(Exception):
    """A column is missing, or its values do not fit its type; the text says why."""

    def __init__(self, sequence_id: int, column: str, kind: str, why: str) -> None:
        super().__init__(sequence_id, column, kind, why)
        self.sequence_id = sequence_id
        self.column = column
        self.kind = kind

    def __str__(self) -> str:
        return str(self.args[-1])


class _Unread(Exception):
    """A failure of a source by an error of the system, such as a connection reset: the written file is not at fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A part of the slice of one id; a slice itself, so that the source's own `read` reads it.

    Attributes:
        number: among all shares of a group, from 0.
        size: bytes, about.
    """

    number: int
    sequence_id: int
    piece: Any
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRows:
    """The result of a task for a share.

    Attributes:
        file: with the rows; None for no rows.
        is_numbered: the source gives its rows no positions. `_position` then has the number of the share and the
            number of the row in the share.
        origins: the first and the last origin of rows that have some and are in their order; None for other rows.
        highest_id: the highest id of their origins; 0 if they have none.
        bad, tombstones: see `TaggedRows`.
    """

    rows: int
    file: WrittenFile | None
    is_numbered: bool
    origins: tuple[Sequence[int], Sequence[int]] | None = None
    highest_id: int = 0
    bad: int = 0
    tombstones: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareTask:
    """The reading of slices; a share is some of their parts.

    Attributes:
        reach: how the source is reached.
        of_task: the same, if tasks on other machines may read: what they tell is without passwords, and names the
            machine. None if only this process reads: it raises the errors of the source as they are.
        schema: of the files: tags, then the columns of the source.
        reading: makes the rows as read rows of the columns; None if they are.
        folder: of the files, below the place.
    """

    reads: Reads
    access: Any
    of_task: Reached | None
    schema: pa.Schema
    reading: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] | None
    place: Place
    folder: str

    def work(self, share: Sequence[Share]) -> Iterator[Facts]:
        """Read the parts of a share, and yield the facts of each, as `ShareRows` has them.

        Raises:
            Unfit: see there.
            OSError: a file could not be written.
            DrainmarkError: the rows cannot be had. Of a task, its facts are `host`, this machine; and `variables`, the
                environment variables from which the source took address and credentials.
        """
        for part in share:
            yield self._written(part) if self.of_task is None else self._told(part, self.of_task)

    def _told(self, part: Share, connections: Reached) -> Facts:
        def failure(kind: type[DrainmarkError], message: str, **told: Any) -> DrainmarkError:
            facts: dict[str, Any] = {"host": socket.gethostname(), "variables": sorted(set(connections.variables))}
            if kind is InputMissing:
                facts["triggers"] = ()
            return kind(connections.redacted(message), **told, **facts)

        try:
            return self._written(part)
        except (OSError, Unfit):
            raise
        except DrainmarkError as error:
            kind, told = _TOLD.get(error.id, OperatorFailed), {"remedy": error.remedy, "commands": error.commands}
            raise failure(kind, error.message, **told) from error
        except _Unread as error:
            raise failure(OperatorFailed, str(error)) from error
        except Exception as error:
            raise failure(OperatorFailed, f"{type(error).__name__}: {error}") from error

    def _written(self, share: Share) -> Facts:
        read = self.reads.read(share.piece, self.access)
        try:
            found = read if self.of_task is None else _read(read)
            found = found if self.reading is None else self.reading(found)
            rows = TaggedRows(found, share.sequence_id, self.schema, block=share.number)
            file = write_batches(iter(rows), self.place, self.folder)
        finally:
            getattr(read, "close", lambda: None)()
        facts: dict[str, Any] = {
            "rows": rows.count,
            "is_numbered": rows.is_numbered,
            "file": asdict(file) if file else None,
        }
        facts |= {"origins": rows.origins, "highest_id": rows.highest_id}
        return {**facts, "bad": rows.bad, "tombstones": rows.tombstones}


def _read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a source. Its own OSErrors become `_Unread`, unlike those of the machine."""
    try:
        yield from batches
    except OSError as error:
        if machine_fault(error) is not None:
            raise
        raise _Unread(f"{type(error).__name__}: {error}") from error


@dataclass(slots=True)
class TaggedRows:
    """Rows with their tags, in the types that their source declares.

    Args:
        sequence_id: of all rows.
        schema: `_sequence_id`, `_position`, and the columns.
        block: for the `_position` of rows that come without one; their `row` counts from 0.

    Attributes:
        count: rows so far.
        is_numbered: rows came without a `_position`.
        bad: rows with a fault so far, of those that come with the column `BAD`.
        tombstones: records so far that have no row, of those that come with the column `TOMBSTONE`.
        origins, highest_id: see `ShareRows`.

    Raises:
        Unfit: during the iteration; see there.
    """

    batches: Iterable[pa.RecordBatch]
    sequence_id: int
    schema: pa.Schema
    block: int = 0
    count: int = field(default=0, init=False)
    is_numbered: bool = field(default=False, init=False)
    bad: int = field(default=0, init=False)
    tombstones: int = field(default=0, init=False)
    _seen: OriginsSeen = field(default_factory=OriginsSeen, init=False)

    @property
    def origins(self) -> tuple[Sequence[int], Sequence[int]] | None:
        seen = self._seen
        return (seen.first, seen.last) if seen.are_in_order and seen.first and seen.last else None

    @property
    def highest_id(self) -> int:
        return self._seen.highest_id

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in map(self._with_rows, self.batches):
            yield self._tagged(batch)
            self.count += batch.num_rows
            if BAD in batch.schema.names:
                self.bad += batch.num_rows - batch.column(BAD).null_count

    def _with_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Count the records without a row, and leave them out."""
        import pyarrow.compute as pc

        if TOMBSTONE not in batch.schema.names:
            return batch
        rows = batch.filter(pc.invert(batch.column(TOMBSTONE)))
        self.tombstones += batch.num_rows - rows.num_rows
        return rows

    def _tagged(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        columns = [self._typed(batch, column) for column in self.schema if column.name not in (SEQUENCE_ID, POSITION)]
        number = batch.num_rows
        if ORIGIN in batch.schema.names:
            self._seen.add(batch.column(ORIGIN))
        if POSITION in batch.schema.names:
            place = batch.column(POSITION)
        else:
            self.is_numbered = True
            block = pa.array([self.block] * number, pa.int64())
            row = pa.array(range(self.count, self.count + number), pa.int64())
            place = pa.StructArray.from_arrays([block, row], ["block", "row"])
        ids = pa.array([self.sequence_id] * number, pa.int64())
        kind = self.schema.field(POSITION).type
        return pa.record_batch([ids, place.cast(kind), *columns], schema=self.schema)

    def _typed(self, batch: pa.RecordBatch, column: pa.Field) -> pa.Array:
        import pyarrow as pa

        try:
            return batch.column(column.name).cast(column.type)
        except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise Unfit(self.sequence_id, column.name, str(column.type), str(error)) from error


def read_shares(executor: Executor, task: ShareTask, shares: Sequence[Share]) -> list[ShareRows]:
    """Read shares; return their results, in the order of the shares.

    Raises:
        Unfit: see there.
        InputChanged, InputMissing: the input of a share has changed or is gone.
        StoreUnavailable, StoreRefused, UsageError: a task does not get the rows. Facts: `host`, its machine;
            `variables`, the environment variables from which it took address and credentials.
        EnvironmentFailed: a task does not reach this process; the same facts.
        OperatorFailed: a task failed for another reason; the same facts.
        OSError, StoreUnavailable: a task could not write.
        AccountingError: this process does not find a file of rows.
    """
    told = executor.run(task, executor.shares_of(shares))
    found = [ShareRows(**{**each, "file": WrittenFile(**each["file"]) if each["file"] else None}) for each in told]
    require_here(task.place.stamp, str(task.place), [each.file for each in found if each.file is not None])
    return found
