"""`RegionContext`: an operator's view of its region, for operators in Python."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from drainmark.jobs.errors import Location
from drainmark.jobs.errors.operator_code import ResetWanted
from drainmark.jobs.state.handlers.permits import Consistency, Permit, PermitGate

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.jobs.graph.operator import Operator
    from drainmark.jobs.runtime.analysis.blueprint import Blueprint

NO_ID = -1
"""No id: after a restart until the state is restored. As `reset_attempt`: a state was drained since the last reset."""


@dataclass(slots=True, kw_only=True)
class RegionContext:
    """The view of its region that a handler has: the argument `context` of `process` and `run`, and `self.context`.

    Attributes:
        region: its name, `APP/START`.
        index: the operator's number in the region, the same in every run of the same graph.
        is_start_of_region, is_end_of_region: whether the region begins, or ends, with this operator.
        is_trigger_operator: whether this operator decides when a state is established.
        drain_timeout, reset_timeout: seconds.
        params: the application's parameters.
        sequence_id: of the state that is being built; -1 before the first reset of a run, 1 at the very beginning.
        committed_cut: for a start, the newest of its cuts in a committed state; 0 if there is none.
        reset_attempt: number of resets in a row, counted from 0, also over failed runs; -1 once a state was drained.
    """

    region: str
    index: int
    is_start_of_region: bool
    is_end_of_region: bool
    is_trigger_operator: bool
    drain_timeout: float
    reset_timeout: float
    params: Any = None
    consistent_ports: tuple[bool, ...] = ()
    sequence_id: int = NO_ID
    reset_attempt: int = NO_ID
    committed_cut: int = 0
    operator: str = ""
    location: Location | None = None
    gate: PermitGate = field(default_factory=PermitGate, repr=False)
    send: Callable[[pa.Table], None] = field(default=lambda rows: None, repr=False)
    want_reset: Callable[[ResetWanted], None] = field(default=lambda wanted: None, repr=False)

    def is_consistent_input_port(self, port: int = 0) -> bool:
        """Say whether a port is fed from inside the region; input of other ports must not change consistent state."""
        return self.consistent_ports[port]

    def submit(self, rows: pa.Table) -> None:
        """Send rows downstream with the id that is being built; only for `process`, `drain`, and threads with a permit.

        Raises:
            PermitViolation: the thread has no permit, and this is no callback that may submit.
        """
        self.gate.require()
        self.send(rows)

    def permit(self) -> AbstractContextManager[Permit]:
        """Hold a permit, before the operator's lock: `with context.permit(), self.lock: …`."""
        return self.gate.permit()

    def acquire_permit(self) -> Permit:
        """Take a permit, to be given back by `release_permit`; wait while a state is established or reset."""
        return self.gate.acquire()

    def release_permit(self) -> None:
        """Give a permit back."""
        self.gate.release()

    def make_consistent(self) -> bool:
        """Ask for a state and wait for it, from a thread with a permit; return False if a reset came instead."""
        return self.gate.make_consistent()

    def make_consistent_non_blocking(self) -> Consistency:
        """Ask for a state and wait until rows may flow again, from a thread with a permit."""
        return self.gate.make_consistent_non_blocking()

    def wait(self, seconds: float) -> bool:
        """Sleep in a start's own thread, without a permit; return True once the run is over: end the thread then."""
        return self.gate.wait(seconds)

    def reset_region(self, reason: str) -> NoReturn:
        """Reset the region after a temporary error of the operator; the thread must hold a permit.

        Raises:
            ResetWanted: always; it ends `process`. It counts as one of `max_consecutive_reset_attempts`.
        """
        self.gate.require()
        wanted = ResetWanted(
            f"operator {self.operator!r} asked for a reset: {reason}",
            operator=self.operator,
            location=self.location,
            remedy="it starts by itself; if it does not, read the messages of the operator",
            reason=reason,
        )
        self.want_reset(wanted)
        raise wanted


def context_of(operator: Operator, blueprint: Blueprint, attempts: int = 0) -> RegionContext:
    """Return the view of an operator that does not decide when a state is established.

    Args:
        attempts: failed ones in a row: the first reset, with which each attempt begins, has this number.
    """
    region = blueprint.region
    return RegionContext(
        region=region.name,
        index=region.index_of(operator),
        is_start_of_region=operator in region.starts,
        is_end_of_region=operator in region.ends,
        is_trigger_operator=False,
        drain_timeout=region.parameters.group_timeout.total_seconds(),
        reset_timeout=region.parameters.reset_timeout.total_seconds(),
        params=blueprint.params,
        consistent_ports=tuple(not port.autonomous for port in operator.inputs),
        reset_attempt=attempts - 1,
        operator=operator.name,
        location=operator.location,
    )
