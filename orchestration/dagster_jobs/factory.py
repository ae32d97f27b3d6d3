"""Dagster's definitions for compiled applications: for each region a job, assets, checks, a sensor or schedule."""

# No `from __future__ import annotations`: Dagster reads the annotation of `context`.
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import dagster as dg

from drainmark.jobs.errors import DrainmarkError
from drainmark.jobs.graph.params import Params
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
from drainmark.jobs.operators.sources.source import SlicedSource, Source
from drainmark.jobs.protocol.claimed_code import code_label
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.orchestration.dagster_assets.assets import (
    TableAsset,
    checkpoint_key,
    shown_name,
    source_assets,
    source_keys,
    table_assets,
)
from drainmark.orchestration.dagster_assets.checks import build_checks
from drainmark.orchestration.dagster_assets.metadata import region_metadata, role_metadata, role_tags
from drainmark.orchestration.dagster_assets.partitions import Partitions
from drainmark.orchestration.dagster_assets.provenance import Provenance
from drainmark.orchestration.dagster_assets.translator import DrainmarkTranslator, Translation
from drainmark.orchestration.dagster_jobs.alerts import NAME, halted_sensor
from drainmark.orchestration.dagster_jobs.broken_applications import broken_definitions
from drainmark.orchestration.dagster_jobs.desk import desk_jobs
from drainmark.orchestration.dagster_jobs.ops import RegionSteps
from drainmark.orchestration.dagster_jobs.part_jobs import part_definitions, part_specs
from drainmark.orchestration.dagster_jobs.run_monitor import run_tags
from drainmark.orchestration.dagster_jobs.sensors import RegionTicks, build_schedule, build_sensor
from drainmark.orchestration.inspection.desk_links import dagster_name
from drainmark.orchestration.workplace.application_identity import code_digest, require_distinct
from drainmark.orchestration.workplace.declaration import known_from, name_of, served_applications
from drainmark.orchestration.workplace.region_sources import source_folder
from drainmark.orchestration.workplace.workplace import Opened, Workplace, opened_in_time
from drainmark.resources.settings import Settings

logger = logging.getLogger(__name__)

_SCALARS: Mapping[type, Any] = {bool: dg.Bool, int: dg.Int, float: dg.Float, str: dg.String}


def build_definitions(
    settings: Settings,
    workplace: Workplace | None = None,
    *,
    translator: DrainmarkTranslator | None = None,
    is_guest: bool = False,
) -> dg.Definitions:
    """Return the definitions of the applications in the settings; without any, of those that have run in this home.

    They merge with those of others: no executor, resource or logger is among them.

    Args:
        workplace: used by the ops and sensors; by default a new one, in which nothing is open yet.
        translator: decides what the assets are called, and who looks after them.
        is_guest: whether other projects may be in the code location: the sensor that reports halted regions is then
            called after the first application, since applications have different names there, and folders may not.

    An application that cannot be loaded or compiled gets a placeholder: see `broken_applications`.

    Raises:
        UsageError: see `Translation` and `Partitions.of`.
    """
    workplace = workplace or Workplace(settings, is_service=True)
    served = served_applications(settings, workplace)
    if is_guest and not served:
        where = settings.project_root / "drainmark.toml"
        logger.warning("no region is loaded: %s names no application, and none has run in its home", where)
    opened_now = list(opened_in_time(settings, served))
    made = _tables_made(opened for _, opened in opened_now)
    applications: list[tuple[str, Opened, list[dg.AssetSpec]]] = []
    broken: list[tuple[str, Exception]] = []
    for reference, opened in opened_now:
        try:
            if isinstance(opened, Exception):
                raise opened
            require_distinct([*(known for _, known, _ in applications), opened])
            applications.append((reference, opened, _specs(workplace, opened, made)))
        except Exception as error:  # any error of an author's file must not affect the others
            logger.warning("%s", error)
            broken.append((reference, error))
    every = [spec for _, _, specs in applications for spec in specs]
    translation = Translation(translator or DrainmarkTranslator(), every)
    steps = {
        reference: [_steps(workplace, reference, region, translation, made) for region in opened.plan.regions]
        for reference, opened, _ in applications
    }
    parts: list[dg.Definitions] = []
    found: dict[str, RegionPlan] = {}
    for reference, opened, _ in applications:
        try:
            regions = [region_definitions(each, opened, translation) for each in steps[reference]]
            parts += [part_definitions(workplace, reference, opened, translation), *regions]
        except Exception as error:
            logger.warning("%s", error)
            broken.append((reference, error))
        else:
            found |= {region.name: region for region in opened.plan.regions}
    known = {reference: _known_from(workplace, reference) for reference, _ in broken}
    stand_ins = [
        broken_definitions(
            workplace, reference, error, regions=[name for name in known[reference] if name not in found]
        )
        for reference, error in broken
    ]
    alerted: dict[str, RegionPlan | None] = {name: None for names in known.values() for name in names}
    first = next((name_of(reference) for reference, _ in opened_now), settings.project_root.name)
    alert = f"{NAME}_{re.sub(r'[^A-Za-z0-9_]', '_', first)}" if is_guest else NAME
    sensor = halted_sensor(workplace, {**alerted, **found}, name=alert)
    return dg.Definitions.merge(dg.Definitions(sensors=[sensor]), *parts, *stand_ins)


def _specs(workplace: Workplace, opened: Opened, made: Mapping[str, dg.AssetKey]) -> list[dg.AssetSpec]:
    """Return the specifications of all assets of an application, under the keys that Drainmark gives."""
    code = code_label(code_digest(opened.application.origin, workplace.settings.project_root)) or None
    found = part_specs(workplace, opened.plan, code)
    for region in opened.plan.regions:
        found += source_assets(region, _folders(workplace, region), made)
        found += [_table_spec(workplace, region, asset, code) for asset in table_assets(region)]
    return found


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


def _steps(
    workplace: Workplace, reference: str, region: RegionPlan, translation: Translation, made: Mapping[str, dg.AssetKey]
) -> RegionSteps:
    """Return the op of a region.

    Raises:
        UsageError: see `Partitions.of`.
    """
    return RegionSteps(
        workplace=workplace,
        reference=reference,
        region=region,
        keys=translation.keys,
        provenance=Provenance.of(region, made, translation, [asset.key for asset in table_assets(region)]),
        partitions=Partitions.of(workplace, region, translation.partitions(region.name)),
    )


def region_definitions(steps: RegionSteps, opened: Opened, translation: Translation) -> dg.Definitions:
    """Return all definitions of one region."""
    workplace, region = steps.workplace, steps.region
    name = dagster_name(region.name)
    node = f"{name}__run"  # a job and an op must not have the same name
    tables = {asset.output: steps.provenance.specs[asset.key] for asset in table_assets(region)}
    assets = region_assets(steps, tables, opened, node, translation.pool(region.name))
    job = dg.define_asset_job(
        name,
        selection=dg.AssetSelection.assets(*(spec.key for spec in tables.values())).without_checks(),
        tags=run_tags(region),
        executor_def=dg.in_process_executor,
        description=f"Processes the pending triggers of {region.name}: claim, then group by group, then hand over.",
    )
    ticks = RegionTicks(workplace=workplace, region=region, node=node, origin=opened.application.origin)
    cron = region.parameters.schedule
    has_source = any(isinstance(start, Source) for start in region.starts)
    return dg.Definitions(
        assets=[*map(translation.spec, source_keys(region)), assets],
        asset_checks=[build_checks(workplace, region, translation.keys)],
        jobs=[job, *desk_jobs(workplace, region.name, region)],
        sensors=[build_sensor(ticks, job, name)] if has_source and not cron else [],
        schedules=[build_schedule(ticks, job, name, cron)] if cron else [],
    )


def region_assets(
    steps: RegionSteps, tables: Mapping[str, dg.AssetSpec], opened: Opened, node: str, pool: str | None
) -> dg.AssetsDefinition:
    """Return one op as the definition of all tables; groups yield the events, not its outputs.

    It can be asked for some of the tables, and makes all of them: they are of one state.

    Args:
        tables: by output.
        pool: see `DrainmarkTranslator.get_pool`.
    """
    own = {spec.key for spec in tables.values()}
    upstream = {output: {dep.asset_key for dep in spec.deps} for output, spec in tables.items()}

    @dg.multi_asset(
        name=node,
        description="claim, then assign, process, drain, checkpoint, publish group by group, then hand over",
        outs={output: _out(spec) for output, spec in tables.items()},
        deps=sorted(set().union(*upstream.values()) - own),
        internal_asset_deps=upstream,
        can_subset=True,
        pool=pool,
        partitions_def=steps.partitions.definition if steps.partitions is not None else None,
        backfill_policy=dg.BackfillPolicy.single_run(),
        config_schema=run_config_schema(opened.application.params_class, steps.region),
    )
    def run(context: dg.AssetExecutionContext) -> Iterator[Any]:
        yield from steps.run(context.op_execution_context)

    return run


def _out(spec: dg.AssetSpec) -> dg.AssetOut:
    return dg.AssetOut.from_spec(spec.replace_attributes(deps=[]), dagster_type=dg.Nothing, is_required=False)


def _table_spec(workplace: Workplace, region: RegionPlan, asset: TableAsset, code: str | None) -> dg.AssetSpec:
    stands_for_region = asset.key == checkpoint_key(region)
    return dg.AssetSpec(
        key=asset.key,
        deps=asset.upstream,
        description=asset.description,
        group_name=dagster_name(region.name),
        kinds=set(asset.kinds),
        code_version=code,
        tags=role_tags(region, asset.operator),
        metadata={
            "dagster/uri": (workplace.tables / asset.table).uri,
            "dagster/table_name": shown_name(region, asset),
            "drainmark/region": region.name,
            **role_metadata(region, asset.operator),
            **(region_metadata(region, workplace.settings) if stands_for_region else {}),
        },
    )


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
