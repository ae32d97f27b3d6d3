"""The declared graph cut into regions, before any rule has approved it, and the neighbours of a region.

The operators of a region are those reachable from a start, without the autonomous ones, merged if they overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from drainmark.jobs.errors import Violation
from drainmark.jobs.graph.annotations import Consistent
from drainmark.jobs.graph.application import Application
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.regions.change_streams import over_changes
from drainmark.jobs.regions.reachability import Graph, components, graph_of, reachable


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """One region before any rule has checked it.

    Attributes:
        starts: names, sorted. The first names the region: moving code around must not lose its state.
        members: names of all its operators, the starts among them.
    """

    starts: tuple[str, ...]
    members: frozenset[str]


def memberships(graph: Graph) -> tuple[Membership, ...]:
    """Return the regions in the order in which their first starts are declared.

    A region has everything downstream of a start, up to another start or an operator that itself carries `@autonomous`,
    both exclusive. Regions that share an operator are merged.
    """
    stops = graph.carved_out | frozenset(graph.starts)
    merged: list[tuple[set[str], set[str]]] = []
    for start in graph.starts:
        starts, members = {start}, set(reachable([start], graph.downstream, stops))
        apart = []
        for other_starts, other_members in merged:
            if members.isdisjoint(other_members):
                apart.append((other_starts, other_members))
            else:
                starts |= other_starts
                members |= other_members
        merged = [*apart, (starts, members)]
    declared = {name: index for index, name in enumerate(graph.operators)}
    regions = [Membership(starts=tuple(sorted(starts)), members=frozenset(members)) for starts, members in merged]
    return tuple(sorted(regions, key=lambda region: min(declared[name] for name in region.starts)))


def starts_of(graph: Graph, region: Membership) -> tuple[tuple[Operator, Consistent], ...]:
    """Return the start operators of a region with their annotations."""
    starts = [graph.operators[name] for name in region.starts]
    return tuple((start, start.consistent) for start in starts if start.consistent is not None)


def merged_parameters(annotations: Sequence[Consistent]) -> Consistent:
    """Return one region's parameters: the maximum of each number.

    Parameters that are no numbers are equal in all annotations; a rule has checked that.
    """
    periods = [annotation.period for annotation in annotations if annotation.period is not None]
    lingers = [annotation.linger for annotation in annotations if annotation.linger is not None]
    waits = [annotation.alignment_timeout for annotation in annotations if annotation.alignment_timeout is not None]
    intervals = [each.checkpoint_interval for each in annotations if each.checkpoint_interval is not None]
    return replace(
        annotations[0],
        period=max(periods, default=None),
        group_timeout=max(annotation.group_timeout for annotation in annotations),
        reset_timeout=max(annotation.reset_timeout for annotation in annotations),
        max_consecutive_reset_attempts=max(annotation.max_consecutive_reset_attempts for annotation in annotations),
        rewind_horizon=max(annotation.rewind_horizon for annotation in annotations),
        linger=max(lingers, default=None),
        alignment_timeout=max(waits, default=None),
        max_inflight_bytes=max(annotation.inflight_bytes_bound for annotation in annotations),
        checkpoint_interval=max(intervals, default=None),
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An application, its connections and its regions."""

    application: Application
    graph: Graph
    regions: tuple[Membership, ...]

    def region_of(self, name: str) -> Membership | None:
        """Return the region of an operator, None if it is autonomous."""
        return next((region for region in self.regions if name in region.members), None)


def draft_of(application: Application) -> Draft:
    """Return an application with its connections, cut into regions; operators are in their forms over changes."""
    graph = graph_of(application)
    formed = over_changes(graph.ordered(graph.operators))
    if any(formed[name] is not operator for name, operator in graph.operators.items()):
        operators = [
            formed[each.name] if graph.operators[each.name] is each else each for each in application.operators
        ]
        application = replace(application, operators=tuple(operators))
        graph = graph_of(application)
    return Draft(application=application, graph=graph, regions=memberships(graph))


def broken(rule: str, operator: Operator, message: str, remedy: str) -> Violation:
    """Return a violation of an operator, with its name and location."""
    return Violation(rule=rule, message=message, operator=operator.name, location=operator.location, remedy=remedy)
