"""What compiles and cannot be run by this version: said at once, before anything is claimed."""

from __future__ import annotations

from collections.abc import Iterator

from jobs.errors import DeclarationError, Violation
from jobs.graph.operator import Operator
from jobs.operators.lookup import Lookup
from jobs.operators.sources import Source
from jobs.regions.plan import ApplicationPlan, RegionPlan


def require_runnable(plan: ApplicationPlan, region: RegionPlan) -> None:
    """Refuse a region whose graph this version only compiles.

    Raises:
        DeclarationError: names every operator and why.
    """
    violations = list(_violations(plan, region))
    if violations:
        raise DeclarationError(plan.name, violations)


def _violations(plan: ApplicationPlan, region: RegionPlan) -> Iterator[Violation]:
    for operator in region.starts:
        if not isinstance(operator, Source):
            yield _not_run(operator, "it starts a region and is no source", "start at a dm.source")
    for operator in region.feeds:
        if not isinstance(operator, Lookup):
            yield _not_run(operator, "it feeds the region from outside and is no lookup", "dm.lookup, or @consistent")
    for autonomous in plan.autonomous:
        if region.name in autonomous.reads:
            first = autonomous.operators[0]
            yield _not_run(first, "autonomous operators downstream of a region are not run", "remove @autonomous")
    yield from _loops(region)


def _loops(region: RegionPlan) -> Iterator[Violation]:
    seen: set[str] = set()
    for operator in region.run_order:
        for port in operator.inputs:
            if port.upstream not in seen and not port.control:
                yield _not_run(operator, f"{port.upstream!r} comes back to it: loops are compiled, not run", "cut it")
        seen.add(operator.name)


def _not_run(operator: Operator, why: str, remedy: str) -> Violation:
    return Violation(
        rule="NOT_RUNNABLE",
        message=f"{operator.name}: {why} by this version",
        operator=operator.name,
        location=operator.location,
        remedy=remedy,
    )
