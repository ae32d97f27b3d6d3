"""How declaring works: decorators and calls put frozen operators into the declarations of a module.

Every module that declares operators carries a list in its globals (`__drainmark__`), so nothing global is shared and a
reload starts anew; `application(...)` collects explicitly, for tests and generated graphs.
"""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from jobs.errors import Location
from jobs.graph.annotations import Autonomous, Consistent, Control
from jobs.graph.operator import Input, Operator, UserFunction
from jobs.graph.params import Params

MODULE_ATTRIBUTE = "__drainmark__"
_LIBRARY = ("jobs.graph.", "jobs.operators.")
_FACADE = ("drainmark", "contextlib", "functools")


@dataclasses.dataclass(slots=True)
class Declarations:
    """The operators of one application in the order in which they were declared."""

    name: str
    operators: list[Operator] = dataclasses.field(default_factory=list)

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


@contextmanager
def declaring(declarations: Declarations) -> Iterator[Declarations]:
    """Collect all that is declared inside the block into `declarations`, whatever module declares it."""
    token = _active.set(declarations)
    try:
        yield declarations
    finally:
        _active.reset(token)


class Stream:
    """What a declaration gives back: the stream of an operator, and still the author's function.

    Calling it calls the function as it was written; `stream["orders"]` is one output of an operator with several.
    """

    def __init__(
        self,
        operator: Operator,
        declarations: Declarations,
        function: Callable[..., Any] | None = None,
        output: str = "",
    ) -> None:
        self.operator = operator
        self.declarations = declarations
        self.function = function
        self.output = output
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
        return Stream(self.operator, self.declarations, None, output)

    def __repr__(self) -> str:
        return f"<stream {Input(upstream=self.name, output=self.output).stream} of {self.operator.kind}>"

    def annotated(self, **annotations: Any) -> Stream:
        """Return the same stream, its operator replaced by a copy that carries the annotations."""
        self.operator = dataclasses.replace(self.operator, **annotations)
        self.declarations.replace(self.operator)
        return self


StreamLike = Stream | str


def declare(operator: Operator, frame: FrameType, function: Callable[..., Any] | None = None) -> Stream:
    """Enter an operator into the active declarations, else into those of the declaring module."""
    declarations = _active.get()
    if declarations is None:
        namespace = frame.f_globals
        declarations = namespace.setdefault(MODULE_ATTRIBUTE, Declarations(namespace.get("__name__", "application")))
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
    """Return where a function was defined, else where the frame stands."""
    if function is not None and (code := getattr(function, "__code__", None)) is not None:
        return Location(code.co_filename, code.co_firstlineno)
    return Location(frame.f_code.co_filename, frame.f_lineno)


def port_to(
    stream: StreamLike, parameter: str = "", *, control: Control | None = None, autonomous: bool = False
) -> Input:
    """Return the port that a stream, or its name (`landing__orders` for one output), is connected to."""
    if isinstance(stream, Stream):
        upstream, output = stream.name, stream.output
    else:
        upstream, _, output = stream.partition("__")
        if not upstream:
            upstream, output = stream, ""
    return Input(
        upstream=upstream, output=output, parameter=parameter or stream_name(stream), control=control is not None,
        autonomous=autonomous, control_keys=tuple(control.keys) if control else (),
        control_schema=control.schema if control else None,
    )  # fmt: skip


def stream_name(stream: StreamLike) -> str:
    """Return the name under which a function or a statement knows the stream."""
    if isinstance(stream, str):
        return stream
    return f"{stream.name}__{stream.output}" if stream.output else stream.name


def user_function(
    function: Callable[..., Any], inputs: Sequence[StreamLike] | None = None, first_free: int = 0
) -> tuple[UserFunction, tuple[Input, ...]]:
    """Read a function's signature: which parameters are streams (and their ports), which are Params.

    Args:
        inputs: the streams in the order of the stream parameters; by default the parameter names are the names.
        first_free: how many leading stream parameters are bound otherwise (a source's `scanned`).
    """
    hints = _hints(function)
    streams: list[str] = []
    params: dict[str, type] = {}
    for name in inspect.signature(function).parameters:
        hint = hints.get(name)
        if isinstance(hint, type) and issubclass(hint, Params):
            params[name] = hint
        else:
            streams.append(name)
    connected = streams[first_free:]
    ports = tuple(
        port_to(
            stream,
            parameter,
            control=_control(hints.get(parameter)),
            autonomous=_marker(hints.get(parameter), Autonomous) is not None,
        )
        for parameter, stream in zip(connected, inputs if inputs is not None else connected, strict=inputs is not None)
    )
    return UserFunction(function=function, streams=tuple(streams), params=params), ports


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations, evaluated one by one: what is imported for type checkers only counts as a frame."""
    namespace = {"DataFrame": Any, "Column": Any, **getattr(function, "__globals__", {})}
    hints: dict[str, Any] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        if not isinstance(annotation, str):
            hints[name] = annotation
            continue
        try:
            hints[name] = eval(annotation, namespace)  # noqa: S307 - the author's own annotation, as typing evaluates it
        except NameError:
            hints[name] = None
    return hints


def _marker(hint: Any, marker: type) -> Any:
    """Return the marker in an annotation, the class or an instance of it; None where there is none."""
    marks = hint.__metadata__ if typing.get_origin(hint) is typing.Annotated else ()
    return next((mark for mark in marks if mark is marker or isinstance(mark, marker)), None)


def _control(hint: Any) -> Control | None:
    mark = _marker(hint, Control)
    return Control() if mark is Control else mark


def consistent(
    *,
    trigger: str,
    **parameters: Any,
) -> Callable[[Stream], Stream]:
    """Mark an operator as start of a consistent region (V24); see `Consistent` for the parameters.

    Durations are seconds (a float) or a `datetime.timedelta`.
    """
    for name in ("period", "drain_timeout", "reset_timeout", "linger"):
        value = parameters.get(name)
        if isinstance(value, int | float):
            parameters[name] = _seconds(value)
    annotation = Consistent(trigger=trigger, **parameters)

    def annotate(stream: Stream) -> Stream:
        return stream.annotated(consistent=annotation)

    return annotate


def autonomous(stream: Stream) -> Stream:
    """Take an operator, and what it alone reaches, out of every region (V49)."""
    return stream.annotated(autonomous=True)


def _seconds(value: float) -> Any:
    import datetime as dt

    return dt.timedelta(seconds=value)
