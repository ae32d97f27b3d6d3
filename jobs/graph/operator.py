"""The base of every operator: name, inputs, annotations, and facts about its kind.

An operator is a frozen value. Declaring touches neither Spark nor disk; what an operator does with rows is in its own
file under `jobs/operators`, in `apply`, or in `step` where it keeps state.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.errors import Location, Violation
from drainmark.jobs.graph.annotations import Consistent
from drainmark.jobs.graph.ports import Input, control_part

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.context import OperatorContext


class Vectorises(StrEnum):
    """May one job process many triggers of this operator at once?"""

    YES = "yes"
    CHECKED = "checked"  # decided on the analysed plan, at dry run and at first use
    NO = "no"


class Places(StrEnum):
    """Has each row of an id a position of its own in what an operator puts out?"""

    OWN = "own"  # it gives each one
    KEPT = "kept"  # rows keep theirs, and none comes twice
    CHECKED = "checked"  # as the analysed plan says
    SHARED = "shared"  # rows may share one, or have none


class Guarantee(StrEnum):
    """What a sink promises."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What a merged value of a state is. Code that means another value by the same name cannot go on from it: new rows
    would be merged into something else.

    Attributes:
        of: in words: "sum(amount)".
        code: digest of the author's functions that make it; "" where they are the library's.
        python: the version that compiled them; digests of different ones cannot be compared.
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
    """What of the past a state is kept for. Code that asks for more, or for something else, cannot go on from it: what
    it needs was never kept, or is already gone.

    Attributes:
        of: what is kept, as an error names it: "rows of a key", "`at` in windows of 0:10:00".
        reach: how much of it, in a unit that follows from `of`; it may shrink and not grow. None where it has no
            measure.
        values: by name, those whose parts are merged with older ones.
    """

    of: str
    reach: float | None = None
    values: Mapping[str, Meaning] = field(default_factory=dict, hash=False)

    def to_json(self) -> dict[str, Any]:
        values = {name: value.to_json() for name, value in self.values.items()}
        return {"of": self.of, "reach": self.reach, **({"values": values} if values else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptState:
    """A keyed state that an operator keeps beside its output: the table `state/<app>/<operator>`, or `…-<part>`.

    Attributes:
        part: tells the states of an operator apart, "" where it has one.
        keys: key columns, null being a key; without any the state is one row.
        depth: how many rows of a key are kept, the last ones by sequence id and position.
        evolves: columns may be added by later versions of the code.
        looked_up_by: those of the keys by which a group asks for rows; () where it reads all of the state.
        retention: None where the state holds whatever later versions of the code could ask for.
    """

    part: str = ""
    keys: tuple[str, ...] = ()
    depth: int = 1
    evolves: bool = False
    looked_up_by: tuple[str, ...] = ()
    retention: Retention | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """A column by which an operator measures how far apart rows are.

    Attributes:
        port: that of the stream that has it.
        is_time: its values are times; else numbers.
    """

    port: Input
    column: str
    is_time: bool = True


@dataclass(frozen=True, slots=True)
class StepResult:
    """What an operator made of a group.

    Attributes:
        output: None for a sink.
        changes: by part of the kept state, the rows that changed: keys, columns, `_sequence_id`, and `GONE` where keys
            can be lost; a row a key and id (`depth` of them where it is more).
        outputs: by name, where the operator has several; `output` is None then.
        bad: rows that could not be made sense of, and that no output has: `_sequence_id`, `position` (bigint, the
            row's place in the stream from 1), `raw` and `reason` (string).
        bad_halts: bad rows halt the region instead of going to its quarantine.
        unmet: rows of which an expectation does not hold: `_sequence_id`, `_position` where the stream has it, `raw`
            and `reason` (string).
    """

    output: DataFrame | None
    changes: Mapping[str, DataFrame] = field(default_factory=dict)
    outputs: Mapping[str, DataFrame] = field(default_factory=dict)
    bad: DataFrame | None = None
    bad_halts: bool = False
    unmet: DataFrame | None = None

    def of(self, output: str) -> DataFrame | None:
        """Return the rows of one output port."""
        return self.outputs[output] if self.outputs else self.output


@dataclass(frozen=True, kw_only=True)
class Operator(ABC):
    """A node of the graph. Subclasses are one file each in `jobs/operators`.

    Attributes:
        name: identity of the operator: state follows it across code changes.
        inputs: its ports in order.
        location: where it was declared.
        consistent: set on the start of a region.
        autonomous: `@autonomous` was put on it.
        composite: names of the composites that it is in, the outermost first.

    What is true of a kind stands in class variables; `keeps_tags`: its results surely carry `_sequence_id`, or need
    none, so that nobody has to look; `non_blocking`: its state, once frozen, is written while the flow goes on;
    `is_reference`: it is read at one version a group and sends nothing, as a lookup; `refused_because`: why a kind that
    is not `supports_consistent` is refused outside of regions, too, empty if it is welcome there; `instead`: a remedy;
    `sees_control_by_id`: what its control ports bring within a group it tells apart by id, so that it vectorises where
    no loop is closed on it; `configurations`: the ways to declare it that differ in what they compute, each of which
    has an oracle in the tests; `single_because`: why its groups hold one trigger, where they do; `because`: why a sink
    can promise its guarantee.
    """

    kind: ClassVar[str]
    summary: ClassVar[str] = ""
    is_source: ClassVar[bool] = False
    is_sink: ClassVar[bool] = False
    is_stateful: ClassVar[bool] = False
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
    places: ClassVar[Places] = Places.SHARED

    name: str
    inputs: tuple[Input, ...] = ()
    location: Location
    consistent: Consistent | None = None
    autonomous: bool = False
    composite: tuple[str, ...] = ()

    @property
    def kept(self) -> tuple[KeptState, ...]:
        """States beside the output: by default what came on the control ports."""
        return tuple(KeptState(part=control_part(port), keys=port.control_keys) for port in self.inputs if port.control)

    @property
    def keeps_state(self) -> bool:
        """Does it keep state from id to id?"""
        return self.is_stateful or bool(self.kept)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the output ports; one unnamed port unless overridden, none for a sink."""
        return () if self.is_sink else ("",)

    @property
    def tables(self) -> tuple[str, ...]:
        """Tables below DRAINMARK_HOME/lake that this operator writes."""
        return ()

    @property
    def registered(self) -> str | None:
        """Full name that the table it writes is to have in a catalogue of Spark's; None for no name."""
        return None

    @property
    def tables_read(self) -> tuple[str, ...]:
        """Tables below DRAINMARK_HOME/lake that this operator reads beside its inputs."""
        return ()

    @property
    def folders_read(self) -> tuple[str, ...]:
        """Globs of the folders, or prefixes of buckets, that this operator scans; `*` stands for `/`, too."""
        return ()

    @property
    def has_thread(self) -> bool:
        """Does a thread of its own submit what it gives, and want a run that stays to live in?"""
        return False

    @property
    def measured(self) -> tuple[Measured, ...]:
        """Columns whose types are checked before any claim: Spark makes a time of a text by today's date."""
        return ()

    @property
    def condition(self) -> str | None:
        """What the guarantee depends on, None if on nothing."""
        return None

    def vectorisation(self) -> Vectorises:
        """Return what is known before any plan is analysed."""
        return Vectorises.NO if any(port.control for port in self.inputs) else self.vectorises

    def violations(self, in_region: bool) -> Iterator[Violation]:
        """Yield what is wrong with this operator's own configuration."""
        yield from ()

    def notes(self, read: Collection[str]) -> Iterator[str]:
        """Yield what is legal in this operator's configuration and yet may not be meant, a sentence each.

        Args:
            read: names of those of its outputs that something reads.
        """
        yield from ()

    def wrong(self, rule: str, message: str, remedy: str) -> Violation:
        """Return a violation of this operator's."""
        return Violation(
            rule=rule, message=f"{self.name}: {message}", operator=self.name, location=self.location, remedy=remedy
        )

    def fingerprint(self) -> Any:
        """Return a JSON-able value that changes when what the operator computes does."""
        return {"kind": self.kind, "inputs": [port.stream for port in self.inputs]}

    def apply(self, frames: OperatorContext) -> DataFrame:
        """Return the operator's output for a group; called once an attempt, in topological order.

        The frames carry `_sequence_id` and `_position`. Must start no Spark job. Raises OperatorFailed.
        """
        raise NotImplementedError

    def step(self, frames: OperatorContext) -> StepResult:
        """Return output and changes of the kept states; what the runtime calls, in topological order.

        Where output and changes come of one computation, `frames.once` sees to it that it is one.
        """
        return StepResult(self.apply(frames))

    def absorb(self, frames: OperatorContext) -> Mapping[str, DataFrame]:
        """Return the changes that the control ports bring; called when all operators have their output.

        What comes on a control port at an id is seen from the next id on, whether or not it closes a loop.
        """
        return {control_part(port): frames.on_control(self, port) for port in self.inputs if port.control}


def names_of(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of columns; a text is one name, not a sequence of letters. What is no name, a rule refuses."""
    if given is None:
        return ()
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
