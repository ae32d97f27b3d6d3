"""Events on the asset pages for what the command line did: the same as a Dagster run leaves, without a run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.region_run import GroupReport
from drainmark.resources.storage.folder import Folder

INSTANCE_FILE = "dagster.yaml"


def report(reports: Iterable[GroupReport], plan: RegionPlan, dagster_home: Path, tables: Folder) -> None:
    """Report groups to the Dagster instance at `dagster_home`; does nothing where there is none.

    Args:
        dagster_home: `$DRAINMARK_HOME/dagster`, or DAGSTER_HOME.
        tables: the folder of all tables.
    """
    if not (dagster_home / INSTANCE_FILE).is_file():
        return
    import dagster as dg

    from drainmark.orchestration.dagster_assets.assets import materializations, observations

    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        for group in reports:
            for observation in observations(group, plan):
                instance.report_runless_asset_event(observation)
            for materialization in materializations(group, plan, tables=tables):
                instance.report_runless_asset_event(materialization)
