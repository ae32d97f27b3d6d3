"""Rules on connections, ports and loops."""

from __future__ import annotations

from collections.abc import Iterator

from drainmark.jobs.errors import Violation
from drainmark.jobs.graph.application import nearest
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.graph.ports import Input
from drainmark.jobs.regions.change_streams import change_streams
from drainmark.jobs.regions.merging import Draft, broken
from drainmark.jobs.regions.reachability import loop_through, loops, ports_of


def unknown_upstream(draft: Draft) -> Iterator[Violation]:
    """A port reads a stream that no operator declares."""
    known = [stream for operator in draft.graph.operators.values() for stream in _streams(operator)]
    known += [_label(made.name, output) for made in draft.application.composites for output in made.outputs]
    for operator, connection in _connections(draft):
        if connection.upstream not in draft.graph.operators:
            wanted = _label(connection.upstream, connection.output)
            others = [stream for stream in known if stream not in _streams(operator)]
            yield broken(
                "UNKNOWN_UPSTREAM",
                operator,
                f"{operator.name!r} reads {wanted!r}, which no operator declares",
                f"{nearest(wanted, others)} (a parameter means the operator of its name; of a variable say inputs=[…])",
            )


def unknown_output(draft: Draft) -> Iterator[Violation]:
    """A port reads an output that its upstream does not have, or reads from a sink."""
    for operator, connection in _connections(draft):
        upstream = draft.graph.operators.get(connection.upstream)
        if upstream is None or connection.output in upstream.outputs:
            continue
        if not upstream.outputs:
            message = f"{operator.name!r} reads from {upstream.name!r}, which is a {upstream.kind} and has no output"
            remedy = "read from the stream that feeds it"
        elif connection.output:
            message = f"{operator.name!r} reads {connection.stream!r}, but {upstream.name!r} has no such output"
            remedy = nearest(_label(upstream.name, connection.output), list(_streams(upstream)))
        else:
            outputs = ", ".join(map(repr, upstream.outputs))
            message = f"{operator.name!r} reads {upstream.name!r} without saying which of its outputs {outputs}"
            remedy = f"name the parameter {_label(upstream.name, upstream.outputs[0])}, or use {upstream.name}[…]"
        yield broken("UNKNOWN_OUTPUT", operator, message, remedy)


def no_input(draft: Draft) -> Iterator[Violation]:
    """An operator that is no source reads nothing."""
    for operator in draft.application.operators:
        if not operator.inputs and not operator.is_source:
            yield broken(
                "NO_INPUT",
                operator,
                f"{operator.name!r} is a {operator.kind} and reads no stream",
                "name a parameter after the operator that feeds it, or give inputs=[…]",
            )


def cycle_not_on_control_port(draft: Draft) -> Iterator[Violation]:
    """A feedback loop is closed on a data port."""
    for loop in loops(draft.graph.data_downstream):
        yield broken(
            "CYCLE_NOT_ON_CONTROL_PORT",
            draft.graph.operators[loop[0]],
            f"the loop {_arrows(loop)} is not closed on a control port",
            "mark the parameter that closes it: Annotated[DataFrame, dm.Control]",
        )


def loop_through_start(draft: Draft) -> Iterator[Violation]:
    """A loop, on any port, leads through the start of a region."""
    for name in draft.graph.starts:
        if loop := loop_through(name, draft.graph.downstream):
            yield broken(
                "LOOP_THROUGH_START",
                draft.graph.operators[name],
                f"the loop {_arrows(loop)} leads through {name!r}, the start of a region",
                "let the loop end at an operator behind the start",
            )


def mixed_port(draft: Draft) -> Iterator[Violation]:
    """One port takes streams of the region and from outside, or control and data."""
    for operator, key, connections in _region_ports(draft):
        region = draft.region_of(operator.name)
        known = [connection for connection in connections if connection.upstream in draft.graph.operators]
        inside = [c.stream for c in known if region is not None and c.upstream in region.members]
        outside = [c.stream for c in known if c.stream not in inside]
        if inside and outside:
            yield broken(
                "MIXED_PORT",
                operator,
                f"port {key!r} of {operator.name!r} takes {_listed(inside)} of its region"
                f" and {_listed(outside)} from outside",
                "give each kind a parameter of its own",
            )
        elif len({connection.control for connection in connections}) > 1:
            yield broken(
                "MIXED_PORT",
                operator,
                f"port {key!r} of {operator.name!r} is a control port for some of its streams only",
                "give each kind a parameter of its own",
            )


def control_ports_only(draft: Draft) -> Iterator[Violation]:
    """An operator in a region that submits tuples has no data port, though tuples on control ports submit none.

    A port is a control port only if its parameter is annotated `dm.Control`. The rule does not check whether the code
    submits tuples, since one more line of code would move the port to another class.
    """
    for operator in draft.application.operators:
        in_region = draft.region_of(operator.name) is not None and operator.consistent is None
        if in_region and operator.outputs and all(connection.control for connection in operator.inputs):
            yield broken(
                "CONTROL_PORTS_ONLY",
                operator,
                f"{operator.name!r} has an output, but only control ports, which change state and submit nothing",
                "drop dm.Control from one parameter",
            )


def autonomous_port_fed_by_region(draft: Draft) -> Iterator[Violation]:
    """A port declared `Autonomous` takes a stream of its own region."""
    for operator, connection in _connections(draft):
        region = draft.region_of(operator.name)
        if connection.autonomous and region is not None and connection.upstream in region.members:
            yield broken(
                "AUTONOMOUS_PORT_FED_BY_REGION",
                operator,
                f"{operator.name!r} declares {connection.stream!r} autonomous, but it is in the same region",
                f"drop dm.Autonomous, or put @dm.autonomous on {connection.upstream!r}",
            )


def changes(draft: Draft) -> Iterator[Violation]:
    """A change stream goes to an operator that would take the rows which take others back for rows that come."""
    origins = change_streams(draft.graph.ordered(draft.graph.operators))
    for operator, connection in _connections(draft):
        origin = origins.get(connection.upstream)
        if origin is None:
            continue
        if draft.region_of(operator.name) is None:
            why, remedy = "is in no consistent region", "let a consistent region write the changes to an upsert sink"
        elif connection.control or not operator.takes_changes:
            why = f"is a {operator.kind}, which may not read them"
            if connection.control:
                why = "reads them through a control port"
            before = draft.graph.operators[origin].inputs
            instead = f", or let it read {before[0].stream!r}, which has them as plain rows" if before else ""
            other = f"{operator.instead_over_changes}; or " if operator.instead_over_changes else ""
            remedy = f"{other}write them to dm.DeltaUpsert or dm.DatabaseUpsert, which delete keys{instead}"
        else:
            continue
        message = f"{connection.stream!r} has the changes of {origin!r}, rows that are gone among them"
        yield broken("CHANGES", operator, f"{message}; {operator.name!r} {why}", remedy)


def _connections(draft: Draft) -> Iterator[tuple[Operator, Input]]:
    for operator in draft.application.operators:
        for connection in operator.inputs:
            yield operator, connection


def _region_ports(draft: Draft) -> Iterator[tuple[Operator, str, tuple[Input, ...]]]:
    for operator in draft.application.operators:
        if draft.region_of(operator.name) is not None:
            for key, connections in ports_of(operator).items():
                yield operator, key, connections


def _streams(operator: Operator) -> tuple[str, ...]:
    return tuple(_label(operator.name, output) for output in operator.outputs)


def _label(name: str, output: str) -> str:
    return f"{name}__{output}" if output else name


def _listed(streams: list[str]) -> str:
    return " and ".join(map(repr, streams))


def _arrows(loop: tuple[str, ...]) -> str:
    return " → ".join((*loop, loop[0]))
