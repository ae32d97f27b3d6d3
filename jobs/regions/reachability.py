"""The declared graph as names and edges: reachability, order, and loops.

It checks nothing: unknown upstreams and second operators of a name are left out here, and the rules report them.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from drainmark.jobs.graph.application import Application
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.graph.ports import Input

Edges = Mapping[str, tuple[str, ...]]
"""Operator name to the names one connection away, each once, in the order of declaration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Operators joined by streams.

    Attributes:
        operators: by name, in the order of declaration; the first of each name.
        downstream: every connection, from upstream to downstream.
        upstream: the same, reversed.
        data_downstream: the connections that do not end in a control port.
        order: all names, upstream first; ties are broken by the order of declaration. Connections that close a loop on
            a control port do not count. If a loop is not closed on a control port, its operators come last.
    """

    operators: Mapping[str, Operator]
    downstream: Edges
    upstream: Edges
    data_downstream: Edges
    order: tuple[str, ...]

    @property
    def starts(self) -> tuple[str, ...]:
        """Return the names of the operators that carry `@consistent`, in the order of declaration."""
        return tuple(name for name, operator in self.operators.items() if operator.consistent is not None)

    @property
    def carved_out(self) -> frozenset[str]:
        """Return the names of the operators that carry `@autonomous` and no `@consistent`."""
        return frozenset(
            name for name, operator in self.operators.items() if operator.autonomous and operator.consistent is None
        )

    def ordered(self, names: Collection[str]) -> tuple[Operator, ...]:
        """Return the operators of these names in topological order."""
        return tuple(self.operators[name] for name in self.order if name in names)


def graph_of(application: Application) -> Graph:
    """Return the graph of an application's connections."""
    operators: dict[str, Operator] = {}
    for operator in application.operators:
        operators.setdefault(operator.name, operator)
    links = [
        (port.upstream, name, port.control)
        for name, operator in operators.items()
        for port in operator.inputs
        if port.upstream in operators
    ]
    downstream = edges_of(operators, ((source, target) for source, target, _ in links))
    data_downstream = edges_of(operators, ((source, target) for source, target, control in links if not control))
    return Graph(
        operators=operators,
        downstream=downstream,
        upstream=edges_of(operators, ((target, source) for source, target, _ in links)),
        data_downstream=data_downstream,
        order=topological_order(downstream, data_downstream),
    )


def reachable(origins: Iterable[str], edges: Edges, stops: Collection[str] = ()) -> frozenset[str]:
    """Return the origins and all names that the edges lead to, without entering a stop; an origin may be a stop."""
    found = set(origins)
    waiting = list(found)
    while waiting:
        for name in edges[waiting.pop()]:
            if name not in found and name not in stops:
                found.add(name)
                waiting.append(name)
    return frozenset(found)


def components(names: Iterable[str], edges: Edges) -> tuple[frozenset[str], ...]:
    """Return the sets of these names that are connected among themselves, in any direction."""
    left = dict.fromkeys(names)
    joined: dict[str, list[str]] = {name: [] for name in left}
    for name in left:
        for other in edges[name]:
            if other in left:
                joined[name].append(other)
                joined[other].append(name)
    both_ways = {name: tuple(others) for name, others in joined.items()}
    found: list[frozenset[str]] = []
    while left:
        component = reachable([next(iter(left))], both_ways)
        found.append(component)
        left = {name: None for name in left if name not in component}
    return tuple(found)


def way(origin: str, target: str, edges: Edges) -> tuple[str, ...]:
    """Return the names along a shortest way from one operator to another, both included; empty if there is none."""
    came_from: dict[str, str] = {origin: origin}
    waiting = [origin]
    for here in waiting:
        if here == target:
            path = [here]
            while path[-1] != origin:
                path.append(came_from[path[-1]])
            return tuple(reversed(path))
        for other in edges[here]:
            if other not in came_from:
                came_from[other] = here
                waiting.append(other)
    return ()


def loops(edges: Edges) -> tuple[tuple[str, ...], ...]:
    """Return one shortest loop for every knot of operators that reach each other, as the names along it."""
    declared = {name: index for index, name in enumerate(edges)}
    found = (_loop_through(min(knot, key=declared.__getitem__), knot, edges) for knot in _knots(edges))
    return tuple(loop for loop in found if loop)


def loop_through(name: str, edges: Edges) -> tuple[str, ...]:
    """Return the names along a shortest loop that begins at an operator, empty if it is in none."""
    return _loop_through(name, edges.keys(), edges)


def edges_of(names: Iterable[str], links: Iterable[tuple[str, str]]) -> Edges:
    """Return the links as edges, by the name of their source."""
    found: dict[str, dict[str, None]] = {name: {} for name in names}
    for source, target in links:
        found[source][target] = None
    return {name: tuple(targets) for name, targets in found.items()}


def topological_order(downstream: Edges, data_downstream: Edges) -> tuple[str, ...]:
    """Return the order by Kahn, ties by declaration; edges that are only in `downstream` may close a loop."""
    knot_of = {name: number for number, knot in enumerate(_knots(downstream)) for name in knot}
    counted = {
        name: tuple(other for other in others if other in data_downstream[name] or knot_of[other] != knot_of[name])
        for name, others in downstream.items()
    }
    names = list(counted)
    position = {name: index for index, name in enumerate(names)}
    missing = dict.fromkeys(names, 0)
    for others in counted.values():
        for other in others:
            missing[other] += 1
    ready = [position[name] for name in names if not missing[name]]
    order: list[str] = []
    while ready:
        name = names[heapq.heappop(ready)]
        order.append(name)
        for other in counted[name]:
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(ready, position[other])
    done = set(order)
    return (*order, *(name for name in names if name not in done))


def _knots(edges: Edges) -> list[frozenset[str]]:
    """Return the strongly connected components: finish times forwards, then reachability backwards (Kosaraju)."""
    backwards = edges_of(edges, ((target, source) for source, targets in edges.items() for target in targets))
    taken: set[str] = set()
    knots: list[frozenset[str]] = []
    for name in reversed(_finished(edges)):
        if name not in taken:
            knot = reachable([name], backwards, taken)
            taken |= knot
            knots.append(knot)
    return knots


def _finished(edges: Edges) -> list[str]:
    """Return the names in the order in which a depth-first search leaves them; iterative, since graphs may be deep."""
    seen: set[str] = set()
    finished: list[str] = []
    for root in edges:
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, iter(edges[root]))]
        while stack:
            name, rest = stack[-1]
            following = next((other for other in rest if other not in seen), None)
            if following is None:
                finished.append(name)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(edges[following])))
    return finished


def _loop_through(name: str, within: Collection[str], edges: Edges) -> tuple[str, ...]:
    came_from: dict[str, str] = {}
    waiting = [name]
    for here in waiting:
        for other in edges[here]:
            if other == name:
                path = [here]
                while path[-1] != name:
                    path.append(came_from[path[-1]])
                return tuple(reversed(path))
            if other in within and other not in came_from:
                came_from[other] = here
                waiting.append(other)
    return ()


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
