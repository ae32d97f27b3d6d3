"""Events on the asset pages for work outside of Dagster's runs: groups of the command line, and every halt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from drainmark.orchestration.dagster_assets.instance import has_instance, instance_at, instance_home

if TYPE_CHECKING:
    from drainmark.jobs.protocol.history import RegionHistory
    from drainmark.jobs.regions.plan import RegionPlan
    from drainmark.jobs.runtime.region_run import GroupReport
    from drainmark.orchestration.workplace.workplace import Workplace


def report(reports: Iterable[GroupReport], plan: RegionPlan, workplace: Workplace, run_id: str) -> None:
    """Report groups and the results of the checks to the Dagster instance that works on the home, if there is one.

    Args:
        run_id: id in the history of the run that made them; Dagster has no such run that a rewind could mark.
    """
    if not has_instance(workplace.settings):
        return
    import dagster as dg

    from drainmark.orchestration.dagster_assets.assets import materializations, observations
    from drainmark.orchestration.dagster_assets.checks import evaluations
    from drainmark.orchestration.dagster_assets.metadata import RUN_ID
    from drainmark.orchestration.dagster_assets.partitions import Partitions
    from drainmark.orchestration.dagster_assets.translator import remembered_keys, renamed

    keys = remembered_keys(workplace, plan.name)
    partitions = Partitions.remembered(workplace, plan.name)
    history = workplace.history(plan.name) if partitions is not None else None
    with instance_at(instance_home(workplace.settings)) as instance:
        for group in reports:
            if partitions is not None and history is not None:
                for part in partitions.told(instance, plan, history, (group.first_id, group.last_id), keys):
                    instance.report_runless_asset_event(part.with_metadata({**part.metadata, RUN_ID: run_id}))
            events: list[dg.AssetObservation | dg.AssetMaterialization] = [*observations(group, plan)]
            events += materializations(group, plan, tables=workplace.tables)
            for event in events:
                told = renamed(event, keys)
                instance.report_runless_asset_event(told.with_metadata({**told.metadata, RUN_ID: run_id}))
        for evaluation in evaluations(workplace, plan):
            instance.report_runless_asset_event(evaluation)


def report_halt(region: str, history: RegionHistory, workplace: Workplace) -> None:
    """Report a halt to the page of the checkpoint table, and fail its check; this does not need the application."""
    if history.halt is None or not has_instance(workplace.settings):
        return
    from drainmark.jobs.protocol.transitions import State
    from drainmark.orchestration.dagster_assets.checks import evaluations_of, not_halted
    from drainmark.orchestration.dagster_assets.translator import remembered_keys, renamed
    from drainmark.orchestration.dagster_assets.verb_events import halted

    keys = remembered_keys(workplace, region)
    judged = evaluations_of(region, not_halted(region, history, State.HALTED), keys)
    with instance_at(instance_home(workplace.settings)) as instance:
        instance.report_runless_asset_event(renamed(halted(region, history), keys))
        for evaluation in judged:
            instance.report_runless_asset_event(evaluation)
