"""`run --dry-run`: what a run would find, without a claim, a commit or a note in the registry."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from orchestration.assembly import Opened, Workplace, region_run, source_folder, source_of
from orchestration.declared import existing_registry

if TYPE_CHECKING:
    from jobs.regions.plan import RegionPlan

_SHOWN = 20


def rehearse(workplace: Workplace, opened: Opened, region: RegionPlan) -> dict[str, Any]:
    """Return what is pending and, by operator, whether it vectorises; starts the Spark session.

    Raises:
        OperatorFailed, DeclarationError: a run would fail at its start.
        UsageError: there is no folder to scan.
    """
    from jobs.runtime.scanning import scan_folder

    registry = existing_registry(workplace)
    known = registry.known(region.name) if registry is not None else {}
    source = source_of(region)
    found = scan_folder(source_folder(workplace, source), source.scan, known, now=time.time())
    waiting = registry.pending(region.name, _SHOWN) if registry is not None else []
    count = registry.pending_count(region.name) if registry is not None else 0
    blueprint = region_run(workplace, opened, region).blueprint
    forced = blueprint.forced_single
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
        "tables": [
            {"table": table.name, "role": table.role.value, "operator": table.operator} for table in blueprint.tables
        ],
    }
