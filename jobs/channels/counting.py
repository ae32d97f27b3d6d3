"""Counting markers: one from each connection, and an operator, or a stage, may take the next step (V87–V95, V100).

The counts are those of the plan, `RegionPlan.connections`: figure 3 awaits two markers to drain, none on the autonomous
port, and one more to checkpoint (V95).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from jobs.channel_errors import OutOfOrder
from jobs.channels.items import DrainMarker, Marker, ResetMarker
from jobs.regions.plan import RegionPlan
from jobs.regions.ports import PortClass
from jobs.regions.stages import StagePlan


class Step(StrEnum):
    """What is to be done now, in this order."""

    DRAIN = "drain"  # finish and submit what is pending, then nothing more (V83, V84)
    FORWARD = "forward"  # the marker goes on at once, before what comes next has been done (V92, V115, N23)
    CHECKPOINT = "checkpoint"
    RESET = "reset"


class MarkerCounter:
    """Counts the markers of one operator or stage, by connection.

    Args:
        data: its connections on consistent data ports.
        control: on consistent control ports: not needed to drain (V90), needed to checkpoint and to reset (V93, V100).
    """

    def __init__(self, data: Iterable[str], control: Iterable[str] = ()) -> None:
        self.data = frozenset(data)
        self.control = frozenset(control)
        self._drain: DrainMarker | None = None
        self._reset: ResetMarker | None = None
        self._came: set[str] = set()
        self._cleared: set[str] = set()
        self._is_draining = False
        self._drained = 0

    @classmethod
    def of_operator(cls, region: RegionPlan, operator: str) -> MarkerCounter:
        """Return the counter of an operator, whose connections are named `<index>:<stream>`."""
        own = [port for port in region.ports if port.operator == operator]
        return cls(
            (f"{port.index}:{port.stream}" for port in own if port.port_class is PortClass.CONSISTENT_DATA),
            (f"{port.index}:{port.stream}" for port in own if port.port_class is PortClass.CONSISTENT_CONTROL),
        )

    @classmethod
    def of_stage(cls, stage: StagePlan) -> MarkerCounter:
        """Return the counter of a stage: its connections are its channels, for a marker in one is for all its readers.

        Loops on control ports are within a stage, whose operators are done with an id all at once.
        """
        return cls(channel.name for channel in stage.inputs)

    def count(self, connection: str, marker: Marker) -> tuple[Step, ...]:
        """Count a marker; return what is to be done now.

        Raises:
            OutOfOrder: none comes from there, or this one came already, or another one is awaited (E13). A late marker
                of a reset that was given up counts for nothing.
        """
        if connection not in self.data | self.control:
            raise OutOfOrder(f"a marker came on {connection!r}, which brings none")
        if isinstance(marker, ResetMarker):
            return self._on_reset(connection, marker)
        return self._on_drain(connection, marker)

    def _on_drain(self, connection: str, marker: DrainMarker) -> tuple[Step, ...]:
        if marker.sequence_id <= self._drained or (self._drain is not None and marker != self._drain):
            raise OutOfOrder(f"{marker} came on {connection!r}, and not the one of {self._drain or 'a newer id'}")
        if connection in self._came:
            raise OutOfOrder(f"{marker} came twice on {connection!r}")
        self._drain = marker
        self._came.add(connection)
        steps: list[Step] = []
        if self.data <= self._came and not self._is_draining:
            steps += [Step.DRAIN, Step.FORWARD]
            self._is_draining = True
        if self.data | self.control <= self._came:
            steps.append(Step.CHECKPOINT)
            self._drained = marker.sequence_id
            self._end_drain()
        return tuple(steps)

    def _on_reset(self, connection: str, marker: ResetMarker) -> tuple[Step, ...]:
        if self._reset is not None and marker.attempt < self._reset.attempt:
            return ()
        if self._reset is None or marker.attempt > self._reset.attempt:
            self._reset = marker
            self._cleared.clear()
        if connection in self._cleared:
            raise OutOfOrder(f"{marker} came twice on {connection!r}")
        self._cleared.add(connection)
        if self._cleared < self.data | self.control:
            return ()
        self._end_drain()  # what was being established will not be (V113)
        self._cleared.clear()
        return Step.FORWARD, Step.RESET

    def _end_drain(self) -> None:
        self._drain, self._is_draining = None, False
        self._came.clear()
