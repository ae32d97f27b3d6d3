"""Declarations: decorators and calls put frozen operators into the declarations of a module.

`drainmark/api.py` lists all that can be declared.

Every module that declares operators has a list in its globals (`__drainmark__`), so modules share no state and a
reload starts anew; `application(...)` collects explicitly, for tests and generated graphs.
"""

from __future__ import annotations

import contextvars
import dataclasses
import datetime as dt
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypedDict, TypeVar

from drainmark.jobs.errors import Location, UsageError
from drainmark.jobs.graph.annotations import (
    CHANNEL_BATCHES,
    CHANNEL_SIZE,
    GROUP_TIMEOUT,
    MAX_CONSECUTIVE_RESET_ATTEMPTS,
    MAX_INFLIGHT_BYTES,
    RESET_TIMEOUT,
    REWIND_HORIZON,
    Autonomous,
    Buffered,
    Consistent,
    Control,
    duration_of,
    hints_of,
    made_marker,
    marker_in,
)
from drainmark.jobs.graph.code_digests import UserFunction
from drainmark.jobs.graph.operator import NOWHERE, Operator, names_of
from drainmark.jobs.graph.params import Params
from drainmark.jobs.graph.ports import Input

if TYPE_CHECKING:
    from drainmark.jobs.graph.composite_instance import CompositeInstance

MODULE_ATTRIBUTE = "__drainmark__"
_LIBRARY = ("drainmark.jobs.graph.", "drainmark.jobs.operators.")
_FACADE = ("drainmark", "contextlib", "functools")


@dataclasses.dataclass(slots=True)
class Declarations:
    """The operators of one application, and the composites that they are in, in the order of declaration."""

    name: str
    operators: list[Operator] = dataclasses.field(default_factory=list)
    composites: list[CompositeInstance] = dataclasses.field(default_factory=list)

    def add(self, operator: Operator) -> None:
        self.operators.append(operator)

    def replace(self, operator: Operator) -> None:
        """Put an annotated copy in the place of the operator declared last under that name."""
        for index in range(len(self.operators) - 1, -1, -1):
            if self.operators[index].name == operator.name:
                self.operators[index] = operator
                return
        self.operators.append(operator)


_active: contextvars.ContextVar[Declarations | None] = contextvars.ContextVar("declarations", default=None)


@dataclasses.dataclass(frozen=True, slots=True)
class Scope:
    """The inside of an instance of a composite, while its function runs.

    Attributes:
        path: full names of the instances, the outermost first.
        streams: the streams given to the parameters of the composite's function.
    """

    path: tuple[str, ...]
    streams: Mapping[str, Stream]

    @property
    def prefix(self) -> str:
        """Return the prefix of the full names of operators inside."""
        return f"{self.path[-1]}_"

    def local_name(self, stream: Stream) -> str:
        """Return the name of a stream inside: the parameter, or the operator's name without the instance's."""
        for parameter, known in self.streams.items():
            if (known.name, known.output) == (stream.name, stream.output):
                return parameter
        is_inside = stream.operator.composite[: len(self.path)] == self.path
        own = stream.name.removeprefix(self.prefix) if is_inside else stream.name
        return f"{own}__{stream.output}" if stream.output else own


_scope: contextvars.ContextVar[Scope | None] = contextvars.ContextVar("scope", default=None)


def scope() -> Scope | None:
    """Return the scope of the composite that is running, None outside of composites."""
    return _scope.get()


@contextmanager
def declaring(declarations: Declarations) -> Iterator[Declarations]:
    """Collect all declarations inside the block, of every module, into `declarations`."""
    token = _active.set(declarations)
    try:
        yield declarations
    finally:
        _active.reset(token)


@contextmanager
def declaring_in(frame: FrameType, inside: Scope) -> Iterator[Declarations]:
    """Collect the inside of a composite into the declarations that are active at the frame of its call."""
    token = _scope.set(inside)
    try:
        with declaring(_declarations_at(frame)) as declarations:
            yield declarations
    finally:
        _scope.reset(token)


def _declarations_at(frame: FrameType) -> Declarations:
    """Return the active declarations, else those of the declaring module."""
    declarations = _active.get()
    if declarations is None:
        namespace = frame.f_globals
        declarations = namespace.setdefault(MODULE_ATTRIBUTE, Declarations(namespace.get("__name__", "application")))
    return declarations


class Stream:
    """The value of a declaration: the stream of an operator, and still the author's function.

    Calling it calls the function as it was written; `stream["orders"]` is one output of an operator with several.

    Example:
        def store(stream: dm.Stream, table: str) -> None:
            dm.sink(stream, dm.DeltaAppend(table))

        store(orders, "stored_orders")
        store(shop["payments"], "stored_payments")
    """

    def __init__(
        self,
        operator: Operator,
        declarations: Declarations,
        function: Callable[..., Any] | None = None,
        output: str = "",
        buffer: Buffered | None = None,
    ) -> None:
        self.operator = operator
        self.declarations = declarations
        self.function = function
        self.output = output
        self.buffer = buffer
        if function is not None:
            functools.update_wrapper(self, function)

    @property
    def name(self) -> str:
        return self.operator.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.function is None:
            msg = f"{self.operator.name!r} is a declared {self.operator.kind}, there is no function to call"
            raise TypeError(msg)
        return self.function(*args, **kwargs)

    def __getitem__(self, output: str) -> Stream:
        return Stream(self.operator, self.declarations, None, output, self.buffer)

    def __repr__(self) -> str:
        return f"<stream {Input(upstream=self.name, output=self.output).stream} of {self.operator.kind}>"

    def port(self) -> Input:
        """Return a port to this stream that no function has named yet."""
        return Input(upstream=self.name, output=self.output, buffered=self.buffer)

    def annotated(self, **annotations: Any) -> Stream:
        """Return the same stream, its operator replaced by a copy that carries the annotations."""
        self.operator = dataclasses.replace(self.operator, **annotations)
        self.declarations.replace(self.operator)
        return self


StreamLike = Stream | str


@dataclasses.dataclass(frozen=True, kw_only=True)
class _NameOnly(Operator):
    """A stand-in for an operator of which only the name is known; it is not declared."""

    kind: ClassVar[str] = "operator"


def named_stream(name: str, frame: FrameType) -> Stream:
    """Return the stream of that name, which may be declared later; names are relative to the running composite."""
    port, inside = port_to(name), scope()
    is_inside = inside is not None and port.upstream.startswith(inside.prefix)
    path = inside.path if inside is not None and is_inside else ()
    stands_for = _NameOnly(name=port.upstream, location=location_of(frame), composite=path)
    return Stream(stands_for, _declarations_at(frame), None, port.output, port.buffered)


def declare(operator: Operator, function: Callable[..., Any] | None = None) -> Stream:
    """Enter an operator into the active declarations, else into those of the declaring module.

    It gets the place of its declaration. Inside of a composite its name begins with that of the instance.
    """
    frame, inside = caller(), scope()
    declarations = _declarations_at(frame)
    if operator.location == NOWHERE:
        operator = dataclasses.replace(operator, location=location_of(frame, function))
    if inside is not None:
        operator = dataclasses.replace(operator, name=f"{inside.prefix}{operator.name}", composite=inside.path)
    declarations.add(operator)
    return Stream(operator, declarations, function)


def caller() -> FrameType:
    """Return the nearest frame outside the library: the place of the declaration."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(_LIBRARY) and module not in _FACADE:
            break
        frame = frame.f_back
    return frame or sys._getframe(1)


def location_of(frame: FrameType, function: Callable[..., Any] | None = None) -> Location:
    """Return the place of a function's definition, else the place of the frame."""
    if function is not None and (code := getattr(function, "__code__", None)) is not None:
        return Location(code.co_filename, code.co_firstlineno)
    return Location(frame.f_code.co_filename, frame.f_lineno)


def port_to(
    stream: StreamLike,
    parameter: str = "",
    *,
    control: Control | None = None,
    autonomous: bool = False,
    buffered: Buffered | None = None,
) -> Input:
    """Return the port that a stream, or its name (`landing__orders` for one output), is connected to.

    Inside of a composite, names are those of its parameters and of its own operators.
    """
    known = required_stream(stream)
    port = known.port() if isinstance(known, Stream) else _port_named(known)
    return dataclasses.replace(
        port,
        parameter=parameter or stream_name(stream),
        control=control is not None,
        autonomous=autonomous,
        control_keys=names_of(control.keys) if control else (),
        control_schema=control.schema if control else None,
        buffered=buffered or port.buffered,
    )


def _port_named(name: str) -> Input:
    upstream, _, output = name.partition("__")
    if not upstream:
        upstream, output = name, ""
    inside = scope()
    if inside is None:
        return Input(upstream=upstream, output=output)
    if upstream not in inside.streams:
        return Input(upstream=f"{inside.prefix}{upstream}", output=output)
    known = inside.streams[upstream].port()
    return dataclasses.replace(known, output=output) if output else known


def stream_name(stream: StreamLike) -> str:
    """Return the name under which a function or a statement knows the stream."""
    known = required_stream(stream)
    if isinstance(known, str):
        return known
    inside = scope()
    if inside is not None:
        return inside.local_name(known)
    return f"{known.name}__{known.output}" if known.output else known.name


def default_name(stream: StreamLike) -> str:
    """Return a stream's part of the name that an operator gets by default: `landing_orders` of `landing__orders`."""
    return stream_name(stream).replace("__", "_")


class NameAndPort(TypedDict):
    """The name and the port of an operator that reads one stream."""

    name: str
    inputs: tuple[Input, ...]


def reading(stream: StreamLike, done: str, name: str | None) -> NameAndPort:
    """Return the name and the port of an operator of one stream.

    Args:
        done: what happens to the stream, as the end of the default name: `orders_sorted`.
    """
    return {"name": name or f"{default_name(stream)}_{done}", "inputs": (port_to(stream),)}


def required_stream(given: object) -> StreamLike:
    """Return the stream, or the name of one, that a declaration was given.

    Raises:
        UsageError: it is neither, for example a list of streams.
    """
    if isinstance(given, (Stream, str)):
        return given
    where = location_of(caller())
    if isinstance(given, FunctionType):
        msg = f"{where}: the function {given.__name__!r} is given where a stream is read, and is no operator"
        raise UsageError(
            msg, location=where, remedy=f"put @dm.functor, or another operator, above def {given.__name__}"
        )
    msg = f"{where}: {given!r} is given where a stream is read, which it is not"
    remedy = "give a stream, or its name; combine several streams with dm.union(…) first"
    raise UsageError(msg, location=where, remedy=remedy)


def user_function(
    function: Callable[..., Any], inputs: Sequence[StreamLike] | None = None, first_free: int = 0
) -> tuple[UserFunction, tuple[Input, ...]]:
    """Read a function's signature: which parameters are streams (and their ports), which are Params.

    Args:
        inputs: the streams in the order of the stream parameters; by default the parameter names are the names.
        first_free: how many leading stream parameters are bound otherwise (a source's `scanned`).

    Raises:
        UsageError: it is no function, has more stream parameters than it is given streams, or fewer, or a marker in
            its annotations uses a name that is not known.
    """
    if not callable(function):
        remedy = "give a function of data frames, such as lambda orders: orders.where('amount > 0')"
        raise UsageError(f"{function!r} is no function", location=location_of(caller()), remedy=remedy)
    hints = _hints_of(function, caller())
    streams: list[str] = []
    params: dict[str, type] = {}
    for name in inspect.signature(function).parameters:
        hint = hints.get(name)
        if isinstance(hint, type) and issubclass(hint, Params):
            params[name] = hint
        else:
            streams.append(name)
    connected = streams[first_free:]
    given = connected if inputs is None else [inputs] if isinstance(inputs, (Stream, str)) else list(inputs)
    if len(given) != len(connected):
        name = getattr(function, "__name__", "the function")
        msg = f"{name} reads {len(connected)} stream(s) and is given {len(given)} in inputs="
        remedy = "give one for each parameter that is no dm.Params, in their order"
        raise UsageError(msg, location=location_of(caller(), function), remedy=remedy)
    ports = tuple(
        port_to(
            stream,
            parameter,
            control=made_marker(hints.get(parameter), Control),
            buffered=made_marker(hints.get(parameter), Buffered),
            autonomous=marker_in(hints.get(parameter), Autonomous) is not None,
        )
        for parameter, stream in zip(connected, given, strict=True)
    )
    return UserFunction(function=function, streams=tuple(streams), params=params), ports


def _hints_of(function: Callable[..., Any], frame: FrameType) -> dict[str, Any]:
    """Return the annotations; if the function is defined right in the frame, they may use the local names there."""
    is_local = getattr(function, "__code__", None) in frame.f_code.co_consts
    try:
        return hints_of(function, frame.f_locals if is_local else {})
    except NameError as error:
        where = location_of(frame, function)
        name = getattr(function, "__name__", "the function")
        msg = f"{where}: an annotation of {name} uses {error.name!r}, which is not known"
        remedy = "define or import it at the top of the module, and not only under TYPE_CHECKING"
        raise UsageError(msg, location=where, remedy=remedy) from error


class Annotatable(Protocol):
    """An object that can be annotated: an operator's stream, or a composite."""

    def annotated(self, **annotations: Any) -> Self: ...


Annotated = TypeVar("Annotated", bound=Annotatable)
Duration = float | dt.timedelta


def consistent(
    *,
    trigger: Literal["periodic", "operator-driven"],
    period: Duration | None = None,
    group_timeout: Duration = GROUP_TIMEOUT,
    reset_timeout: Duration = RESET_TIMEOUT,
    max_consecutive_reset_attempts: int = MAX_CONSECUTIVE_RESET_ATTEMPTS,
    runs: Literal["backlog", "per_trigger"] = "backlog",
    rewind_horizon: int = REWIND_HORIZON,
    schedule: str | None = None,
    linger: Duration | None = None,
    checkpoints: Literal["non-blocking", "blocking"] = "non-blocking",
    alignment: Literal["aligned", "unaligned"] = "aligned",
    alignment_timeout: Duration | None = None,
    channels: Literal["memory", "durable"] = "memory",
    max_inflight_bytes: int | str = MAX_INFLIGHT_BYTES,
    checkpoint_interval: Duration | None = None,
    drain_timeout: Duration = GROUP_TIMEOUT,
) -> Callable[[Annotated], Annotated]:
    """Mark a source as the start of a consistent region.

    On a composite it marks the start operators of the composite. Durations are seconds, or a `datetime.timedelta`.
    Values are checked when the application is compiled.

    Args:
        trigger: when a consistent state is made: "operator-driven", after each file or row of the start; "periodic",
            by a clock.
        period: time between the end of a state and the next one; needed with a periodic trigger and only there. 0: one
            state, of all input that is there.
        group_timeout: bound on one group, from the reading of its files to the end of its checkpoint; 180 s.
        reset_timeout: bound on one reset; 180 s.
        max_consecutive_reset_attempts: resets in a row before the region halts; 5.
        runs: "backlog", one run for all pending files, or "per_trigger", one per file; "backlog".
        rewind_horizon: how many ids back a rewind can go; 10 000.
        schedule: cron text, by which Dagster runs the region instead of by a sensor; None, a sensor.
        linger: how long a run that a sensor started waits for further files; None, as `linger_seconds` in the settings.
        checkpoints: "non-blocking", the next group is processed while the last one is written and published, or
            "blocking"; "non-blocking". The tables are the same.
        alignment: "aligned", nothing is in flight in a state, or "unaligned", batches in flight become part of it;
            "aligned". It has no effect on a region of one stage, and neither have the next three.
        alignment_timeout: after this duration of its drain, an aligned state is finished unaligned; None, never.
        channels: "memory", or "durable", batches between stages are in files at once; "memory".
        max_inflight_bytes: bound on all batches in the region's channels together, in bytes or as a text such as
            "64 MB"; 256 MB.
        checkpoint_interval: shortest time between two commits, each of which may have several groups; None, a commit
            as soon as a group is complete. 0: one commit, when no trigger is pending.
        drain_timeout: former name of `group_timeout`.

    Raises:
        UsageError: `group_timeout` and `drain_timeout` are given.

    Example:
        @dm.consistent(trigger="periodic", period=60, max_consecutive_reset_attempts=3, rewind_horizon=1000)
        @dm.source(dm.FileSource(path="clicks.log"))
        def clicks(scanned):
            return scanned
    """
    if drain_timeout is not GROUP_TIMEOUT:
        if group_timeout is not GROUP_TIMEOUT:
            raise UsageError("group_timeout and drain_timeout are given: they are one", remedy="drop drain_timeout=")
        group_timeout = drain_timeout
    annotation = Consistent(
        trigger=trigger,
        period=duration_of(period),
        group_timeout=duration_of(group_timeout),
        reset_timeout=duration_of(reset_timeout),
        max_consecutive_reset_attempts=max_consecutive_reset_attempts,
        runs=runs,
        rewind_horizon=rewind_horizon,
        schedule=schedule,
        linger=duration_of(linger),
        checkpoints=checkpoints,
        alignment=alignment,
        alignment_timeout=duration_of(alignment_timeout),
        channels=channels,
        max_inflight_bytes=max_inflight_bytes,
        checkpoint_interval=duration_of(checkpoint_interval),
    )

    def annotate(annotated: Annotated) -> Annotated:
        return annotated.annotated(consistent=annotation)

    return annotate


def autonomous(annotated: Annotated) -> Annotated:
    """Take an operator, or a composite's start operators, out of every region, with all operators that only they reach.

    Example:
        @dm.autonomous
        @dm.functor
        def for_the_dashboard(orders):  # sees each row at least once, and no rewind takes anything back
            return dm.select(orders, "id", "amount")

        dm.sink(for_the_dashboard, dm.DeltaAppend("dashboard"))
    """
    return annotated.annotated(autonomous=True)


def buffered(
    stream: StreamLike,
    *,
    batches: int = CHANNEL_BATCHES,
    size: int | str = CHANNEL_SIZE,
    checkpoint_interval: float | dt.timedelta | None = None,
    keys: str | Sequence[str] = (),
) -> Stream:
    """Return a stream that is read through a channel: `inputs=[dm.buffered(hosts)]`. See `Buffered`.

    A string names a stream that may be declared later. If a composite gets it, all operators inside read it through
    a channel; if a composite returns it, all operators outside do.

    Args:
        batches: bound on the batches in the channel; one batch is the rows of one group.
        size: bound on their bytes, a number or a text such as "64 MB"; one batch always fits.
        checkpoint_interval: shortest time between two commits of the region that include finished work of the reading
            stage, in seconds or as a `datetime.timedelta`; None: each commit does.
        keys: columns; the reading stage gets all rows of a group with the same key on one partition, in the order of
            the stream, also if several partitions wrote them. Null counts as one key.

    Example:
        totals_in_a_stage = dm.aggregate(
            dm.buffered(orders, batches=4, size="16 MB"),
            keys=["item"],
            values={"sold": dm.sum("amount")},
            name="totals_in_a_stage",
        )
    """
    bounds = Buffered(batches=batches, size=size, checkpoint_interval=checkpoint_interval, keys=keys)
    given = required_stream(stream)
    known = named_stream(given, caller()) if isinstance(given, str) else given
    return Stream(known.operator, known.declarations, known.function, known.output, bounds)
