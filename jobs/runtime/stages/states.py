"""The states of a region of several stages: those of each stage move on by themselves, and all are reset at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.runtime.adapters import Outside
from drainmark.jobs.runtime.analysis.physical_plan import Blueprint
from drainmark.jobs.runtime.commit.operator_states import RegionStates
from drainmark.jobs.runtime.commit.staged_group import StagedGroup, StagedTable
from drainmark.jobs.runtime.parallel import side_by_side
from drainmark.jobs.runtime.stages.session import of_stage
from drainmark.jobs.runtime.stages.sub_plan import narrowed
from drainmark.jobs.state.checkpointed_state import Written


@dataclass(slots=True, kw_only=True)
class StagedStates(RegionStates):
    """As `RegionStates`, of the whole region; what is in here of handlers, hosts and starts is that of its stages.

    Attributes:
        of_stage: by name of a stage, its own.
    """

    of_stage: Mapping[str, RegionStates] = field(default_factory=dict)

    @classmethod
    def of(cls, blueprint: Blueprint, outside: Outside) -> StagedStates:
        """Return the states of a region, not loaded yet."""
        stages = blueprint.region.stages
        parts = {
            stage.name: RegionStates(blueprint=narrowed(blueprint, stage), outside=of_stage(outside, stage.name))
            for stage in stages
        }
        return cls(blueprint=blueprint, outside=outside, of_stage=parts)

    def _reset(self, history: RegionHistory) -> None:
        for part in self.of_stage.values():
            part.hosts_starts = self.hosts_starts
        side_by_side([partial(part.reset, history) for part in self.of_stage.values()], "reset")  # V115, N23
        parts = self.of_stage.values()
        self.handlers = {name: state for part in parts for name, state in part.handlers.items()}
        self.hosts = {name: host for part in parts for name, host in part.hosts.items()}
        self.starts = {name: start for part in parts for name, start in part.starts.items()}

    def completed(self) -> None:
        """Tell the handlers of this process that the region has the state of what they processed (N20)."""
        for host in self.hosts.values():
            host.completed()

    def close(self) -> None:
        RegionStates.close(self)
        for part in self.of_stage.values():
            part.ports.close()


def moved_on(states: RegionStates, staged: StagedGroup) -> StagedGroup:
    """Take a stage's own changes over at once, and write what is left to write; return the part as it is then.

    A reset loads all states from the committed history, so what is taken over and never committed does no harm.

    Raises:
        Interrupted: the part was given up, and an operator that runs in this process was reset.
    """
    frozen = states.freeze(staged)
    written = states.write(frozen, frozen.frozen)
    for name, state in staged.states.items():
        state.checkpointed(written.written.get(name, Written()))
    tables = {name: StagedTable(files=table.files, image=table.image) for name, table in written.tables.items()}
    return replace(written, tables=tables, states={}, frozen={}, written={})  # what is in memory need not wait with it
