"""Sources: operators that start a region. A `DirectoryScan` or a `Replayable` declares the input of a source.

Its rows, as read, have the tags first, then its columns (`row_type`).

A replayable source has *positions*, JSON objects that it defines, and *slices*: the input between two positions. In an
operator-driven region it cuts slices at boundaries that it defines, and each slice is a trigger. In a periodic region
every start is cut at the tick, and all these slices are one trigger. A slice that is read again gives the same rows, or
an error: that makes a source replayable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.errors import UsageError, Violation
from drainmark.jobs.formats.format import format_of
from drainmark.jobs.frames.tags import RESERVED, SOURCE_FILE, tagged_type
from drainmark.jobs.graph.annotations import TriggerKind
from drainmark.jobs.graph.blame import naming
from drainmark.jobs.graph.functions import FunctionOperator
from drainmark.jobs.graph.operator import Positions, Vectorises
from drainmark.jobs.operators.sources.contract import Replayable, SourceAccess
from drainmark.jobs.operators.sources.slices import Position, Slice, SliceLimit

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from drainmark.jobs.graph.context import OperatorContext


@dataclass(frozen=True, kw_only=True)
class Source(FunctionOperator):
    """The start of a region: it makes rows from input."""

    is_source: ClassVar[bool] = True
    may_start: ClassVar[bool] = True
    vectorises: ClassVar[Vectorises] = Vectorises.CHECKED
    positions: ClassVar[Positions] = Positions.CHECKED
    keeps_tags: ClassVar[bool] = False

    @property
    def is_periodic(self) -> bool:
        return self.consistent is not None and self.consistent.trigger == TriggerKind.PERIODIC

    @property
    def is_endless(self) -> bool:
        """Say whether it always has new input, so that no caller may wait for its end."""
        return False

    @property
    def has_thread(self) -> bool:
        """Say whether a thread of its own submits its rows; it then needs a run that stays."""
        return False

    @property
    def hears_checkpoints(self) -> bool:
        """Say whether `on_checkpointed` does anything."""
        return False

    def found_wrong(self) -> Iterator[tuple[str, str, str]]:
        """Yield (rule, sentence, remedy) for every argument that does not fit."""
        yield from ()

    def violations(self, in_region: bool) -> Iterator[Violation]:
        for rule, message, remedy in self.found_wrong():
            yield self.wrong(rule, message, remedy)

    def columns(self, access: SourceAccess, output: str) -> str | pa.Schema:
        """Return the columns of an output's rows as read, without the tags."""
        raise NotImplementedError

    def parsed(self, output: str) -> tuple[str, str] | None:
        """Return the format of an output's files or records and the DDL of their columns; None if none is declared."""
        return None

    def next_slice(self, after: Position | None, access: SourceAccess, cut: SliceLimit) -> Slice | None:
        """Return the next slice after a position; see `Replayable.next_slice`."""
        raise NotImplementedError

    def on_checkpointed(self, read: Iterator[Slice], access: SourceAccess, *, beyond_horizon: bool) -> None:
        """Take note of slices that were read; see `Replayable.on_checkpointed`."""
        return

    def apply(self, frames: OperatorContext) -> DataFrame:
        return self.apply_output(frames, "")

    def apply_output(self, frames: OperatorContext, output: str) -> DataFrame:
        """Return one output: the result of the author's function on the rows as read."""
        frame: DataFrame = frames.call(self, self.function, [frames.scanned(self.stream(output))])
        return frame


@dataclass(frozen=True, kw_only=True)
class SlicedSource(Source):
    """A source that reads the slices of a `Replayable`."""

    kind: ClassVar[str] = "slices"
    summary: ClassVar[str] = "one trigger a slice of its input"

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
        return {**super().fingerprint(), "read": read}

    def columns(self, access: SourceAccess, output: str) -> str | pa.Schema:
        with naming(self):
            return self.reads.columns(access)

    def parsed(self, output: str) -> tuple[str, str] | None:
        return self.reads.parsed

    def next_slice(self, after: Position | None, access: SourceAccess, cut: SliceLimit) -> Slice | None:
        with naming(self):
            return self.reads.next_slice(after, access, cut)

    def on_checkpointed(self, read: Iterator[Slice], access: SourceAccess, *, beyond_horizon: bool) -> None:
        self.reads.on_checkpointed(read, access, self.name, beyond_horizon=beyond_horizon)


def row_type(source: Source, output: str, access: SourceAccess) -> StructType:
    """Return the type of a source's rows as read: tags, then its columns.

    Raises:
        UsageError: a column has the name of a reserved column, or of another one, which Spark could not tell apart; or
            a type that its format never has.
    """
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    columns = source.columns(access, output)
    declared = (
        StructType.fromDDL(columns)
        if isinstance(columns, str)
        else from_arrow_schema(columns, prefer_timestamp_ntz=True)
    )
    _require_own_names(source, declared.names, RESERVED)
    if (parsed := source.parsed(output)) is not None:
        _require_readable(source, *parsed)
    return tagged_type(declared)


def _require_readable(source: Source, form: str, ddl: str) -> None:
    from pyspark.sql.types import StructType

    for column in StructType.fromDDL(ddl).fields:
        if (why := format_of(form).unreadable(column.dataType)) is not None:
            raise UsageError(
                f"column {column.name!r} of {source.name!r} has a type that is never read from {form}",
                remedy=why,
                operator=source.name,
                location=source.location,
                column=column.name,
            )


def _require_own_names(source: Source, names: Sequence[str], reserved: Sequence[str]) -> None:
    taken = {name.casefold(): f"all rows carry a column {name} of their own" for name in reserved}
    for name in names:
        if (why := taken.get(name.casefold())) is not None:
            raise UsageError(
                f"{source.name!r} cannot have a column {name!r}: {why}",
                remedy="leave it out of the schema, or give it another name where the rows come from",
                operator=source.name,
                location=source.location,
            )
        taken[name.casefold()] = f"{name!r} is one, and Spark does not tell upper from lower case"


def empty_rows(session: SparkSession, source: Source, output: str, access: SourceAccess) -> DataFrame:
    """Return an empty frame with the columns of a source's rows as read."""
    from pyspark.sql.types import StringType

    return session.createDataFrame([], row_type(source, output, access).add(SOURCE_FILE, StringType()))
