"""Which streams are change streams: those with the tag `GONE`, whose rows may take earlier ones back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from drainmark.jobs.graph.operator import Operator


def change_streams(operators: Iterable[Operator]) -> Mapping[str, str]:
    """Return the operators whose results are change streams, each with the operator that the changes come from.

    Args:
        operators: in topological order.
    """
    return _walked(operators)[0]


def over_changes(operators: Iterable[Operator]) -> dict[str, Operator]:
    """Return the operators by name, each in its form over a change stream if it reads one.

    Args:
        operators: in topological order.
    """
    return _walked(operators)[1]


def _walked(operators: Iterable[Operator]) -> tuple[dict[str, str], dict[str, Operator]]:
    origins: dict[str, str] = {}
    found: dict[str, Operator] = {}
    for given in operators:
        changed = [port.upstream for port in given.inputs if port.upstream in origins and not port.control]
        operator = given.over_changes(origins[changed[0]]) if changed else given
        found[operator.name] = operator
        if operator.gives_changes:
            origins[operator.name] = operator.name
        elif changed and operator.takes_changes and operator.outputs:
            origins[operator.name] = origins[changed[0]]
    return origins, found
