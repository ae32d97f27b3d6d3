"""The states of a region of several stages: each stage moves its own states on, and all are reset at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.runtime.analysis.blueprint import Blueprint
from drainmark.jobs.runtime.commit.operator_states import RegionStates
from drainmark.jobs.runtime.commit.staged_group import StagedGroup, StagedTable
from drainmark.jobs.runtime.hosting.hosted_parts import Hosted
from drainmark.jobs.runtime.outside import Outside
from drainmark.jobs.runtime.parallel import side_by_side
from drainmark.jobs.runtime.stages.session import of_stage
from drainmark.jobs.runtime.stages.sub_plan import narrowed
from drainmark.jobs.state.checkpointed_state import Written
from drainmark.jobs.state.keyed_state import KeyedState


@dataclass(slots=True, kw_only=True)
class MultiStageStates:
    """The states of all stages.

    Attributes:
        of_stage: by name of a stage, its own states.
        hosted: the handlers and starts of all stages that run in this process.
    """

    of_stage: Mapping[str, RegionStates]
    hosted: Hosted

    @classmethod
    def of(cls, blueprint: Blueprint, outside: Outside, hosted: Hosted) -> MultiStageStates:
        """Return the states of a region, not loaded yet."""
        stages = blueprint.region.stages
        parts = {
            stage.name: RegionStates(blueprint=narrowed(blueprint, stage), outside=of_stage(outside, stage.name))
            for stage in stages
        }
        return cls(of_stage=parts, hosted=hosted)

    @property
    def handlers(self) -> Mapping[str, KeyedState]:
        """Return the states by name of their tables."""
        return {name: state for part in self.of_stage.values() for name, state in part.handlers.items()}

    def every_id(self) -> dict[str, str]:
        """Return, by name of a derived table that needs every id, even without rows, the stage that writes it."""
        return {
            table.name: name
            for name, part in self.of_stage.items()
            for table in part.blueprint.tables
            if table.options.get("every_id")
        }

    def reset(self, history: RegionHistory) -> None:
        """Load the states of all stages as of the last committed id, side by side.

        Raises:
            ResetTimeout: see `RegionStates.reset`.
        """
        parts = self.of_stage.values()
        for part in parts:
            part.hosted.takes_starts = self.hosted.takes_starts
        side_by_side([partial(part.reset, history) for part in parts], "reset")
        self.hosted.handlers = {name: host for part in parts for name, host in part.hosted.handlers.items()}
        self.hosted.starts = {name: start for part in parts for name, start in part.hosted.starts.items()}

    def close(self) -> None:
        """Close everything at the end of a run; threads of handlers get no more permits."""
        self.hosted.close()
        for part in self.of_stage.values():
            part.ports.close()


def moved_on(states: RegionStates, staged: StagedGroup) -> StagedGroup:
    """Apply a stage's own changes to its states at once, and write the files that are left; return the changed part.

    A reset loads all states from the committed history, so changes that are applied and never committed do no harm.

    Raises:
        Interrupted: the part was abandoned, and an operator that runs in this process was reset.
    """
    frozen = states.freeze(staged)
    written = states.write(frozen, frozen.frozen)
    for name, state in staged.states.items():
        state.checkpointed(written.written.get(name, Written()))
    tables = {name: StagedTable(files=table.files, image=table.image) for name, table in written.tables.items()}
    return replace(written, tables=tables, states={}, frozen={}, written={})  # the commit needs only the files
