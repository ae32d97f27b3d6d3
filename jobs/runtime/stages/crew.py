"""The threads of the stages, a `StageWorker` each, from one reset of the region to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.autonomous.output import PATIENCE_SECONDS
from drainmark.jobs.runtime.autonomous.tables import Outlets
from drainmark.jobs.runtime.commit.operator_states import RegionStates
from drainmark.jobs.runtime.commit.staged_group import GroupTime
from drainmark.jobs.runtime.input.inbox import Group
from drainmark.jobs.runtime.stages.board import Board
from drainmark.jobs.runtime.stages.worker import StageWorker
from drainmark.jobs.runtime.timeout import Grace

Note = Callable[[str, dict[str, Any]], None]


@dataclass(slots=True, kw_only=True)
class Crew:
    """The workers of a region, one for each stage.

    Attributes:
        small_bytes: groups of up to so many bytes (inclusive) stay in this process.
        note: called with a step and its numbers.
    """

    region: RegionPlan
    grace: Grace
    small_bytes: int
    note: Note
    _workers: list[StageWorker] = field(default_factory=list)
    _outlets: dict[str, Outlets] = field(default_factory=dict)

    def begin(self, board: Board, states: Mapping[str, RegionStates]) -> None:
        """Start the workers.

        Args:
            states: by name of a stage.
        """
        self._workers = [self._worker(board, name, states[name]) for name in board.ends]
        for worker in self._workers:
            worker.begin()

    def dismiss(self) -> None:
        """Cancel the Spark jobs of the workers; their board is closed already."""
        for worker in self._workers:
            worker.cancel()
        self._workers = []

    def close(self) -> None:
        """Wait at the end of a run until rows for autonomous tables are written; after some time, drop the others."""
        for outlets in self._outlets.values():
            outlets.close(PATIENCE_SECONDS)

    def _worker(self, board: Board, name: str, states: RegionStates) -> StageWorker:
        time = GroupTime(self.region)
        return StageWorker(
            board=board,
            plan=self.region.stage(name),
            states=states,
            outside=states.outside,
            outlets=self._outlets.setdefault(name, Outlets()),
            grace=self.grace,
            small_bytes=self.small_bytes,
            group_timeout=time.seconds,
            late=time.too_late,
            restarts_allowed=self.region.parameters.max_consecutive_reset_attempts,
            note=self._restarted,
        )

    def _restarted(self, stage: str, group: Group, error: BaseException) -> None:
        ids = {"first_id": group.first_id, "last_id": group.last_id}
        self.note("restart", {"stage": stage, **ids, "error": str(error)})
