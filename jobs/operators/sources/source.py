"""Sources: operators that start a region. What one reads says its declaration, a `DirectoryScan` or a `Replayable`.

A replayable source has *positions*, JSON objects of its own making, and *slices*: what lies between two of them. In an
operator-driven region it cuts slices where they mean something to it, each a trigger; in a periodic one every start is
cut at the tick, and all the cuts are one trigger (V40, V41, V43). Reading a slice again gives what it gave before, or
an error: that is what makes a source replayable (V55, V144).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from drainmark.jobs.errors import Violation
from drainmark.jobs.graph.annotations import Trigger
from drainmark.jobs.graph.operator import Operator, Places, UserFunction, Vectorises

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.context import GroupFrames
    from drainmark.jobs.operators.sources.directory_scan import DirectoryScan
    from drainmark.jobs.operators.sources.kafka_topic import Topic

Position = Mapping[str, Any]
"""Where a source stands, as JSON; small, for every trigger holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What a source has after one position, up to another.

    Attributes:
        start: the position before; None at the very beginning.
        end: the position after.
        size_bytes: of what is to be read, or an estimate.
        facts: what else it takes to read it again, as JSON.
    """

    start: Position | None
    end: Position
    size_bytes: int
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return what a trigger's identity keeps."""
        return {"from": self.start, "to": self.end, "bytes": self.size_bytes, **self.facts}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Slice:
        """Return the slice that `to_json` described."""
        facts = {name: fact for name, fact in value.items() if name not in ("from", "to", "bytes")}
        return cls(start=value["from"], end=value["to"], size_bytes=int(value.get("bytes", 0)), facts=facts)

    @property
    def is_empty(self) -> bool:
        return self.start == self.end


class Files(Protocol):
    """A folder of immutable files, on a disk or in a bucket (`resources.storage.folder.Folder`)."""

    uri: str

    def source(self, path: str) -> Any: ...
    def names(self, path: str = "") -> Iterator[str]: ...
    def read_each(self, paths: Any, columns: Any = None) -> Iterator[pa.Table]: ...


class Reach(Protocol):
    """What a source may reach outside of the process; `resources.inputs.source_access` fits it."""

    @property
    def region(self) -> str: ...

    def path(self, path: str) -> Path:
        """Return a path of this machine; relative ones count from the folder of drainmark.toml."""

    def table(self, name: str) -> Files:
        """Return the folder of a Delta table by the names that `lookup` takes."""

    def newest_version(self, name: str) -> tuple[int, str, pa.Schema]:
        """Return a Delta table's newest version, its id, and its columns.

        Raises:
            UsageError: there is no such table, or it has features that cannot be read.
        """

    def database(self, name: str) -> Any:
        """Return the SQLAlchemy engine of a database by its name in the settings.

        Raises:
            UsageError: the settings have no such name.
        """

    def kafka(self, topic: str, *, servers: str, cluster: str | None) -> Topic:
        """Return a topic by its name, and by where its brokers are: their addresses, or a name in the settings.

        Raises:
            UsageError: the settings have no such name, the client is not installed, or nothing says where they are.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How far a slice may go.

    Attributes:
        source: name of the start.
        max_bytes: about so many, but one unit of the source in any case; None for no bound.
        is_periodic: the slice ends where the tick finds it, and not where it means something to the source (V43).
    """

    source: str
    max_bytes: int | None = None
    is_periodic: bool = False


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
    def next_slice(self, after: Position | None, reach: Reach, cut: Cut) -> Slice | None:
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
        """Hear that slices were committed and published, or that no rewind comes back to them any more (V153)."""
        return

    def past_loss(self, after: Position | None, reach: Reach, source: str, *, waiting: Slice | None) -> Slice | None:
        """Return a slice without rows over what is lost behind a position, where nothing can be cut or read (K1).

        Reading it gives nothing, also when a rewind replays it. None where nothing is lost, or where the source knows
        no way on.

        Args:
            waiting: what is cut already behind the position, and is to be cut anew, as one slice with the facts of the
                first.
        """
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """How values that come as bytes become columns; those that do not fit are judged as the rows of files are.

    Attributes:
        column: name of the values among the rows as read.
        format: `text`, `csv` or `json`.
        schema: DDL of their columns; None for text, which stays in one of the same name.
        options: of Spark's reader.
        others: DDL of the types of the other columns, by name.
        strict: see `DirectoryScan`.
        takes_null: a row without a value has nulls, and is not bad.
        place: names a row's `block` and `row`, for people to find it.
    """

    column: str
    format: str
    schema: str | None
    options: Mapping[str, str]
    others: Mapping[str, str]
    on_bad: str
    strict: bool
    takes_null: bool
    place: str = "row {row}"


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

    def remark(self, piece: Slice, rows: int) -> str | None:
        """Return what the history is to say of a slice of which so many rows were read; None for nothing."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A file's worth of a slice.

    Attributes:
        uri: what rows have as `source_file`.
        place: makes it readable at a path that does not exist yet.
        check: raises InputChanged unless it is what it was; called after reading.
    """

    uri: str
    size_bytes: int
    place: Callable[[Path], None]
    check: Callable[[], None] = lambda: None


class FileSlices(Replayable):
    """A source that gives files, in which rows may be bad: they are judged as those of a `DirectoryScan` are."""

    @property
    @abstractmethod
    def scan(self) -> DirectoryScan:
        """Format, columns, options and policies of the files."""

    @abstractmethod
    def parts(self, piece: Slice, reach: Reach, source: str) -> Iterator[Part]:
        """Yield the files of a slice in order."""

    def columns(self, reach: Reach) -> str | pa.Schema:
        return self.scan.schema_of("") or "value string"


@dataclass(frozen=True, kw_only=True)
class Source(Operator):
    """The start of a region: input in, rows out."""

    is_source: ClassVar[bool] = True
    may_start: ClassVar[bool] = True
    vectorises: ClassVar[Vectorises] = Vectorises.CHECKED
    places: ClassVar[Places] = Places.CHECKED
    keeps_tags: ClassVar[bool] = False

    function: UserFunction

    @property
    def is_periodic(self) -> bool:
        return self.consistent is not None and self.consistent.trigger == Trigger.PERIODIC

    @property
    def is_endless(self) -> bool:
        """Has it always something new, so that nobody may wait for its end?"""
        return False

    @property
    def hears_checkpoints(self) -> bool:
        """Does `on_checkpointed` do anything?"""
        return False

    def stream(self, output: str) -> str:
        """Return the name of an output's stream."""
        return f"{self.name}[{output}]" if output else self.name

    def found_wrong(self) -> Iterator[tuple[str, str, str]]:
        """Yield (rule, sentence, remedy) for every argument that does not fit."""
        yield from ()

    def violations(self, in_region: bool) -> Iterator[Violation]:
        for rule, message, remedy in self.found_wrong():
            yield Violation(
                rule=rule, message=f"{self.name}: {message}", operator=self.name, location=self.location, remedy=remedy
            )

    def columns(self, reach: Reach, output: str) -> str | pa.Schema:
        """Return the columns of an output's rows as read, without the tags."""
        raise NotImplementedError

    def next_slice(self, after: Position | None, reach: Reach, cut: Cut) -> Slice | None:
        """Return what there is to read after a position; see `Replayable.next_slice`."""
        raise NotImplementedError

    def on_checkpointed(self, read: Iterator[Slice], reach: Reach, *, beyond_horizon: bool) -> None:
        """See `Replayable.on_checkpointed`."""
        return

    def apply(self, frames: GroupFrames) -> DataFrame:
        return self.apply_output(frames, "")

    def apply_output(self, frames: GroupFrames, output: str) -> DataFrame:
        """Return one output: the author's function over the rows as read."""
        frame: DataFrame = frames.call(self, self.function, [frames.scanned(self.stream(output))])
        return frame


@dataclass(frozen=True, kw_only=True)
class SlicedSource(Source):
    """A source of slices."""

    kind: ClassVar[str] = "slices"
    summary: ClassVar[str] = "one trigger a slice of what it reads"

    reads: Replayable

    @property
    def is_endless(self) -> bool:
        return self.reads.is_endless

    @property
    def hears_checkpoints(self) -> bool:
        return self.reads.hears_checkpoints

    @property
    def has_thread(self) -> bool:
        return self.reads.has_thread

    def found_wrong(self) -> Iterator[tuple[str, str, str]]:
        return self.reads.problems(self.consistent.trigger if self.consistent is not None else None)

    def fingerprint(self) -> Any:
        read = {"kind": self.reads.kind, **self.reads.fingerprint()}
        return {**super().fingerprint(), "read": read, "function": self.function.source_digest()}

    def columns(self, reach: Reach, output: str) -> str | pa.Schema:
        return self.reads.columns(reach)

    def next_slice(self, after: Position | None, reach: Reach, cut: Cut) -> Slice | None:
        return self.reads.next_slice(after, reach, cut)

    def on_checkpointed(self, read: Iterator[Slice], reach: Reach, *, beyond_horizon: bool) -> None:
        self.reads.on_checkpointed(read, reach, self.name, beyond_horizon=beyond_horizon)
