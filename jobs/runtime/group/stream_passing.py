"""The streams of a group, from operator to operator, and over the border of a stage where the region has several."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from drainmark.jobs.graph.context import OperatorContext
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.operators.sources.source import Source
from drainmark.jobs.runtime.analysis.blueprint import Blueprint, seen_downstream, shares_history
from drainmark.jobs.runtime.group.output_staging import OutputStaging
from drainmark.jobs.runtime.input.materialisation import Materialiser
from drainmark.jobs.runtime.spark_failures import blaming

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Border(Protocol):
    """What of a group comes in from other stages, and leaves for them."""

    @property
    def rows(self) -> int:
        """Return how many rows come in."""

    @property
    def outgoing(self) -> Collection[str]:
        """Return the streams that leave."""

    def receive(self, materialiser: Materialiser) -> Mapping[str, DataFrame]:
        """Return the frames that come in, by stream; called when the work begins."""

    def leave(self, operator: Operator, stream: str, frame: DataFrame, materialiser: Materialiser) -> DataFrame:
        """Compute a stream once, for who is beyond the border and for what reads it here, which gets the result."""


@dataclass(frozen=True, slots=True)
class NoBorder:
    """That of a region of one stage: nothing crosses it."""

    rows: int = 0
    outgoing: Collection[str] = ()

    def receive(self, materialiser: Materialiser) -> Mapping[str, DataFrame]:
        return {}

    def leave(self, operator: Operator, stream: str, frame: DataFrame, materialiser: Materialiser) -> DataFrame:
        raise AssertionError(f"{stream} stays in the region")


@dataclass(slots=True, kw_only=True)
class StreamPassing:
    """Passes the streams of one attempt on.

    What leaves the stage is computed once, and goes on in it as what left: both sides see the same rows.

    Attributes:
        frames: what operators downstream read is entered there.
        received: what came over the border.
    """

    blueprint: Blueprint
    outputs: OutputStaging
    materialiser: Materialiser
    frames: OperatorContext
    border: Border
    received: Mapping[str, DataFrame]
    _left: set[str] = field(default_factory=set)

    def await_inputs(self, operator: Operator) -> None:
        """Enter what an operator reads from beyond the border, and from tables, as soon as these are staged."""
        streams = self.frames.streams
        for port in operator.inputs:
            if port.stream in self.received:
                streams.setdefault(port.stream, self.received[port.stream])
        for port in operator.inputs:
            upstream = self.blueprint.region.operator(port.upstream)
            table = self.blueprint.written_by.get(port.upstream)
            if table is None or port.stream in streams or self.shares(operator):
                continue
            streams[port.stream] = seen_downstream(upstream, self.outputs.frame_of(table))

    def pass_on(self, operator: Operator, output: str, frame: DataFrame) -> None:
        """Enter what downstream operators read, computed once where several do, or where it leaves the stage."""
        stream = f"{operator.name}[{output}]" if output else operator.name
        if stream in self.border.outgoing:
            frame = self._leave(operator, stream, frame)
        elif self.blueprint.region.consumers(operator.name, output) > 1 and not self._is_fixed(operator, frame):
            once = frame
            frame = blaming(self.blueprint.region, operator, lambda: self.materialiser.once(once))
        self.frames.streams[stream] = frame

    def leave_tables(self) -> None:
        """Send on what leaves the stage of outputs that are also tables: staged, and read from there."""
        for stream in self.border.outgoing:
            if stream not in self._left:
                operator = self.blueprint.region.operator(stream.partition("[")[0])
                frame = self.outputs.frame_of(self.blueprint.written_by[operator.name])
                self._leave(operator, stream, seen_downstream(operator, frame))

    def shares(self, operator: Operator) -> bool:
        """Is the operator's table the history of the one before it, so that it has nothing to do?"""
        region = self.blueprint.region
        return operator not in region.followers and shares_history(operator, region)

    def _leave(self, operator: Operator, stream: str, frame: DataFrame) -> DataFrame:
        self._left.add(stream)
        return self.border.leave(operator, stream, frame, self.materialiser)

    def _is_fixed(self, operator: Operator, frame: DataFrame) -> bool:
        """Is a source's frame what was materialised when it was read, but for columns left out or renamed?"""
        if not isinstance(operator, Source):
            return False
        verdict = self.blueprint.verdicts.get(operator.name)
        is_as_read = any(frame is read for read in self.frames.scanned_frames.values())
        return is_as_read or (verdict is not None and verdict.only_picks)
