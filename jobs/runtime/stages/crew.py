"""The threads of connected stages, a `StageWorker` each from one reset of the region to the next, and their states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.runtime.analysis.blueprint import Blueprint
from drainmark.jobs.runtime.autonomous.output import PATIENCE_SECONDS
from drainmark.jobs.runtime.autonomous.tables import Outlets
from drainmark.jobs.runtime.commit.operator_states import RegionStates
from drainmark.jobs.runtime.commit.staged_group import GroupTime
from drainmark.jobs.runtime.hosting.hosted_parts import Hosted
from drainmark.jobs.runtime.input.inbox import Group
from drainmark.jobs.runtime.outside import Outside
from drainmark.jobs.runtime.parallel import side_by_side
from drainmark.jobs.runtime.stages.board import Board
from drainmark.jobs.runtime.stages.session import of_stage
from drainmark.jobs.runtime.stages.sub_plan import narrowed
from drainmark.jobs.runtime.stages.worker import StageWorker
from drainmark.jobs.runtime.timeout import Grace

Note = Callable[[str, dict[str, Any]], None]


@dataclass(slots=True, kw_only=True)
class Crew:
    """The workers of a region, one for each stage.

    Attributes:
        hosted: the handlers and starts of all stages that run in this process.
        small_bytes: groups of up to so many bytes (inclusive) stay in this process.
        note: called with a step and its numbers.
    """

    blueprint: Blueprint
    outside: Outside
    hosted: Hosted
    grace: Grace
    small_bytes: int
    note: Note
    _states: Mapping[str, RegionStates] = field(init=False)
    _outlets: Mapping[str, Outlets] = field(init=False)
    _workers: list[StageWorker] = field(default_factory=list)

    def __post_init__(self) -> None:
        stages = self.blueprint.region.stages
        self._outlets = {stage.name: Outlets() for stage in stages}
        self._states = {
            stage.name: RegionStates(
                blueprint=narrowed(self.blueprint, stage), outside=of_stage(self.outside, stage.name)
            )
            for stage in stages
        }

    def every_id(self) -> dict[str, str]:
        """Return, by name of a derived table that needs every id, even without rows, the stage that writes it."""
        return {
            table.name: name
            for name, states in self._states.items()
            for table in states.blueprint.tables
            if table.options.get("every_id")
        }

    def reset(self, history: RegionHistory) -> None:
        """Load the states of all stages as of the last committed id, side by side.

        Raises:
            ResetTimeout: see `RegionStates.reset`.
        """
        parts = self._states.values()
        for part in parts:
            part.hosted.takes_starts = self.hosted.takes_starts
        side_by_side([partial(part.reset, history) for part in parts], "reset")
        self.hosted.handlers = {name: host for part in parts for name, host in part.hosted.handlers.items()}
        self.hosted.starts = {name: start for part in parts for name, start in part.hosted.starts.items()}

    def begin(self, board: Board) -> None:
        """Start the workers."""
        self._workers = [self._worker(board, name, states) for name, states in self._states.items()]
        for worker in self._workers:
            worker.begin()

    def dismiss(self) -> None:
        """Cancel the Spark jobs of the workers; their board is closed already."""
        for worker in self._workers:
            worker.cancel()
        self._workers = []

    def close(self) -> None:
        """End a run: threads of handlers get no more permits; rows for autonomous tables are waited for some time."""
        self.hosted.close()
        for part in self._states.values():
            part.ports.close()
        for outlets in self._outlets.values():
            outlets.close(PATIENCE_SECONDS)

    def _worker(self, board: Board, name: str, states: RegionStates) -> StageWorker:
        region = self.blueprint.region
        return StageWorker(
            board=board,
            plan=region.stage(name),
            states=states,
            outside=states.outside,
            outlets=self._outlets[name],
            grace=self.grace,
            small_bytes=self.small_bytes,
            time=GroupTime(region),
            restarts_allowed=region.parameters.max_consecutive_reset_attempts,
            note=self._restarted,
        )

    def _restarted(self, stage: str, group: Group, error: BaseException) -> None:
        ids = {"first_id": group.first_id, "last_id": group.last_id}
        self.note("restart", {"stage": stage, **ids, "error": str(error)})
