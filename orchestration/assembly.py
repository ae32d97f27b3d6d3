"""Joins the pieces: settings, registry, store, session and a compiled application become a run of a region.

The command line and Dagster both start here, so the same code serves both. A verb that only looks at tables needs
neither the language nor the runtime, which are imported where they are used.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.errors import UnknownName
from jobs.protocol.generations import labels_in_force
from jobs.protocol.history import RegionHistory
from orchestration import yielding

if TYPE_CHECKING:
    from jobs.graph.application import Application
    from jobs.graph.params import Params
    from jobs.regions.plan import ApplicationPlan, RegionPlan
    from jobs.runtime.blueprint import Blueprint
    from jobs.runtime.owner import RegionOwner
    from jobs.runtime.ports import Outside, Report
    from jobs.runtime.run import RegionRun
    from jobs.state.data_stores import DataStore
    from resources.inputs import Inputs
    from resources.locations import Folder
    from resources.reach import RegionReach
    from resources.region_store import DirectoryStore
    from resources.registry import Registry
    from resources.settings import Settings
    from resources.spark import SparkEngine


owning = yielding.owning  # verbs find it beside the workplace that they open


def drainmark_version() -> str:
    """Return the installed version, `0+source` from a bare checkout."""
    with suppress(PackageNotFoundError):
        return version("drainmark")
    return "0+source"


@dataclass(slots=True)
class Workplace:
    """What one process has open: settings, the registry, at most one Spark session.

    Attributes:
        is_service: this is Dagster's code location, whose runs come one after the other: `spark = "auto"` means the
            resident Spark, and ticks watch their folders.
        engine: made at first use; a test's own may be given instead.
    """

    settings: Settings
    is_service: bool = False
    _registry: Registry | None = None
    _engine: SparkEngine | None = None
    _tables: Folder | None = None
    _inputs: Inputs | None = None

    @property
    def home(self) -> Path:
        return self.settings.home

    @property
    def tables(self) -> Folder:
        """Return the folder of `checkpoints/`, `state/` and `lake/`."""
        if self._tables is None:
            from resources.locations import tables_folder

            self._tables = tables_folder(self.settings)
        return self._tables

    @property
    def inputs(self) -> Inputs:
        if self._inputs is None:
            from resources.inputs import inputs_of

            self._inputs = inputs_of(self.settings, lambda: self.engine)
        return self._inputs

    @property
    def registry(self) -> Registry:
        if self._registry is None:
            from resources.registry import Registry

            self.settings.make_home()
            self._registry = Registry(self.settings.registry_url or f"sqlite:///{self.home / 'registry.db'}")
        return self._registry

    @property
    def has_registry(self) -> bool:
        """Is the registry open?"""
        return self._registry is not None

    @property
    def engine(self) -> SparkEngine:
        if self._engine is None:
            from orchestration.engines import make_engine

            self.settings.make_home()
            self._engine = make_engine(self.settings, is_service=self.is_service)
        return self._engine

    def use_engine(self, engine: Any) -> None:
        """Use a session that somebody else owns."""
        self._engine = engine

    def store(self, region: str) -> DirectoryStore:
        from resources.external_sinks import Externals
        from resources.region_store import DirectoryStore

        return DirectoryStore(self.home, region, self.tables, lambda: self.engine, Externals(self.settings))

    def history(self, region: str) -> RegionHistory:
        """Return a region's facts from its checkpoint table; empty facts where there is none."""
        from resources.checkpoint_table import CHECKPOINTS, CheckpointTable

        checkpoint = CheckpointTable(self.tables / CHECKPOINTS / region, region)
        return checkpoint.history() if checkpoint.exists() else RegionHistory()

    def known_regions(self) -> tuple[str, ...]:
        """Return the regions that have a checkpoint table, sorted."""
        from resources.checkpoint_table import regions_of

        return regions_of(self.tables)

    def reach(self, region: str) -> RegionReach:
        from resources.reach import RegionReach

        return RegionReach(region, self.settings, self.tables, self.registry)

    def outside(self, region: str, application: Application) -> Outside:
        from jobs.runtime.ports import Outside
        from orchestration.feeds import Feeds
        from orchestration.halting import teller
        from resources.lookups import LookupTables

        return Outside(
            engine=self.engine,
            store=self.store(region),
            inputs=self.inputs,
            reach=self.reach(region),
            registry=self.registry,
            lease=LeaseHolder(self.registry, self.settings),
            clock=time.time,
            statement=lambda name: self._statement(application, name),
            lookups=LookupTables(self.settings, self.tables),
            state_store=self.state_store(),
            on_halt=teller(self, region),
            take_feed=Feeds(self).take,
        )

    def state_store(self) -> DataStore | None:
        """Return the store of handlers' chunks; None where they are rows of the states' tables."""
        from resources.data_stores import data_store_of

        url = self.settings.state_store
        return None if url == "delta" else data_store_of(url, self.settings)

    def owner(
        self, region: str, *, report: Report | None = None, run_id: str | None = None, code: str = ""
    ) -> RegionOwner:
        """Return an owner that needs no application: resets, skips, halts and resumes, and counts failures.

        It starts Spark only where something is to be published to, or withdrawn from, an adopted table.
        """
        from jobs.graph.application import Application
        from jobs.runtime.identity import Identity
        from jobs.runtime.owner import RegionOwner
        from orchestration.metrics import metered

        run_id, installed = run_id or uuid.uuid4().hex, drainmark_version()
        identity = Identity(region=region, run_id=run_id, drainmark_version=installed, code=code)
        outside = self.outside(region, Application(name=region.partition("/")[0], operators=()))
        return RegionOwner(identity=identity, outside=outside, report=metered(self, outside, report))

    def _statement(self, application: Application, name: str) -> str:
        from orchestration.statements import statement_text

        return statement_text(application, name, self.settings.project_root)


@dataclass(slots=True)
class LeaseHolder:
    """A lease that is acquired by name and released once."""

    registry: Registry
    settings: Settings
    _lease: Any = None

    def acquire(self, region: str, run_id: str) -> None:
        from resources.lease import Lease

        self._lease = Lease.acquire(
            self.registry,
            region,
            run_id,
            lease_seconds=self.settings.lease_seconds,
            heartbeat_seconds=self.settings.heartbeat_seconds,
        )

    def release(self, *, clean: bool) -> None:
        if self._lease is not None:
            self._lease.release(clean=clean)
            self._lease = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """An application ready to be run: compiled, its parameters bound, its inputs overridden.

    Attributes:
        reference: how it was asked for.
        overrides: operator name ("" for the only source) -> path given by `--input`.
    """

    reference: str
    plan: ApplicationPlan
    params: Params
    overrides: Mapping[str, str]

    @property
    def application(self) -> Application:
        return self.plan.application

    def region(self, name: str | None = None) -> RegionPlan:
        """Return a region by name, or the only one.

        Raises:
            UnknownName, UsageError: there is none of that name, or there are several.
        """
        return self.plan.region(name or self.plan.name)


def open_application(
    reference: str | Application, *, params: Mapping[str, Any] | None = None, inputs: Sequence[str] = ()
) -> Opened:
    """Load, override, compile and bind an application.

    Args:
        reference: as `load_application` takes it, or an application that was built by hand.
        inputs: `[NAME=]PATH` as `--input` takes them.

    Raises:
        DeclarationError, UnknownName, UsageError.
    """
    from jobs.graph.application import load_application
    from jobs.graph.params import bind_params
    from jobs.regions.plan import compile_application
    from orchestration.overrides import overrides_of, with_inputs

    application = load_application(reference) if isinstance(reference, str) else reference
    overrides = overrides_of(inputs)
    application = with_inputs(application, overrides)
    return Opened(
        reference=reference if isinstance(reference, str) else application.name,
        plan=compile_application(application),
        params=bind_params(application.params_class, params or {}),
        overrides=overrides,
    )


def find_region(name: str, *, workplace: Workplace | None = None) -> str:
    """Return a region's full name from `APP/START` or `APP`, by the checkpoint tables first, then by the applications.

    Raises:
        UnknownName: neither knows it.
    """
    known = workplace.known_regions() if workplace else ()
    if name in known:
        return name
    below = [region for region in known if region.partition("/")[0] == name]
    if len(below) == 1:
        return below[0]
    if len(below) > 1:
        raise UnknownName(f"application {name!r} has several regions", remedy=f"name one of {', '.join(below)}")
    reference, _, start = name.partition("/")
    if ".py" in name:  # a file's path has slashes of its own
        folder, suffix, start = name.partition(".py")
        reference, start = folder + suffix, start.lstrip("/")
    try:
        plan = open_application(reference).plan
    except UnknownName:
        from jobs.graph.application import nearest

        raise UnknownName(f"there is no region {name!r}", remedy=nearest(name, list(known))) from None
    return plan.region(f"{plan.name}/{start}" if start else plan.name).name


def region_run(
    workplace: Workplace,
    opened: Opened,
    region: RegionPlan,
    *,
    run_id: str | None = None,
    report: Report | None = None,
    max_group: int | None = None,
    max_triggers: int | None = None,
    blueprint: Blueprint | None = None,
    drop_states: Collection[str] = (),
) -> RegionRun:
    """Return a run of a region, analysed and not claimed yet; starts the Spark session.

    Args:
        blueprint: of an earlier run of the same code with the same parameters, so as not to analyse it again.
        drop_states: operators whose state begins anew with the claim; see `upgrading.drop_states`.

    Raises:
        OperatorFailed, DeclarationError, SchemaMismatch: the application does not fit; nothing was claimed.
        ClusterRefused: Spark's executors do not reach this machine's files; nothing was claimed.
    """
    from jobs.runtime.blueprint import analyse
    from jobs.runtime.identity import Identity
    from jobs.runtime.run import Limits, RegionRun
    from jobs.runtime.runnable import require_runnable
    from jobs.runtime.stages.run import StagedRun
    from orchestration.code_digest import code_digest
    from orchestration.metrics import metered

    require_runnable(opened.plan, region)
    settings = workplace.settings
    outside = workplace.outside(region.name, opened.application)
    states = labels_in_force(workplace.history(region.name).generations)
    states |= {name: uuid.uuid4().hex[:8] for name in drop_states}  # never one that a table has had already
    workplace.engine.require_inputs(_folders_of(region, settings.project_root))
    if blueprint is None or blueprint.code.states != states:
        facts = (region, opened.application.name, opened.params, outside)
        blueprint = analyse(*facts, states=states, dropped=drop_states)
    run_class = StagedRun if region.channels else RegionRun
    return run_class(
        blueprint=blueprint,
        outside=outside,
        identity=Identity(
            region=region.name,
            run_id=run_id or uuid.uuid4().hex,
            drainmark_version=drainmark_version(),
            graph_fingerprint=region.fingerprint,
            params_hash=opened.params.digest(),
            code=code_digest(opened.application.origin, settings.project_root),
        ),
        limits=Limits(
            triggers=max_group or settings.max_group_triggers,
            size_bytes=min(settings.max_group_bytes, settings.s3_spool_bytes),
            small_bytes=settings.small_group_bytes,
        ),
        report=metered(workplace, outside, report),
        max_triggers=max_triggers,
    )


def _folders_of(region: RegionPlan, root: Path) -> list[Path]:
    """Return the folders of this machine that a region and its autonomous sources read."""
    from jobs.operators.directory_scan import DirectorySource
    from jobs.protocol.addresses import is_object

    sources = (operator for operator in region.run_order if isinstance(operator, DirectorySource))
    return [root / source.scan.path for source in sources if not is_object(source.scan.path)]


def probe_first_use(workplace: Workplace, run: RegionRun) -> None:
    """Try functions that changed, or are new, on two pending triggers; costs nothing where none did.

    Raises:
        NotRowWise: a function mixes the rows of different triggers; nothing was claimed.
    """
    from jobs.runtime.probing import probe_if_changed

    probe_if_changed(run, run.outside, workplace.registry, run.region)


