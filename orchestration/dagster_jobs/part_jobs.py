"""Autonomous parts in Dagster: one job and one sensor for each application, and its tables as external assets.

There is nothing to claim, to roll forward or to halt: a run takes the files that wait, and the files of a failed batch
are lost. So a run is not retried: the next tick starts a new run as soon as files wait.
"""

# No `from __future__ import annotations`: Dagster reads the annotation of `context`.
import time
from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from drainmark.jobs.printable import markdown_code, printable
from drainmark.jobs.regions.plan import ApplicationPlan, AutonomousPlan, running_parts
from drainmark.jobs.runtime.autonomous_run import BatchReport
from drainmark.orchestration.dagster_assets.metadata import MAX_RETRIES_TAG
from drainmark.orchestration.dagster_assets.translator import Keys, Translation, renamed
from drainmark.orchestration.dagster_jobs.run_config import require_short
from drainmark.orchestration.dagster_jobs.run_monitor import tag_process
from drainmark.orchestration.dagster_jobs.sensors import one_run_sensor
from drainmark.orchestration.inspection.desk_links import dagster_name
from drainmark.orchestration.runs.part_loop import run_parts, waiting_parts
from drainmark.orchestration.workplace.schema_files import keep_schemas
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_in_time


def part_definitions(workplace: Workplace, reference: str, opened: Opened, translation: Translation) -> dg.Definitions:
    """Return job `APP__autonomous`, its sensor and its tables; nothing if no part has a source of its own."""
    parts = running_parts(opened.plan)
    if not parts:
        return dg.Definitions()
    job = _job(workplace, reference, dagster_name(f"{opened.plan.name}/autonomous"), translation.keys)
    keys = [asset_key(opened.plan.name, table) for part in parts for table in part.tables]
    return dg.Definitions(
        assets=[translation.spec(key) for key in keys], jobs=[job], sensors=[_sensor(workplace, parts, job)]
    )


def part_specs(workplace: Workplace, plan: ApplicationPlan, code: str | None) -> list[dg.AssetSpec]:
    """Return the specifications of the tables of an application's autonomous parts."""
    return [
        dg.AssetSpec(
            key=asset_key(plan.name, table),
            group_name=dagster_name(f"{plan.name}/autonomous"),
            description=f"Written by the autonomous part {markdown_code(part.name)}: at most once, "
            "as no state of a region is.",
            kinds={"delta", part.guarantee.value},
            code_version=code,
            metadata={"dagster/uri": (workplace.tables / f"lake/{table}").uri, "dagster/table_name": f"lake/{table}"},
        )
        for part in running_parts(plan)
        for table in part.tables
    ]


def asset_key(application: str, table: str) -> dg.AssetKey:
    """Return the key of a table below the lake."""
    return dg.AssetKey([application, *table.split("/")])


def _job(workplace: Workplace, reference: str, name: str, keys: Keys) -> dg.JobDefinition:
    @dg.op(
        name=f"{name}__run",
        description="take the files that have come, micro-batch by micro-batch, until none is left",
        config_schema={"parameters": dg.Field(dict, default_value={}, description="as --set NAME=VALUE")},
    )
    def process(context: dg.OpExecutionContext) -> None:
        context.instance.add_run_tags(context.run_id, tag_process(context.run_id))
        require_short(context.op_config, name)
        opened = open_in_time(workplace.settings, reference, params=context.op_config["parameters"])
        keep_schemas(opened.schemas, workplace.has_states)

        def note(report: BatchReport) -> None:
            context.log.info(printable(report.line))
            for event in _events(opened.plan.name, report):
                context.log_event(renamed(event, keys))

        run_parts(workplace, opened, run_id=context.run_id, pause=time.sleep, on_batch=note)

    graph = dg.GraphDefinition(name=name, node_defs=[process])
    return graph.to_job(
        name=name,
        executor_def=dg.in_process_executor,
        tags={MAX_RETRIES_TAG: "0"},
        description="Takes new input of the autonomous parts of the application, at most once.",
    )


def _events(application: str, report: BatchReport) -> Iterator[dg.AssetMaterialization]:
    for table, version in report.versions.items():
        if table.startswith("lake/"):
            metadata: Mapping[str, Any] = {
                "drainmark/rows": report.rows_out.get(table, 0),
                "drainmark/delta_version": version,
                "drainmark/files": report.files,
                "drainmark/lost_files": report.lost,
                "drainmark/seconds": round(report.seconds, 3),
            }
            yield dg.AssetMaterialization(
                asset_key=asset_key(application, table.removeprefix("lake/")), metadata=metadata
            )


def _sensor(workplace: Workplace, parts: tuple[AutonomousPlan, ...], job: dg.JobDefinition) -> dg.SensorDefinition:
    def wanted() -> dg.RunRequest | str:
        return dg.RunRequest() if waiting_parts(workplace, parts) else "no file waits"

    what = "Scans the folders of the autonomous parts, and starts a run when a file waits."
    return one_run_sensor(workplace, job, what, wanted=wanted)
