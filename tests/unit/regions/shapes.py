"""Small operators, and the seed's figures built from them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from drainmark.jobs.errors import Location, Violation
from drainmark.jobs.graph.annotations import Buffered, Consistent
from drainmark.jobs.graph.application import Application
from drainmark.jobs.graph.composite_instance import CompositeInstance
from drainmark.jobs.graph.operator import Guarantee, Operator, OutputState, Vectorises
from drainmark.jobs.graph.ports import Input
from drainmark.jobs.operators.sources.source import Source
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.regions.reachability import PortClass

PERIODIC = Consistent(trigger="periodic", period=dt.timedelta(seconds=10))
OPERATOR_DRIVEN = Consistent(trigger="operator-driven")


@dataclass(frozen=True, kw_only=True)
class Beacon(Operator):
    """A source that can start a region; `several` names its outputs."""

    kind: ClassVar[str] = "beacon"
    is_source: ClassVar[bool] = True
    may_start: ClassVar[bool] = True

    several: tuple[str, ...] = ("",)

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.several


@dataclass(frozen=True, kw_only=True)
class Threaded(Source):
    """A start with a thread of its own."""

    kind: ClassVar[str] = "threaded"

    function: Any = None

    def fingerprint(self) -> Any:
        return {"kind": self.kind}

    @property
    def has_thread(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class Functor(Operator):
    kind: ClassVar[str] = "functor"
    vectorises: ClassVar[Vectorises] = Vectorises.CHECKED

    expression: str = "a + b"

    def fingerprint(self) -> Any:
        return {**super().fingerprint(), "expression": self.expression}


@dataclass(frozen=True, kw_only=True)
class Counter(Operator):
    kind: ClassVar[str] = "counter"

    @property
    def output_state(self) -> OutputState:
        return OutputState()


@dataclass(frozen=True, kw_only=True)
class OneByOne(Operator):
    kind: ClassVar[str] = "one-by-one"
    vectorises: ClassVar[Vectorises] = Vectorises.NO


@dataclass(frozen=True, kw_only=True)
class Dimension(Operator):
    """A source that is only read, like a lookup."""

    kind: ClassVar[str] = "dimension"
    is_source: ClassVar[bool] = True
    is_reference: ClassVar[bool] = True

    table: str = ""

    @property
    def tables_read(self) -> tuple[str, ...]:
        return (self.table,)


@dataclass(frozen=True, kw_only=True)
class TableSource(Dimension):
    """A source of a table's versions, which can start a region."""

    kind: ClassVar[str] = "table-source"
    is_reference: ClassVar[bool] = False
    may_start: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Scanner(Beacon):
    """A start that scans folders."""

    kind: ClassVar[str] = "scanner"

    folders: tuple[str, ...] = ()

    @property
    def folders_read(self) -> tuple[str, ...]:
        return self.folders


@dataclass(frozen=True, kw_only=True)
class Socket(Operator):
    """A source that cannot replay; Drainmark has no such operator."""

    kind: ClassVar[str] = "socket"
    is_source: ClassVar[bool] = True
    supports_consistent: ClassVar[bool] = False
    refused_because: ClassVar[str] = "it cannot replay"
    instead: ClassVar[str] = "read files"


@dataclass(frozen=True, kw_only=True)
class Custom(Operator):
    """A sink that writes `table`, if given."""

    kind: ClassVar[str] = "custom"
    is_sink: ClassVar[bool] = True
    guarantee: ClassVar[Guarantee | None] = Guarantee.EXACTLY_ONCE

    table: str = ""

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.table,) if self.table else ()


@dataclass(frozen=True, kw_only=True)
class Gate(Operator):
    """An operator that blocks while it handles a tuple (V60)."""

    kind: ClassVar[str] = "gate"
    supports_consistent: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class FileSink(Operator):
    """A sink that refuses to append inside a region (E26)."""

    kind: ClassVar[str] = "file-sink"
    is_sink: ClassVar[bool] = True

    def violations(self, in_region: bool) -> Iterator[Violation]:
        if in_region:
            yield Violation(rule="APPEND", message="no append", operator=self.name, location=self.location)


def made(cls: type[Operator], name: str, *inputs: str | Input, line: int = 1, **fields: Any) -> Any:
    """Return an operator; an input `a` or `a__out` is a port of its own, `a:port` puts it on a named port."""
    return cls(name=name, inputs=tuple(map(connected, inputs)), location=Location("figures.py", line), **fields)


def connected(text: str | Input) -> Input:
    if isinstance(text, Input):
        return text
    stream, _, port = text.partition(":")
    upstream, _, output = stream.partition("__")
    return Input(upstream=upstream, output=output, parameter=port or stream)


def control(text: str) -> Input:
    plain = connected(text)
    return Input(upstream=plain.upstream, output=plain.output, parameter=plain.parameter, control=True)


def outside(text: str) -> Input:
    plain = connected(text)
    return Input(upstream=plain.upstream, output=plain.output, parameter=plain.parameter, autonomous=True)


def buffered(text: str, **bounds: Any) -> Input:
    return replace(connected(text), buffered=Buffered(**bounds))


def app(*operators: Operator, name: str = "app", composites: tuple[CompositeInstance, ...] = ()) -> Application:
    return Application(name=name, operators=operators, composites=composites)


def instance(name: str, **facts: Any) -> CompositeInstance:
    return CompositeInstance(name=name, kind="pair", path=(name,), location=Location("figures.py", 9), **facts)


def figure_1a() -> Application:
    """Return figure 1a: op1 is annotated; everything downstream is in the region; its ends are op5 and op6 (V31)."""
    return app(
        made(Beacon, "op1", consistent=OPERATOR_DRIVEN, line=1),
        made(Functor, "op2", "op1", line=2),
        made(Functor, "op3", "op1", line=3),
        made(Functor, "op4", "op3", line=4),
        made(Custom, "op5", "op2", table="fives", line=5),
        made(Custom, "op6", "op4", table="sixes", line=6),
        name="figure_1a",
    )


def figure_1b() -> Application:
    """Return figure 1b: op1 and op3 are annotated and share op5 and op6: one region, two starts, one end (V32)."""
    return app(
        made(Beacon, "op1", consistent=PERIODIC, line=1),
        made(Functor, "op2", "op1", line=2),
        made(Beacon, "op3", consistent=PERIODIC, line=3),
        made(Functor, "op4", "op3", line=4),
        made(Functor, "op5", "op2:data", "op4:data", line=5),
        made(Custom, "op6", "op5", table="sixes", line=6),
        name="figure_1b",
    )


def figure_1c() -> Application:
    """Return figure 1c: op1 is annotated, op7 autonomous; op3 and op4 feed op5 through an autonomous port (V33)."""
    return app(
        made(Beacon, "op1", consistent=OPERATOR_DRIVEN, line=1),
        made(Functor, "op2", "op1", line=2),
        made(Dimension, "op3", line=3),
        made(Functor, "op4", "op3", line=4),
        made(Functor, "op5", "op2", "op4", line=5),
        made(Custom, "op6", "op5", table="sixes", line=6),
        made(Custom, "op7", "op5", autonomous=True, table="sevens", line=7),
        name="figure_1c",
    )


def figure_2() -> Application:
    """Return the sample program: a periodic Beacon (10 s), two Functors into one port of a third, two sinks (V23)."""
    return app(
        made(Beacon, "beat", consistent=PERIODIC, line=1),
        made(Functor, "left", "beat", expression="a", line=2),
        made(Functor, "right", "beat", expression="b", line=3),
        made(Functor, "both", "left:data", "right:data", line=4),
        made(Custom, "first", "both", line=5),
        made(Custom, "second", "both", line=6),
        name="figure_2",
    )


def figure_3() -> Application:
    """Return figure 3: op3 has consistent (op1, op2), autonomous (op6), consistent control (op4) ports (V95, V21)."""
    return app(
        made(Beacon, "op1", consistent=PERIODIC, line=1),
        made(Beacon, "op2", consistent=PERIODIC, line=2),
        made(Counter, "op3", "op1:data", "op2:data", outside("op6"), control("op4:limits"), line=3),
        made(Functor, "op4", "op3", line=4),
        made(Custom, "op5", "op4", table="fives", line=5),
        made(Dimension, "op6", line=6),
        name="figure_3",
    )


def connections(region: RegionPlan, operator: str) -> list[int]:
    """Return how many connections of each class an operator has, in the order of `PortClass` (V52)."""
    own = [port.port_class for port in region.ports if port.operator == operator]
    return [own.count(port_class) for port_class in PortClass]


FIGURES = {figure().name: figure for figure in (figure_1a, figure_1b, figure_1c, figure_2, figure_3)}
