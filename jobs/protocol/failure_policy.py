"""Consequences of a claim and of a failure; every outcome is a named type, without I/O.

A region halts, too, where an operator asks for it (`orchestration/verbs/interventions.py`), where others changed its
tables, and where its input is gone (`jobs/runtime/failure_handling.py`; before a claim
`orchestration/runs/halt_hook.py`). `jobs/runtime/commit/halts.py` writes all.
"""

from __future__ import annotations

from dataclasses import dataclass

from drainmark.jobs.errors import Retry
from drainmark.jobs.errors.environment import EnvironmentFailed, WorkerDied
from drainmark.jobs.protocol.history import UNCLEAN, Outcome, RegionHistory

SPLIT = "split"
"""What a group is called in steps and in `status` that failed and is done again in groups of one."""


@dataclass(frozen=True, slots=True)
class Proceed:
    """Process pending triggers, in groups of `first_group` at first."""

    first_group: int


@dataclass(frozen=True, slots=True)
class Halt:
    """Halt the region: trying again cannot help, or was tried often enough."""

    reason: str


@dataclass(frozen=True, slots=True)
class SplitGroup:
    """Try again at once in groups of one: the poison trigger ends up alone."""


@dataclass(frozen=True, slots=True)
class EndRun:
    """End this run as failed; the next claim counts an attempt."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End without counting an attempt: interrupted, or the store does not answer."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Somebody else owns the region: write nothing more, anywhere."""


AfterClaim = Proceed | Halt
AfterFailure = SplitGroup | EndRun | Halt | Stop | Leave


def attempts_after(history: RegionHistory, outcome: Outcome, code: str | None = None) -> int:
    """Return the consecutive reset attempts once an owner with this outcome is followed by a claim.

    Args:
        code: digest of the code that claims; other code than failed begins to count anew.
    """
    if code is not None and history.code not in (None, code):
        return 0
    return history.attempts + (1 if outcome in UNCLEAN else 0)


def is_lifted(history: RegionHistory, code: str | None) -> bool:
    """Say whether a halt is that of code which failed before it could claim, and which is other code now."""
    failed = history.halt.detail.get("code") if history.halt is not None else None
    return failed is not None and bool(code) and failed != code


def after_claim(history: RegionHistory, *, max_attempts: int, max_group: int) -> AfterClaim:
    """Decide what a new owner does, its claim row being part of the history.

    With 5 attempts allowed the sixth reset wanted without a good state between halts the region.
    """
    if history.attempts > max_attempts:
        return Halt(f"failed or died {_times(history.attempts)}; {_allowed(max_attempts)}")
    # A whole group again after the first failure of the environment; then, or at the last attempt, one by one, should
    # an input cause it.
    is_of_the_place = (history.last_error or {}).get("id") in (EnvironmentFailed.id, WorkerDied.id)
    is_innocent = is_of_the_place and history.attempts == 1 < max_attempts
    return Proceed(1 if history.attempts and not is_innocent else max_group)


def after_failure(retry: Retry, *, group_size: int, attempts: int, max_attempts: int) -> AfterFailure:
    """Decide what follows a failed group.

    Args:
        retry: class of the error.
        group_size: triggers in the failed group.
        attempts: consecutive reset attempts before this failure.
    """
    if retry is Retry.QUIET:
        return Leave()
    if retry in (Retry.WAIT, Retry.REFUSE):
        return Stop()
    if group_size > 1 and retry is not Retry.RENEW:
        return SplitGroup()
    if retry is Retry.PERMANENT:
        return Halt("the same input gives the same error again")
    if attempts + 1 > max_attempts:
        return Halt(f"failed {_times(attempts + 1)}; {_allowed(max_attempts)}")
    return EndRun()


def before_claim(retry: Retry, *, attempts: int, max_attempts: int) -> EndRun | Halt | Stop | Leave:
    """Decide what follows a failure of a run that has not claimed: import, analysis, Spark's start, first trial.

    Errors that would halt a group at once, or refuse a request, are attempts here: no input is to blame.

    Args:
        attempts: consecutive reset attempts before this failure.
    """
    if retry is Retry.QUIET:
        return Leave()
    if retry is Retry.WAIT:
        return Stop()
    if attempts + 1 > max_attempts:
        return Halt(f"failed {_times(attempts + 1)} before a run could begin; {_allowed(max_attempts)}")
    return EndRun()


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times in a row"


def _allowed(count: int) -> str:
    return f"{count} {'retry is' if count == 1 else 'retries are'} allowed (max_consecutive_reset_attempts)"


@dataclass(frozen=True, slots=True)
class GroupSize:
    """How many triggers the next group may hold: doubles on success up to `limit`, one after a failure."""

    current: int
    limit: int

    def after_success(self) -> GroupSize:
        return GroupSize(min(self.limit, self.current * 2), self.limit)

    def after_failure(self) -> GroupSize:
        return GroupSize(1, self.limit)
