"""Dagster's definitions for compiled applications: for each region a job, assets, checks, a sensor or schedule."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import dagster as dg

from drainmark.jobs.errors import DrainmarkError
from drainmark.jobs.graph.params import Params
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
from drainmark.jobs.operators.sources.source import SlicedSource, Source
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.orchestration.dagster_assets.assets import (
    CLAIM,
    HAND_OVER,
    PROCESS,
    TableAsset,
    dagster_name,
    source_assets,
    source_keys,
    table_assets,
)
from drainmark.orchestration.dagster_assets.checks import build_checks
from drainmark.orchestration.dagster_assets.metadata import region_metadata, role_metadata, role_tags
from drainmark.orchestration.dagster_jobs.alerts import halted_sensor
from drainmark.orchestration.dagster_jobs.broken_applications import broken_definitions
from drainmark.orchestration.dagster_jobs.desk import desk_jobs
from drainmark.orchestration.dagster_jobs.ops import CLAIMED, PROCESSED, RegionSteps
from drainmark.orchestration.dagster_jobs.part_jobs import part_definitions
from drainmark.orchestration.dagster_jobs.run_monitor import run_tags
from drainmark.orchestration.dagster_jobs.run_slot import SLOT, run_slot
from drainmark.orchestration.dagster_jobs.sensors import RegionTicks, build_schedule, build_sensor
from drainmark.orchestration.workplace.application_identity import require_distinct
from drainmark.orchestration.workplace.declaration import known_from, served_applications
from drainmark.orchestration.workplace.region_sources import source_folder
from drainmark.orchestration.workplace.workplace import Opened, Workplace, opened_in_time
from drainmark.resources.settings import Settings

logger = logging.getLogger(__name__)

_SCALARS: Mapping[type, Any] = {bool: dg.Bool, int: dg.Int, float: dg.Float, str: dg.String}


def build_definitions(settings: Settings, workplace: Workplace | None = None) -> dg.Definitions:
    """Return the definitions of the applications in the settings; without any, of those that have run in this home.

    Args:
        workplace: used by the ops and sensors; by default a new one, in which nothing is open yet.

    An application that cannot be loaded or compiled gets a placeholder: see `broken_applications`.
    """
    workplace = workplace or Workplace(settings, is_service=True)
    applications: list[tuple[str, Opened]] = []
    parts: list[dg.Definitions] = []
    broken: list[tuple[str, Exception]] = []
    opened_now = list(opened_in_time(settings, served_applications(settings, workplace)))
    made = _tables_made(opened for _, opened in opened_now)
    for reference, opened in opened_now:
        try:
            if isinstance(opened, Exception):
                raise opened
            require_distinct([*(known for _, known in applications), opened])
            regions = [region_definitions(workplace, reference, opened, region, made) for region in opened.plan.regions]
            parts += [part_definitions(workplace, reference, opened), *regions]
            applications.append((reference, opened))
        except Exception as error:  # any error of an author's file must not affect the others
            logger.warning("%s", error)
            broken.append((reference, error))
    found = {region.name: region for _, opened in applications for region in opened.plan.regions}
    known = {reference: _known_from(workplace, reference) for reference, _ in broken}
    stand_ins = [
        broken_definitions(
            workplace, reference, error, regions=[name for name in known[reference] if name not in found]
        )
        for reference, error in broken
    ]
    alerted: dict[str, RegionPlan | None] = {name: None for names in known.values() for name in names}
    alert = halted_sensor(workplace, {**alerted, **found})
    whole = dg.Definitions(executor=dg.in_process_executor, resources={SLOT: run_slot}, sensors=[alert])
    return dg.Definitions.merge(whole, *parts, *stand_ins)


def _known_from(workplace: Workplace, reference: str) -> Sequence[str]:
    """Return the known regions of a broken application; none if the registry or the tables do not answer."""
    try:
        return known_from(workplace, reference)
    except DrainmarkError as error:  # of a bucket or a database: it must not affect the other applications
        logger.warning("%s", error)
        return ()


def _tables_made(applications: Iterable[Opened | Exception]) -> dict[str, dg.AssetKey]:
    """Return the keys of the tables that the regions of applications make, by path."""
    found: dict[str, dg.AssetKey] = {}
    for opened in applications:
        with suppress(Exception):  # any error of an author's file is told where its definitions are made
            if not isinstance(opened, Exception):
                found |= {each.table: each.key for region in opened.plan.regions for each in table_assets(region)}
    return found


def region_definitions(
    workplace: Workplace, reference: str, opened: Opened, region: RegionPlan, made: Mapping[str, dg.AssetKey]
) -> dg.Definitions:
    """Return all definitions of one region.

    Args:
        made: see `source_assets`.
    """
    name = dagster_name(region.name)
    node = f"{name}__run"  # a job and a graph must not have the same name
    steps = RegionSteps(workplace=workplace, reference=reference, region=region, node=node)
    tables = table_assets(region)
    assets = region_assets(steps, tables, opened)
    job = dg.define_asset_job(
        name,
        selection=dg.AssetSelection.assets(*(asset.key for asset in tables)).without_checks(),
        tags=run_tags(region),
        executor_def=dg.in_process_executor,
        description=f"Processes the pending triggers of {region.name}: claim, then group by group, then hand over.",
    )
    ticks = RegionTicks(workplace=workplace, region=region, node=node, origin=opened.application.origin)
    cron = region.parameters.schedule
    has_source = any(isinstance(start, Source) for start in region.starts)
    return dg.Definitions(
        assets=[*source_assets(region, _folders(workplace, region), made), assets],
        asset_checks=[build_checks(workplace, region)],
        jobs=[job, *desk_jobs(workplace, region.name, region)],
        sensors=[build_sensor(ticks, job, name)] if has_source and not cron else [],
        schedules=[build_schedule(ticks, job, name, cron)] if cron else [],
    )


def region_assets(steps: RegionSteps, tables: tuple[TableAsset, ...], opened: Opened) -> dg.AssetsDefinition:
    """Return the graph of the three ops as one definition of all tables; groups yield the events, not its outputs."""
    schema = run_config_schema(opened.application.params_class, steps.region)
    inputs = {_input_name(key): key for key in source_keys(steps.region)}
    claim, process, hand_over = steps.claim_op(schema, inputs), steps.process_op(), steps.hand_over_op()
    region_graph = dg.GraphDefinition(
        name=steps.node,
        node_defs=[claim, process, hand_over],
        dependencies={
            dg.NodeInvocation(claim.name, alias=CLAIM): {},
            dg.NodeInvocation(process.name, alias=PROCESS): {CLAIMED: dg.DependencyDefinition(CLAIM, CLAIMED)},
            dg.NodeInvocation(hand_over.name, alias=HAND_OVER): {
                PROCESSED: dg.DependencyDefinition(PROCESS, PROCESSED)
            },
        },
        input_mappings=[
            dg.InputMapping(graph_input_name=name, mapped_node_name=CLAIM, mapped_node_input_name=name)
            for name in inputs
        ],
        output_mappings=[
            dg.OutputMapping(
                graph_output_name=asset.output, mapped_node_name=asset.step, mapped_node_output_name=asset.output
            )
            for asset in tables
        ],
        config=dg.ConfigMapping(
            config_schema=schema,
            config_fn=lambda config: {CLAIM: {"config": dict(config)}},
        ),
    )
    return dg.AssetsDefinition.from_graph(
        region_graph,
        keys_by_input_name=inputs,
        keys_by_output_name={asset.output: asset.key for asset in tables},
        internal_asset_deps={asset.output: set(asset.upstream) for asset in tables},
        group_name=dagster_name(steps.region.name),
        descriptions_by_output_name={asset.output: asset.description for asset in tables},
        tags_by_output_name={asset.output: _tags(steps.region, asset) for asset in tables},
        metadata_by_output_name={asset.output: _metadata(steps, asset) for asset in tables},
    )


def _tags(region: RegionPlan, asset: TableAsset) -> dict[str, str]:
    return {**{f"dagster/kind/{kind}": "" for kind in asset.kinds}, **role_tags(region, asset.operator)}


def _metadata(steps: RegionSteps, asset: TableAsset) -> dict[str, Any]:
    return {
        "dagster/uri": (steps.workplace.tables / asset.table).uri,
        "dagster/table_name": asset.table,
        "drainmark/region": steps.region.name,
        **role_metadata(steps.region, asset.operator),
        **(region_metadata(steps.region, steps.workplace.settings) if asset.step == HAND_OVER else {}),
    }


def _input_name(key: dg.AssetKey) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", "_".join(key.path))


def run_config_schema(params: type[Params], region: RegionPlan) -> dict[str, Any]:
    """Return the config schema of a run: parameters, input folders, limits, as options of the command line."""
    sources = [start.name for start in region.starts if isinstance(start, DirectorySource)]
    return {
        "parameters": dg.Field(
            {name: _parameter(field) for name, field in params.model_fields.items()},
            description="as --set NAME=VALUE",
        ),
        "inputs": dg.Field(
            dg.Permissive({name: dg.Field(dg.String, is_required=False) for name in sources}),  # type: ignore[no-untyped-call]
            default_value={},
            description="folder by name of a source, as --input NAME=PATH",
        ),
        "max_group": dg.Field(dg.Noneable(dg.Int), default_value=None, description="triggers a group, as --max-group"),
        "max_triggers": dg.Field(dg.Noneable(dg.Int), default_value=None, description="stop after so many triggers"),
        "scan": dg.Field(dg.Bool, default_value=True, description="look for new files first"),
    }


def _parameter(field: Any) -> dg.Field:
    kind = _SCALARS.get(field.annotation, dg.Any)
    if field.is_required():
        return dg.Field(kind, is_required=True, description=field.description)
    default = field.get_default(call_default_factory=True)
    if kind is dg.Any and not isinstance(default, str | int | float | bool | list | dict):
        return dg.Field(kind, is_required=False, description=field.description)
    return dg.Field(kind, default_value=default, description=field.description)


def _folders(workplace: Workplace, region: RegionPlan) -> dict[str, str]:
    found = {}
    for operator in region.operators:
        if isinstance(operator, DirectorySource):
            found[operator.name] = source_folder(workplace, operator)
        elif isinstance(operator, SlicedSource):
            found[operator.name] = f"{operator.reads.kind}:{operator.name}"
    return found
