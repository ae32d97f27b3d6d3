"""Input ports of an operator, and the streams connected to them."""

from __future__ import annotations

from dataclasses import dataclass

from drainmark.jobs.graph.annotations import Buffered


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input port and the stream connected to it.

    Attributes:
        upstream: name of the operator that feeds it.
        output: name of the upstream's output, "" if it has only one.
        parameter: its name in the user's function.
        control: a control port: its tuples change state only.
        autonomous: declared as fed from outside the region.
        control_keys, control_schema: of a control port, as in `dm.Control`.
        buffered: it reads through a channel with these bounds; None if it is fused with its upstream.
    """

    upstream: str
    output: str = ""
    parameter: str = ""
    control: bool = False
    autonomous: bool = False
    control_keys: tuple[str, ...] = ()
    control_schema: str | None = None
    buffered: Buffered | None = None

    @property
    def stream(self) -> str:
        return f"{self.upstream}[{self.output}]" if self.output else self.upstream


def control_part(port: Input) -> str:
    """Return the part of the kept state in which a control port's rows are kept."""
    return f"on-{port.parameter or port.stream}"
