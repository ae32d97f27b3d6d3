"""The steps of a run before its claim, with a time limit: Spark's start and the analysis, then the first trial.

Each step runs in a thread of its own, which is abandoned if it takes too long: nothing is claimed yet, and the files
that it staged for a trial are garbage. After a signal it may go on for ten seconds, as a group may.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from drainmark.jobs import world
from drainmark.jobs.errors.environment import AnalysisTimeout
from drainmark.orchestration.runs.region_runs import probe_first_use, region_run
from drainmark.orchestration.workplace.workplace import Opened, Workplace

if TYPE_CHECKING:
    from types import FrameType

    from drainmark.jobs.regions.plan import RegionPlan
    from drainmark.jobs.runtime.region_run import RegionRun

T = TypeVar("T")


def analysed_run(
    workplace: Workplace, opened: Opened, region: RegionPlan, *, interrupted: world.Flag, **options: Any
) -> RegionRun:
    """Call `region_run` with a time limit; a signal sets `interrupted`, here and in the run.

    Raises:
        AnalysisTimeout: Spark did not start, or a function did not return from the analysis, in time.
        Interrupted: the grace after a signal is over.
        OperatorFailed, DeclarationError, SchemaMismatch: see `region_run`.
    """
    return _in_time(
        "Spark's start and the analysis",
        lambda: region_run(workplace, opened, region, interrupted=interrupted, **options),
        region=region,
        seconds=workplace.settings.analysis_timeout_seconds,
        interrupted=interrupted,
    )


def tried_first_use(workplace: Workplace, run: RegionRun) -> None:
    """Call `probe_first_use` with a time limit.

    Raises:
        AnalysisTimeout: the trial did not end; its Spark jobs are cancelled.
        Interrupted: the grace after a signal is over.
        NotRowWise: see `probe_first_use`.
    """
    engine, tag = run.owner.outside.engine, f"drainmark-trial-{world.token()}"

    def work() -> None:
        with engine.tagged(tag):
            probe_first_use(run)

    _in_time(
        "the first trial",
        work,
        region=run.blueprint.region,
        seconds=workplace.settings.analysis_timeout_seconds,
        interrupted=run.interrupted,
        cancel=lambda: engine.cancel(tag),
    )


def _in_time(
    what: str,
    action: Callable[[], T],
    *,
    region: RegionPlan,
    seconds: float,
    interrupted: world.Flag,
    cancel: Callable[[], None] = lambda: None,
) -> T:
    from drainmark.jobs.runtime.timeout import Bounded, Grace

    frames: list[FrameType] = []

    def stop() -> None:
        frames.extend(bounded.frames())  # before it is cancelled, to see where it hangs
        cancel()

    def late(_: float) -> AnalysisTimeout:
        return _late(f"{what} of {region.name!r} took longer than {seconds:g} s", region, frames)

    grace = Grace(interrupted.is_set)
    bounded = Bounded(action, seconds, grace, late=late, cancel=stop, name="analysis")
    return bounded.result()


def _late(message: str, region: RegionPlan, frames: list[FrameType]) -> AnalysisTimeout:
    """Return an error with the author's line at which it hangs, and the operator of that function."""
    from drainmark.jobs.graph.own_modules import authors_line

    running = {id(frame.f_code) for frame in frames}
    functions = ((operator, getattr(operator, "function", None)) for operator in region.operators)
    hanging = next(
        (each for each, own in functions if own and id(getattr(own.function, "__code__", None)) in running), None
    )
    blamed = hanging if hanging is not None else region.starts[0]
    line = authors_line((frame.f_code.co_filename, frame.f_lineno) for frame in frames)
    return AnalysisTimeout(
        f"{message}{f', in {line}' if line is not None else ''}",
        operator=blamed.name,
        location=line or blamed.location,
        remedy="find the call that waits there, or raise analysis_timeout_seconds",
    )
