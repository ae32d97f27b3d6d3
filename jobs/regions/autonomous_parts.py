"""Autonomous parts that run by themselves: they have a source of their own, and tables."""

from __future__ import annotations

from drainmark.jobs.graph.annotations import Checkpoints, Consistent, TriggerKind
from drainmark.jobs.graph.params import digest_of
from drainmark.jobs.regions.plan import ApplicationPlan, AutonomousPlan, RegionPlan, TablePlan, fingerprint_of
from drainmark.jobs.regions.stages import only_stage


def running_parts(plan: ApplicationPlan) -> tuple[AutonomousPlan, ...]:
    """Return the parts that run beside the regions. A part that reads a region, or only feeds one, runs with it."""
    return tuple(
        part
        for part in plan.autonomous
        if part.tables and not part.reads and any(operator.may_start for operator in part.operators)
    )


def as_plan(application: str, part: AutonomousPlan) -> RegionPlan:
    """Return a part as a region plan, so that the same code runs operators inside and outside regions.

    That makes no region: no state is coordinated.
    """
    operators = part.operators
    names = {operator.name for operator in operators}
    fingerprints = {operator.name: fingerprint_of(operator) for operator in operators}
    starts = tuple(operator for operator in operators if operator.may_start)
    read = {port.upstream for operator in operators for port in operator.inputs}
    return RegionPlan(
        name=part.name,
        starts=starts,
        ends=tuple(operator for operator in operators if operator.name in names - read),
        operators=operators,
        feeds=(),
        run_order=operators,
        followers=(),
        stages=(only_stage(operators, starts=starts),),
        channels=(),
        parameters=Consistent(trigger=TriggerKind.OPERATOR_DRIVEN.value, checkpoints=Checkpoints.BLOCKING.value),
        ports=(),
        vectorisation={operator.name: operator.vectorisation() for operator in operators},
        tables=tuple(
            TablePlan(name=table, operator=operator.name, guarantee=part.guarantee)
            for operator in operators
            for table in operator.tables
        ),
        quarantine=f"{application}_{starts[0].name}_quarantine",
        fingerprints=fingerprints,
        fingerprint=digest_of(fingerprints),
    )
