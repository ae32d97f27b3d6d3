"""The order to repair one region: `doctor --repair` for this region only."""

from __future__ import annotations

from functools import partial
from typing import Any

from drainmark.jobs.errors import UsageError
from drainmark.orchestration.doctor.registry_repair import repair as rebuild
from drainmark.orchestration.doctor.registry_repair import why_rebuild
from drainmark.orchestration.verbs import table_repair
from drainmark.orchestration.verbs.orders import Done, Order
from drainmark.orchestration.workplace.workplace import Workplace


def repair(workplace: Workplace, region: str) -> Order:
    """Return the order to rebuild a region's rows in the registry, if they are lost, and to repair its tables.

    Raises:
        UsageError: the region has no checkpoint table, so there is nothing to repair, and nothing to repair it from.
        RegistryLost: the registry of all regions cannot be read.
    """
    if region not in workplace.own_regions():
        raise UsageError(f"region {region!r} has never run: there is nothing to repair")
    is_lost = bool(why_rebuild(workplace, region))
    tables = table_repair.plan_region(workplace, region)
    lines = [f"{region}: its rows in the registry are rebuilt from its checkpoint table"] if is_lost else []
    lines += table_repair.repair_lines(tables) if tables.steps else []

    def act() -> Done:
        rebuilt = rebuild(workplace, regions=[region]) if is_lost else []
        again = partial(rebuild, workplace, regions=[region])
        mended = table_repair.mend(workplace, region, rebuild=again) if tables.steps else tables
        counts = ", ".join(f"{n} {status}" for each in rebuilt for status, n in each["triggers"].items() if n)
        said = [f"{region}: the registry is rebuilt: {counts or 'nothing'}"] if is_lost else []
        said += table_repair.repair_lines(mended) if tables.steps else []
        return Done(facts={**mended.to_json(), "registry": rebuilt}, lines=tuple(said) or _nothing(region))

    facts: dict[str, Any] = {**tables.to_json(), "registry": "rebuilt" if is_lost else "kept"}
    bound = {**facts, "epoch": workplace.history(region).epoch}
    return Order(verb="repair", region=region, facts=facts, plan=tuple(lines) or _nothing(region), bound=bound, act=act)


def _nothing(region: str) -> tuple[str, ...]:
    return (f"{region}: nothing is to be repaired",)
