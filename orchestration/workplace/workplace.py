"""A workplace: settings, registry, store and session of one process, each opened at first use; and opened applications.

A verb that only looks at tables needs neither the language nor the runtime: these are imported where they are used.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.errors import RegistryLost, UnknownName, UsageError
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.state.handlers.data_store import DataStore
from drainmark.resources.registry.queries import Looks

if TYPE_CHECKING:
    from drainmark.jobs.graph.application import Application
    from drainmark.jobs.graph.operator import Operator
    from drainmark.jobs.graph.params import Params
    from drainmark.jobs.regions.plan import ApplicationPlan, RegionPlan
    from drainmark.orchestration.workplace.schema_files import SchemaFile
    from drainmark.resources.checkpoints.region_store import RegionTables
    from drainmark.resources.inputs.inputs import Inputs
    from drainmark.resources.inputs.source_access import RegionAccess
    from drainmark.resources.registry.lease import Owner
    from drainmark.resources.registry.registry import Registry
    from drainmark.resources.settings import Settings
    from drainmark.resources.spark.session import SparkEngine
    from drainmark.resources.storage.folder import Folder

IMPORT_SECONDS = 120.0
"""The longest time for imports, so that a code server is ready within the 180 s that Dagster waits for it."""


@functools.cache
def drainmark_version() -> str:
    """Return the installed version, `0+source` from a bare checkout."""
    with suppress(PackageNotFoundError):
        return version("drainmark")
    return "0+source"


@dataclass
class Workplace:
    """The open resources of one process, for all of its threads: settings, the registry, at most one Spark session.

    Attributes:
        is_service: this process is Dagster's code location, with runs one after the other: `spark = "auto"` means the
            resident Spark, and ticks watch their folders.
        tell: called by the engine that is made here, with the name of a step that takes seconds, before it begins.
        engine: made at first use; a test may give its own instead.
    """

    settings: Settings
    is_service: bool = False
    tell: Callable[[str], None] | None = None
    _registry: Registry | None = None
    _engine: SparkEngine | None = None
    _opening: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    @property
    def home(self) -> Path:
        return self.settings.home

    @functools.cached_property
    def tables(self) -> Folder:
        """Return the folder of `checkpoints/`, `state/` and `lake/`."""
        from drainmark.resources.storage.bucket_folder import tables_folder

        return tables_folder(self.settings)

    @functools.cached_property
    def inputs(self) -> Inputs:
        from drainmark.resources.inputs.inputs import inputs_of

        return inputs_of(self.settings)

    @property
    def registry(self) -> Registry:
        """Return the registry; a service, which lives long, opens it anew if its file was deleted or replaced."""
        with self._opening:
            if self.is_service and self._registry is not None and not self._registry.is_in_place():
                self._registry.close()
                self._registry = None
            if self._registry is None:
                from drainmark.resources.registry.registry import Registry

                self.settings.make_home()
                self._registry = Registry(self.settings.registry_url or f"sqlite:///{self.home / 'registry.db'}")
            return self._registry

    @property
    def has_registry(self) -> bool:
        """Say whether the registry is open."""
        return self._registry is not None

    @property
    def engine(self) -> SparkEngine:
        with self._opening:
            if self._engine is None:
                from drainmark.orchestration.workplace.spark_choice import make_engine

                self._engine = make_engine(self.settings, is_service=self.is_service)
                self._engine.tell = self.tell or self._engine.tell
            return self._engine

    def use_engine(self, engine: SparkEngine) -> None:
        """Use an engine that the caller owns."""
        self._engine = engine

    def store(self, region: str) -> RegionTables:
        from drainmark.resources.checkpoints.region_store import RegionTables
        from drainmark.resources.sinks.external_sinks import Externals

        outside, here_bytes = Externals(self.settings), self.settings.small_group_bytes
        return RegionTables(self.home, region, self.tables, lambda: self.engine, outside, here_bytes=here_bytes)

    def history(self, region: str) -> RegionHistory:
        """Return a region's facts from its checkpoint table; empty facts if there is none."""
        from drainmark.resources.checkpoints.checkpoint_table import CHECKPOINTS, CheckpointTable

        checkpoint = CheckpointTable(self.tables / CHECKPOINTS / region, region)
        return checkpoint.history() if checkpoint.exists() else RegionHistory()

    def has_states(self, region: str) -> bool:
        """Say whether a region has committed states."""
        return bool(self.history(region).states)

    def known_regions(self) -> tuple[str, ...]:
        """Return the regions that have a checkpoint table, sorted."""
        from drainmark.resources.checkpoints.checkpoint_table import regions_of

        return regions_of(self.tables)

    def own_regions(self) -> tuple[str, ...]:
        """Return the known regions without those whose checkpoint table is a copy of another region's."""
        from drainmark.resources.checkpoints.checkpoint_table import is_copy

        return tuple(region for region in self.known_regions() if not is_copy(self.tables, region))

    def access(self, region: str) -> RegionAccess:
        from drainmark.resources.inputs.source_access import RegionAccess

        return RegionAccess(region, self.settings, self.tables, self.registry)

    def state_store(self) -> DataStore | None:
        """Return the store of handlers' chunks; None if they are rows of the states' tables."""
        from drainmark.resources.checkpoints.data_stores import data_store_of

        url = self.settings.state_store
        return None if url == "delta" else data_store_of(url, self.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """An application ready to be run: compiled, its parameters bound, its inputs overridden.

    Attributes:
        reference: the reference, or the name, that it was opened by.
        schemas: of sources that declare none; see `schema_files`.
    """

    reference: str
    plan: ApplicationPlan
    params: Params
    schemas: Sequence[SchemaFile] = ()

    @property
    def application(self) -> Application:
        return self.plan.application

    def region(self, name: str | None = None) -> RegionPlan:
        """Return a region by name, or the only one.

        Raises:
            UnknownName, UsageError: there is none of that name, or there are several.
        """
        return self.plan.region(name or self.plan.name)

    def regions(self, start: str | None = None) -> Sequence[RegionPlan]:
        """Return all regions, or the one that begins with a start.

        Raises:
            UnknownName: there is none.
        """
        return self.plan.regions if start is None else [self.plan.region(f"{self.plan.name}/{start}")]


def open_application(
    reference: str | Application,
    *,
    params: Mapping[str, Any] | None = None,
    inputs: Sequence[str] = (),
    settings: Settings | None = None,
) -> Opened:
    """Load, override, compile and bind an application.

    Args:
        reference: a reference for `load_application`, or an application that was built by hand.
        inputs: `[NAME=]PATH`, as for `--input`.
        settings: give the place of the input, from which schemas are inferred that neither code nor a file holds.

    Raises:
        DeclarationError, UnknownName, UsageError.
    """
    from drainmark.jobs.graph.params import bind_params
    from drainmark.jobs.regions.plan import compile_application
    from drainmark.orchestration.workplace.schema_files import with_schemas

    application = _loaded(reference, settings) if isinstance(reference, str) else reference
    application, schemas = with_schemas(with_inputs(application, overrides_of(inputs)), settings)
    return Opened(
        reference=reference if isinstance(reference, str) else application.name,
        plan=compile_application(application),
        params=bind_params(application.params_class, params or {}),
        schemas=schemas,
    )


def _loaded(reference: str, settings: Settings | None) -> Application:
    from drainmark.jobs.graph.application import load_application, nearest

    try:
        return load_application(reference)
    except UnknownName as error:
        own = [Path(each).stem if each.endswith(".py") else each for each in settings.applications] if settings else []
        if own and error.location is None:  # suggest the project's own applications, not the examples
            is_named = reference in own or (Path(reference).stem in own and not Path(reference).is_file())
            error.remedy = "mend `applications` in drainmark.toml" if is_named else nearest(reference, own)
        raise


def open_in_time(
    settings: Settings | None,
    reference: str,
    *,
    params: Mapping[str, Any] | None = None,
    inputs: Sequence[str] = (),
    most_seconds: float = IMPORT_SECONDS,
) -> Opened:
    """Open an application as `open_application` does, in a thread that is abandoned if it takes too long.

    Args:
        settings: their `analysis_timeout_seconds` is the time-out; None without a project.
        most_seconds: upper bound of the time-out.

    Raises:
        AnalysisTimeout: the import did not end in time; names the author's line at which it hangs.
        ApplicationBroken, DeclarationError, UnknownName, UsageError: see `open_application`.
    """
    from drainmark.jobs.errors.environment import AnalysisTimeout
    from drainmark.jobs.graph.own_modules import authors_line, give_up_load
    from drainmark.jobs.runtime.timeout import Bounded, Grace

    def late(seconds: float) -> AnalysisTimeout:
        location = authors_line((frame.f_code.co_filename, frame.f_lineno) for frame in opening.frames())
        where = f", in {location}" if location is not None else ""
        return AnalysisTimeout(
            f"application {reference!r} cannot be loaded: its import took longer than {seconds:.3g} s{where}",
            location=location,
            seconds=seconds,
            remedy="do nothing slow where the file is imported; or raise analysis_timeout_seconds",
        )

    opening = Bounded(
        lambda: open_application(reference, params=params, inputs=inputs, settings=settings),
        min(most_seconds, settings.analysis_timeout_seconds if settings is not None else most_seconds),
        Grace(lambda: False),
        late=late,
        cancel=lambda: give_up_load(opening.thread),
        name="import",
    )
    return opening.result()


def opened_in_time(
    settings: Settings, references: Sequence[str], *, most_seconds: float = IMPORT_SECONDS
) -> Iterator[tuple[str, Opened | Exception]]:
    """Open applications one after the other, all within one time-out; yield each reference with its result or error.

    Each may take half of the time that is left, the last one all of it: one that hangs leaves time to the others.
    """
    ends = world.monotonic() + min(settings.analysis_timeout_seconds, most_seconds)
    for later, reference in zip(reversed(range(len(references))), references, strict=True):
        left = max(0.0, ends - world.monotonic())
        try:
            yield reference, open_in_time(settings, reference, most_seconds=left / 2 if later else left)
        except Exception as error:  # after any error of one author's file, the others are still opened
            yield reference, error


def existing_registry(workplace: Workplace) -> Registry | None:
    """Return the registry if there is one that can be read; this call does not create it."""
    from drainmark.resources.settings import SQLITE

    url = workplace.settings.registry_url
    if url.startswith(SQLITE) and not Path(url.removeprefix(SQLITE)).is_file():
        return None
    try:
        return workplace.registry
    except RegistryLost:
        return None


def require_known(workplace: Workplace, region: str, history: RegionHistory | None = None) -> None:
    """Raise RegistryLost if the registry has no rows of a region with states: all its input would seem new."""
    if workplace.registry.is_empty(region) and (history or workplace.history(region)).states:
        msg = f"the registry knows nothing of {region!r}, its checkpoint table does"
        raise RegistryLost(msg, remedy="rebuild it first: drainmark doctor --repair")


def living_owner(workplace: Workplace, region: str) -> Owner | None:
    """Return the owner of a region if it is alive; None without one, and without a registry that can be read."""
    from drainmark.resources.registry.lease import describe

    registry = existing_registry(workplace)
    if registry is None:
        return None
    owner = describe(registry, region, lease_seconds=workplace.settings.lease_seconds)
    return owner if owner is not None and owner.is_alive else None


def looks(workplace: Workplace) -> Looks | None:
    """Return the fastest object that answers queries about the registry; None if there is none that can be read.

    A registry of an older version is brought up to date first.
    """
    found = None if workplace.has_registry else registry_as_it_is(workplace.settings)
    return found or existing_registry(workplace)


def registry_as_it_is(settings: Settings) -> Looks | None:
    """Return an object that answers queries and changes nothing, if the registry is an SQLite file of this version."""
    from drainmark.resources.registry.queries import SqliteLooks
    from drainmark.resources.settings import SQLITE

    if not settings.registry_url.startswith(SQLITE):
        return None
    found = SqliteLooks(Path(settings.registry_url.removeprefix(SQLITE)))
    return found if found.is_of_today() else None


def overrides_of(items: Sequence[str]) -> dict[str, str]:
    """Return the path by name of the source; the name is "" for the only source."""
    split = ((item, *item.partition("=")) for item in items)
    return dict((name, path) if sign and name.isidentifier() else ("", item) for item, name, sign, path in split)


def _absolute(path: str) -> str:
    from drainmark.jobs.protocol.records.addresses import address_of, is_object

    if is_object(path):
        address_of(path)
        return path
    return str(Path(path).absolute())


def with_inputs(application: Application, overrides: Mapping[str, str]) -> Application:
    """Return the application with sources that read the given paths, which count from the working directory.

    Raises:
        UnknownName, UsageError: there is no such source, several are possible, or an address is not valid.
    """
    from drainmark.jobs.graph.application import nearest
    from drainmark.jobs.operators.sources.files.directory_source import DirectorySource

    sources = [operator for operator in application.operators if isinstance(operator, DirectorySource)]
    if "" in overrides and len(sources) != 1:
        msg = f"application {application.name!r} has {len(sources)} sources: say which one"
        raise UsageError(msg, remedy="--input NAME=PATH")
    for name in overrides:
        if name and name not in {source.name for source in sources}:
            raise UnknownName(f"there is no source {name!r}", remedy=nearest(name, [s.name for s in sources]))
    operators: list[Operator] = []
    for operator in application.operators:
        path = overrides.get(operator.name, overrides.get("")) if isinstance(operator, DirectorySource) else None
        if path is not None and isinstance(operator, DirectorySource):
            operators.append(replace(operator, scan=replace(operator.scan, path=_absolute(path))))
        else:
            operators.append(operator)
    return replace(application, operators=tuple(operators))
