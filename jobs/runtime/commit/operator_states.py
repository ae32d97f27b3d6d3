"""The states of a region's operators through a group: frozen after the drain, written now or later, taken note of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from drainmark.jobs.errors import ResetTimeout
from drainmark.jobs.graph.operator import KeptState
from drainmark.jobs.operators.handler import Handled
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.runtime.adapters import Outside
from drainmark.jobs.runtime.analysis.physical_plan import Blueprint
from drainmark.jobs.runtime.commit.source_notifications import newest_slice, tell_sources
from drainmark.jobs.runtime.hosting.checkpoint_cleanup import forget
from drainmark.jobs.runtime.hosting.handler_host import Attempt, HandlerHost, host_of
from drainmark.jobs.runtime.hosting.start_host import StartHost, start_hosts
from drainmark.jobs.runtime.parallel import side_by_side
from drainmark.jobs.state.checkpointed_state import Frozen, Written
from drainmark.jobs.state.handlers.handler_state import HandlerState
from drainmark.jobs.state.handlers.permits import PermitGate
from drainmark.jobs.state.keyed_state import KeyedState

if TYPE_CHECKING:
    from drainmark.jobs.runtime.commit.staged_group import StagedGroup, StagedTable


@dataclass(slots=True, kw_only=True)
class RegionStates:
    """Every keyed state of a region, by name of its table.

    Attributes:
        handlers: replaced as a whole by a reset, so that an attempt that was abandoned keeps what it began with.
        hosts: by operator, the handlers that run in this process; the same objects for the whole run.
        hosts_starts: do starts with threads of their own run in this process? Only a run that stays has use for them.
        starts: they, by operator; the same objects for the whole run.
        ports: the autonomous ports' permits: one is held while something is taken in from outside (V59, V137).
    """

    blueprint: Blueprint
    outside: Outside
    handlers: Mapping[str, KeyedState] = field(default_factory=dict)
    hosts: dict[str, HandlerHost] = field(default_factory=dict)
    hosts_starts: bool = False
    starts: dict[str, StartHost] = field(default_factory=dict)
    ports: PermitGate = field(default_factory=PermitGate)
    _is_begun: bool = False
    _epoch: int = 0

    def reset(self, history: RegionHistory) -> None:
        """Load every state as of the last committed id, all of whose groups are published.

        Meanwhile nothing comes in on autonomous ports, and what an attempt that was given up would take stays where it
        is (V105, V137).

        Raises:
            ResetTimeout: somebody has what keeps the states from being reset.
        """
        seconds = self.blueprint.region.parameters.reset_timeout.total_seconds()
        if not self.ports.stop(seconds, for_reset=True):
            msg = f"an autonomous port of {self.blueprint.region.name!r} was not left within {seconds:g} s"
            raise ResetTimeout(msg, remedy="look at the registry: it holds the cursors; a new attempt starts by itself")
        self._reset(history)
        self.ports.resume(after_reset=True)

    def _reset(self, history: RegionHistory) -> None:
        self.release()
        self._epoch = history.epoch
        self.handlers = {
            name: self._loaded(name, kept, held, history) for name, (_, kept, held) in self.blueprint.states().items()
        }
        self._reset_hosts()
        if self.hosts_starts and not self.starts:
            self.starts = start_hosts(self.blueprint, self.outside)
        side_by_side([start.reset for start in self.starts.values()], "reset")  # when all operators are (V105)

    def begin_group(self) -> None:
        """Have the handlers of this process where the last group left them, whatever an attempt that failed did."""
        if self._is_begun:
            self._reset_hosts()
        self._is_begun = bool(self.hosts)

    def attempts(self) -> dict[str, Attempt]:
        """Return the handlers of this process for an attempt that begins now."""
        return {name: Attempt(host, host.life) for name, host in self.hosts.items()}

    def _reset_hosts(self) -> None:
        """Reset the handlers of this process, all at once: none waits for another's store (V115, N23)."""
        resets = []
        for name, (operator, _, _) in self.blueprint.states().items():
            state = self.handlers[name]
            if isinstance(operator, Handled) and isinstance(state, HandlerState):
                if operator.name not in self.hosts:
                    self.hosts[operator.name] = host_of(operator, self.blueprint, self.outside.state_store, self._epoch)
                resets.append(partial(_reset_host, self.hosts[operator.name], state))
        side_by_side(resets, "reset")
        self._is_begun = False

    def release(self) -> None:
        """Let go of what Spark keeps of the states; an attempt that was abandoned may still read their files."""
        for state in self.handlers.values():
            state.release()

    def freeze(self, staged: StagedGroup) -> StagedGroup:
        """Take the changes of a drained group over, the flow being halted (N15); return it with what is frozen.

        Raises:
            Interrupted: the group was given up, and an operator that runs in this process was reset.
        """
        frozen: dict[str, Frozen] = {}
        tables = dict(staged.tables)
        for name, state in staged.states.items():
            table = tables[name]
            if not state.is_small and not table.files and table.rows is not None:  # the next group reads files
                staging = self.outside.store.staging(name, staged.group.epoch, staged.group.attempt)
                table = tables[name] = replace(table, files=staging.write(table.rows, "rows"))
            frozen[name] = state.prepare(staged.group.last_id, table.files, table.rows)
        if staged.states is self.handlers:
            self._is_begun = False
        return replace(staged, tables=tables, frozen=frozen)

    def blocking(self) -> Iterable[str]:
        """Return the states whose checkpoints end before the flow resumes (N19)."""
        return [name for name, (operator, _, _) in self.blueprint.states().items() if not operator.non_blocking]

    def write(self, staged: StagedGroup, names: Iterable[str]) -> StagedGroup:
        """Write what is frozen and not written yet; return the group with it. Touches no state (N16)."""
        tables, written = dict(staged.tables), dict(staged.written)
        for name in names:
            if name in written:
                continue
            staging = self.outside.store.staging(name, staged.group.epoch, staged.group.attempt)
            done = staged.states[name].checkpoint(staged.frozen[name], staging, self.outside.engine.session)
            tables[name] = _with(tables[name], done)
            written[name] = done
        return replace(staged, tables=tables, written=written)

    def checkpointed(self, staged: StagedGroup) -> None:
        """Note what became of a group that is committed."""
        for name, state in self.handlers.items():
            state.checkpointed(staged.written.get(name, Written()))
        for host in self.hosts.values():
            host.completed()

    def region_checkpointed(self, history: RegionHistory, first: int, last: int) -> None:
        """Tell the starts that every operator of the region has finished its checkpoint, and all is published (N20).

        Sources purge what they kept for a replay (V146, N29); starts of this process learn the last id, and their cut.

        Args:
            first, last: ids of the group.
        """
        for name, host in self.starts.items():
            if (taken := newest_slice(history, name, first, last)) is not None:
                host.completed(last, int(taken.end["segment"]))
        tell_sources(self.blueprint.region, self.outside.reach, history, first, last)

    def check(self) -> None:
        """Raise what failed in the thread of a start; nothing of what it did is lost that was cut."""
        for start in self.starts.values():
            start.check()

    @property
    def has_failed(self) -> bool:
        """Would `check` raise?"""
        return any(start.failure is not None for start in self.starts.values())

    @property
    def has_threads(self) -> bool:
        """Does the thread of a start live in this process? It may submit at any time."""
        return any(start.is_running for start in self.starts.values())

    def retire(self, history: RegionHistory, horizon: int) -> None:
        """Retire the checkpoints that no rewind reaches, and forget the entries of states that were dropped (V163).

        Handlers are told of the id up to which no rewind goes back any more (E17).
        """
        through = max(0, history.committed_id - horizon)
        for host in self.hosts.values():
            host.retire(through)
        for start in self.starts.values():
            start.retire(through)
        if self.outside.state_store is not None:
            forget(history, self.outside.state_store, horizon=horizon)

    def close(self) -> None:
        """Let go of everything at the end of a run; threads of handlers get no more permits."""
        self.release()
        for gate in (self.ports, *(host.context.gate for host in self.hosts.values())):
            gate.close()
        for start in self.starts.values():
            start.close()

    def keep_copies(self, staged: StagedGroup) -> None:
        """Let go of the local copies that neither the next group nor a drained one's publishing needs."""
        kept = {name: tuple(table.files) for name, table in staged.tables.items()}
        for name, state in self.handlers.items():
            kept[name] = (*kept.get(name, ()), *state.files_for_spark)
        self.outside.store.keep_copies(kept)

    def _loaded(self, name: str, kept: KeptState, held: type[KeyedState], history: RegionHistory) -> KeyedState:
        from pyspark.sql.types import StructType

        table = self.outside.store.table(name)
        return held.load(
            table=name,
            stored=table.files,
            keys=kept.keys,
            schema=StructType.fromJson(json.loads(self.blueprint.table(name).schema_json)),
            image=history.image_held(name, None, table.files.holds) or history.image_of(name),
            dropped=history.dropped.get(name, 0),
            live=table.files.live(),
            depth=kept.depth,
        )


def _reset_host(host: HandlerHost, state: HandlerState) -> None:
    host.reset(state.chunks())
    state.take = partial(host.take, host.life)


def _with(table: StagedTable, done: Written) -> StagedTable:
    return replace(table, files=(*table.files, *done.files), image=done.image or table.image)
