"""The threads of connected stages, a `StageWorker` each from one reset of the region to the next, and their states.

Each works with the part of the region that its stage runs, as plan and blueprint.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.regions.stages import StagePlan
from drainmark.jobs.runtime.analysis.blueprint import Blueprint
from drainmark.jobs.runtime.autonomous.output import PATIENCE_SECONDS
from drainmark.jobs.runtime.autonomous.tables import Outlets
from drainmark.jobs.runtime.commit.operator_states import RegionStates
from drainmark.jobs.runtime.commit.staged_group import GroupTime
from drainmark.jobs.runtime.hosting.hosted_parts import Hosted
from drainmark.jobs.runtime.outside import Outside, Report
from drainmark.jobs.runtime.stages.board import Board
from drainmark.jobs.runtime.stages.worker import StageWorker
from drainmark.jobs.runtime.timeout import Grace, side_by_side

if TYPE_CHECKING:
    from drainmark.resources.spark.session import Engine


@dataclass(slots=True, kw_only=True)
class Crew:
    """The workers of a region, one for each stage.

    Attributes:
        states: of the stages, by name; see `states_of`.
        hosted: the handlers and starts of all stages that run in this process.
        note: gets the restarts of stages.
    """

    region: RegionPlan
    states: Mapping[str, RegionStates]
    hosted: Hosted
    grace: Grace
    note: Report
    _outlets: dict[str, Outlets] = field(default_factory=partial(defaultdict, Outlets))
    _workers: list[StageWorker] = field(default_factory=list)

    def every_id(self) -> dict[str, str]:
        """Return, by name of a derived table that needs every id, even without rows, the stage that writes it."""
        return {
            table.name: name
            for name, states in self.states.items()
            for table in states.blueprint.tables
            if table.options.get("every_id")
        }

    def reset(self, history: RegionHistory) -> None:
        """Load the states of all stages as of the last committed id, side by side.

        Raises:
            ResetTimeout: see `RegionStates.reset`.
        """
        parts = self.states.values()
        for part in parts:
            part.hosted.takes_starts = self.hosted.takes_starts
        side_by_side([partial(part.reset, history) for part in parts])
        self.hosted.handlers = {name: host for part in parts for name, host in part.hosted.handlers.items()}
        self.hosted.starts = {name: start for part in parts for name, start in part.hosted.starts.items()}

    def begin(self, board: Board) -> None:
        """Start the workers."""
        self._workers = [self._worker(board, name, states) for name, states in self.states.items()]
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
        for part in self.states.values():
            part.ports.close()
        for outlets in self._outlets.values():
            outlets.close(PATIENCE_SECONDS)

    def _worker(self, board: Board, name: str, states: RegionStates) -> StageWorker:
        return StageWorker(
            board=board,
            plan=self.region.stage(name),
            states=states,
            outlets=self._outlets[name],
            grace=self.grace,
            time=GroupTime(self.region),
            restarts_allowed=self.region.parameters.max_consecutive_reset_attempts,
            note=self.note,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRegion(RegionPlan):
    """One stage as a region of its own; look-ups of operators and readers of streams cover the whole region."""

    whole: RegionPlan

    def operator(self, name: str) -> Operator:
        return self.whole.operator(name)

    @property
    def first_start(self) -> Operator:
        return self.whole.first_start

    def index_of(self, operator: Operator) -> int:
        return self.whole.index_of(operator)

    def consumers(self, name: str, output: str = "") -> int:
        return self.whole.consumers(name, output)


def states_of(blueprint: Blueprint, outside: Outside) -> dict[str, RegionStates]:
    """Return the states of each stage of a region, with its part of the blueprint, by name of the stage."""
    return {
        stage.name: RegionStates(blueprint=narrowed(blueprint, stage), outside=_of_stage(outside, stage.name))
        for stage in blueprint.region.stages
    }


def narrowed(blueprint: Blueprint, stage: StagePlan) -> Blueprint:
    """Return the blueprint of one stage: its operators, their states and tables, and the feeds that it reads.

    A derived table belongs to the stage that writes its history. For an upsert sink right behind an aggregate with the
    same keys, that is the aggregate's stage.
    """
    whole = blueprint.region
    names = {operator.name for operator in stage.operators}
    written_by = {operator: table for operator, table in blueprint.written_by.items() if operator in names}
    kept = {key: table for key, table in blueprint.kept.items() if key[0] in names}
    staged = {*written_by.values(), *kept.values()}
    values = {field.name: getattr(whole, field.name) for field in fields(RegionPlan)}
    values |= {
        "starts": stage.starts,
        "operators": stage.operators,
        "run_order": stage.run_order,
        "feeds": tuple(operator for operator in stage.run_order if operator.name not in names),
        "followers": stage.followers,
        "tables": tuple(table for table in whole.tables if table.operator in names),
    }
    return replace(
        blueprint,
        region=StageRegion(**values, whole=whole),
        tables=tuple(table for table in blueprint.tables if (table.history or table.name) in staged),
        written_by=written_by,
        kept=kept,
        made={},
    )


class _InPool:
    """The engine for one stage: `tagged`, which marks every job of a stage, also puts the job into the stage's pool, so
    that no stage starves another."""

    def __init__(self, engine: Engine, pool: str) -> None:
        self._engine = engine
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @contextmanager
    def tagged(self, tag: str) -> Iterator[None]:
        with self._engine.pooled(self._pool), self._engine.tagged(tag):
            yield


def _of_stage(outside: Outside, stage: str) -> Outside:
    return replace(outside, engine=cast("Engine", _InPool(outside.engine, f"drainmark {stage}")))
