"""Consequences of a claim and of a failure; every outcome is a named type, without I/O.

A region also halts if an operator asks for it (`orchestration/verbs/interventions.py`), if others changed its tables,
and if its input is gone (`jobs/runtime/failure_handling.py`; before a claim `orchestration/runs/halt_hook.py`).
`jobs/runtime/commit/halts.py` writes all halts.
"""

from __future__ import annotations

from dataclasses import dataclass

from drainmark.jobs.errors import Retry, SparkLost
from drainmark.jobs.errors.environment import EnvironmentFailed, FileDamaged, FilesLost, WorkerDied
from drainmark.jobs.protocol.claimed_code import Claim
from drainmark.jobs.protocol.history import UNCLEAN, Outcome, RegionHistory

SPLIT = "split"
"""The name, in steps and in `status`, of a group that failed and is processed again in groups of one."""

SAME_AGAIN = "the same input gives the same error again"
UNPUBLISHABLE = "committed rows cannot be published"
FINAL = frozenset({SAME_AGAIN, UNPUBLISHABLE})
"""Reasons of halts that no further attempt of the same code would end."""


@dataclass(frozen=True, slots=True)
class Proceed:
    """The decision to process pending triggers, at first in groups of `first_group`."""

    first_group: int


@dataclass(frozen=True, slots=True)
class Halt:
    """The decision to halt the region: a retry cannot help, or all allowed retries failed."""

    reason: str


@dataclass(frozen=True, slots=True)
class SplitGroup:
    """The decision to retry at once in groups of one, so that a poison trigger is alone in its group."""


@dataclass(frozen=True, slots=True)
class EndRun:
    """The decision to end this run as failed; the next claim counts an attempt."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The decision to end without counting an attempt: the run was interrupted, or the store does not answer."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The decision to write nothing more, anywhere: another process owns the region."""


AfterClaim = Proceed | Halt
AfterFailure = SplitGroup | EndRun | Halt | Stop | Leave


def attempts_after(history: RegionHistory, outcome: Outcome, code: str | None = None) -> int:
    """Return the number of consecutive reset attempts after a claim that follows an owner with this outcome.

    Args:
        code: digest of the code that claims; if other code claimed the region last, the count is 0.
    """
    if code is not None and history.code not in (None, code):
        return 0
    return history.attempts + (1 if outcome in UNCLEAN else 0)


def is_lifted(history: RegionHistory, code: str | None) -> bool:
    """Say whether the halt in force is due to code that failed before it could claim and has changed since."""
    failed = history.halt.detail.get("code") if history.halt is not None else None
    return failed is not None and bool(code) and failed != code


def after_claim(history: RegionHistory, *, max_attempts: int, max_group: int) -> AfterClaim:
    """Decide what a new owner does; the history includes its claim row.

    If 5 attempts are allowed, the region halts instead of a sixth reset in a row without a good state between.
    """
    if history.attempts > max_attempts:
        return Halt(f"failed or died {_times(history.attempts)}; {_allowed(max_attempts)}")
    failed = (history.last_error or {}).get("id")
    if not history.attempts or not may_be_of_input(failed):
        return Proceed(max_group)
    if not history.attempts == 1 < max_attempts:  # an input may be what kills: alone in its group it is found
        return Proceed(1)
    if failed in _OF_THE_PLACE:
        return Proceed(max_group)
    # Most owners that die are killed from outside. With groups of one after each death, a region whose machine is
    # restarted again and again would never get up to speed.
    is_killed = history.last_claim is not None and Claim.from_row(history.last_claim).previous is Outcome.CRASHED
    return Proceed(max(1, min(_usual_group(history), max_group)) if is_killed else 1)


def _usual_group(history: RegionHistory) -> int:
    """Return the number of ids of the largest of the newest groups, a few; 0 without any."""
    largest, last = 0, history.state_at_most(history.committed_id)
    for _ in range(_NEWEST_GROUPS):
        if last is None:
            break
        first = history.states[last].first_id
        largest, last = max(largest, last - first + 1), history.state_at_most(first - 1)
    return largest


_NEWEST_GROUPS = 3
"""How many groups tell the usual size: the last one may be small because few triggers were left."""

_OF_THE_PLACE = (EnvironmentFailed.id, WorkerDied.id, SparkLost.id)


def may_be_of_input(error_id: str | None) -> bool:
    """Say whether an input may be what causes errors with an id."""
    return error_id not in (FilesLost.id, FileDamaged.id)


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
        return Halt(SAME_AGAIN)
    if attempts + 1 > max_attempts:
        return Halt(f"failed {_times(attempts + 1)}; {_allowed(max_attempts)}")
    return EndRun()


def before_claim(retry: Retry, *, attempts: int, max_attempts: int) -> EndRun | Halt | Stop | Leave:
    """Decide what follows the failure of a run before its claim: import, analysis, start of Spark, first trial.

    Errors that would halt a group at once, or refuse a request, count as attempts here: no input is to blame.

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
    """The most triggers that the next group may hold: doubled on success up to `limit`, 1 after a failure."""

    current: int
    limit: int

    def after_success(self) -> GroupSize:
        return GroupSize(min(self.limit, self.current * 2), self.limit)

    def after_failure(self) -> GroupSize:
        return GroupSize(1, self.limit)
