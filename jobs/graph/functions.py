"""Operators that call a function of the author's, and how decorators declare them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drainmark.jobs.graph.code_digests import UserFunction
from drainmark.jobs.graph.declarations import Stream, StreamLike, declare, user_function
from drainmark.jobs.graph.operator import Operator

if TYPE_CHECKING:
    from drainmark.jobs.graph.context import OperatorContext


@dataclass(frozen=True, kw_only=True)
class FunctionOperator(Operator):
    """An operator with a function of its input frames; a subclass may call it otherwise."""

    function: UserFunction

    def fingerprint(self) -> Any:
        return {**super().fingerprint(), "function": self.function.source_digest()}

    def apply(self, frames: OperatorContext) -> Any:
        return frames.call(self, self.function, frames.inputs(self))


def declared_by(
    function: Callable[..., Any] | None,
    made: Callable[..., Operator],
    name: str | None,
    inputs: Sequence[StreamLike] | None,
    first_free: int = 0,
) -> Any:
    """Return the stream of an operator that is declared by a function, or the decorator that will declare it.

    Args:
        function: None if the decorator has arguments.
        made: makes the operator of its `name`, `inputs` and `function`.
        name: the operator's name; the function's by default.
        inputs, first_free: see `user_function`.
    """

    def wrap(wrapped: Callable[..., Any]) -> Stream:
        called, ports = user_function(wrapped, inputs, first_free)
        return declare(made(name=name or wrapped.__name__, inputs=ports, function=called), wrapped)

    return wrap if function is None else wrap(function)
