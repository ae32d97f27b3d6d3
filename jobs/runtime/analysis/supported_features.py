"""Features that compile, but that this version cannot run; reported before the claim."""

from __future__ import annotations

from collections.abc import Iterator

from drainmark.jobs.errors import Violation
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.operators.handler import Handled
from drainmark.jobs.operators.joins.lookup import Lookup
from drainmark.jobs.operators.row_wise.parse import Parse
from drainmark.jobs.operators.sinks.delta_append import DeltaSink
from drainmark.jobs.operators.sinks.delta_overwrite import DeltaOverwriteSink
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
from drainmark.jobs.operators.sources.source import Source
from drainmark.jobs.regions.plan import ApplicationPlan, AutonomousPlan, RegionPlan
from drainmark.jobs.runtime.analysis.column_types import refuse


def require_runnable(plan: ApplicationPlan, region: RegionPlan) -> None:
    """Refuse a region with a graph that this version compiles but cannot run.

    Raises:
        DeclarationError: an operator cannot run; the error names every such operator and the reason.
    """
    refuse(plan.name, _violations(plan, region))


def require_part_runnable(plan: ApplicationPlan, part: AutonomousPlan) -> None:
    """Refuse an autonomous part, with a source of its own, that this version compiles but cannot run.

    Raises:
        DeclarationError: an operator cannot run; the error names every such operator and the reason.
    """
    refuse(plan.name, _violations_of_part(part))


def _violations_of_part(part: AutonomousPlan) -> Iterator[Violation]:
    sources = [operator for operator in part.operators if isinstance(operator, Source)]
    for source in sources[1:]:
        yield _not_run(source, "it is a second source in one autonomous part", "one scan with several outputs")
    for source in sources:
        yield from _unfit_source(source)
    for operator in part.operators:
        if operator.is_sink and not _is_plain(operator):
            yield _not_run(operator, "outside of a region, it writes to a table that is not managed", "dm.DeltaAppend")
        elif isinstance(operator, Handled):
            yield _not_run(operator, "it is a state handler outside of a region", "@dm.consistent on its source")


def _violations(plan: ApplicationPlan, region: RegionPlan) -> Iterator[Violation]:
    for operator in region.starts:
        if not isinstance(operator, Source):
            yield _not_run(operator, "it starts a region and is no source", "start at a dm.source")
    for operator in region.feeds:
        if operator.is_source and not isinstance(operator, Lookup):
            yield from _unfit_source(operator)
        if operator.keeps_state:
            yield _not_run(operator, "it feeds the region from outside and keeps state", "keep it in the region")
    for autonomous in plan.autonomous:
        if region.name in autonomous.reads:
            yield from _following(autonomous)
    yield from _loops(region)


def _unfit_source(source: Operator) -> Iterator[Violation]:
    """Yield the violations of a source outside of a region: its cursor needs files that stay in place."""
    if not isinstance(source, DirectorySource):
        yield _not_run(source, "it is outside of a region and no DirectoryScan source", "@dm.consistent on it")
    elif source.scan.after != "keep":
        yield _not_run(source, f"after={source.scan.after!r} is for files that a region has read", 'after="keep"')


def _is_plain(operator: Operator) -> bool:
    """Is it a sink to a Delta table that needs no region: it appends, or writes one row per key?"""
    return isinstance(operator, DeltaSink) and not isinstance(operator, DeltaOverwriteSink) and not operator.adopt


def _following(part: AutonomousPlan) -> Iterator[Violation]:
    """Yield the violations of a part after a region. It runs per group: stateless operators, lookups, own sinks."""
    if len(part.reads) > 1:
        regions = " and ".join(part.reads)
        yield _not_run(part.operators[0], f"its part of the graph reads {regions}", "a part for each region")
    for operator in part.operators:
        if isinstance(operator, Source):
            yield _not_run(operator, f"it is joined outside with the output of {part.reads[0]}", "join in the region")
        elif operator.keeps_state:
            yield _not_run(operator, "it keeps state behind a region and outside of it", "remove @autonomous")
        elif operator.is_sink and not isinstance(operator, DeltaSink):
            yield _not_run(operator, "it writes outside of a region and is no Delta table", "dm.DeltaAppend")
        elif isinstance(operator, DeltaSink) and operator.adopt:
            yield _not_run(operator, "it writes to an adopted table outside of a region", "adopt=False")
        elif operator.is_sink and not _is_plain(operator):
            yield _not_run(operator, "it overwrites a table outside of a region", "dm.DeltaAppend, or dm.DeltaUpsert")
        elif isinstance(operator, Parse) and operator.on_bad != "null":
            yield _not_run(operator, "there is no quarantine behind a region and outside of it", 'on_bad="null"')


def _loops(region: RegionPlan) -> Iterator[Violation]:
    seen: set[str] = set()
    for operator in region.run_order:
        for port in operator.inputs:
            if port.upstream not in seen and not port.control:
                why = f"{port.upstream!r} is a stream of another region, or comes back to it: compiled, not run"
                yield _not_run(operator, why, "read the other region's table with dm.lookup, or cut the loop")
        seen.add(operator.name)


def _not_run(operator: Operator, why: str, remedy: str) -> Violation:
    return operator.wrong("NOT_RUNNABLE", f"{why} by this version", remedy)
