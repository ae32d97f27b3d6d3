"""Which streams are change streams: those with the tag `GONE`, whose rows may take earlier ones back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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


def keepers(operators: Sequence[Operator]) -> Mapping[str, tuple[str, ...]]:
    """Return, for each change stream, the operators whose states know which of its rows came, sorted.

    They alone take rows back, so nothing takes back a row of before their states began. "" stands for plain rows that
    `dm.union` adds: no state knows them.

    Args:
        operators: in topological order, in their forms over changes.
    """
    origins, found = change_streams(operators), dict[str, tuple[str, ...]]()
    for operator in operators:
        if operator.name not in origins:
            continue
        if any(not state.part for state in operator.kept):  # a part is what it keeps of a control port, or beside
            found[operator.name] = (operator.name,)
        else:
            known = (found.get(port.upstream, ("",)) for port in operator.inputs if not port.control)
            found[operator.name] = tuple(sorted({name for names in known for name in names}))
    return found


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
