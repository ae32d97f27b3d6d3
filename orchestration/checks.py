"""Asset checks of a region, on its checkpoint table: judged at the end of each run, and whenever somebody asks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from jobs.protocol.history import RegionHistory
from jobs.protocol.ids import INITIAL_ID
from jobs.protocol.manifest import RegionTable
from jobs.protocol.rows import RowKind
from jobs.regions.plan import RegionPlan
from orchestration.assembly import Workplace
from orchestration.assets import checkpoint_key, dagster_name

HORIZON_HOURS = 24.0
"""A rewind horizon that reaches back less than this is worth a warning."""

SAME_ID = "sinks_at_same_id"
NOT_HALTED = "not_halted"
REWIND_HORIZON = "rewind_horizon"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What one check found."""

    name: str
    passed: bool
    description: str
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR
    metadata: dict[str, Any] = field(default_factory=dict)


def check_specs(region: RegionPlan) -> list[dg.AssetCheckSpec]:
    asset = checkpoint_key(region)
    return [
        dg.AssetCheckSpec(SAME_ID, asset=asset, description="every table shows exactly the last committed state"),
        dg.AssetCheckSpec(NOT_HALTED, asset=asset, description="the region waits for no operator"),
        dg.AssetCheckSpec(REWIND_HORIZON, asset=asset, description="a rewind can go back at least a day"),
    ]


def build_checks(workplace: Workplace, region: RegionPlan) -> dg.AssetChecksDefinition:
    """Return the checks as something that can be run from the asset's page."""

    @dg.multi_asset_check(name=f"{dagster_name(region.name)}__checks", specs=check_specs(region))
    def checks() -> Iterator[dg.AssetCheckResult]:
        for judgement in judgements(workplace, region):
            yield dg.AssetCheckResult(
                asset_key=checkpoint_key(region),
                check_name=judgement.name,
                passed=judgement.passed,
                severity=judgement.severity,
                description=judgement.description,
                metadata=judgement.metadata,
            )

    return checks


def evaluations(workplace: Workplace, region: RegionPlan) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield the checks' results as events of a run that has handed over."""
    for judgement in judgements(workplace, region):
        yield dg.AssetCheckEvaluation(
            asset_key=checkpoint_key(region),
            check_name=judgement.name,
            passed=judgement.passed,
            severity=judgement.severity,
            description=judgement.description,
            metadata=judgement.metadata,
        )


def judgements(workplace: Workplace, region: RegionPlan) -> Iterator[Judgement]:
    """Yield every check's result, from the checkpoint table and the tables' statistics; starts no session."""
    history = workplace.history(region.name)
    yield _same_id(workplace, region, history)
    yield _not_halted(region, history)
    yield _rewind_horizon(history, region.parameters.rewind_horizon)


def _same_id(workplace: Workplace, region: RegionPlan, history: RegionHistory) -> Judgement:
    newest = {table.name: _newest_id(workplace, region, table) for table in history.tables}
    above = sorted(name for name, number in newest.items() if number > history.committed_id)
    behind = len(history.unpublished)
    if above:
        description = f"rows above the committed id {history.committed_id} in {', '.join(above)}"
    elif behind:
        description = f"{behind} committed groups are not published yet: the next run rolls them forward"
    else:
        description = f"all {len(newest)} tables are at {history.committed_id}"
    return Judgement(
        name=SAME_ID,
        passed=not above and not behind,
        description=description,
        metadata={
            "drainmark/sequence_id": history.committed_id,
            "drainmark/published_sequence_id": history.published_id,
            **{f"newest id in {name}": number for name, number in newest.items()},
        },
    )


def _newest_id(workplace: Workplace, region: RegionPlan, table: RegionTable) -> int:
    managed = workplace.store(region.name).table(table.name)
    if not managed.exists():
        return INITIAL_ID
    return max((file.last_id or INITIAL_ID for file in managed.live_files()), default=INITIAL_ID)


def _not_halted(region: RegionPlan, history: RegionHistory) -> Judgement:
    if history.halt is None:
        return Judgement(name=NOT_HALTED, passed=True, description="not halted",
                         metadata={"drainmark/attempts": history.attempts})  # fmt: skip
    detail = history.halt.detail
    return Judgement(
        name=NOT_HALTED,
        passed=False,
        description=f"halted: {detail.get('reason')}; mend the cause, then: drainmark resume {region.name}",
        metadata={f"drainmark/{name}": str(detail[name]) for name in ("trigger", "operator") if detail.get(name)},
    )


def _rewind_horizon(history: RegionHistory, horizon: int) -> Judgement:
    reach = max(INITIAL_ID, history.committed_id - horizon)
    within = [row for number, row in history.states.items() if number >= reach and row.kind is RowKind.STATE]
    if reach == INITIAL_ID or not within:
        return Judgement(
            name=REWIND_HORIZON, passed=True, severity=dg.AssetCheckSeverity.WARN,
            description="a rewind can go back to the beginning", metadata={"drainmark/oldest_sequence_id": INITIAL_ID},
        )  # fmt: skip
    hours = (dt.datetime.now(dt.UTC) - within[0].recorded_at).total_seconds() / 3600
    return Judgement(
        name=REWIND_HORIZON,
        passed=hours >= HORIZON_HOURS,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"a rewind can go back {hours:.1f} hours, to id {within[0].sequence_id}",
        metadata={"drainmark/oldest_sequence_id": within[0].sequence_id, "drainmark/horizon_hours": round(hours, 2)},
    )
