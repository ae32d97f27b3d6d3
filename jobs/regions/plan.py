"""The compiled application: `compile_application` returns it, and all later steps read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from drainmark.jobs.errors import DeclarationError, UnknownName
from drainmark.jobs.graph.annotations import Checkpoints, Consistent, TriggerKind
from drainmark.jobs.graph.application import Application, nearest
from drainmark.jobs.graph.operator import Guarantee, Operator, Vectorises
from drainmark.jobs.graph.params import digest_of
from drainmark.jobs.regions.merging import Membership, draft_of, feeds_of, following_parts, merged_parameters, starts_of
from drainmark.jobs.regions.reachability import Graph, PortPlan, components, loop_through, port_plans, reachable
from drainmark.jobs.regions.rules import broken_rules
from drainmark.jobs.regions.stages import ChannelPlan, StagePlan, keys_of, only_stage, stage_plans


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """A table below DRAINMARK_HOME/lake: its writer, its guarantee, and the condition and reason of the guarantee."""

    name: str
    operator: str
    guarantee: Guarantee | None
    condition: str | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPlan:
    """One consistent region.

    Attributes:
        name: `APP/START`; if there are several starts, the first by name.
        starts: operators that carry `@consistent`, in topological order.
        ends: operators with no downstream operator in the region.
        operators: all operators of the region, in topological order.
        feeds: autonomous operators that the region reads, directly or not, in topological order. Operators of regions
            that feed them are left out.
        run_order: `operators` and `feeds` together, in topological order.
        followers: operators of the autonomous parts that read the region, in topological order: they get its rows at
            least once, and no state depends on their results.
        stages: the region cut at its buffered edges, upstream first; one stage if there are none.
        channels: channels between the stages, in the order of the stages that read them.
        parameters: parameters of the region; merged if it has several starts.
        ports: every connection of every operator, in the order of `operators`.
        vectorisation: by name of operator or feed, whether it vectorises, as known before any plan is analysed.
        tables: the tables that its sinks write.
        quarantine: the table below the lake for rows that cannot be read.
        fingerprints: by name of operator or feed, its own fingerprint.
        fingerprint: changes when the computation of the region changes, not when code is moved around.
        origin: path of the file that declares the application, "" if it was built by hand.
    """

    name: str
    starts: tuple[Operator, ...]
    ends: tuple[Operator, ...]
    operators: tuple[Operator, ...]
    feeds: tuple[Operator, ...]
    run_order: tuple[Operator, ...]
    followers: tuple[Operator, ...]
    stages: tuple[StagePlan, ...]
    channels: tuple[ChannelPlan, ...]
    parameters: Consistent
    ports: tuple[PortPlan, ...]
    vectorisation: Mapping[str, Vectorises]
    tables: tuple[TablePlan, ...]
    quarantine: str
    fingerprints: Mapping[str, str]
    fingerprint: str
    origin: str = ""

    @property
    def stateful(self) -> tuple[Operator, ...]:
        """Return the operators that keep state from id to id."""
        return tuple(operator for operator in self.operators if operator.keeps_state)

    @property
    def forced_single(self) -> tuple[str, ...]:
        """Return the names of the operators that force groups of one trigger; feeds have no triggers."""
        names = (operator.name for operator in self.operators)
        return tuple(name for name in names if self.vectorisation[name] is Vectorises.NO)

    def operator(self, name: str) -> Operator:
        """Return an operator, feed or follower of the region.

        Raises:
            UnknownName: there is no such operator; the remedy names the nearest.
        """
        for operator in (*self.run_order, *self.followers):
            if operator.name == name:
                return operator
        raise UnknownName(
            f"region {self.name!r} has no operator {name!r}",
            remedy=nearest(name, [operator.name for operator in self.run_order]),
        )

    @property
    def first_start(self) -> Operator:
        """Return the start that represents the region if one operator must be named."""
        return self.starts[0]

    def index_of(self, operator: Operator) -> int:
        """Return the number of an operator, the same in every run of the same graph."""
        return self.operators.index(operator)

    def stage(self, name: str) -> StagePlan:
        """Return a stage.

        Raises:
            UnknownName: there is no such stage; the remedy names the nearest.
        """
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise UnknownName(
            f"region {self.name!r} has no stage {name!r}", remedy=nearest(name, [stage.name for stage in self.stages])
        )

    def consumers(self, name: str, output: str = "") -> int:
        """Return the number of connections of the region, its feeds and its followers that read an output."""
        return sum(
            connection.upstream == name and connection.output == output
            for operator in (*self.run_order, *self.followers)
            for connection in operator.inputs
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AutonomousPlan:
    """Connected autonomous operators, without any coordination.

    Attributes:
        name: `APP/OPERATOR`, the first operator in topological order.
        operators: in topological order.
        reads: names of the regions whose streams it reads, perhaps twice.
        feeds: names of the regions that read its streams, at most once.
        tables: the tables that it writes.
    """

    name: str
    operators: tuple[Operator, ...]
    reads: tuple[str, ...]
    feeds: tuple[str, ...]
    tables: tuple[str, ...]

    @property
    def guarantee(self) -> Guarantee:
        """Return the guarantee of its tables: a region sends rows again in a replay, a source does not."""
        return Guarantee.AT_LEAST_ONCE if self.reads else Guarantee.AT_MOST_ONCE

    @property
    def why(self) -> str:
        """Return the reason of the guarantee."""
        if self.reads:
            return f"{', '.join(self.reads)} sends rows again that it has not committed, and takes no rows back"
        return "rows that are lost on the way are not sent again"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationPlan:
    """A compiled application.

    Attributes:
        application: the declared application.
        regions: in the order in which their starts are declared; each one has states of its own.
        autonomous: all operators that are in no region, in connected parts.
        fingerprint: changes when the computation of the application changes.
    """

    application: Application
    regions: tuple[RegionPlan, ...]
    autonomous: tuple[AutonomousPlan, ...]
    fingerprint: str

    @property
    def name(self) -> str:
        return self.application.name

    def region(self, name: str) -> RegionPlan:
        """Return a region by `APP/START`, by `APP` if there is one region, or by `START`; any of its starts will do.

        Raises:
            UnknownName: no region or several have the name; the remedy names the nearest, or all.
        """
        if name == self.name and len(self.regions) == 1:
            return self.regions[0]
        application, slash, start = name.rpartition("/")
        if not slash or application == self.name:
            for region in self.regions:
                if any(operator.name == start for operator in region.starts):
                    return region
        known = [region.name for region in self.regions]
        if name == self.name and known:
            msg = f"application {self.name!r} has {len(known)} regions"
            raise UnknownName(msg, remedy=f"name one: {', '.join(known)}")
        if not known:
            msg = f"application {self.name!r} has no region"
            raise UnknownName(msg, remedy="put @dm.consistent on a source")
        msg = f"application {self.name!r} has no region {name!r}"
        raise UnknownName(msg, remedy=nearest(start, known, below=f"{self.name}/"))


def compile_application(application: Application) -> ApplicationPlan:
    """Compile a declared graph. Pure, and the same for the same declarations.

    Raises:
        DeclarationError: the graph breaks rules; it lists all violations.
    """
    draft = draft_of(application)
    violations = broken_rules(draft)
    if violations:
        raise DeclarationError(application.name, violations)
    graph, drafts = draft.graph, draft.regions
    regions = tuple(
        replace(_region_plan(application.name, graph, draft, drafts), origin=application.origin) for draft in drafts
    )
    return ApplicationPlan(
        application=draft.application,
        regions=regions,
        autonomous=_autonomous_plans(application.name, graph, drafts),
        fingerprint=digest_of(
            {
                "regions": {region.name: region.fingerprint for region in regions},
                "operators": {name: fingerprint_of(operator) for name, operator in graph.operators.items()},
            }
        ),
    )


def _region_plan(application: str, graph: Graph, draft: Membership, drafts: tuple[Membership, ...]) -> RegionPlan:
    operators = graph.ordered(draft.members)
    feeds, following = feeds_of(graph, draft, drafts), following_parts(graph, draft, drafts)
    stages, channels = stage_plans(graph, draft.members, feeds, following)
    run_order = graph.ordered(draft.members | feeds)
    fingerprints = {operator.name: fingerprint_of(operator) for operator in run_order}
    return RegionPlan(
        name=_region_name(application, draft),
        starts=graph.ordered(draft.starts),
        ends=tuple(operator for operator in operators if draft.members.isdisjoint(graph.downstream[operator.name])),
        operators=operators,
        feeds=graph.ordered(feeds),
        run_order=run_order,
        followers=graph.ordered(frozenset().union(*following)),
        stages=stages,
        channels=channels,
        parameters=merged_parameters([annotation for _, annotation in starts_of(graph, draft)]),
        ports=tuple(port for operator in operators for port in port_plans(operator, draft.members)),
        vectorisation=_vectorisation(graph, draft, feeds, run_order),
        tables=tuple(
            TablePlan(
                name=table,
                operator=operator.name,
                guarantee=operator.guarantee,
                condition=operator.condition,
                why=operator.because,
            )
            for operator in operators
            for table in operator.tables
        ),
        quarantine="_".join([application, *(draft.starts[:1] if len(drafts) > 1 else ()), "quarantine"]),
        fingerprints=fingerprints,
        fingerprint=digest_of({"starts": draft.starts, "operators": fingerprints}),
    )


def _vectorisation(
    graph: Graph, draft: Membership, feeds: frozenset[str], run_order: Sequence[Operator]
) -> dict[str, Vectorises]:
    """Return, for each operator, whether it vectorises, as far as this is known before any plan is analysed."""
    sent = reachable([name for name in feeds if graph.operators[name].may_start], graph.downstream, draft.members)
    fed = {
        operator.name
        for operator in run_order
        if operator.name in draft.members
        and any(port.upstream in sent & feeds and not port.control for port in operator.inputs)
    }
    return {operator.name: _known_of(operator, graph, is_fed=operator.name in fed) for operator in run_order}


def _known_of(operator: Operator, graph: Graph, *, is_fed: bool) -> Vectorises:
    """Return whether an operator vectorises, as far as this is known before any plan is analysed.

    Rows on an autonomous data port belong to one trigger, so the operator gets one trigger at a time; rows of a lookup
    belong to no trigger. An operator in a loop needs the complete id before.
    """
    if is_fed:
        return Vectorises.NO
    if operator.sees_control_by_id and not loop_through(operator.name, graph.downstream):
        return operator.vectorises
    return operator.vectorisation()


def _autonomous_plans(application: str, graph: Graph, drafts: tuple[Membership, ...]) -> tuple[AutonomousPlan, ...]:
    region_of = {name: _region_name(application, draft) for draft in drafts for name in draft.members}
    outside = [name for name in graph.operators if name not in region_of]
    plans = []
    for names in components(outside, graph.downstream):
        operators = graph.ordered(names)
        plans.append(
            AutonomousPlan(
                name=f"{application}/{operators[0].name}",
                operators=operators,
                reads=_regions_next_to(names, graph.upstream, region_of),
                feeds=_regions_next_to(names, graph.downstream, region_of),
                tables=tuple(table for operator in operators for table in operator.tables),
            )
        )
    return tuple(plans)


def _regions_next_to(
    names: frozenset[str], edges: Mapping[str, tuple[str, ...]], region_of: Mapping[str, str]
) -> tuple[str, ...]:
    return tuple(sorted({region_of[other] for name in names for other in edges[name] if other in region_of}))


def _region_name(application: str, draft: Membership) -> str:
    return f"{application}/{draft.starts[0]}"


def fingerprint_of(operator: Operator) -> str:
    """Return a digest that changes when the computation of the operator changes."""
    connections = [
        [port.upstream, port.output, port.parameter, port.control, *keys_of(port)] for port in operator.inputs
    ]
    return digest_of([operator.name, operator.fingerprint(), connections])


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
