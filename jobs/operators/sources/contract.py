"""The contract of a replayable source, and its access to the outside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from drainmark.jobs.formats.records import Records
from drainmark.jobs.operators.sources.slices import Position, Slice, SliceLimit

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.jobs.operators.sources.kafka_topic import Topic
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
        """Return a topic by its name, and by where its brokers are: their addresses, or a name in the settings.

        Raises:
            UsageError: the settings have no such name, the client is not installed, or nothing says where they are.
            ClusterRefused: as of `database`.
        """


class TaskConnections(Connections, Protocol):
    """Connections as a task is told of them: a value without any credentials."""

    @property
    def variables(self) -> Sequence[str]:
        """The variables of the environment from which the task has taken addresses and credentials so far."""

    def redacted(self, text: str) -> str:
        """Return a text without what nobody is to see of the addresses that this process has asked for."""


class Workers(Protocol):
    """Spark's workers, which do the tasks (`runtime.input.row_slices`)."""

    @property
    def is_ours(self) -> bool:
        """Are they of this machine and this user? Else their own environment has credentials."""

    def see(self, folder: Path) -> bool:
        """Do they find in a folder of this machine what this process finds there?"""


class Reach(Connections, Protocol):
    """What a source may reach outside of the process; `resources.inputs.source_access` fits it."""

    def of_tasks(self, *, are_ours: bool) -> AbstractContextManager[TaskConnections]:
        """Give the connections of tasks inside the block.

        Args:
            are_ours: Spark's workers are of this machine and this user; else their own environment has the credentials.
        """

    def path(self, path: str) -> Path:
        """Return a path of this machine; relative ones count from the folder of drainmark.toml."""

    def table(self, name: str) -> Files:
        """Return the folder of a Delta table by the names that `lookup` takes."""

    def newest_version(self, name: str) -> tuple[int, str, pa.Schema]:
        """Return a Delta table's newest version, its id, and its columns.

        Raises:
            UsageError: there is no such table, or it has features that cannot be read.
        """

    def buffer(self, source: str) -> Path:
        """Return the folder of what was pushed to a start, which may not exist yet."""

    def queued(self, source: str, after: int, max_bytes: int | None) -> list[Any]:
        """Return the scanned files of a periodic start behind a place, in order: at most so many bytes, or one."""

    def keep_list(self, source: str, number: int, text: str) -> str:
        """Keep a text for good and return its name; again with the same text gives the same name."""

    def kept_list(self, name: str) -> str:
        """Return a text that was kept.

        Raises:
            InputMissing: it is gone, or not what was kept.
        """


class Replayable(ABC):
    """What a source reads, declared as a frozen value. Every method may be called by any process at any time."""

    kind: ClassVar[str]
    hears_checkpoints: ClassVar[bool] = False
    has_thread: ClassVar[bool] = False

    @property
    def is_endless(self) -> bool:
        """Has it always something new, so that nobody may wait for its end?"""
        return False

    @abstractmethod
    def problems(self, trigger: str | None) -> Iterator[tuple[str, str, str]]:
        """Yield (rule, sentence, remedy) for every argument that does not fit, in a region triggered so."""

    @abstractmethod
    def fingerprint(self) -> Any:
        """Return a JSON-able value that changes when what is read does; no address, no credentials."""

    @abstractmethod
    def columns(self, reach: Reach) -> str | pa.Schema:
        """Return the columns of the rows, as DDL or as Arrow has them."""

    @abstractmethod
    def next_slice(self, after: Position | None, reach: Reach, cut: SliceLimit) -> Slice | None:
        """Return what there is to read after a position; None for nothing.

        Called by scans, without a claim, perhaps by several processes at once: it changes nothing outside.

        Raises:
            InputChanged: what was read before is not there any more as it was; the region halts.
        """

    @abstractmethod
    def label(self, piece: Slice, source: str, reach: Reach) -> str:
        """Return a slice's uri, by which `trace`, `skip` and `reset --to-file` know it."""

    def check(self, piece: Slice, reach: Reach, source: str) -> None:
        """Look, cheaply, whether a slice can be read again as it was: what the plan of a rewind wants to know.

        Raises:
            InputMissing, InputChanged: it cannot.
        """
        return

    def on_checkpointed(self, read: Iterator[Slice], reach: Reach, source: str, *, beyond_horizon: bool) -> None:
        """Hear that slices were committed and published, or that no rewind comes back to them any more."""
        return

    def past_loss(self, after: Position | None, reach: Reach, source: str, *, waiting: Slice | None) -> Slice | None:
        """Return a slice without rows over what is lost behind a position, where nothing can be cut or read.

        Reading it gives nothing, also when a rewind replays it. None where nothing is lost, or where the source knows
        no way on.

        Args:
            waiting: what is cut already behind the position, and is to be cut anew, as one slice with the facts of the
                first.
        """
        return None


class RowSlices(Replayable):
    """A source that gives rows; they are believed to fit its columns."""

    @property
    def records(self) -> Records | None:
        """Return how to parse the rows as read, None where they have the source's columns already."""
        return None

    @abstractmethod
    def read(self, piece: Slice, reach: Reach) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a slice, always in the same order; their places are numbers unless they have `_position`.

        Raises:
            InputChanged, InputMissing: they cannot be read as they were.
        """

    def shares(self, piece: Slice, reach: Reach, *, share_bytes: int, workers: Workers) -> Sequence[Slice] | None:
        """Cut a slice of a large group into smaller ones, of about so many bytes each, that tasks may `read`.

        Their rows one after the other are those of the slice; a task has `Connections`, and no other reach.

        Returns:
            None where only this process can read it.

        Raises:
            InputChanged, InputMissing: as `read`.
        """
        return None

    def remark(self, piece: Slice, rows: int) -> str | None:
        """Return what the history is to say of a slice of which so many rows were read; None for nothing."""
        return None
