"""Legal constructs of a compiled application that may be mistakes; `rules` has the errors."""

from __future__ import annotations

from collections.abc import Iterator

from drainmark.jobs.graph.annotations import Alignment
from drainmark.jobs.regions.clocks import Statement, clock_reads
from drainmark.jobs.regions.plan import ApplicationPlan, AutonomousPlan, RegionPlan


def notes(plan: ApplicationPlan, statement: Statement | None = None) -> tuple[str, ...]:
    """Return a sentence for each construct that an author may have overlooked.

    Args:
        statement: see `clock_reads`.
    """
    found = [] if plan.regions else ["no region: nothing here is consistent; put @dm.consistent on a source"]
    for region in plan.regions:
        found += [*_undeclared_autonomous_ports(region), *_ends_without_sink(region), *_without_effect(region)]
    for outside in plan.autonomous:
        found += [*_sources_without_region(outside), *_rows_twice(outside)]
    found += _of_operators(plan)
    found += _clocks(plan, statement)
    return tuple(found)


def _undeclared_autonomous_ports(region: RegionPlan) -> Iterator[str]:
    """Yield a note for each undeclared autonomous port: its rows may be lost. Lookups, which are read, need none."""
    lookups = {operator.name for operator in region.feeds if operator.is_reference}
    for port in region.ports:
        declared = region.operator(port.operator).inputs[port.index].autonomous
        if not port.port_class.is_consistent and not declared and port.upstream not in lookups:
            yield (
                f"{port.operator} reads {port.stream} from outside {region.name}, at most once;"
                " if that is meant, annotate the parameter dm.Autonomous"
            )


def _ends_without_sink(region: RegionPlan) -> Iterator[str]:
    for end in region.ends:
        if not end.is_sink:
            yield f"{end.name} ends {region.name} and is no sink: nothing keeps its rows"


def _without_effect(region: RegionPlan) -> Iterator[str]:
    """Yield a note if a region of one stage sets alignment parameters: they have no effect without channels."""
    parameters = region.parameters
    if len(region.stages) == 1 and (parameters.alignment != Alignment.ALIGNED or parameters.alignment_timeout):
        yield f"{region.name} has one stage, so alignment changes nothing: cut it with dm.buffered, or leave that out"


def _of_operators(plan: ApplicationPlan) -> Iterator[str]:
    """Yield the notes of each operator on its own configuration, for example on rows that it would lose."""
    ports = [port for operator in plan.application.operators for port in operator.inputs]
    for operator in plan.application.operators:
        yield from operator.notes({port.output for port in ports if port.upstream == operator.name})


def _clocks(plan: ApplicationPlan, statement: Statement | None) -> Iterator[str]:
    """Yield a note for each operator that reads the clock: a replay gives other rows."""
    for operator in plan.application.operators:
        if read := clock_reads(operator, statement):
            yield (
                f"{operator.name} reads the clock ({', '.join(read)}): a replay or a rewind gives other rows;"
                " take times from the rows"
            )


def _sources_without_region(outside: AutonomousPlan) -> Iterator[str]:
    for operator in outside.operators:
        if operator.may_start and not operator.autonomous:
            yield f"{operator.name} is in no region: nothing replays it; put @dm.consistent on it"


def _rows_twice(outside: AutonomousPlan) -> Iterator[str]:
    """Yield a note if tables may get rows twice: the starts of a region replay."""
    if outside.reads and outside.tables:
        yield f"{', '.join(outside.tables)} may get rows twice: written outside {', '.join(outside.reads)}"
