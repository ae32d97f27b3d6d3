"""The border of one stage: the rows of a group that channels bring, and the rows that leave the stage for channels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.input.executors import GroupExecutor
from drainmark.jobs.runtime.spark_failures import blaming

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Receive = Callable[[GroupExecutor], Mapping[str, "DataFrame"]]
"""Returns the frames of the batches, by stream."""

Send = Callable[[str, "DataFrame"], "DataFrame"]
"""Stages a stream of a group that is not small in files; returns the frame of these files, for further readers."""


@dataclass(slots=True, kw_only=True)
class StageBorder:
    """The `Border` of one attempt of one stage; used once.

    Attributes:
        region: the stage as a region.
        received: see `Receive`.
        send: see `Send`.
        outgoing: streams that channels carry to other stages.
        rows: number of rows in the batches.
        left: by stream, once the work is staged, the rows of a small group that left the stage.
    """

    region: RegionPlan
    received: Receive
    send: Send
    outgoing: Collection[str]
    rows: int
    left: dict[str, pa.Table] = field(default_factory=dict)

    def receive(self, executor: GroupExecutor) -> Mapping[str, DataFrame]:
        return self.received(executor)

    def leave(self, operator: Operator, stream: str, frame: DataFrame, executor: GroupExecutor) -> DataFrame:
        if not executor.are_few:
            return blaming(self.region, operator, lambda: self.send(stream, frame))
        self.left[stream] = blaming(self.region, operator, frame.toArrow)
        return executor.local(self.left[stream], frame)
