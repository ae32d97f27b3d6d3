"""The role of the operator behind an asset: start or end of its region, ports, vectorisation."""

from __future__ import annotations

from typing import Any

import dagster as dg

from drainmark.jobs.regions.explain import VECTORISES
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.orchestration.pages.page_file import page_link, page_path
from drainmark.resources.settings import Settings

START_TAG = "drainmark/start"
END_TAG = "drainmark/end"
"""Tags without a value: `tag:"drainmark/end"` in Dagster's selection finds the ends of all regions."""


def role_tags(region: RegionPlan, operator: str) -> dict[str, str]:
    """Return the tags of an asset by its operator; none if `operator` is neither a start nor an end."""
    starts, ends = ({each.name for each in part} for part in (region.starts, region.ends))
    return {tag: "" for tag, names in ((START_TAG, starts), (END_TAG, ends)) if operator in names}


def region_metadata(region: RegionPlan, settings: Settings) -> dict[str, Any]:
    """Return the metadata of the checkpoint table, which stands for the whole region; the page is first."""
    address = page_link(settings, region.name)
    page = dg.MetadataValue.url(address) if address else dg.MetadataValue.path(page_path(settings.home, region.name))
    return {
        "drainmark/page": page,
        "drainmark/starts": ", ".join(each.name for each in region.starts),
        "drainmark/ends": ", ".join(each.name for each in region.ends),
        "drainmark/one_trigger_a_group": ", ".join(region.forced_single) or "none",
    }


def role_metadata(region: RegionPlan, name: str) -> dict[str, Any]:
    """Return the metadata of an asset by its operator; none for an asset that no single operator writes."""
    if not name:
        return {}
    operator = region.operator(name)
    own = (port for port in region.ports if port.operator == operator.name)
    ports = [f"{port.parameter}: {port.stream} ({port.port_class})" for port in own]
    found = {
        "drainmark/operator": operator.name,
        "drainmark/operator_kind": operator.kind,
        "drainmark/location": str(operator.location),
        "drainmark/ports": "; ".join(ports) or "none",
        "drainmark/vectorises": VECTORISES[region.vectorisation[operator.name]],
    }
    return {**found, "drainmark/composite": operator.composite[-1]} if operator.composite else found
