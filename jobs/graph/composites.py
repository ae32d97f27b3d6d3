"""Composites: subgraphs with a name, expanded before any rule sees them.

A call of a composite declares the operators of its function under the name of the instance. A name is an identity, a
folder, a Python parameter and a name in Dagster at once, and all of these allow `_`: operator `parse` of instance
`left` is `left_parse`. The rule DUPLICATE_NAME refuses that name if another operator has it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from drainmark.jobs.errors import UsageError
from drainmark.jobs.graph.annotations import Consistent
from drainmark.jobs.graph.composite_instance import CompositeInstance
from drainmark.jobs.graph.declarations import Scope, Stream, caller, declaring_in, location_of, named_stream, scope
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.graph.ports import Input

Returned = TypeVar("Returned")
_NAME = "name"


class Composite(Generic[Returned]):
    """A function that declares a subgraph; each call makes an instance.

    `@dm.consistent(...)` or `@dm.autonomous` on it makes a copy that annotates the start operators of its instances. So
    a single instance can be annotated, too: `dm.autonomous(enriched)(orders, name="enriched_again")`.
    """

    def __init__(
        self, function: Callable[..., Returned], consistent: Consistent | None = None, autonomous: bool = False
    ) -> None:
        self.function = function
        self.consistent = consistent
        self.autonomous = autonomous
        self.signature = inspect.signature(function)
        self.__doc__ = function.__doc__
        if _NAME in self.signature.parameters:
            msg = f"composite {function.__name__!r} has a parameter {_NAME!r}, which names the instance"
            raise UsageError(msg, location=location_of(caller(), function), remedy="call the parameter otherwise")

    def annotated(self, **annotations: Any) -> Composite[Returned]:
        """Return a copy that carries the annotations."""
        facts = {"consistent": self.consistent, "autonomous": self.autonomous, **annotations}
        return Composite(self.function, **facts)

    def __call__(self, *args: Any, name: str | None = None, **kwargs: Any) -> Returned:
        """Declare an instance.

        Args:
            name: of the instance; the function's by default.
            args, kwargs: arguments of the function; one that it annotates `dm.Stream` may be a stream's name, too.

        Raises:
            UsageError: the function returns a value other than a stream, several by name, or None.
        """
        frame, outer = caller(), scope()
        path = (*(outer.path if outer else ()), f"{outer.prefix if outer else ''}{name or self.function.__name__}")
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for parameter, value in bound.arguments.items():
            if isinstance(value, str) and self._takes_stream(parameter):
                bound.arguments[parameter] = named_stream(value, frame)
        streams = {name: value for name, value in bound.arguments.items() if isinstance(value, Stream)}
        with declaring_in(frame, Scope(path, streams)) as declarations:
            returned = self.function(*bound.args, **bound.kwargs)
        declarations.composites.append(
            CompositeInstance(
                name=path[-1],
                kind=self.function.__name__,
                path=path,
                location=location_of(frame),
                outputs={output: stream.port() for output, stream in self._outputs(returned)},
                consistent=self.consistent,
                autonomous=self.autonomous,
            )
        )
        return returned

    def __repr__(self) -> str:
        return f"<composite {self.function.__name__}>"

    def _takes_stream(self, parameter: str) -> bool:
        annotation = self.signature.parameters[parameter].annotation
        wanted = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
        return wanted.rpartition(".")[2] in ("Stream", "StreamLike")

    def _outputs(self, returned: Any) -> Iterator[tuple[str, Stream]]:
        named = returned._asdict() if hasattr(returned, "_asdict") else returned
        named = {} if named is None else {"": named} if isinstance(named, Stream) else named
        if not isinstance(named, Mapping) or not all(isinstance(stream, Stream) for stream in named.values()):
            found = type(returned).__name__
            msg = f"composite {self.function.__name__!r} returns {found}, and not a stream or several by name"
            raise UsageError(
                msg,
                location=location_of(caller(), self.function),
                remedy='return a stream, {"name": stream}, or nothing',
            )
        yield from named.items()


def composite(function: Callable[..., Returned]) -> Composite[Returned]:
    """Declare a composite: a function that declares operators and can be used several times.

    Inside, a parameter of an operator's function names an operator of the composite or a parameter of the composite;
    streams from outside come in through parameters. Outside, the instance's name stands for the returned stream:
    `left`, or `left__orders` for one of several.

    State belongs to the operators' names, so to the instance's name. Annotations: see `Composite`; those of an operator
    itself, or of an inner composite, override them. Annotate the composite, not its result.

    Raises:
        UsageError: the function has a parameter `name`.

    Example:
        @dm.composite
        def totalled(rows: dm.Stream, least: float = 0.0) -> dm.Stream:
            @dm.filter
            def enough(rows):
                return F.col("amount") >= least

            return dm.aggregate(enough, keys=["item"], values={"sold": dm.sum("amount")}, name="totals")

        all_sold = totalled(orders, name="all_sold")  # operators all_sold_enough and all_sold_totals
        large_sold = totalled(orders, least=100.0, name="large_sold")
    """
    return Composite(function)


def expanded(operators: Sequence[Operator], composites: Sequence[CompositeInstance]) -> tuple[Operator, ...]:
    """Return the operators with the names of instances resolved to streams, and annotations passed on.

    An annotated composite annotates its start operators, except those with an annotation of their own or of an inner
    composite.
    """
    names = {operator.name for operator in operators}
    returned = {
        (instance.name, output): stream for instance in composites for output, stream in instance.outputs.items()
    }
    connected = tuple(_connected(operator, returned, names) for operator in operators)
    annotated = {operator.name for operator in connected if operator.consistent is not None or operator.autonomous}
    annotations: dict[str, CompositeInstance] = {}
    for instance in sorted(composites, key=lambda instance: -len(instance.path)):
        if instance.consistent is None and not instance.autonomous:
            continue
        for start in instance.starts(connected):
            if start.name not in annotated:
                annotations.setdefault(start.name, instance)
    return tuple(_annotated(operator, annotations.get(operator.name)) for operator in connected)


def _annotated(operator: Operator, instance: CompositeInstance | None) -> Operator:
    if instance is None:
        return operator
    return dataclasses.replace(operator, consistent=instance.consistent, autonomous=instance.autonomous)


def _connected(operator: Operator, returned: Mapping[tuple[str, str], Input], names: set[str]) -> Operator:
    inputs = tuple(_resolved(port, returned, names) for port in operator.inputs)
    return operator if inputs == operator.inputs else dataclasses.replace(operator, inputs=inputs)


def _resolved(port: Input, returned: Mapping[tuple[str, str], Input], names: set[str]) -> Input:
    """Return the port connected to the stream of an instance's output, which may be another instance's output."""
    seen: set[tuple[str, str]] = set()
    where, buffer = (port.upstream, port.output), port.buffered
    while where[0] not in names and where in returned and where not in seen:
        seen.add(where)
        stands_for = returned[where]
        where, buffer = (stands_for.upstream, stands_for.output), buffer or stands_for.buffered
    return dataclasses.replace(port, upstream=where[0], output=where[1], buffered=buffer)
