"""Jobs of a dead run that still run on the resident Spark; the next owner ends them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drainmark.jobs.protocol.history import Outcome

if TYPE_CHECKING:
    from drainmark.jobs.runtime.region_run import RegionRun
    from drainmark.orchestration.workplace.workplace import Workplace


SESSION = "@spark_session"
"""Cursor that holds the name of the Spark session of the last run."""


def end_predecessor(workplace: Workplace, run: RegionRun) -> None:
    """End the resident Spark's session of a run that crashed. Call it after the claim, which fences that run.

    Each run stores the name of its session in the registry, in a cursor whose name no operator can have.
    """
    engine, registry = workplace.engine, workplace.registry
    session = engine.session_id
    if session is None:
        return
    before, claim = registry.load_cursor(run.region, SESSION), run.owner.history.last_claim
    if before and claim is not None and claim.detail.get("previous") == Outcome.CRASHED.value:
        engine.end_session(before)
    registry.save_cursor(run.region, SESSION, session)
