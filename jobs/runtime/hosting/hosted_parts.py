"""The parts of a region that run in this process: handlers of operators, and starts with their own threads."""

from __future__ import annotations

from dataclasses import dataclass, field

from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.runtime.hosting.checkpoint_cleanup import forget
from drainmark.jobs.runtime.hosting.handler_host import HandlerAttempt, HandlerHost
from drainmark.jobs.runtime.hosting.start_host import StartHost
from drainmark.jobs.runtime.input.slices import slice_of
from drainmark.jobs.state.handlers.data_store import DataStore


@dataclass(slots=True, kw_only=True)
class Hosted:
    """The hosts of a region, or of one stage; the same objects for the whole run.

    Attributes:
        takes_starts: whether starts with threads of their own run in this process; only a run that stays needs them.
        handlers: by operator.
        starts: by operator.
    """

    takes_starts: bool = False
    handlers: dict[str, HandlerHost] = field(default_factory=dict)
    starts: dict[str, StartHost] = field(default_factory=dict)

    def attempts(self) -> dict[str, HandlerAttempt]:
        """Return the handlers for an attempt that begins now."""
        return {name: HandlerAttempt(host, host.life) for name, host in self.handlers.items()}

    def check(self) -> None:
        """Raise the error of a start's thread; rows that it had cut are not lost."""
        for start in self.starts.values():
            start.check()

    @property
    def has_failed(self) -> bool:
        """Say whether `check` would raise."""
        return any(start.failure is not None for start in self.starts.values())

    @property
    def has_threads(self) -> bool:
        """Say whether the thread of a start runs in this process; it may submit at any time."""
        return any(start.is_running for start in self.starts.values())

    def completed(self) -> None:
        """Tell the handlers that the region has committed the state of the rows that they processed."""
        for host in self.handlers.values():
            host.context.gate.completed()

    def retire(self, history: RegionHistory, horizon: int, store: DataStore | None) -> None:
        """Retire the checkpoints that no rewind needs, and delete the entries of states that were dropped.

        A rewind may return to the oldest target itself: handlers get the id before it, starts the cuts up to it. A
        stage that has not reached the target needs the checkpoint of the id where it is.
        """
        oldest = history.oldest_target(horizon)
        for name, host in self.handlers.items():
            reached = history.flow.reached(name)
            needed = oldest if reached is None else min(oldest, reached)
            if needed > INITIAL_ID + 1:
                host.retire(needed - 1)
        covered = history.state_at_most(oldest)
        identity = history.states[covered].trigger_identity if covered else None
        for name, start in self.starts.items():
            piece = slice_of(identity or {}, name)
            if piece is not None:
                start.retire(int(piece.end["segment"]))
        if store is not None:
            forget(history, store, horizon=horizon)

    def close(self) -> None:
        """Stop the starts; threads of handlers get no more permits."""
        for host in self.handlers.values():
            host.context.gate.close()
        for start in self.starts.values():
            start.close()
