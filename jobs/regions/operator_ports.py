"""Port classes: consistent or autonomous, data or control."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.graph.ports import Input


class PortClass(StrEnum):
    """Consistent or autonomous, data or control, seen from one region."""

    CONSISTENT_DATA = "consistent data"
    CONSISTENT_CONTROL = "consistent control"
    AUTONOMOUS_DATA = "autonomous data"
    AUTONOMOUS_CONTROL = "autonomous control"

    @property
    def is_consistent(self) -> bool:
        """Say whether all streams of the port come from operators of the region."""
        return self in (PortClass.CONSISTENT_DATA, PortClass.CONSISTENT_CONTROL)

    @property
    def is_control(self) -> bool:
        """Say whether the port's tuples only change state."""
        return self in (PortClass.CONSISTENT_CONTROL, PortClass.AUTONOMOUS_CONTROL)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortPlan:
    """One connection to an input port of a region's operator.

    Attributes:
        operator: name of the operator that has the port.
        index: place of the connection in `operator.inputs`.
        port: number of the port; connections of equal `parameter` share one.
        parameter: name of the port in the operator's function.
        stream: the stream, as `upstream` or `upstream[output]`.
        upstream: name of the operator that feeds it.
        output: name of the upstream's output, "" if it has only one.
        port_class: see `PortClass`. A port fed by another region is autonomous: this region does not wait for it.
    """

    operator: str
    index: int
    port: int
    parameter: str
    stream: str
    upstream: str
    output: str
    port_class: PortClass


def ports_of(operator: Operator) -> dict[str, tuple[Input, ...]]:
    """Return an operator's ports: connections by parameter, or by stream if they have no parameter."""
    ports: dict[str, tuple[Input, ...]] = {}
    for connection in operator.inputs:
        key = connection.parameter or connection.stream
        ports[key] = (*ports.get(key, ()), connection)
    return ports


def port_class(connection: Input, members: Collection[str]) -> PortClass:
    """Return the class of a connection for the region with these operators."""
    if connection.upstream in members:
        return PortClass.CONSISTENT_CONTROL if connection.control else PortClass.CONSISTENT_DATA
    return PortClass.AUTONOMOUS_CONTROL if connection.control else PortClass.AUTONOMOUS_DATA


def port_plans(operator: Operator, members: Collection[str]) -> tuple[PortPlan, ...]:
    """Return the connections of one operator of a region, in the order of its inputs."""
    numbers = {key: number for number, key in enumerate(ports_of(operator))}
    return tuple(
        PortPlan(
            operator=operator.name,
            index=index,
            port=numbers[connection.parameter or connection.stream],
            parameter=connection.parameter,
            stream=connection.stream,
            upstream=connection.upstream,
            output=connection.output,
            port_class=port_class(connection, members),
        )
        for index, connection in enumerate(operator.inputs)
    )
