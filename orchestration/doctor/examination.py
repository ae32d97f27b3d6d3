"""All checks of `doctor`, one after another; if a check raises an error, the others still run."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import DrainmarkError
from drainmark.jobs.regions.formatting import counted
from drainmark.orchestration.dagster_assets.instance import instance_home
from drainmark.orchestration.doctor import machine
from drainmark.orchestration.doctor.engine import engine
from drainmark.orchestration.doctor.findings import Finding, Severity, broken, fail, ok
from drainmark.orchestration.doctor.regions import examine_region
from drainmark.orchestration.runs.failures_before_claim import unopened
from drainmark.orchestration.workplace.declaration import configured_applications
from drainmark.orchestration.workplace.workplace import Workplace, drainmark_version, existing_registry

if TYPE_CHECKING:
    from pathlib import Path

    from drainmark.resources.registry.registry import Registry

_PACKAGES = {"spark": "pyspark", "delta": "delta-spark", "deltalake": "deltalake", "dagster": "dagster"}


def examine(
    workplace: Workplace, *, with_engine: bool = True, tell: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Return facts about this installation and this home, all `checks`, and the failed checks as `problems`.

    Each check: `check`, `verdict` (ok, warn, fail), `message`, `remedy`. A problem: `message`, `remedy`.

    Args:
        with_engine: also start and try Spark.
        tell: called with the name of a step that takes seconds, before it begins.
    """
    settings = workplace.settings
    java, java_found = machine.java()
    space, space_found = machine.free_bytes(workplace.home)
    are_jars_cached = _has_jars(workplace.home / "spark")
    findings = [java_found, machine.versions(), machine.jars(are_jars_cached), space_found]
    findings += [machine.registry_disk(settings.registry_url), machine.spark_settings(settings.spark_conf)]
    registry, registry_found = _registry(workplace)
    names = _guarded("checkpoint", lambda: list(workplace.known_regions()), findings)
    regions = []
    for name in names:
        entry, found = examine_region(workplace, name, registry)
        regions.append(entry)
        findings += found
    findings += applications(workplace)
    findings.append(registry_found or _lost(bool(names), registry))
    if workplace.home.is_dir():
        findings += _guarded("resident_spark", lambda: machine.resident_spark(workplace.home), findings)
        findings += _guarded("tables_disk", lambda: machine.tables_disk(workplace.tables), findings)
        findings += _guarded("store", lambda: machine.store(workplace.tables), findings)
        findings += _guarded(
            "one_daemon", lambda: machine.instance(settings.dagster_home, instance_home(settings)), findings
        )
    if with_engine:
        findings += _guarded("engine", lambda: engine(workplace, tell), findings)
    failed = [finding for finding in findings if finding.verdict is Severity.FAIL]
    return {
        "home": str(workplace.home),
        "project_root": str(settings.project_root),
        "versions": {
            "drainmark": drainmark_version(),
            "python": platform.python_version(),
            "java": java,
            **{name: machine.installed(package) for name, package in _PACKAGES.items()},
        },
        "registry_revision": _revision() if registry is not None else None,
        "regions": regions,
        "free_bytes": space,
        "jars_cached": are_jars_cached,
        "checks": [finding.to_json() for finding in findings],
        "problems": [{"message": finding.message, "remedy": finding.remedy} for finding in failed],
    }


def applications(workplace: Workplace) -> list[Finding]:
    """Load each application of the settings, as its run does first; a hanging import is abandoned."""
    references = configured_applications(workplace.settings)
    failed = [broken("applications", error) for error in unopened(workplace, references).values()]
    return failed or [ok("applications", f"{counted(len(references), 'application')} of the settings can be loaded")]


def _registry(workplace: Workplace) -> tuple[Registry | None, Finding | None]:
    """Return the registry if it exists and can be opened, and the finding if it cannot."""
    try:
        return existing_registry(workplace), None
    except DrainmarkError as error:
        return None, broken("registry", error, remedy="look at registry_url")


def _lost(has_regions: bool, registry: Registry | None) -> Finding:
    if registry is None and has_regions:
        return fail("registry", "the registry is lost or damaged", "drainmark doctor --repair")
    return ok("registry", "the registry answers" if registry is not None else "no registry yet: nothing has run")


def _guarded(check: str, look: Callable[[], Iterable[Any]], findings: list[Finding]) -> list[Any]:
    try:
        return list(look())
    except Exception as error:
        findings.append(broken(check, error))
        return []


def _revision() -> str:
    from drainmark.resources.registry.queries import REVISIONS

    return REVISIONS[-1]  # to open a registry brings it to this revision, or fails


def _has_jars(scratch: Path) -> bool:
    from drainmark.resources.spark.session_settings import delta_settings

    return "spark.jars" in delta_settings(scratch)
