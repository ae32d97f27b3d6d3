"""Rules on buffered edges: where a region may be cut into stages, and the arguments of the channels."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from drainmark.jobs.errors import Violation
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.graph.ports import Input
from drainmark.jobs.regions.merging import Draft, Membership, broken, feeds_of, following_parts
from drainmark.jobs.regions.reachability import way
from drainmark.jobs.regions.stages import BufferedEdge, StageGraph, cut_of, is_cut, keys_of

_DROP = "drop dm.buffered there, or dm.Buffered from the parameter"


def buffered_outside_region(draft: Draft) -> Iterator[Violation]:
    """A buffered edge does not join two operators of one region: no region would restore the rows on this edge."""
    for operator, port in _buffered(draft):
        region = draft.region_of(operator.name)
        if port.upstream not in draft.graph.operators or (region is not None and port.upstream in region.members):
            continue
        where = f"{port.upstream!r} is outside of its region" if region is not None else "it is in no region"
        yield broken(
            "BUFFERED_OUTSIDE_REGION",
            operator,
            f"{operator.name!r} reads {port.stream!r} buffered, but {where}; a channel joins operators of one region",
            _DROP,
        )


def buffered_control_port(draft: Draft) -> Iterator[Violation]:
    """A control port is buffered: its rows of an id must act from the next id on, for any cut of the region."""
    for operator, port in _buffered(draft):
        if port.control:
            yield broken(
                "BUFFERED_CONTROL_PORT",
                operator,
                f"{operator.name!r} reads {port.stream!r} buffered on a control port, whose tuples change the state of"
                " the id that they come with",
                f"{_DROP}, and buffer a data port upstream instead",
            )


def unbuffered_way_around(draft: Draft) -> Iterator[Violation]:
    """Both ends of a buffered edge are in one stage, since another path joins them without a channel."""
    for _, cut in _cuts(draft):
        for edge in cut.edges:
            if cut.part_of(edge.port.upstream) == cut.part_of(edge.reader.name):
                around = way(edge.port.upstream, edge.reader.name, cut.joined)
                yield broken(
                    "UNBUFFERED_WAY_AROUND",
                    edge.reader,
                    f"{edge.reader.name!r} reads {edge.port.stream!r} buffered, but {' - '.join(around)} joins the two"
                    " without a channel, so they are one stage",
                    f"buffer all streams that {edge.reader.name!r} and its side read from the other side, or {_DROP}",
                )


def cycle_of_stages(draft: Draft) -> Iterator[Violation]:
    """Stages read each other in a circle: each would wait for a batch of another."""
    for _, cut in _cuts(draft):
        if not cut.loop:
            continue
        following = dict(zip(cut.loop, (*cut.loop[1:], cut.loop[0]), strict=True))
        within = [
            edge
            for edge in cut.edges
            if following.get(cut.part_of(edge.port.upstream)) == cut.part_of(edge.reader.name)
        ]
        first = within[-1]
        listed = ", ".join(f"{edge.port.stream} to {edge.reader.name}" for edge in within)
        yield broken(
            "CYCLE_OF_STAGES",
            first.reader,
            f"the buffered edges {listed} cut the region into stages that read each other in a circle",
            "drop one of them, or buffer the edge that leads around them, too; a loop on a control port stays in one"
            " stage",
        )


def start_behind_channel(draft: Draft) -> Iterator[Violation]:
    """A stage has a start of the region and reads a channel: it would begin ids, and also wait for ids."""
    for region, cut in _cuts(draft):
        if cut.loop:
            continue  # `cycle_of_stages` reports the circle
        reading = {cut.part_of(edge.reader.name): edge for edge in reversed(cut.edges)}
        for name in region.starts:
            edge = reading.get(cut.part_of(name))
            if edge is not None and cut.part_of(edge.port.upstream) != cut.part_of(name):
                yield broken(
                    "START_BEHIND_CHANNEL",
                    edge.reader,
                    f"{edge.reader.name!r} reads {edge.port.stream!r} buffered, and is in one stage with {name!r},"
                    " a start of the region",
                    f"buffer the way from {name!r} to {edge.reader.name!r}, too: dm.buffered({name})",
                )


def follower_of_two_stages(draft: Draft) -> Iterator[Violation]:
    """An autonomous part reads several stages of a region, which finish an id at different times."""
    for region, cut in _cuts(draft):
        if len(cut.parts) == 1:
            continue
        for part in following_parts(draft.graph, region, draft.regions):
            readers = [
                (operator, port)
                for operator in draft.graph.ordered(part)
                for port in operator.inputs
                if port.upstream in region.members
            ]
            first, first_port = readers[0]
            for operator, port in readers[1:]:
                if cut.part_of(port.upstream) != cut.part_of(first_port.upstream):
                    yield broken(
                        "FOLLOWER_OF_TWO_STAGES",
                        operator,
                        f"{operator.name!r} reads {port.stream!r} and {first.name!r} reads {first_port.stream!r},"
                        " autonomously, in one part; they are in different stages of a region",
                        "join them inside the region, or make two autonomous parts of them",
                    )
                    break


def channel_bounds(draft: Draft) -> Iterator[Violation]:
    """A channel has an invalid number of batches, size, or checkpoint interval."""
    for operator, port in _buffered(draft):
        asked = port.buffered
        if asked is None:
            continue
        batches, interval = asked.batches, asked.interval
        wrong = ""
        if isinstance(batches, bool) or not isinstance(batches, int) or batches < 1:
            wrong = f"batches={batches!r}, which is no whole number from 1 up"
        elif not asked.bytes:
            wrong = f"size={asked.size!r}, which is no size"
        elif interval is not None and (not isinstance(interval, dt.timedelta) or interval < dt.timedelta(0)):
            wrong = f"checkpoint_interval={asked.checkpoint_interval!r}, which is no duration"
        if wrong:
            yield broken(
                "CHANNEL_BOUNDS",
                operator,
                f"{operator.name!r} reads {port.stream!r} buffered with {wrong}",
                'such as dm.buffered(stream, batches=8, size="64 MB", checkpoint_interval=10.0)',
            )


def channel_keys(draft: Draft) -> Iterator[Violation]:
    """A channel has keys that are no names, or its readers give different keys: its rows are partitioned only once."""
    for operator, port in _buffered(draft):
        if any(not isinstance(key, str) for key in keys_of(port)):
            yield broken(
                "CHANNEL_KEYS",
                operator,
                f"{operator.name!r} reads {port.stream!r} buffered with keys={list(keys_of(port))!r}, which are no"
                " names of columns",
                'give names, such as dm.buffered(stream, keys=["customer"])',
            )
    for _, cut in _cuts(draft):
        first: dict[tuple[str, int], BufferedEdge] = {}
        for edge in cut.edges:
            if not keys_of(edge.port):
                continue
            before = first.setdefault((edge.port.stream, cut.part_of(edge.reader.name)), edge)
            if keys_of(before.port) != keys_of(edge.port):
                yield broken(
                    "CHANNEL_KEYS",
                    edge.reader,
                    f"{edge.reader.name!r} reads {edge.port.stream!r} buffered with keys={list(keys_of(edge.port))!r},"
                    f" {before.reader.name!r} with keys={list(keys_of(before.port))!r}; they are in one stage, and"
                    " read one channel",
                    "give both the same keys, or buffer the stream that joins the two",
                )


def _buffered(draft: Draft) -> Iterator[tuple[Operator, Input]]:
    for operator in draft.application.operators:
        for port in operator.inputs:
            if port.buffered is not None:
                yield operator, port


def _cuts(draft: Draft) -> Iterator[tuple[Membership, StageGraph]]:
    """Yield the regions with a buffered edge, and how they are cut."""
    for region in draft.regions:
        members = [(name, draft.graph.operators[name]) for name in region.members]
        if any(is_cut(port, name, region.members) for name, operator in members for port in operator.inputs):
            yield region, cut_of(draft.graph, region.members, feeds_of(draft.graph, region, draft.regions))
