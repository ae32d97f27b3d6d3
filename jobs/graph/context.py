"""The view of a group for an operator's `apply`: its input frames, parameters, state, lookups; and the boundary around
the author's code, which names operator, function and line for each error inside."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from drainmark.jobs.errors import OperatorFailed
from drainmark.jobs.frames.arrow import arrow_of, frame_of
from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.row_order import in_given_order, order_within_id, rows_by_id, untagged
from drainmark.jobs.frames.tags import ORDINAL, SEQUENCE_ID, SOURCE_FILE, TAGS
from drainmark.jobs.graph.blame import Blamed, blaming, failed
from drainmark.jobs.graph.code_digests import UserFunction
from drainmark.jobs.graph.params import Params
from drainmark.jobs.graph.ports import Input, control_part
from drainmark.jobs.graph.sessionless import function_called
from drainmark.jobs.lazy import F

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


Made = TypeVar("Made")
RowsReader = Callable[[Any, str, "pa.Table"], "pa.Table | None"]
KeptReader = Callable[[Any, str, "DataFrame | None", "Due | None", "Fit"], "DataFrame | None"]
StateReader = Callable[[Any, "DataFrame"], "tuple[DataFrame, DataFrame | None]"]


class Step(Blamed, Protocol):
    """The part of an operator that its frames need."""

    @property
    def inputs(self) -> tuple[Input, ...]: ...
    @property
    def keeps_tags(self) -> bool: ...
    def stream(self, output: str = "") -> str: ...


class Fit(StrEnum):
    """Which rows of a kept state an operator can bear beside the last rows of the keys that it asks for."""

    EXACT = "exact"
    """No others."""
    OTHERS = "others"
    """The last rows of other keys."""
    RAW = "raw"
    """These, all earlier rows of any key, and rows that say by `GONE` that their key is gone: they cost least."""


ABOVE, UPTO = "__above", "__upto"


@dataclass(frozen=True, slots=True)
class Due:
    """The rows of a kept state that a group makes due, of all keys: those within a span of time.

    Attributes:
        column: their time; a timestamp, or a bigint.
        span: makes a frame of one row. `ABOVE`: a time up to which all rows are gone already, null or missing if it is
            unknown. `UPTO`: a time up to which rows are due, null for no rows. In microseconds since 1970-01-01 UTC,
            or in the unit of a bigint.
        may_fall: the time may go back from group to group: then rows up to an earlier one may be there again.
    """

    column: str
    span: Callable[[], DataFrame]
    may_fall: bool = False


@dataclass(frozen=True, slots=True)
class Net:
    """What a change stream leads to: one row for each of `keys` and id, the new one, or else the one that is gone.

    Attributes:
        rows: with the columns of the stream.
    """

    keys: tuple[str, ...]
    rows: DataFrame


class SqlStep(Step, Protocol):
    """A step with a statement of SQL."""

    @property
    def statement(self) -> str: ...


class HostedAttempt(Protocol):
    """One attempt of a handler that runs in this process."""

    def step(self, ids: range, rows: Mapping[int, pa.Table], none: pa.Table) -> tuple[pa.Table, pa.Table]: ...


@dataclass(slots=True, kw_only=True)
class OperatorContext:
    """Frames of one attempt at a group, filled in topological order.

    Attributes:
        scanned_frames: rows as read, by the name of the stream that a source makes of them.
        read_state: see `state`.
        read_kept: see `kept`.
        read_kept_rows: returns the rows of a part of a kept state, as it was before the group, that have some keys; any
            other rows, and earlier ones of these keys, may be among them; None for no rows. For a step for which
            `is_local` is true. The keys are the columns by which the state is looked up, in their types, and their
            `KEY_HASH` if `looks_up`.
        looks_up: says whether the rows of a part of a kept state are looked up by the keys that a group needs. These
            keys are then computed before the rest.
        materialise: see `once`.
        is_repeatable: says whether a frame has the same rows whenever it is computed.
        nets: of change streams, by name; see `net`.
        read_lookup: frame of a lookup's table.
        read_statement: text of a SQL operator.
        collect: see `hosted`.
        hosts: the handlers of the run, by operator; none while a plan is only analysed.
        is_run: a group is processed, so that rows may be read; false if a plan is only analysed.
        few: says whether the rows that an operator reads are few, those of its state included: one partition is then
            faster than an exchange.
        known_types: column types of the state by aggregate, so that Spark need not be asked for every group.
        made: see `once_a_run`.
        readers: returns the number of connections that read the rows of an output, by name and output.
        own_places: streams in which no two rows of an id share a position; operators that use the order of rows number
            the rows of other streams anew (`placed_rows.ranked`).
        multiplied: streams whose rows get ordinals; see `Blueprint`.
    """

    session: SparkSession
    params: Params
    first_id: int
    last_id: int
    scanned_frames: Mapping[str, DataFrame]
    read_state: StateReader
    read_lookup: Callable[[Any], DataFrame]
    read_statement: Callable[[str], str]
    read_kept: KeptReader = lambda operator, part, changed, due, fit: None
    read_kept_rows: RowsReader = lambda operator, part, keys: None
    looks_up: Callable[[Any, str], bool] = lambda operator, part: False
    materialise: Callable[[Any, DataFrame], DataFrame] = lambda operator, frame: frame
    is_repeatable: Callable[[DataFrame], bool] = lambda frame: False
    collect: Callable[[Any, DataFrame], pa.Table] = lambda operator, frame: arrow_of(frame)
    hosts: Mapping[str, HostedAttempt] = field(default_factory=dict)
    is_run: bool = False
    few: Callable[[Any], bool] = lambda operator: False
    known_types: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    streams: dict[str, DataFrame] = field(default_factory=dict)
    nets: dict[str, Net] = field(default_factory=dict)
    made: dict[Any, Any] = field(default_factory=dict)
    readers: Callable[[str, str], int] = lambda operator, output: 1
    own_places: Collection[str] = ()
    multiplied: Collection[str] = ()

    def reads(self, operator: Step, output: str) -> bool:
        """Say whether an output of an operator has a reader; an output without one need not be computed."""
        return self.readers(operator.name, output) > 0

    def once_a_run(self, key: Any, make: Callable[[], Made]) -> Made:
        """Return a value that all groups of a run share: expressions, which belong to no frame."""
        if key not in self.made:
            self.made[key] = make()
        found: Made = self.made[key]
        return found

    def scanned(self, stream: str) -> DataFrame:
        """Return the rows of a source's output as read: columns, `source_file`, the tags."""
        return self.scanned_frames[stream]

    def input(self, port: Input) -> DataFrame:
        """Return the frame connected to a data port."""
        return self.streams[port.stream]

    def net(self, port: Input, keys: Collection[str]) -> DataFrame | None:
        """Return the last row of each key and id of a change stream, if the operator before knows it for these keys."""
        found = self.nets.get(port.stream)
        return found.rows if found is not None and set(found.keys) == set(keys) else None

    def inputs(self, operator: Step) -> list[DataFrame]:
        """Return the arguments of an operator's function: the frames of its data ports; for a control port the last
        row of each key, as of the id before (see `dm.Control`). With several streams, none has ordinals: these order
        only the rows of one stream, and would prevent a union."""
        frames = [self._known(operator, port) if port.control else self.input(port) for port in operator.inputs]
        if len(frames) < 2:
            return frames
        return [frame.drop(ORDINAL) if ORDINAL in frame.columns else frame for frame in frames]

    def _known(self, operator: Step, port: Input) -> DataFrame:
        if port.control_schema is not None:
            like = self.session.createDataFrame([], port.control_schema)
        elif port.stream in self.streams:
            like = self.streams[port.stream].drop(*TAGS)
        else:
            message = f"{port.stream!r} comes back to it, and nothing says which columns it has"
            remedy = 'declare them: Annotated[DataFrame, dm.Control(keys=["…"], schema="… bigint")]'
            raise failed(operator, message, remedy)
        return self.kept(operator, control_part(port), like.schema)

    def on_control(self, operator: Step, port: Input) -> DataFrame:
        """Return the rows that a control port adds to the kept state: one per key and id, the last by position."""
        rows = self.input(port)
        names = [name for name in rows.columns if name not in TAGS]
        payload = F.struct(*(quoted_name(name) for name in names))
        order = self.once_a_run((operator.name, "order on", port.stream), lambda: order_within_id(rows))
        keys = [quoted_name(key) for key in port.control_keys]
        last = rows.groupBy(SEQUENCE_ID, *keys).agg(
            F.max_by(payload, F.expr(f"struct({', '.join(order)})")).alias("_last")
        )
        return last.select(*(f"_last.{quoted_name(name)}" for name in names), SEQUENCE_ID)

    def kept(
        self,
        operator: Step,
        part: str,
        schema: StructType,
        changed: DataFrame | None = None,
        due: Due | None = None,
        *,
        fit: Fit = Fit.EXACT,
    ) -> DataFrame:
        """Return a kept state as it was before the group, without rows of deleted keys unless it is raw.

        Args:
            schema: columns to return; a column that the state's table lacks is null.
            changed: has some or all key columns; only rows that are equal to one of its rows in these are returned.
            due: rows that are due are returned, too; any other rows may then be among them.
            fit: says which other rows may be among them.
        """
        rows = self.read_kept(operator, part, changed, due, fit)
        if rows is None:
            return self.session.createDataFrame([], schema)
        known = set(rows.columns)
        return rows.select(
            *(
                F.col(quoted_name(field.name))
                if field.name in known
                else F.lit(None).cast(field.dataType).alias(field.name)
                for field in schema.fields
            )
        )

    def ids(self) -> DataFrame:
        """Return the group's ids, also those of triggers without rows: one column, `__id`."""
        import pyarrow as pa

        numbers = pa.array(range(self.first_id, self.last_id + 1), pa.int64())
        return frame_of(self.session, pa.table({"__id": numbers})).coalesce(1)

    def once(self, operator: Step, frame: DataFrame, *, is_cheap: bool = False) -> DataFrame:
        """Return a frame of the same rows that is computed once; like `collect` and `hosted`, it may start a job.

        Args:
            is_cheap: it may be computed again if its rows are the same each time.
        """
        return frame if is_cheap and self.is_repeatable(frame) else self.materialise(operator, frame)

    def hosted(self, operator: Step, frame: DataFrame) -> tuple[pa.Table, pa.Table]:
        """Give a group's rows to the handler of an operator in this process; see `HandlerHost.step`. Starts a job."""
        rows = self.collect(operator, frame)
        ids = range(self.first_id, self.last_id + 1)
        return self.hosts[operator.name].step(ids, rows_by_id(rows), untagged(rows.slice(0, 0)))

    def local(self, operator: Step, rows: pa.Table | None, schema: StructType) -> DataFrame:
        """Return rows of this process (None: no rows) as a frame, in one partition if they are few."""
        if rows is None or rows.num_rows == 0:
            return self.session.createDataFrame([], schema)
        frame = frame_of(self.session, rows, schema)
        return frame.coalesce(1) if self.few(operator) else frame

    def state(self, operator: Step, partials: DataFrame) -> tuple[DataFrame, DataFrame | None]:
        """Return the partials, computed once if they are read twice, and the state rows that their keys had before the
        group, None if there is no state yet."""
        return self.read_state(operator, partials)

    def is_local(self, operator: Step) -> bool:
        """Say whether this process may go through the rows of the group and of the state."""
        return self.is_run and self.few(operator)

    def gathered(self, operator: Step, frame: DataFrame) -> DataFrame:
        """Return the frame in one partition if the rows are few: a keyed step then needs no exchange."""
        return frame.coalesce(1) if self.few(operator) else frame

    def statement(self, operator: SqlStep) -> str:
        return str(self.guard(operator, lambda: self.read_statement(operator.statement)))

    def call(self, operator: Step, function: UserFunction, frames: Sequence[DataFrame]) -> Any:
        """Call the author's function with its streams and parameters.

        Raises:
            OperatorFailed: the function raised an error, which is chained.
        """
        arguments = dict(zip(function.streams, frames, strict=True))
        arguments.update(dict.fromkeys(function.params, self.params))
        return self.guard(operator, lambda: function.function(**arguments))

    def guard(self, operator: Step, action: Callable[[], Any]) -> Any:
        """Run code of the author's and blame the operator for its errors."""
        with blaming(operator), function_called():
            return action()

    def tagged(self, operator: Step, frame: DataFrame, output: str = "") -> DataFrame:
        """Return an operator's result with its tags: `_sequence_id`, put back if a group of one id lost it, and the
        ordinals of rows that were made of one row."""
        if operator.stream(output) in self.multiplied:
            frame = in_given_order(frame)
        if operator.keeps_tags or SEQUENCE_ID in frame.columns:
            return frame
        if self.first_id != self.last_id:
            msg = f"the result of {operator.name!r} has no {SEQUENCE_ID}, and the group has several ids"
            raise OperatorFailed(msg, operator=operator.name, location=operator.location)
        return frame.withColumn(SEQUENCE_ID, F.lit(self.first_id).cast("bigint"))


def empty_like(session: SparkSession, frame: DataFrame) -> DataFrame:
    """Return a frame without rows and with the same columns; it does not depend on the other's plan."""
    return session.createDataFrame([], frame.schema)


def with_source_file(frame: DataFrame, first_id: int, uris: str) -> DataFrame:
    """Add `source_file`: a function of the id, so it needs no join and no room in materialised frames."""
    # As SQL text, in hex since it may have any character: one call to the JVM, while Columns would take twenty.
    listed = f"split(decode(unhex('{uris.encode().hex()}'), 'UTF-8'), '\\\\x00')"
    if "\0" not in uris:
        return frame.selectExpr("*", f"{listed}[0] as {SOURCE_FILE}")
    index = f"cast({SEQUENCE_ID} - {first_id} as int)"
    return frame.selectExpr("*", f"{listed}[{index}] as {SOURCE_FILE}")
