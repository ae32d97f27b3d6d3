"""Failures before the claim, counted as attempts of the region like failures after it.

A run that fails in its import, its analysis, Spark's start or its first trial has claimed nothing. It then claims the
region without code, as a verb does. Its claim counts the earlier failures, and its release records this one. So the
checkpoint table holds the count, and a rebuild of the registry loses nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from drainmark.jobs.errors import DrainmarkError, Fenced, ForeignTable, Halted
from drainmark.jobs.errors.environment import RunDied
from drainmark.jobs.protocol.failure_policy import EndRun, Halt, before_claim, is_lifted
from drainmark.jobs.protocol.history import Outcome
from drainmark.jobs.runtime.messages import classified, described, halted_error
from drainmark.orchestration.runs.halt_hook import halt_for_input, make_up
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.workplace.application_identity import code_digest
from drainmark.orchestration.workplace.declaration import Declared, known_from, noted
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.run_processes import begun_run, forget
from drainmark.orchestration.workplace.workplace import IMPORT_SECONDS, Workplace, opened_in_time

if TYPE_CHECKING:
    from drainmark.jobs.regions.plan import RegionPlan
    from drainmark.jobs.runtime.commit.region_owner import RegionOwner

logger = logging.getLogger(__name__)


def count_killed(workplace: Workplace, region: str, *, allowed: int, code: str) -> None:
    """Count a run of this host that was killed before its claim, e.g. because memory was short."""
    begun = begun_run(workplace.registry, region)
    if begun is None or begun.is_alive is not False:
        return
    died = RunDied(f"run {begun.run_id} (pid {begun.pid}) was killed before its claim", remedy="see the system's log")
    count_failure(workplace, region, died, allowed=allowed, code=code, run_id=begun.run_id)
    forget(workplace, region)


def count_failure(
    workplace: Workplace, region: str, failure: Exception, *, allowed: int, code: str, run_id: str | None = None
) -> DrainmarkError:
    """Count a failure of a run before its claim; halt the region if it is one too many.

    Temporary errors, and errors caused by other owners, do not count. If the region cannot be claimed, because another
    process works on it or its tables do not answer, the failure is not counted either.

    Args:
        allowed: `max_consecutive_reset_attempts`.
        code: digest of the code that failed (`code_digest`).

    Returns:
        the error with which the run is to end: the failure, or `Halted`.
    """
    error = classified(failure)
    if isinstance(error, Halted) or not isinstance(before_claim(error.retry, attempts=0, max_attempts=0), Halt):
        return error
    owner = region_owner(workplace, region, run_id=run_id, code=code)
    try:
        history = workplace.history(region)
        if isinstance(error, ForeignTable) and not history.epoch:  # a claim would make a region that cannot run
            return error
        if history.halt is not None and not is_lifted(history, code):
            make_up(workplace, region, history)
            return halted_error(region, history)
        owner.claim()
        return _counted(owner, error, allowed)
    except Fenced:
        owner.leave()
    except Exception as refusal:
        with suppress(Exception):  # without a release row the claim would count as a crash
            owner.release(Outcome.INTERRUPTED)
        logger.warning("a failure of %s was not counted: %s", region, refusal)
    return error


def claim_and_halt(
    workplace: Workplace, region: RegionPlan, error: DrainmarkError, run_id: str | None = None
) -> Halted:
    """Claim a region without owner and halt it because of its input, as `halt_for_input` does.

    Raises:
        Owned: a run owns it.
    """
    with owning(region_owner(workplace, region.name, run_id=run_id)) as owner:
        return halt_for_input(owner, region, error)


def _counted(owner: RegionOwner, error: DrainmarkError, allowed: int) -> DrainmarkError:
    owner.halts.lift()
    if owner.history.halt is not None:  # another process did it a moment ago
        owner.release(Outcome.CLEAN)
        return halted_error(owner.region, owner.history)
    decision = before_claim(error.retry, attempts=owner.history.attempts, max_attempts=allowed)
    blamed = described(error)
    if isinstance(decision, Halt):
        halted = owner.halts.halt(decision.reason, error=blamed, code=owner.ledger.identity.code or None)
        owner.release(Outcome.CLEAN)
        return halted
    assert isinstance(decision, EndRun)  # noqa: S101 - the caller has looked
    owner.outside.registry.progress.record_error(owner.region, owner.epoch, blamed)
    owner.release(Outcome.FAILED, blamed)
    return error


def unopened(
    workplace: Workplace, references: Sequence[str], *, most_seconds: float = IMPORT_SECONDS
) -> dict[str, Exception]:
    """Open all applications within one time limit; return the errors of those that cannot be opened, by reference."""
    opened = opened_in_time(workplace.settings, references, most_seconds=most_seconds)
    return {reference: found for reference, found in opened if isinstance(found, Exception)}


def origin_of(reference: str) -> str:
    """Return the path of the file that a reference means, "" if only an import could tell."""
    from importlib.util import find_spec

    from drainmark.jobs.graph.application import shipped_applications

    if reference.endswith(".py") or "/" in reference:
        return str(Path(reference).absolute())
    try:
        spec = find_spec(f"drainmark.jobs.apps.{reference}" if reference in shipped_applications() else reference)
    except (ImportError, ValueError):
        return ""
    return spec.origin or "" if spec is not None else ""


def count_unopened(workplace: Workplace, reference: str, failure: Exception) -> Exception:
    """Count a failed attempt for every known region of an application that cannot be opened.

    Returns:
        `Halted` if one of the regions is halted, else the failure.
    """
    code = code_digest(origin_of(reference), workplace.settings.project_root)
    found = failure
    for region in known_from(workplace, reference):
        allowed = (noted(workplace, region) or Declared()).max_consecutive_reset_attempts
        error = count_failure(workplace, region, failure, allowed=allowed, code=code)
        found = error if isinstance(error, Halted) else found
    return found
