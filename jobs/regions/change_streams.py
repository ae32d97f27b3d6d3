"""Which streams are change streams: those with the tag `GONE`, whose rows may take earlier ones back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from drainmark.jobs.graph.operator import Operator


def change_streams(operators: Iterable[Operator]) -> Mapping[str, str]:
    """Return the operators whose results are change streams, each with the operator that the changes come from.

    Args:
        operators: in topological order.
    """
    found: dict[str, str] = {}
    for operator in operators:
        if operator.gives_changes:
            found[operator.name] = operator.name
        elif operator.takes_changes and operator.outputs:
            changed = [port.upstream for port in operator.inputs if port.upstream in found and not port.control]
            if changed:
                found[operator.name] = found[changed[0]]
    return found
