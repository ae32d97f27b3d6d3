"""The part of a region that one stage runs, as plan and blueprint for the work on a group."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.regions.stages import StagePlan
from drainmark.jobs.runtime.analysis.blueprint import Blueprint


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRegion(RegionPlan):
    """One stage as a region of its own; look-ups of operators and readers of streams cover the whole region."""

    whole: RegionPlan

    def operator(self, name: str) -> Operator:
        return self.whole.operator(name)

    @property
    def first_start(self) -> Operator:
        return self.whole.first_start

    def index_of(self, operator: Operator) -> int:
        return self.whole.index_of(operator)

    def consumers(self, name: str, output: str = "") -> int:
        return self.whole.consumers(name, output)


def narrowed(blueprint: Blueprint, stage: StagePlan) -> Blueprint:
    """Return the blueprint of one stage: its operators, their states and tables, and the feeds that it reads.

    A derived table belongs to the stage that writes its history. For an upsert sink right behind an aggregate with the
    same keys, that is the aggregate's stage.
    """
    whole = blueprint.region
    names = {operator.name for operator in stage.operators}
    written_by = {operator: table for operator, table in blueprint.written_by.items() if operator in names}
    kept = {key: table for key, table in blueprint.kept.items() if key[0] in names}
    staged = {*written_by.values(), *kept.values()}
    values = {field.name: getattr(whole, field.name) for field in fields(RegionPlan)}
    values |= {
        "starts": stage.starts,
        "operators": stage.operators,
        "run_order": stage.run_order,
        "feeds": tuple(operator for operator in stage.run_order if operator.name not in names),
        "followers": stage.followers,
        "tables": tuple(table for table in whole.tables if table.operator in names),
    }
    return replace(
        blueprint,
        region=StageRegion(**values, whole=whole),
        tables=tuple(table for table in blueprint.tables if (table.history or table.name) in staged),
        written_by=written_by,
        kept=kept,
        made={},
    )
