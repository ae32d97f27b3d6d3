"""`split`: several outputs with a condition each; a row goes to the first output that accepts it, or to all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from drainmark.jobs.errors import Violation
from drainmark.jobs.graph.declarations import Stream, StreamLike, declare, reading
from drainmark.jobs.graph.operator import Operator, Positions, StepResult

if TYPE_CHECKING:
    from drainmark.jobs.graph.context import OperatorContext

__all__ = ["split"]

_TO = "__to"


@dataclass(frozen=True, kw_only=True)
class Split(Operator):
    """A choice of outputs that is computed once for each row, so that they agree even if a condition is random."""

    kind: ClassVar[str] = "split"
    summary: ClassVar[str] = "rows to the first, or to every, output whose condition holds"
    keeps_tags: ClassVar[bool] = True
    positions: ClassVar[Positions] = Positions.KEPT
    configurations: ClassVar[tuple[str, ...]] = ("first", "every")

    conditions: Mapping[str, str]
    otherwise: str | None = None
    to: str = "first"

    @property
    def takes_changes(self) -> bool:
        return True

    @property
    def outputs(self) -> tuple[str, ...]:
        return (*self.conditions, *([self.otherwise] if self.otherwise else []))

    def fingerprint(self) -> Any:
        facts = {"conditions": list(self.conditions.items()), "otherwise": self.otherwise, "to": self.to}
        return {**super().fingerprint(), **facts}

    def violations(self, in_region: bool) -> Iterator[Violation]:
        if not self.conditions:
            yield self.wrong("SPLIT_OUTPUTS", "it has no outputs", 'give outputs={"large": "amount > 100"}')
        if wrong := [name for name, condition in self.conditions.items() if not isinstance(condition, str)]:
            yield self.wrong("SPLIT_OUTPUTS", f"{', '.join(wrong)}: a condition is SQL", 'such as "amount > 100"')
        if wrong := [name for name in self.outputs if not name.isidentifier()]:
            yield self.wrong("SPLIT_OUTPUTS", f"{', '.join(wrong)} cannot name an output", "use letters, digits and _")
        if self.otherwise in self.conditions:
            yield self.wrong("SPLIT_OUTPUTS", f"{self.otherwise!r} is the name of two outputs", "rename one")
        if self.to not in ("first", "every"):
            yield self.wrong("SPLIT_TO", f"to={self.to!r} is not known", 'write to="first" or to="every"')

    def step(self, frames: OperatorContext) -> StepResult:
        rows = frames.input(self.inputs[0])
        outcomes = ", ".join(f"struct('{name}' as name, ({sql}) as holds)" for name, sql in self.conditions.items())
        found = f"transform(filter(array({outcomes}), one -> one.holds), one -> one.name)"
        matching = f"slice({found}, 1, 1)" if self.to == "first" else found
        routed = frames.once(self, rows.selectExpr("*", f"{matching} as {_TO}"))
        outputs = {name: routed.where(f"array_contains({_TO}, '{name}')").drop(_TO) for name in self.conditions}
        if self.otherwise:
            outputs[self.otherwise] = routed.where(f"size({_TO}) = 0").drop(_TO)
        return StepResult(None, outputs=outputs)


def split(
    stream: StreamLike,
    *,
    outputs: Mapping[str, str],
    otherwise: str | None = None,
    to: Literal["first", "every"] = "first",
    name: str | None = None,
) -> Stream:
    """Declare a split: each row goes to the first output with a condition that holds, or to every such output.

    A function's parameter names an output as `sizes__large`. A condition that is null does not hold.

    Args:
        outputs: by the name of the output, its condition in SQL.
        otherwise: name of a further output, for rows for which no condition holds; without it they are dropped.
        to: `first`: a row goes to the first output with a condition that holds; `every`: to every such output.
        name: the operator's name; `<stream>_split` by default.

    Example:
        sizes = dm.split(orders, outputs={"large": "amount > 100", "small": "amount <= 100"}, otherwise="unknown")
        dm.sink(sizes["large"], dm.DeltaAppend("large_orders"))
    """
    operator = Split(
        **reading(stream, "split", name),
        conditions=dict(outputs) if isinstance(outputs, Mapping) else {},
        otherwise=otherwise,
        to=to,
    )
    return declare(operator)
