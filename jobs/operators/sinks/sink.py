"""`sink(stream, target)` and the base of all sinks: every row of the stream with its id, or the last row of each key.

A sink writes its table directly, or keeps a *history* from which a visible target is updated: a table with one row for
each key, the rows of the last id, or a target outside Delta. With a history, publishing, rewinding and reading at an id
are the same for all of them, and need neither Spark nor the application.

A new sink is a file beside this one, such as `file_sink.py`. Outside Delta it also has an adapter in `resources/sinks`;
`resources/sinks/external_sinks.py` opens it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from drainmark.jobs.errors import UsageError, Violation
from drainmark.jobs.frames.names import quoted, quoted_name
from drainmark.jobs.frames.tags import GONE, POSITION, SEQUENCE_ID, TAGS
from drainmark.jobs.graph.declarations import Stream, StreamLike, caller, declare, location_of, port_to
from drainmark.jobs.graph.operator import Guarantee, Operator, names_of
from drainmark.jobs.graph.ports import Input
from drainmark.jobs.lazy import F
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.state.placed_rows import order_of, ranked, require_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.context import OperatorContext

__all__ = ["sink"]

_BYTES_MAX = 200  # file systems allow 255, and names that are made from a folder's name are longer


@dataclass(frozen=True, kw_only=True)
class Sink(Operator):
    """The base of all sinks.

    Attributes:
        keys: key columns of a sink with one row for each key; () for a sink of all rows.
        partition_by: columns that cut the visible table into partitions by their values.
        role: of the visible table.
        external: what writes it, if it is no Delta table.
        keeps_places: files whose rows are not in their order have `_position`, too; see `frames.origins`.
    """

    keeps_tags: ClassVar[bool] = True
    is_sink: ClassVar[bool] = True
    has_history: ClassVar[bool] = True
    role: ClassVar[TableRole]
    external: ClassVar[str] = ""
    guarantee: ClassVar[Guarantee | None] = Guarantee.EXACTLY_ONCE
    because: ClassVar[str] = (
        "brought up from a history whose files the checkpoint row names, once, under the version of that row"
    )

    keys: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()

    @property
    def keeps_places(self) -> bool:
        return False

    @property
    def is_adopted(self) -> bool:
        """Say whether others made the visible table."""
        return False

    @property
    def options(self) -> Mapping[str, Any]:
        """Return the options of the visible table, without credentials."""
        return {}

    @property
    def evolves(self) -> bool:
        """Say whether the tables get the columns that new code adds."""
        return False

    @property
    def published(self) -> tuple[str, ...]:
        """Return the names of the visible tables, as `RegionTable` has them: with the folder that they are in."""
        return self.tables

    @property
    def format(self) -> str:
        """Return the format that the sink writes, in one word."""
        return "delta"

    def visible(self, schema_json: str, *, history: str | None = None, columns: tuple[str, ...] = ()) -> RegionTable:
        """Return the visible table of the sink.

        Args:
            schema_json: schema of its rows.
            history: name of the history table from which it is updated, if the sink has one.
            columns: the columns of the history that are visible.
        """
        return RegionTable(
            name=self.published[0],
            role=self.role,
            operator=self.name,
            schema_json=schema_json,
            keys=self.keys,
            history=history,
            columns=columns,
            adopted=self.is_adopted,
            evolves=self.evolves,
            external=self.external,
            options=self.options,
        )

    def described(self) -> str:
        """Return a sentence in Markdown about the rows of the visible table."""
        return "Every row of the stream, once."

    def fingerprint(self) -> Any:
        keys = {"keys": list(self.keys)} if self.keys else {}
        return {**super().fingerprint(), **keys}

    def apply(self, frames: OperatorContext) -> DataFrame:
        """Return every row with its id first; for a sink with keys, the last row by position of each key and id.

        Of a change stream this is the last new row, or else a row that is gone: `GONE` then comes before the id.
        """
        port, has_own = self.inputs[0], set(self.keys).isdisjoint(self.partition_by)  # a null is no key of theirs
        net = frames.net(port, self.keys) if has_own else None
        rows = _without_empty(frames.input(port) if net is None else net, self.partition_by)
        require_columns(self, port, rows, self.keys)
        names = [name for name in visible_columns(rows.columns) if name.strip("`") not in self.keys]
        if not self.keys:
            return rows.selectExpr(SEQUENCE_ID, *names)
        keys = quoted(self.keys)
        if net is not None:
            return rows.selectExpr(*keys, *names, GONE, SEQUENCE_ID)
        payload = F.struct(*names) if names else F.struct(F.lit(True).alias("present"))
        has_gone = GONE in rows.columns
        order = [*([f"not {GONE}"] if has_gone else []), *order_of(frames, self, port, rows)]
        by = F.expr(f"struct({', '.join(order)})")
        gone = [F.bool_and(GONE).alias(GONE)] if has_gone else []
        last = rows.groupBy(SEQUENCE_ID, *keys).agg(F.max_by(payload, by).alias("_last"), *gone)
        return last.select(*keys, *(f"_last.{name}" for name in names), *([GONE] if has_gone else []), SEQUENCE_ID)

    def in_places(self, frames: OperatorContext) -> DataFrame:
        """Return the rows of `apply` for a sink without keys, and their `_position`: no two of an id have the same."""
        port = self.inputs[0]
        rows = ranked(frames, self, port, rows=_without_empty(frames.input(port), self.partition_by))
        return rows.selectExpr(SEQUENCE_ID, *visible_columns(rows.columns), POSITION)

    def violations(self, in_region: bool) -> Iterator[Violation]:
        """Yield a violation for each of the `problems`."""
        for rule, message, remedy in self.problems():
            yield self.wrong(rule, message, remedy)

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (rule, message, remedy) for each mistake in the sink's own configuration."""
        yield from ()


SinkKind = TypeVar("SinkKind", bound=Sink)


def made_for(kind: type[SinkKind], target: Any, name: str, inputs: tuple[Input, ...], **changed: Any) -> SinkKind:
    """Return the operator of a target, a dataclass with the operator's own fields.

    Args:
        changed: fields that have another form in the operator.
    """
    given: dict[str, Any] = {each.name: getattr(target, each.name) for each in fields(target)}
    given |= {each: names_of(given[each]) for each in ("keys", "partition_by", "cluster_by") if each in given}
    given |= changed
    return kind(name=name, inputs=inputs, **given)


class Target(Protocol):
    """A target of `sink`: `DeltaAppend`, `DeltaUpsert`, `DeltaOverwrite`, `DatabaseAppend`, …"""

    @property
    def label(self) -> str:
        """Return the text from which a sink without a given name is named."""

    def operator(self, *, name: str, inputs: tuple[Input, ...]) -> Sink:
        """Return the operator that writes to this target."""


def sink(stream: StreamLike, target: Target, *, name: str | None = None) -> Stream:
    """Declare a sink: every row of the stream goes to the target.

    Args:
        target: e.g. `DeltaAppend(table)`, `DeltaUpsert(table, keys=[…])`, `DatabaseAppend(database, table)`.
        name: the operator's name; `<table>_sink` by default.

    Raises:
        UsageError: the target is no such object.

    Example:
        dm.sink(orders, dm.DeltaAppend("all_orders"))
        dm.sink(orders, dm.DeltaUpsert("orders_by_id", keys=["id"]), name="newest_orders")
    """
    if isinstance(target, type | Stream) or not hasattr(target, "operator"):
        msg = f"dm.sink() is given {target!r}, which is no target"
        raise UsageError(msg, location=location_of(caller()), remedy="give a target, such as dm.DeltaAppend(table)")
    label = "".join(letter if letter.isalnum() else "_" for letter in str(target.label))
    return declare(target.operator(name=name or f"{label}_sink", inputs=(port_to(stream),)))


def _without_empty(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return rows with null instead of empty texts in some columns: the log of a table cannot tell the two apart."""
    kinds = dict(rows.dtypes)
    texts = {name: F.nullif(F.col(quoted_name(name)), F.lit("")) for name in names if kinds.get(name) == "string"}
    return rows.withColumns(texts) if texts else rows


def visible_columns(columns: Sequence[str]) -> list[str]:
    """Return the columns of a stream that a table shows, quoted: all except the tags."""
    return [quoted_name(name) for name in columns if name not in TAGS]


def is_table_name(text: str) -> bool:
    """Say whether a text names a table or folder below another: letters, digits, _ and -, with / between folders."""
    return all(_is_folder_name(part) for part in text.split("/"))


def _is_folder_name(part: str) -> bool:
    plain = part.replace("_", "a").replace("-", "a")
    return plain.isalnum() and not part.startswith("_") and len(part.encode()) <= _BYTES_MAX
