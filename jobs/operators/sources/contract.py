"""The contract of a replayable source, and its access to the outside."""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from drainmark.jobs.formats.byte_records import Records
from drainmark.jobs.operators.sources.slices import HighestIds, Position, Slice, SliceLimit
from drainmark.jobs.protocol.chains import Upstream
from drainmark.jobs.protocol.records.manifest import StagedFile

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.jobs.operators.sources.kafka_topic import Topic
    from drainmark.jobs.tasks.parquet_shares import RowFile
    from drainmark.jobs.tasks.places import Place


class Files(Protocol):
    """A folder of immutable files, on a disk or in a bucket (`resources.storage.folder.Folder`)."""

    uri: str

    @property
    def place(self) -> Place: ...
    def stamp(self, path: str) -> tuple[int, str]: ...
    def write(self, path: str, data: pa.Buffer) -> str: ...
    def size(self, path: str) -> int: ...
    def source(self, path: str) -> Any: ...
    def modified(self, path: str) -> Mapping[str, float]: ...
    def remove(self, paths: Sequence[str]) -> None: ...
    def names(self, path: str = "") -> Iterator[str]: ...
    def require_put_if_absent(self) -> None: ...
    def read_each(self, paths: Any, columns: Any = None) -> Iterator[pa.Table]: ...


class Connections(Protocol):
    """The databases and topics that rows are read from, in this process or in a task on an executor."""

    @property
    def region(self) -> str: ...

    def database(self, name: str) -> Any:
        """Return the SQLAlchemy engine of a database by its name in the settings.

        Raises:
            UsageError: the settings have no such name.
            ClusterRefused: a task has no address for it, or lacks a library.
        """

    def kafka(self, topic: str, *, servers: str, cluster: str | None) -> Topic:
        """Return a topic by its name and its brokers: their addresses, or a name in the settings.

        Raises:
            UsageError: the settings have no such name, the client is not installed, or no brokers are given.
            ClusterRefused: as for `database`.
        """


class TaskConnections(Connections, Protocol):
    """The connections that are sent to a task: a value without any credentials."""

    @property
    def variables(self) -> Sequence[str]:
        """Return the environment variables from which the task has taken addresses and credentials so far."""

    def redacted(self, text: str) -> str:
        """Return a text without the secret parts of the addresses that this process has asked for."""


class Workers(Protocol):
    """Spark's workers, which run the tasks (`runtime.input.row_slices`)."""

    @property
    def is_ours(self) -> bool:
        """Say whether they run on this machine as this user; otherwise their own environment has the credentials."""

    def see(self, folder: Path) -> bool:
        """Say whether they find the same files in a folder of this machine as this process."""


class ChangesById(Protocol):
    """The changes of a table that a region made, as `dm.changes` tells them, id by id.

    Tables have the columns of the table, `_change_type` and `_commit_version`, the id that made the change.
    """

    def newest(self) -> int:
        """Return the id up to which the table is complete."""

    def in_force(self, number: int) -> int:
        """Return the newest id in force up to an id; 0 for none."""

    def cut(self, after: int, most_ids: int | None, most_bytes: int | None) -> tuple[int, int]:
        """Return the last id of at most so many behind an id, and the bytes of their changes, about; 0 for none."""

    def moment(self, number: int) -> dt.datetime:
        """Return the time at which an id in force was committed."""

    def require(self, after: int) -> None:
        """Check that the changes behind an id are kept.

        Raises:
            RewindRefused: they are not.
        """

    def whole(self, at: int) -> pa.Table:
        """Return the rows of the table at an id in force, as inserts of that id.

        Raises:
            RewindRefused: they are out of reach.
        """

    def rows(self, after: int, through: int) -> Iterator[pa.Table]:
        """Yield the changes behind an id in force, up to another one (inclusive), in the order of their ids.

        Raises:
            RewindRefused: they are out of reach.
        """


class SourceAccess(Connections, Protocol):
    """The access of a source to the outside of the process; `resources.inputs.source_access` implements it."""

    @property
    def ids_read(self) -> HighestIds: ...

    def of_tasks(self, *, are_ours: bool) -> AbstractContextManager[TaskConnections]:
        """Return a context manager that gives the connections of tasks inside its block.

        Args:
            are_ours: Spark's workers run on this machine as this user; otherwise their environment has the credentials.
        """

    def path(self, path: str) -> Path:
        """Return a path of this machine; a relative path begins at the folder of drainmark.toml."""

    def table(self, name: str) -> Files:
        """Return the folder of a Delta table by the names that `lookup` takes."""

    def newest_version(self, name: str) -> tuple[int, str, pa.Schema]:
        """Return a Delta table's newest version, its id, and its columns.

        Raises:
            UsageError: there is no such table, or it has features that cannot be read.
        """

    def upstream(self, name: str) -> Upstream | None:
        """Return the region that made a Delta table, of this home or of another one; None if no region did."""

    def live_files(self, name: str, version: int | None = None) -> Sequence[StagedFile]:
        """Return the files of a Delta table that a region made, with the bounds of their ids.

        Args:
            version: of the table, by default the newest.
        """

    def changes_by_id(self, name: str) -> ChangesById | None:
        """Return the changes of a Delta table that a region made; None if its checkpoint table is out of reach."""

    def has_feed(self, name: str, version: int) -> bool:
        """Say whether the change data feed of a Delta table is on at a version.

        Raises:
            InputMissing: its log does not go back so far.
        """

    def files_at(self, name: str, version: int) -> Sequence[RowFile]:
        """Return all files of a Delta table at a version.

        Raises:
            InputMissing: its log does not go back so far.
            UsageError: rows of them may be marked as deleted.
        """

    def buffer(self, source: str) -> Path:
        """Return the folder of the items that were pushed to a start; it may not exist yet."""

    def queued(self, source: str, after: int, max_bytes: int | None) -> list[Any]:
        """Return the scanned files of a periodic start after a place, in order: at most `max_bytes`, or one file."""

    def keep_list(self, source: str, number: int, text: str) -> str:
        """Store a text permanently and return its name; a second call with the same text gives the same name."""

    def kept_list(self, name: str) -> str:
        """Return a stored text.

        Raises:
            InputMissing: the text is gone, or is not the text that was stored.
        """


class Replayable(ABC):
    """The input of a source, declared as a frozen value. Any process may call every method at any time."""

    kind: ClassVar[str]
    hears_checkpoints: ClassVar[bool] = False
    has_thread: ClassVar[bool] = False

    @property
    def is_endless(self) -> bool:
        """Say whether the source always has new input, so that no caller may wait for its end."""
        return False

    @abstractmethod
    def problems(self, trigger: str | None) -> Iterator[tuple[str, str, str]]:
        """Yield (rule, sentence, remedy) for every argument that does not fit a region with this kind of trigger."""

    @abstractmethod
    def fingerprint(self) -> Any:
        """Return a JSON-able value that changes when the declared input does; it has no address and no credentials."""

    @abstractmethod
    def columns(self, access: SourceAccess) -> str | pa.Schema:
        """Return the columns of the rows, as DDL or as an Arrow schema."""

    @property
    def parsed(self) -> tuple[str, str] | None:
        """Return the format of the files or records of a slice and the DDL of their columns; None for none."""
        return None

    @abstractmethod
    def next_slice(self, after: Position | None, access: SourceAccess, cut: SliceLimit) -> Slice | None:
        """Return the next slice after a position; None if there is no new input.

        Scans call it without a claim, perhaps in several processes at once: it changes nothing outside.

        Raises:
            InputChanged: input that was read before has changed or is gone; the region halts.
        """

    @abstractmethod
    def label(self, piece: Slice, source: str, access: SourceAccess) -> str:
        """Return the URI by which `trace`, `skip` and `reset --to-file` know a slice."""

    def check(self, piece: Slice, access: SourceAccess, source: str) -> None:
        """Check cheaply, for the plan of a rewind, that a slice can be read again unchanged.

        Raises:
            InputMissing, InputChanged: it cannot.
        """
        return

    def on_checkpointed(
        self, read: Iterator[Slice], access: SourceAccess, source: str, *, beyond_horizon: bool
    ) -> None:
        """Take note that slices were committed and published, or that they are beyond the reach of every rewind."""
        return

    def past_loss(
        self, after: Position | None, access: SourceAccess, source: str, *, waiting: Slice | None
    ) -> Slice | None:
        """Return a slice without rows that covers the lost input after a position, if nothing can be cut or read there.

        Reading it gives no rows, also when a rewind replays it. None if nothing is lost, or if the source cannot
        continue after the loss.

        Args:
            waiting: the slices that were cut already after the position, and must be cut again, as one slice with the
                facts of the first of them.
        """
        return None


class RowSlices(Replayable):
    """A source of rows; Drainmark trusts them to fit its columns.

    Attributes:
        has_origins: the rows come with the column `ORIGIN` (`frames.origins`), which orders the rows of a slice.
    """

    has_origins: ClassVar[bool] = False

    @property
    def records(self) -> Records | None:
        """Return the parser for the rows as read; None if they have the source's columns already."""
        return None

    @property
    def on_bad_cells(self) -> str | None:
        """Return "quarantine" or "halt" if the rows are cells of a database (`cell_values`); None if they are not."""
        return None

    @property
    def parsed(self) -> tuple[str, str] | None:
        records = self.records
        return (records.format, records.schema) if records is not None and records.schema is not None else None

    @abstractmethod
    def read(self, piece: Slice, access: SourceAccess) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a slice, always in the same order; rows without `_position` are numbered in this order.

        Raises:
            InputChanged, InputMissing: the rows cannot be read unchanged.
        """

    def shares(
        self, piece: Slice, access: SourceAccess, *, share_bytes: int, workers: Workers
    ) -> Sequence[Slice] | None:
        """Cut a slice of a large group into smaller slices, of about `share_bytes` each, that tasks can `read`.

        Their rows, one slice after the other, are the rows of the slice. A task has `Connections`, and no other access.

        Returns:
            the smaller slices; None if only this process can read the slice.

        Raises:
            InputChanged, InputMissing: as `read`.
        """
        return None

    def left_above(self, piece: Slice) -> int | None:
        """Return the id of the origin above which rows of earlier slices have left the input, as a slice tells.

        None if none has, or if it does not matter. Only for rows with origins, as the next method.
        """
        return None

    def upstream(self, access: SourceAccess) -> Upstream | None:
        """Return the region whose rewinds take rows that were read; None without one, or if it does not matter."""
        return None

    def highest_id(self, piece: Slice, access: SourceAccess) -> int | None:
        """Return the highest id of the origins in a slice, 0 if it has no rows; None if that cannot be found out."""
        return 0

    def remark(self, piece: Slice, rows: int) -> str | None:
        """Return the remark of the history about a slice, given the number of rows read; None for no remark."""
        return None
