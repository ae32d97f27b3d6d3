"""One instance of a composite: its operators and its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from drainmark.jobs.errors import Location
from drainmark.jobs.graph.annotations import Consistent
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.graph.ports import Input


@dataclass(frozen=True, slots=True, kw_only=True)
class CompositeInstance:
    """One instance of a composite.

    Attributes:
        name: of the instance, with those of the composites around it; the operators' names begin with it and `_`.
        kind: name of the composite's function.
        path: names of the composites that it is in, the outermost first, itself last.
        location: the place of the call that made it.
        outputs: the returned streams: name of the output, "" for the only one, to the stream inside.
        consistent, autonomous: annotations of the composite; see `expanded`.
    """

    name: str
    kind: str
    path: tuple[str, ...]
    location: Location
    outputs: Mapping[str, Input] = field(default_factory=dict)
    consistent: Consistent | None = None
    autonomous: bool = False

    def operators(self, operators: Sequence[Operator]) -> tuple[Operator, ...]:
        """Return the operators in this composite, also those in composites inside it."""
        return tuple(operator for operator in operators if operator.composite[: len(self.path)] == self.path)

    def starts(self, operators: Sequence[Operator]) -> tuple[Operator, ...]:
        """Return its start operators: those without inputs, or with all inputs from outside.

        A lookup is none: it is only read, and sends no rows with which a region could begin.
        """
        own = self.operators(operators)
        names = {operator.name for operator in own}
        return tuple(
            operator
            for operator in own
            if not operator.is_reference and names.isdisjoint(port.upstream for port in operator.inputs)
        )
