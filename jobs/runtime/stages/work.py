"""One attempt of one stage at one group: the work on a group, fed from channels and leaving batches for others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drainmark.jobs.graph.context import OperatorContext
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.runtime.analysis.physical_plan import seen_downstream
from drainmark.jobs.runtime.group_work import GroupWork
from drainmark.jobs.runtime.input.materialisation import Materialiser

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Receive = Callable[[Materialiser], Mapping[str, "DataFrame"]]
"""Returns the frames of the batches, by stream."""

Send = Callable[[str, "DataFrame"], "DataFrame"]
"""Stages a stream of a group that is not small, in files; returns what else reads it, from there."""


@dataclass(slots=True, kw_only=True)
class StageWork(GroupWork):
    """As `GroupWork`, of one stage; used once.

    What leaves the stage is computed once, and goes on in it as what left: both sides see the same rows (H15).

    Attributes:
        receive: called when the work begins.
        outgoing: streams that channels carry on.
        send: see `Send`.
        received_rows: how many rows the batches have.
        left: by stream, once the work is staged, the rows of a small group that left the stage.
    """

    receive: Receive
    outgoing: Collection[str]
    send: Send
    received_rows: int = 0
    left: dict[str, pa.Table] = field(default_factory=dict)
    _sent_on: set[str] = field(default_factory=set)
    _received: Mapping[str, DataFrame] = field(default_factory=dict)

    def _compute(self, materialiser: Materialiser, pool: ThreadPoolExecutor) -> None:
        self._received = self.receive(materialiser)
        GroupWork._compute(self, materialiser, pool)
        for stream in self.outgoing:
            if stream not in self._sent_on:  # of an operator whose output is also a table: staged, and read from there
                operator = self.blueprint.region.operator(stream.partition("[")[0])
                frame = self._frame_of(self.blueprint.written_by[operator.name])
                self._leave(operator, stream, seen_downstream(operator, frame), materialiser)

    def _rows_come_in(self) -> int:
        return self.received_rows + GroupWork._rows_come_in(self)

    def _await_inputs(self, operator: Operator, frames: OperatorContext) -> None:
        for port in operator.inputs:
            if port.stream in self._received:
                frames.streams.setdefault(port.stream, self._received[port.stream])
        GroupWork._await_inputs(self, operator, frames)

    def _pass_on(
        self, operator: Operator, output: str, frame: DataFrame, frames: OperatorContext, materialiser: Materialiser
    ) -> None:
        stream = f"{operator.name}[{output}]" if output else operator.name
        if stream in self.outgoing:
            frames.streams[stream] = self._leave(operator, stream, frame, materialiser)
        else:
            GroupWork._pass_on(self, operator, output, frame, frames, materialiser)

    def _leave(self, operator: Operator, stream: str, frame: DataFrame, materialiser: Materialiser) -> DataFrame:
        """Compute a stream once, for the channels and for what reads it here."""
        self._sent_on.add(stream)
        if not self.small:
            staged: DataFrame = self._blaming(operator, lambda: self.send(stream, frame))
            return staged
        self.left[stream] = self._blaming(operator, frame.toArrow)
        return materialiser.local(self.left[stream], frame)
