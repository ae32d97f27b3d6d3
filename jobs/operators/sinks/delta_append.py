"""`sink(stream, DeltaAppend(table))`, every row of the stream, once, with its id; and the base of the Delta sinks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from drainmark.jobs.errors import Violation
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.graph.ports import Input
from drainmark.jobs.operators.sinks.sink import Sink, is_table_name, made_for
from drainmark.jobs.protocol.records.manifest import REGISTERED, TableRole

__all__ = ["DeltaAppend"]

OnSchemaChange = Literal["fail", "evolve"]

_CATALOGUED = re.compile(r"[\w-]+(\.[\w-]+){0,2}")

_ADOPTED = (
    "as long as one JVM at a time writes to it; others may write or restore it, which Drainmark neither prevents nor"
    " undoes; rows without _sequence_id are theirs, and no rewind touches them"
)


@dataclass(frozen=True)
class DeltaAppend:
    """A Delta table `lake/<table>` that gets every row of a stream: `_sequence_id` first, then the stream's columns.

    Attributes:
        table: name below the lake.
        adopt: the table exists, others made it and may write to it; it gets a column `_sequence_id`. delta-spark
            publishes to it, since Drainmark cannot write to tables with constraints, generated columns, column mapping
            or deletion vectors. `drainmark graph` shows the promise that holds then.
        on_schema_change: the reaction to a column of the stream that the table lacks: "fail", or "evolve", which adds
            it. A column that disappears or changes its type always fails.
        partition_by: columns that cut the table into partitions by their values, so that a reader of some values opens
            no files of other values: texts, whole numbers, dates or booleans of few values. An empty text becomes null.
            A group writes at least one file for each of its partitions; a group with more than 1000 fails. The columns
            cannot be changed later.
        cluster_by: columns by which rows are sorted within the files that a group writes, and when files are
            compacted, so that a reader of some values skips files and parts of files. May be changed at any time.
        register: the name of the table in a catalogue of Spark: `spark_catalog.sales.visits`; or `spark_catalog.sales`,
            with the table's own name; or `spark_catalog`, in its schema `default`. Created after the next publish, as
            an external table; if another table has the name already, that table keeps it. "": no name.

    Example:
        dm.sink(orders, dm.DeltaAppend("orders_by_item", partition_by=["item"], cluster_by=["at"]))
    """

    table: str
    adopt: bool = False
    on_schema_change: OnSchemaChange = "fail"
    partition_by: Sequence[str] = ()
    cluster_by: Sequence[str] = ()
    register: str = ""

    @property
    def label(self) -> str:
        return self.table

    def operator(self, *, name: str, inputs: tuple[Input, ...]) -> DeltaAppendSink:
        return made_for(DeltaAppendSink, self, name, inputs)


@dataclass(frozen=True, kw_only=True)
class DeltaSink(Sink):
    """The base of the Delta sinks."""

    table: str
    adopt: bool = False
    on_schema_change: str = "fail"
    cluster_by: tuple[str, ...] = ()
    register: str = ""

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.table,)

    @property
    def published(self) -> tuple[str, ...]:
        return (f"lake/{self.table}",)

    @property
    def registered(self) -> str | None:
        """Full name, in a catalogue of Spark's, for the table that it writes; None for no name."""
        if not self.register:
            return None
        parts = self.register.split(".")
        rest = ("default", self.table.replace("/", "_").replace("-", "_"))
        return ".".join((*parts, *rest[len(parts) - 1 :]))

    @property
    def evolves(self) -> bool:
        return self.on_schema_change == "evolve"

    def violations(self, in_region: bool) -> Iterator[Violation]:
        yield from super().violations(in_region)
        if in_region:
            return
        for rule, is_asked, done, arguments in self._asked_of_regions():
            if is_asked:
                message = f"it is outside of a consistent region, and {self.table!r} is to be {done}"
                yield self.wrong(rule, message, f"leave {arguments} out, or let a consistent region write the table")

    def _asked_of_regions(self) -> Iterator[tuple[str, bool, str, str]]:
        """Yield what only a region does to a table: the rule, is it asked for, what is done, and the arguments."""
        yield "AUTONOMOUS_LAYOUT", bool(self._layout()), "laid out", "partition_by and cluster_by"
        yield "AUTONOMOUS_REGISTER", bool(self.register), "registered", "register"

    @property
    def _order(self) -> tuple[str, ...]:
        return (*self.partition_by, *self.cluster_by)

    @property
    def condition(self) -> str | None:
        return _ADOPTED if self.adopt else None

    @property
    def is_adopted(self) -> bool:
        return self.adopt

    @property
    def options(self) -> Mapping[str, Any]:
        return {**self._layout(), **({REGISTERED: self.registered} if self.registered else {})}

    def fingerprint(self) -> Any:
        adopted = {"adopt": True} if self.adopt else {}
        return {**super().fingerprint(), "table": self.table, **adopted, **self._layout()}

    def _layout(self) -> dict[str, list[str]]:
        asked = {"partition_by": list(self.partition_by), "cluster_by": list(self.cluster_by)}
        return {name: columns for name, columns in asked.items() if columns}

    def problems(self) -> Iterator[tuple[str, str, str]]:
        if self.on_schema_change not in ("fail", "evolve"):
            yield "ON_SCHEMA_CHANGE", f"on_schema_change is {self.on_schema_change!r}", 'write "fail" or "evolve"'
        elif self.adopt and self.on_schema_change == "evolve":
            message = f"{self.table!r} is adopted, and its columns are its maker's: it cannot evolve"
            yield "ADOPTED_EVOLVES", message, "add the columns by ALTER TABLE, or leave adopt=True out"
        if self._layout() and self.adopt:
            message = f"{self.table!r} is adopted, and how it is laid out is its maker's choice"
            yield "ADOPTED_LAYOUT", message, "leave partition_by and cluster_by out"
        doubled = sorted({name for name in self._order if self._order.count(name) > 1})
        if doubled:
            message = f"partition_by and cluster_by name {', '.join(doubled)} twice"
            yield "LAYOUT_TWICE", message, "name each column once: within a partition its columns have one value each"
        if SEQUENCE_ID in self._order:
            message = f"{SEQUENCE_ID} is new with every trigger, and rows come in its order"
            yield "LAYOUT_BY_ID", message, "partition and cluster by columns of the stream"
        if self.register and not _CATALOGUED.fullmatch(self.register):
            message = f"register is {self.register!r}, which is no name in a catalogue of Spark's"
            remedy = 'write register="spark_catalog", or CATALOGUE.SCHEMA, or CATALOGUE.SCHEMA.TABLE'
            yield "REGISTER_NAME", message, remedy
        if not is_table_name(self.table):
            message = f"{self.table!r} is no table name below the lake"
            yield "TABLE_NAME", message, "letters, digits, _ and -, with / between folders, each of 200 bytes at most"


@dataclass(frozen=True, kw_only=True)
class DeltaAppendSink(DeltaSink):
    """A sink that appends the unpublished files of a group; a rewind removes whole files."""

    kind: ClassVar[str] = "delta-append"
    summary: ClassVar[str] = "Delta table of all rows"
    role: ClassVar[TableRole] = TableRole.APPEND
    has_history: ClassVar[bool] = False
    because: ClassVar[str] = (
        "its files are named by the checkpoint row, and shown by one commit under the version of that row"
    )

    @property
    def keeps_places(self) -> bool:
        return not self.adopt  # delta-spark writes the rows of an adopted table to files of its own
