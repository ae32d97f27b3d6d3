"""A region cut into stages at its buffered edges: the operators that stay together, and the channels between them.

The cut affects the speed, and the work that is repeated after a failure; no table depends on it. So no fingerprint has
the cut, or the vectorisation. Fingerprints have the keys of a channel: a function that goes through a partition can see
which rows come together.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from drainmark.jobs.graph.operator import Operator, names_of
from drainmark.jobs.graph.ports import Input
from drainmark.jobs.regions.reachability import Edges, Graph, components, edges_of, loops, topological_order


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelPlan:
    """A FIFO of batches between two stages, one for each (output of an operator, stage that reads it).

    Attributes:
        name: `upstream->stage`, or `upstream[output]->stage`.
        upstream: name of the operator that writes it.
        output: name of its output, "" if it has only one.
        stage_from: name of the writing stage.
        stage_to: name of the reading stage.
        readers: names of the operators that read it, in topological order.
        connections: number of connections of these operators; the batch of a group counts once for each of them.
        batches: bound on the batches in it.
        bytes: bound on their bytes; one batch always fits.
        keys: columns; the rows of one key come on one partition, in the order of the stream. Without keys, rows come
            as they are in the files.
    """

    name: str
    upstream: str
    output: str
    stage_from: str
    stage_to: str
    readers: tuple[str, ...]
    connections: int
    batches: int
    bytes: int
    keys: tuple[str, ...] = ()

    @property
    def stream(self) -> str:
        """Return the stream that it carries, as `upstream` or `upstream[output]`."""
        return f"{self.upstream}[{self.output}]" if self.output else self.upstream


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """The operators between channels, fused into one Spark plan (Streams: a PE).

    Attributes:
        name: its first operator, in topological order.
        starts: the region's starts in it; a stage with a start has no inputs.
        operators: its operators of the region, in topological order.
        run_order: `operators` and the feeds that they read, in topological order.
        followers: operators of the autonomous parts that read it, in topological order.
        inputs: channels that it reads.
        outputs: channels that it writes.
        checkpoint_interval: shortest time between two commits of the region that include its finished work; None: each
            commit does.
    """

    name: str
    starts: tuple[Operator, ...]
    operators: tuple[Operator, ...]
    run_order: tuple[Operator, ...]
    followers: tuple[Operator, ...] = ()
    inputs: tuple[ChannelPlan, ...] = ()
    outputs: tuple[ChannelPlan, ...] = ()
    checkpoint_interval: dt.timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferedEdge:
    """A connection of a region that asks for a channel."""

    reader: Operator
    port: Input


@dataclass(frozen=True, slots=True, kw_only=True)
class StageGraph:
    """A region without its buffered edges.

    Attributes:
        parts: names of the operators and feeds that stay together, each once; upstream parts first, unless `loop`.
        joined: the connections without a channel, in both directions.
        edges: the buffered connections, in topological order of their readers.
        loop: numbers of parts that feed each other in a circle; empty if the region can run.
    """

    parts: tuple[frozenset[str], ...]
    joined: Edges
    edges: tuple[BufferedEdge, ...]
    loop: tuple[int, ...]

    def part_of(self, name: str) -> int:
        """Return the number of the part in which an operator or feed is."""
        return next(number for number, part in enumerate(self.parts) if name in part)


def is_cut(port: Input, reader: str, members: Collection[str]) -> bool:
    """Say whether a connection becomes a channel: it is buffered, both ends are in the region, and it carries data."""
    return port.buffered is not None and not port.control and reader in members and port.upstream in members


def keys_of(port: Input) -> tuple[str, ...]:
    """Return the keys that a connection asks for."""
    return names_of(port.buffered.keys) if port.buffered is not None else ()


def cut_of(graph: Graph, members: Collection[str], feeds: Collection[str]) -> StageGraph:
    """Cut a region at its buffered edges; feeds stay with their readers."""
    around = {*members, *feeds}
    names = [operator.name for operator in graph.ordered(around)]
    edges: list[BufferedEdge] = []
    links: list[tuple[str, str]] = []
    for name in names:
        for port in graph.operators[name].inputs:
            if is_cut(port, name, members):
                edges.append(BufferedEdge(reader=graph.operators[name], port=port))
            elif port.upstream in around:
                links += [(port.upstream, name), (name, port.upstream)]
    joined = edges_of(names, links)
    found = components(names, joined)
    number_of = {name: str(number) for number, part in enumerate(found) for name in part}
    between = edges_of(
        [str(number) for number in range(len(found))],
        [
            (number_of[edge.port.upstream], number_of[edge.reader.name])
            for edge in edges
            if number_of[edge.port.upstream] != number_of[edge.reader.name]
        ],
    )
    order = [int(number) for number in topological_order(between, between)]
    circles = loops(between)
    return StageGraph(
        parts=tuple(found[number] for number in order),
        joined=joined,
        edges=tuple(edges),
        loop=tuple(order.index(int(number)) for number in circles[0]) if circles else (),
    )


def stage_plans(
    graph: Graph,
    members: Collection[str],
    feeds: Collection[str],
    following: Sequence[frozenset[str]] = (),
) -> tuple[tuple[StagePlan, ...], tuple[ChannelPlan, ...]]:
    """Return the stages of a region that breaks no rule, upstream first, and its channels.

    Args:
        members, feeds: names of the region's operators and of its feeds.
        following: the autonomous parts that read the region, as names of operators.
    """
    cut = cut_of(graph, members, feeds)
    names = [graph.ordered(part & frozenset(members))[0].name for part in cut.parts]
    channels = tuple(_channels(graph, cut, names))
    stages = []
    for name, part in zip(names, cut.parts, strict=True):
        operators = graph.ordered(part & frozenset(members))
        read = frozenset().union(*(other for other in following if _reads(graph, other, part)))
        stages.append(
            StagePlan(
                name=name,
                starts=tuple(operator for operator in operators if operator.consistent is not None),
                operators=operators,
                run_order=graph.ordered(part),
                followers=graph.ordered(read),
                inputs=tuple(channel for channel in channels if channel.stage_to == name),
                outputs=tuple(channel for channel in channels if channel.stage_from == name),
                checkpoint_interval=_interval(edge for edge in cut.edges if edge.reader.name in part),
            )
        )
    return tuple(stages), channels


def only_stage(operators: Sequence[Operator], *, starts: Sequence[Operator]) -> StagePlan:
    """Return the only stage of operators without a buffered edge."""
    return StagePlan(
        name=operators[0].name, starts=tuple(starts), operators=tuple(operators), run_order=tuple(operators)
    )


def _channels(graph: Graph, cut: StageGraph, names: Sequence[str]) -> Iterator[ChannelPlan]:
    """Yield a channel for each (upstream output, reading stage). It has the widest of its readers' bounds, and the keys
    that one of them gives."""
    grouped: dict[tuple[str, str, int], list[BufferedEdge]] = {}
    for edge in cut.edges:
        key = edge.port.upstream, edge.port.output, cut.part_of(edge.reader.name)
        grouped.setdefault(key, []).append(edge)
    place = {name: index for index, name in enumerate(graph.order)}
    for (upstream, output, reading), edges in sorted(
        grouped.items(), key=lambda item: (item[0][2], place[item[0][0]], item[0][1])
    ):
        bounds = [edge.port.buffered for edge in edges if edge.port.buffered is not None]
        yield ChannelPlan(
            name=f"{edges[0].port.stream}->{names[reading]}",
            upstream=upstream,
            output=output,
            stage_from=names[cut.part_of(upstream)],
            stage_to=names[reading],
            readers=tuple(dict.fromkeys(edge.reader.name for edge in edges)),
            connections=len(edges),
            batches=max(bound.batches for bound in bounds),
            bytes=max(bound.bytes for bound in bounds),
            keys=next(filter(None, (keys_of(edge.port) for edge in edges)), ()),
        )


def _reads(graph: Graph, following: frozenset[str], part: frozenset[str]) -> bool:
    return any(not part.isdisjoint(graph.upstream[name]) for name in following)


def _interval(edges: Iterator[BufferedEdge]) -> dt.timedelta | None:
    """Return the longest interval that a stage's buffered edges ask for."""
    given = [edge.port.buffered.interval for edge in edges if edge.port.buffered is not None]
    return max((interval for interval in given if interval is not None), default=None)
