"""Work of a dead run that still computes on the resident Spark; the run that took over ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drainmark.jobs.protocol.history import Outcome

if TYPE_CHECKING:
    from drainmark.jobs.runtime.region_run import RegionRun
    from drainmark.orchestration.workplace.workplace import Workplace


SESSION = "@spark_session"
"""Cursor that holds the name of the last run's session."""


def end_predecessor(workplace: Workplace, run: RegionRun) -> None:
    """End what a run that died still computes on the resident Spark; to be called after the claim, so behind the fence.

    Each run leaves the name of its session in the registry (a cursor, which no operator can be called as).
    """
    engine, registry = workplace.engine, workplace.registry
    session = engine.session_id
    if session is None:
        return
    before, claim = registry.load_cursor(run.region, SESSION), run.owner.history.last_claim
    if before and claim is not None and claim.detail.get("previous") == Outcome.CRASHED.value:
        engine.end_session(before)
    registry.save_cursor(run.region, SESSION, session)
