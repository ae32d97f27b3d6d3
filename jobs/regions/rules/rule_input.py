"""The input of a rule: the declared graph cut into regions, before any rule has approved it."""

from __future__ import annotations

from dataclasses import dataclass

from drainmark.jobs.errors import Violation
from drainmark.jobs.graph.application import Application
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.regions.merging import Membership, memberships
from drainmark.jobs.regions.reachability import Graph, graph_of


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
    """Return an application with its connections, cut into regions."""
    graph = graph_of(application)
    return Draft(application=application, graph=graph, regions=memberships(graph))


def broken(rule: str, operator: Operator, message: str, remedy: str) -> Violation:
    """Return a violation of an operator, with its name and location."""
    return Violation(rule=rule, message=message, operator=operator.name, location=operator.location, remedy=remedy)
