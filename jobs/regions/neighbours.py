"""The neighbours of a region: the autonomous operators that it reads, and the autonomous operators that read it."""

from __future__ import annotations

from collections.abc import Sequence

from drainmark.jobs.regions.merging import Membership
from drainmark.jobs.regions.reachability import Graph, components, reachable


def feeds_of(graph: Graph, region: Membership, regions: Sequence[Membership]) -> frozenset[str]:
    """Return the autonomous operators upstream of a region, up to the next region (exclusive)."""
    consistent = _members(regions)
    directly = {name for member in region.members for name in graph.upstream[member] if name not in consistent}
    return reachable(directly, graph.upstream, consistent)


def following_parts(graph: Graph, region: Membership, regions: Sequence[Membership]) -> tuple[frozenset[str], ...]:
    """Return the autonomous parts with an operator that reads the region."""
    consistent = _members(regions)
    outside = [name for name in graph.operators if name not in consistent]
    parts = components(outside, graph.downstream)
    return tuple(part for part in parts if any(region.members & set(graph.upstream[name]) for name in part))


def _members(regions: Sequence[Membership]) -> frozenset[str]:
    return frozenset().union(*(region.members for region in regions))
