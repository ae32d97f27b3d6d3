"""`run --dry-run`: the findings of a run, without a claim, a commit or a note in the registry."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.protocol.records.triggers import NewTrigger, Trigger, TriggerStatus
from drainmark.jobs.scan.findings import ScanResult
from drainmark.orchestration.discovery.region_scan import upcoming
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.orchestration.workplace.region_sources import has_folder, is_periodic, source_folder, source_of
from drainmark.orchestration.workplace.workplace import Opened, Workplace, existing_registry

if TYPE_CHECKING:
    from drainmark.jobs.regions.plan import RegionPlan
    from drainmark.jobs.runtime.region_run import RegionRun

_SHOWN = 20


def rehearse(workplace: Workplace, opened: Opened, region: RegionPlan) -> dict[str, Any]:
    """Return the pending triggers and, by operator, whether it vectorises; starts the Spark session.

    Raises:
        OperatorFailed, DeclarationError: a run would fail at its start.
        NotRowWise: a function mixes the rows of different triggers.
        UsageError: there is no folder to scan.
    """
    registry = existing_registry(workplace)
    known = registry.triggers.known(region.name) if registry is not None else {}
    found = _found(workplace, region, known)
    waiting = registry.triggers.pending(region.name, _SHOWN) if registry is not None else []
    count = registry.pending_count(region.name) if registry is not None else 0
    run = region_run(workplace, opened, region)
    blueprint = run.blueprint
    forced = blueprint.forced_single
    probed = _probe(run, [*waiting, *(_as_pending(region.name, new) for new in found.new)])
    return {
        "region": region.name,
        "pending_triggers": count + len(found.new),
        "changed": [uri for uri, _, _ in found.changed],
        "unsettled": found.unsettled,
        "refused": [{"file": uri, "reason": reason} for uri, reason in found.refused],
        "next": [trigger.uri for trigger in (*waiting, *found.new)][:_SHOWN],
        "vectorises": {
            operator.name: {"vectorises": operator.name not in forced, "reason": forced.get(operator.name)}
            for operator in region.operators
        },
        "probed": probed,
        "tables": [
            {"table": table.name, "role": table.role.value, "operator": table.operator} for table in blueprint.tables
        ],
    }


def _found(workplace: Workplace, region: RegionPlan, known: Mapping[str, str]) -> ScanResult:
    """Return the findings of a scan; none for a periodic region: its input is known only at the end of the period."""
    if is_periodic(region):
        return ScanResult()
    if not has_folder(region):
        return ScanResult(new=tuple(upcoming(workplace, region)))
    source = source_of(region)
    return workplace.inputs.scan(source_folder(workplace, source), source.scan, known, now=world.now())


def _probe(run: RegionRun, pending: Sequence[Trigger]) -> list[str]:
    """Try every row-wise function on the first two files of an output; return the names of those that passed."""
    from drainmark.jobs.runtime.probe.row_wise_probe import pairs, probe

    return sorted({name for pair in pairs(pending) for name in probe(run.blueprint, run.owner.outside, pair)})


def _as_pending(region: str, new: NewTrigger) -> Trigger:
    """Return the pending trigger for a file that no registry knows yet."""
    facts = {field.name: getattr(new, field.name) for field in dataclasses.fields(NewTrigger)}
    now = dt.datetime.fromtimestamp(world.now(), dt.UTC)
    return Trigger(id=0, region=region, order_index=0, status=TriggerStatus.PENDING, discovered_at=now, **facts)
