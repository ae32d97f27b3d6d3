"""`drainmark_halted`: Dagster's run failure sensor on regions that wait for an operator.

A failed run that is retried is no alert; a failed run that leaves its region HALTED is. The sensor logs an error with
reason and remedy, and fails the asset check `not_halted` of the region's checkpoint table, which Dagster shows in red
and other tools can watch. For more, pass a function: `halted_sensor(workplace, regions, name="page", tell=...)`.
A region that the command line halts has no failed run; the command of the setting `on_halt` runs for every halt.
"""

# No `from __future__ import annotations`: Dagster compares the annotation of `context` itself.
from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg

from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.messages import halt_text
from drainmark.orchestration.dagster_assets.checks import evaluations
from drainmark.orchestration.dagster_assets.metadata import REGION_TAG
from drainmark.orchestration.runs.halt_hook import halt_event
from drainmark.orchestration.workplace.workplace import Workplace

NAME = "drainmark_halted"

Tell = Callable[[dict[str, Any]], None]
"""Called with the input of a command of the setting `on_halt` (`halt_hook.halt_event`), and `dagster_run_id`."""


def halted_sensor(
    workplace: Workplace, regions: Mapping[str, RegionPlan | None], *, name: str = NAME, tell: Tell | None = None
) -> dg.SensorDefinition:
    """Return a sensor that reports a region after a run of it failed and left it HALTED; it is on by default.

    Args:
        regions: by name; None if the code cannot be loaded: then there are no checks. Other regions are skipped.
        tell: called after the log line and the checks, e.g. to post to a chat. An error of it fails the tick, which
            Dagster shows and does not repeat.
    """

    @dg.run_failure_sensor(
        name=name,
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=10,
        description="reports regions that are HALTED and wait for an operator",
    )
    def sensor(context: dg.RunFailureSensorContext) -> dg.SkipReason | None:
        region = context.dagster_run.tags.get(REGION_TAG, "")
        if region not in regions:
            return dg.SkipReason(f"run {context.dagster_run.run_id} is of no region here")
        history = workplace.history(region)
        if history.halt is None:
            return dg.SkipReason(f"{region} is not halted: a retry follows, or the next file")
        event = {**halt_event(workplace, region, history), "dagster_run_id": context.dagster_run.run_id}
        context.log.error(f"{region} is HALTED: {halt_text(region, history)}")
        plan = regions[region]
        for evaluation in evaluations(workplace, plan) if plan is not None else ():
            context.instance.report_runless_asset_event(evaluation)
        if tell is not None:
            tell(event)
        return None

    return sensor
