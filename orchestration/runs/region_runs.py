"""The construction of a run, or an owner, of a region; and what a dead owner left running.

The command line and Dagster both start runs with this code.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.protocol.history import Outcome
from drainmark.jobs.protocol.records.manifest import REGISTERED
from drainmark.jobs.protocol.records.state_generations import labels_in_force
from drainmark.orchestration.workplace.workplace import Opened, Workplace, drainmark_version

if TYPE_CHECKING:
    from drainmark.jobs.graph.application import Application
    from drainmark.jobs.protocol.records.manifest import RegionTable
    from drainmark.jobs.regions.plan import RegionPlan
    from drainmark.jobs.runtime.analysis.blueprint import Blueprint
    from drainmark.jobs.runtime.commit.region_owner import RegionOwner
    from drainmark.jobs.runtime.outside import Outside, Report
    from drainmark.jobs.runtime.region_run import RegionRun
    from drainmark.resources.storage.folder import Folder

logger = logging.getLogger(__name__)


def region_run(
    workplace: Workplace,
    opened: Opened,
    region: RegionPlan,
    *,
    run_id: str | None = None,
    report: Report | None = None,
    max_group: int | None = None,
    max_triggers: int | None = None,
    interrupted: world.Flag | None = None,
    blueprint: Blueprint | None = None,
    drop_states: Collection[str] = (),
) -> RegionRun:
    """Return a run of a region, analysed and not claimed yet; start the Spark session.

    Args:
        blueprint: of an earlier run of the same code with the same parameters; saves a second analysis.
        drop_states: operators whose states begin anew with the claim; see `verbs.plan.drop_states`.

    Raises:
        OperatorFailed, DeclarationError, SchemaMismatch: the application is not valid; nothing was claimed.
        ForeignTable: a table is another region's; nothing was claimed.
        ClusterRefused: Spark's executors do not reach this machine's files; nothing was claimed.
    """
    from drainmark.jobs.runtime.analysis.blueprint import analyse
    from drainmark.jobs.runtime.analysis.supported_features import require_runnable
    from drainmark.jobs.runtime.commit.ledger import Identity
    from drainmark.jobs.runtime.commit.region_owner import RegionOwner
    from drainmark.jobs.runtime.region_run import Limits, RegionRun
    from drainmark.orchestration.workplace.application_identity import code_digest

    require_runnable(opened.plan, region)
    settings = workplace.settings
    outside = region_outside(workplace, region.name, opened.application)
    states = labels_in_force(workplace.history(region.name).generations)
    states |= {name: world.token()[:8] for name in drop_states}  # a label that no table has had
    workplace.engine.require_inputs(folders_read(region, outside, settings.project_root))
    workplace.engine.require_outputs(_folders_of_others(region, workplace.tables))
    if blueprint is None or blueprint.code.states != states:
        facts = (region, opened.application.name, opened.params, outside)
        blueprint = analyse(*facts, states=states, dropped=drop_states)
        for table in blueprint.tables:
            if table.is_managed:
                outside.store.foreign_commits.require_place(table.name)
    identity = Identity(
        region=region.name,
        run_id=run_id or world.token(),
        drainmark_version=drainmark_version(),
        graph_fingerprint=region.fingerprint,
        params_hash=opened.params.digest(),
        code=code_digest(opened.application.origin, settings.project_root),
    )
    return RegionRun.of(
        blueprint,
        RegionOwner.of(identity, outside, _shown(workplace, outside, report, blueprint)),
        limits=Limits(
            triggers=max_group or settings.max_group_triggers,
            size_bytes=settings.max_group_bytes,
        ),
        interrupted=interrupted if interrupted is not None else world.event(),
        max_triggers=max_triggers,
    )


def folders_read(region: RegionPlan, outside: Outside, root: Path) -> list[Path]:
    """Return the folders of this machine that Spark reads for a region and its autonomous sources.

    A run copies the input of other sources into its inbox.
    """
    from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
    from drainmark.jobs.protocol.records.addresses import is_object

    sources = (operator for operator in region.run_order if isinstance(operator, DirectorySource))
    inputs = [root / source.scan.path for source in sources if not is_object(source.scan.path)]
    tables = [outside.lookups.folder(table) for operator in region.run_order for table in operator.tables_read]
    return [*inputs, *(folder for folder in tables if folder is not None)]


def _folders_of_others(region: RegionPlan, tables: Folder) -> list[Path]:
    """Return the folders of adopted tables on this machine, to which executors write."""
    from drainmark.jobs.operators.sinks.delta_append import DeltaSink
    from drainmark.resources.storage.folder import LocalFolder

    sinks = (operator for operator in region.run_order if isinstance(operator, DeltaSink) and operator.adopt)
    folders = (tables / name for sink in sinks for name in sink.published)
    return [folder.path for folder in folders if isinstance(folder, LocalFolder)]


def probe_first_use(run: RegionRun) -> None:
    """Try functions that changed, or are new, on two pending triggers; do nothing without such functions.

    Raises:
        NotRowWise: a function mixes the rows of different triggers; nothing was claimed.
    """
    from drainmark.jobs.runtime.probe.row_wise_probe import probe_if_changed

    probe_if_changed(run.blueprint, run.owner.outside)


def region_owner(
    workplace: Workplace, region: str, *, report: Report | None = None, run_id: str | None = None, code: str = ""
) -> RegionOwner:
    """Return an owner that needs no application: resets, skips, halts and resumes, and counts failures.

    It starts Spark only if rows must be published to, or withdrawn from, an adopted table.
    """
    from drainmark.jobs.graph.application import Application
    from drainmark.jobs.runtime.commit.ledger import Identity
    from drainmark.jobs.runtime.commit.region_owner import RegionOwner

    run_id, installed = run_id or world.token(), drainmark_version()
    identity = Identity(region=region, run_id=run_id, drainmark_version=installed, code=code)
    outside = region_outside(workplace, region, Application(name=region.partition("/")[0], operators=()))
    return RegionOwner.of(identity, outside, _shown(workplace, outside, report))


def _shown(workplace: Workplace, outside: Outside, report: Report | None, blueprint: Blueprint | None = None) -> Report:
    """Return a report that also writes the metrics and the page of the region, and tells other systems of its steps.

    Raises:
        UsageError: settings name a receiver, and what it needs is not installed.
    """
    from drainmark.orchestration.html_report.page_file import PageFile
    from drainmark.orchestration.inspection.metrics import MetricsFile

    region, checkpoint = outside.store.region, outside.store.checkpoint
    plan = blueprint.region if blueprint is not None else None
    metrics = MetricsFile(workplace=workplace, region=region, checkpoint=checkpoint)
    shown = observed(report or (lambda step, numbers: None), metrics.follow, "metrics")
    page = PageFile(workplace=workplace, region=region, checkpoint=checkpoint, plan=plan)
    shown = observed(shown, page.follow, "page")
    if workplace.settings.openlineage_url:  # a verb without a receiver does not pay for these imports
        from drainmark.orchestration.exporters.lineage import lineage_of

        shown = observed(shown, lineage_of(workplace, outside, blueprint).follow, "OpenLineage")
    if workplace.settings.otlp_url:
        from drainmark.orchestration.exporters.telemetry import telemetry_of

        shown = observed(shown, telemetry_of(workplace, outside).follow, "OpenTelemetry")
    return shown


def observed(report: Report, follow: Report, observer: str) -> Report:
    """Return a report that also calls an observer.

    An error of the observer fails no run: it is reported as a step with the observer's name, and the first is logged.
    """
    is_broken = False

    def reported(step: str, numbers: Mapping[str, Any]) -> None:
        nonlocal is_broken
        report(step, numbers)
        try:
            follow(step, numbers)
        except Exception as error:
            failed = f"{type(error).__name__}: {error}"
            report(observer, {"failed": failed})
            if not is_broken:
                logger.warning("%s: a step %r could not be told: %s", observer, step, failed)
            is_broken = True

    return reported


def region_outside(workplace: Workplace, region: str, application: Application) -> Outside:
    from drainmark.jobs.runtime.outside import Outside
    from drainmark.orchestration.discovery.feeds import Feeds
    from drainmark.orchestration.runs.halt_hook import teller
    from drainmark.orchestration.workplace.declaration import statement_text
    from drainmark.resources.delta.lookup_tables import LookupTables
    from drainmark.resources.registry.lease import LeaseHolder

    return Outside(
        engine=workplace.engine,
        store=workplace.store(region),
        inputs=workplace.inputs,
        access=workplace.access(region),
        registry=workplace.registry,
        lease=LeaseHolder(workplace.registry, workplace.settings),
        clock=world.now,
        statement=lambda name: statement_text(application, name, workplace.settings.project_root),
        lookups=LookupTables(workplace.settings, workplace.tables),
        small_group_bytes=workplace.settings.small_group_bytes,
        state_store=workplace.state_store(),
        on_halt=teller(workplace, region),
        take_feed=Feeds(workplace).take,
        register=lambda table: _register(workplace, table),
    )


def _register(workplace: Workplace, table: RegionTable) -> None:
    from drainmark.resources.delta.catalogue import register

    register(workplace.engine.session, table.options[REGISTERED], (workplace.tables / table.name).uri)


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
    registry.save_cursor(run.region, SESSION, session, epoch=run.owner.epoch)
