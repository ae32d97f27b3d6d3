"""The base of every operator: name, inputs, annotations, and facts about its kind.

An operator is a frozen value. Declaring touches neither Spark nor disk. The processing of rows is in the operator's own
file under `jobs/operators`, in `apply`, or in `step` if it keeps state.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.errors import Location, Violation
from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.tags import GONE, SEQUENCE_ID
from drainmark.jobs.graph.annotations import Consistent
from drainmark.jobs.graph.ports import Input, control_part

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.context import Net, OperatorContext


class Vectorises(StrEnum):
    """Whether one job may process many triggers of this operator at once."""

    YES = "yes"
    CHECKED = "checked"  # decided on the analysed plan, at dry run and at first use
    NO = "no"


class Positions(StrEnum):
    """Whether each row of an id has a position of its own in the output of an operator."""

    OWN = "own"  # the operator gives each row one
    KEPT = "kept"  # rows keep their positions, and no row comes twice
    CHECKED = "checked"  # the analysed plan tells
    SHARED = "shared"  # rows may share a position, or have none


class Guarantee(StrEnum):
    """The delivery guarantee of a sink."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """The meaning of a merged value in a state. Code with another meaning for the same name cannot continue with the
    state: it would merge new rows into a different value.

    Attributes:
        of: in words: "sum(amount)".
        code: digest of the author's functions that make it; "" if they are the library's.
        python: the version that compiled them; digests of different versions cannot be compared.
        identity: given by the author; while it stays the same, the code may change.
    """

    of: str
    code: str = ""
    python: str = ""
    identity: str = ""

    def to_json(self) -> dict[str, str]:
        facts = {"of": self.of, "code": self.code, "python": self.python, "identity": self.identity}
        return {name: fact for name, fact in facts.items() if fact}


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The part of the past that a state keeps. Code that needs more, or another part, cannot continue with the state:
    the rows that it needs were never kept, or are already deleted.

    Attributes:
        of: the kept part, as an error names it: "rows of a key", "`at` in windows of 0:10:00".
        extent: how much of it, in a unit that follows from `of`; it may shrink but not grow. None if it has no measure.
        values: by name, the values with parts that are merged with older ones.
    """

    of: str
    extent: float | None = None
    values: Mapping[str, Meaning] = field(default_factory=dict, hash=False)

    def to_json(self) -> dict[str, Any]:
        values = {name: value.to_json() for name, value in self.values.items()}
        return {"of": self.of, "reach": self.extent, **({"values": values} if values else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptState:
    """A keyed state that an operator keeps beside its output: the table `state/<app>/<operator>`, or `…-<part>`.

    Attributes:
        part: tells the states of an operator apart, "" if it has only one.
        keys: key columns, null being a key; without keys the state is one row.
        depth: how many rows of a key are kept, the last ones by sequence id and position.
        evolves: columns may be added by later versions of the code.
        looked_up_by: the keys by which a group looks up rows; () if it reads all of the state.
        gone: the column that says of a row that its key has left the state; another one than `GONE` if the state
            remembers keys that are gone.
        history_of: key columns of the upsert sinks right behind the operator whose history it is, so that both are one
            table; () if it is none.
        retention: None if the state holds all that later versions of the code could need.
    """

    part: str = ""
    keys: tuple[str, ...] = ()
    depth: int = 1
    evolves: bool = False
    looked_up_by: tuple[str, ...] = ()
    gone: str = GONE
    history_of: tuple[str, ...] = ()
    retention: Retention | None = None


@dataclass(frozen=True, slots=True)
class OutputState(KeptState):
    """A keyed state that is the output of its operator.

    Attributes:
        columns: that downstream operators see, beside `_sequence_id`.
        shown: the column that says of a row whether they see it; "" if they see all rows.
    """

    columns: tuple[str, ...] = ()
    shown: str = ""

    def seen(self, rows: DataFrame) -> DataFrame:
        """Return the rows of the output as downstream operators see them."""
        found = rows.where(self.shown) if self.shown else rows
        return found.select(SEQUENCE_ID, *(quoted_name(name) for name in self.columns))


@dataclass(frozen=True, slots=True)
class Measured:
    """A column by which an operator measures how far apart rows are.

    Attributes:
        port: port of the stream that has the column.
        is_time: its values are times; else numbers.
    """

    port: Input
    column: str
    is_time: bool = True


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of an operator for a group.

    Attributes:
        output: None for a sink.
        changes: by part of the kept state, the rows that changed: keys, columns, `_sequence_id`, and `GONE` if keys can
            be deleted; one row per key and id (`depth` rows if that is more).
        changed_rows: the same in memory, of a step for which `is_local` is true.
        outputs: by name, if the operator has several; `output` is None then.
        bad: rows that cannot be interpreted and are in no output: `_sequence_id`, `position` (bigint, the row's place
            in the stream from 1), `raw` and `reason` (string).
        bad_halts: bad rows halt the region instead of going to its quarantine.
        unmet: rows that do not meet an expectation: `_sequence_id`, `_position` if the stream has it, `raw` and
            `reason` (string).
        refused: rows for the quarantine, of any number, with the same columns; they are in no output.
        net: of a change stream, if the operator knows it: an upsert sink with its keys then need not group the rows.
    """

    output: DataFrame | None
    changes: Mapping[str, DataFrame] = field(default_factory=dict)
    changed_rows: Mapping[str, pa.Table] = field(default_factory=dict)
    outputs: Mapping[str, DataFrame] = field(default_factory=dict)
    bad: DataFrame | None = None
    bad_halts: bool = False
    unmet: DataFrame | None = None
    refused: DataFrame | None = None
    net: Net | None = None

    def of(self, output: str) -> DataFrame | None:
        """Return the rows of one output port."""
        return self.outputs[output] if self.outputs else self.output


NOWHERE = Location("", 0)
"""The place of an operator that is not declared yet."""


@dataclass(frozen=True, kw_only=True)
class Operator(ABC):
    """A node of the graph. Subclasses are one file each in `jobs/operators`.

    Attributes:
        name: identity of the operator: state follows it across code changes.
        inputs: its ports in order.
        location: the place of its declaration; `declare` sets it.
        consistent: set on the start of a region.
        autonomous: `@autonomous` was put on it.
        composite: names of the composites that it is in, the outermost first.

    Class variables hold the facts of a kind. `keeps_tags`: its results surely have `_sequence_id`, or need none, so no
    check is needed. `non_blocking`: its frozen state is written while the flow goes on. `is_reference`: it is read at
    one version per group and sends no rows, like a lookup. `refused_because`: why a kind without `supports_consistent`
    is refused outside of regions, too; empty if it is allowed there. `instead`: a remedy. `sees_control_by_id`: it
    tells the rows of its control ports within a group apart by id, so it vectorises unless a loop is closed on it.
    `configurations`: the ways to declare it that compute different results; each has an oracle in the tests.
    `single_because`: why its groups hold one trigger, if they do. `instead_over_changes`: of a kind that may not read a
    change stream, what to declare there. `because`: why a sink can give its guarantee. `gives_changes`: it makes a
    change stream of plain rows, so its results have the tag `GONE`.
    """

    kind: ClassVar[str]
    summary: ClassVar[str] = ""
    is_source: ClassVar[bool] = False
    is_sink: ClassVar[bool] = False
    may_start: ClassVar[bool] = False
    supports_consistent: ClassVar[bool] = True
    is_reference: ClassVar[bool] = False
    refused_because: ClassVar[str] = ""
    instead: ClassVar[str] = ""
    vectorises: ClassVar[Vectorises] = Vectorises.YES
    guarantee: ClassVar[Guarantee | None] = None
    because: ClassVar[str] = ""
    keeps_tags: ClassVar[bool] = False
    non_blocking: ClassVar[bool] = True
    sees_control_by_id: ClassVar[bool] = False
    configurations: ClassVar[tuple[str, ...]] = ("default",)
    single_because: ClassVar[str] = "sees one trigger at a time"
    instead_over_changes: ClassVar[str] = ""
    positions: ClassVar[Positions] = Positions.SHARED
    gives_changes: ClassVar[bool] = False

    name: str
    inputs: tuple[Input, ...] = ()
    location: Location = NOWHERE
    consistent: Consistent | None = None
    autonomous: bool = False
    composite: tuple[str, ...] = ()

    @property
    def output_state(self) -> OutputState | None:
        """The state that the output itself is: its last rows by key; None if there is none."""
        return None

    @property
    def kept(self) -> tuple[KeptState, ...]:
        """States beside the output: by default the last rows from the control ports."""
        return tuple(KeptState(part=control_part(port), keys=port.control_keys) for port in self.inputs if port.control)

    @property
    def keeps_state(self) -> bool:
        """Say whether it keeps state from id to id."""
        return self.output_state is not None or bool(self.kept)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the output ports; one unnamed port unless overridden, none for a sink."""
        return () if self.is_sink else ("",)

    def stream(self, output: str = "") -> str:
        """Return the name of an output's stream."""
        return f"{self.name}[{output}]" if output else self.name

    @property
    def takes_changes(self) -> bool:
        """Say whether it may read a change stream; its own result is then a change stream, too.

        A row-wise operator may: the old and the new row of a change go through the same expressions.
        """
        return False

    def over_changes(self, origin: str) -> Operator:
        """Return the operator that stands in the plan if this one reads the changes of another: by default this one."""
        return self

    @property
    def tables(self) -> tuple[str, ...]:
        """Tables below DRAINMARK_HOME/lake that this operator writes."""
        return ()

    @property
    def tables_read(self) -> tuple[str, ...]:
        """Tables below DRAINMARK_HOME/lake that this operator reads beside its inputs."""
        return ()

    @property
    def folders_read(self) -> tuple[str, ...]:
        """Globs of the folders, or prefixes of buckets, that this operator scans; `*` stands for `/`, too."""
        return ()

    @property
    def measured(self) -> tuple[Measured, ...]:
        """Columns for the type check before any claim: Spark would turn a text such as "12:00" into a time of today."""
        return ()

    @property
    def condition(self) -> str | None:
        """The condition of the guarantee, None if it has none."""
        return None

    def vectorisation(self) -> Vectorises:
        """Return whether it vectorises, as far as this is known before a plan is analysed."""
        return Vectorises.NO if any(port.control for port in self.inputs) else self.vectorises

    def violations(self, in_region: bool) -> Iterator[Violation]:
        """Yield the faults of this operator's own configuration."""
        yield from ()

    def notes(self, read: Collection[str]) -> Iterator[str]:
        """Yield a sentence for each part of this operator's configuration that is legal but may not be intended.

        Args:
            read: names of its outputs that have a reader.
        """
        yield from ()

    def wrong(self, rule: str, message: str, remedy: str) -> Violation:
        """Return a violation by this operator."""
        return Violation(
            rule=rule, message=f"{self.name}: {message}", operator=self.name, location=self.location, remedy=remedy
        )

    def fingerprint(self) -> Any:
        """Return a JSON-able value that changes when the operator's computation changes."""
        return {"kind": self.kind, "inputs": [port.stream for port in self.inputs]}

    def apply(self, frames: OperatorContext) -> DataFrame:
        """Return the operator's output for a group; called once per attempt, in topological order.

        The frames carry `_sequence_id` and `_position`. Must start no Spark job. Raises OperatorFailed.
        """
        raise NotImplementedError

    def step(self, frames: OperatorContext) -> StepResult:
        """Return output and changes of the kept states; the runtime calls it, in topological order.

        If output and changes come from one computation, `frames.once` makes sure that it is done once.
        """
        return StepResult(self.apply(frames))

    def absorb(self, frames: OperatorContext) -> Mapping[str, DataFrame]:
        """Return the changes from the control ports; called when all operators have their output.

        Rows that come on a control port at an id are seen from the next id on, with or without a loop.
        """
        return {control_part(port): frames.on_control(self, port) for port in self.inputs if port.control}


def names_of(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of columns; a text is one name, not a sequence of letters. Rules refuse other values."""
    if given is None:
        return ()
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
