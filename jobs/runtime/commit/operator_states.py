"""The states of a region's operators: frozen after the drain of a group, written now or later, then checkpointed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from drainmark.jobs.errors import ResetTimeout
from drainmark.jobs.frames.tags import spark_type
from drainmark.jobs.graph.operator import KeptState, Operator
from drainmark.jobs.operators.handler import Handled
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.manifest import RegionTable
from drainmark.jobs.runtime.analysis.blueprint import Blueprint
from drainmark.jobs.runtime.hosting.handler_host import HandlerHost, host_of
from drainmark.jobs.runtime.hosting.hosted_parts import Hosted
from drainmark.jobs.runtime.hosting.start_host import start_hosts
from drainmark.jobs.runtime.outside import Outside
from drainmark.jobs.runtime.timeout import side_by_side
from drainmark.jobs.state.checkpointed_state import Frozen, Written
from drainmark.jobs.state.handlers.handler_state import HandlerState
from drainmark.jobs.state.handlers.permits import PermitGate
from drainmark.jobs.state.keyed_state import KeyedState

if TYPE_CHECKING:
    from drainmark.jobs.runtime.commit.staged_group import StagedGroup


@dataclass(slots=True, kw_only=True)
class RegionStates:
    """Every keyed state of a region, by name of its table.

    Attributes:
        states: by name of its table. A reset replaces the whole mapping, so an abandoned attempt keeps its own.
        hosted: the handlers and starts that run in this process.
        is_tiered: see `KeyedState`.
        ports: permits of the autonomous ports. A thread holds one while it takes in rows or files from outside.
    """

    blueprint: Blueprint
    outside: Outside
    states: Mapping[str, KeyedState] = field(default_factory=dict)
    hosted: Hosted = field(default_factory=Hosted)
    is_tiered: bool = True
    ports: PermitGate = field(default_factory=PermitGate)
    _is_begun: bool = False
    _epoch: int = 0
    _attempts: int = 0

    def reset(self, history: RegionHistory) -> None:
        """Load every state as of the last committed id; all committed groups must be published.

        Autonomous ports are stopped meanwhile, so an abandoned attempt takes in nothing more.

        Raises:
            ResetTimeout: a thread kept the permit of an autonomous port for longer than `reset_timeout`.
        """
        seconds = self.blueprint.region.parameters.reset_timeout.total_seconds()
        if not self.ports.stop(seconds, for_reset=True):
            msg = f"an autonomous port of {self.blueprint.region.name!r} was not left within {seconds:g} s"
            raise ResetTimeout(msg, remedy="look at the registry: it holds the cursors; a new attempt starts by itself")
        self._reset(history)
        self.ports.resume(after_reset=True)

    def _reset(self, history: RegionHistory) -> None:
        self._epoch, self._attempts = history.epoch, history.attempts
        self.states = {
            name: self._loaded(name, operator, kept, history)
            for name, (operator, kept) in self.blueprint.states().items()
        }
        self._reset_hosts()
        hosted = self.hosted
        if hosted.takes_starts and not hosted.starts:
            hosted.starts = start_hosts(self.blueprint, self.outside, self._attempts)
        side_by_side([start.reset for start in hosted.starts.values()])  # after all operators

    def begin_group(self) -> None:
        """Bring the handlers of this process to their state after the last group, also after a failed attempt."""
        if self._is_begun:
            self._reset_hosts()
        self._is_begun = bool(self.hosted.handlers)

    def _reset_hosts(self) -> None:
        """Reset the handlers of this process in parallel: none waits for another's store."""
        resets, hosts = [], self.hosted.handlers
        for name, (operator, _) in self.blueprint.states().items():
            state = self.states[name]
            if isinstance(operator, Handled) and isinstance(state, HandlerState):
                if operator.name not in hosts:
                    hosts[operator.name] = host_of(
                        operator, self.blueprint, self.outside.state_store, self._epoch, attempts=self._attempts
                    )
                resets.append(partial(_reset_host, hosts[operator.name], state))
        side_by_side(resets)
        self._is_begun = False

    def freeze(self, staged: StagedGroup) -> StagedGroup:
        """Take over the changes of a drained group while the flow is halted; return it with its frozen states.

        Raises:
            Interrupted: the group was abandoned, and an operator that runs in this process was reset.
        """
        frozen: dict[str, Frozen] = {}
        tables = dict(staged.tables)
        for name, state in staged.states.items():
            table = tables[name]
            if not state.is_in_memory and not table.files and table.rows is not None:  # the next group reads files
                staging = self.outside.store.staging(name, staged.group.epoch, staged.group.attempt)
                table = tables[name] = replace(table, files=staging.write(table.rows, "rows"))
            frozen[name] = state.prepare(staged.group.last_id, table.files, table.rows)
        if staged.states is self.states:
            self._is_begun = False
        return replace(staged, tables=tables, frozen=frozen)

    def blocking(self) -> Iterable[str]:
        """Return the names of the states with checkpoints that end before the flow resumes."""
        return [name for name, (operator, _) in self.blueprint.states().items() if not operator.non_blocking]

    def write(self, staged: StagedGroup, names: Iterable[str]) -> StagedGroup:
        """Write the frozen states that are not written yet; return the group with the files. Change no state."""
        tables, written = dict(staged.tables), dict(staged.written)
        for name in names:
            if name in written:
                continue
            staging = self.outside.store.staging(name, staged.group.epoch, staged.group.attempt)
            done = staged.states[name].checkpoint(staged.frozen[name], staging, self.outside.engine.session)
            table = tables[name]
            tables[name] = replace(table, files=(*table.files, *done.files), image=done.image or table.image)
            written[name] = done
        return replace(staged, tables=tables, written=written)

    def checkpointed(self, staged: StagedGroup) -> None:
        """Tell all states and handlers that the group is committed."""
        for name, state in self.states.items():
            state.checkpointed(staged.written.get(name, Written()))
        self.hosted.completed()

    def close(self) -> None:
        """Release everything at the end of a run; threads of handlers get no more permits."""
        self.ports.close()
        self.hosted.close()

    def _loaded(self, name: str, operator: Operator, kept: KeptState, history: RegionHistory) -> KeyedState:
        table, kind = self.outside.store.table(name), HandlerState if isinstance(operator, Handled) else KeyedState
        return kind.load(
            table=name,
            stored=table.files,
            keys=kept.keys,
            schema=spark_type(self._described(name, history).schema_json),
            image=history.image_held(name, None, table.files.holds) or history.image_of(name),
            dropped=history.dropped.get(name, 0),
            live=table.files.live(),
            depth=kept.depth,
            gone=kept.gone,
            looked_up_by=kept.looked_up_by,
            is_tiered=self.is_tiered,
        )

    def _described(self, name: str, history: RegionHistory) -> RegionTable:
        """Return a state's table as the claim names it: keys may be gone of which the code says nothing."""
        return next((table for table in history.tables if table.name == name), self.blueprint.table(name))


def _reset_host(host: HandlerHost, state: HandlerState) -> None:
    host.reset(state.chunks())
    state.take = partial(host.take, host.life)
