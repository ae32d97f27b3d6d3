"""The streams of a group, from operator to operator, and across the borders of stages if the region has several."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drainmark.jobs.graph.context import OperatorContext
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.operators.sources.source import Source
from drainmark.jobs.runtime.analysis.blueprint import Blueprint, seen, shares_history
from drainmark.jobs.runtime.group.output_staging import OutputStaging
from drainmark.jobs.runtime.input.executors import GroupExecutor, OperatorExecutors
from drainmark.jobs.runtime.spark_failures import blaming

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(slots=True, kw_only=True)
class Border:
    """The streams of a group that come in from other stages, or leave for them; this one is that of a sole stage: none.

    Attributes:
        rows: number of rows that come in.
        outgoing: streams that leave.
    """

    rows: int = 0
    outgoing: Collection[str] = ()

    def receive(self, executor: GroupExecutor) -> Mapping[str, DataFrame]:
        """Return the frames that come in, by stream; called when the work begins."""
        return {}

    def leave(self, operator: Operator, stream: str, frame: DataFrame, executor: GroupExecutor) -> DataFrame:
        """Compute a stream once for the other stages; return the result for the readers in this stage."""
        raise AssertionError(f"{stream} stays in the region")


@dataclass(slots=True, kw_only=True)
class StreamPassing:
    """The passing of the streams of one attempt.

    A stream that leaves the stage is computed once, and its readers in the stage get the result: all see the same rows.

    Attributes:
        frames: gets the streams that downstream operators read.
        received: the streams that came in across the border.
    """

    blueprint: Blueprint
    executors: OperatorExecutors
    outputs: OutputStaging
    frames: OperatorContext
    border: Border
    received: Mapping[str, DataFrame]
    _left: set[str] = field(default_factory=set)

    def await_inputs(self, operator: Operator) -> None:
        """Enter the inputs of an operator that come across the border or from tables; wait until these are staged."""
        streams = self.frames.streams
        for port in operator.inputs:
            if port.stream in self.received:
                streams.setdefault(port.stream, self.received[port.stream])
        for port in operator.inputs:
            upstream = self.blueprint.region.operator(port.upstream)
            table = self.blueprint.written_by.get(port.upstream)
            if table is None or port.stream in streams or self.shares(operator):
                continue
            streams[port.stream] = seen(upstream, self.outputs.frame_of(table))

    def pass_on(self, operator: Operator, output: str, frame: DataFrame) -> None:
        """Enter a stream for downstream operators; compute it once if several read it or if it leaves the stage."""
        stream = operator.stream(output)
        if stream in self.border.outgoing:
            frame = self._leave(operator, stream, frame)
        elif self.blueprint.readers(operator.name, output) > 1 and not self._is_fixed(operator, frame):
            once = frame
            frame = blaming(self.blueprint.region, operator, lambda: self.executors.of(operator).once(once))
        self.frames.streams[stream] = frame

    def leave_tables(self) -> None:
        """Send the streams that leave the stage and are also tables: their rows are read from the staged files."""
        for stream in self.border.outgoing:
            if stream not in self._left:
                operator = self.blueprint.region.operator(stream.partition("[")[0])
                frame = self.outputs.frame_of(self.blueprint.written_by[operator.name])
                self._leave(operator, stream, seen(operator, frame))

    def shares(self, operator: Operator) -> bool:
        """Say whether the operator shares the history of the operator before it, and so has nothing to do."""
        region = self.blueprint.region
        return operator not in region.followers and shares_history(operator, region)

    def _leave(self, operator: Operator, stream: str, frame: DataFrame) -> DataFrame:
        self._left.add(stream)
        return self.border.leave(operator, stream, frame, self.executors.of(operator))

    def _is_fixed(self, operator: Operator, frame: DataFrame) -> bool:
        """Say whether a source's frame is as materialised by its read, except for columns left out or renamed; or
        whether a frame is a lookup's, which is read at one version, and is not copied, since it may be large."""
        if operator.is_reference:
            return True
        if not isinstance(operator, Source):
            return False
        verdict = self.blueprint.verdicts.get(operator.name)
        is_as_read = any(frame is read for read in self.frames.scanned_frames.values())
        return is_as_read or (verdict is not None and verdict.only_picks)
