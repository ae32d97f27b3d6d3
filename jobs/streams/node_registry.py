"""The registry of nodes: what each does with references. One contract test goes through it (C26, T10)."""

from __future__ import annotations

from dataclasses import dataclass

from drainmark.jobs.streams import batching, merging, queues, simple_nodes
from drainmark.jobs.streams.stream import References, Stream

_CLASSES: dict[str, type[Stream]] = {
    "accumulate": simple_nodes.Accumulate,
    "buffer": queues.Buffer,
    "collect": batching.Collect,
    "combine_latest": merging.CombineLatest,
    "delay": queues.Delay,
    "filter": simple_nodes.Filter,
    "flatten": simple_nodes.Flatten,
    "latest": queues.Latest,
    "map": simple_nodes.Map,
    "map_async": queues.MapAsync,
    "partition": batching.Partition,
    "partition_unique": batching.PartitionUnique,
    "pluck": simple_nodes.Pluck,
    "rate_limit": simple_nodes.RateLimit,
    "sink": simple_nodes.Sink,
    "sink_to_list": simple_nodes.Sink,
    "slice": simple_nodes.Slice,
    "sliding_window": batching.SlidingWindow,
    "starmap": simple_nodes.Starmap,
    "timed_window": batching.TimedWindow,
    "timed_window_unique": batching.TimedWindowUnique,
    "union": simple_nodes.Union,
    "unique": simple_nodes.Unique,
    "zip": merging.Zip,
    "zip_latest": merging.ZipLatest,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A kind of node.

    Attributes:
        name: of the method of `Stream` that adds it.
        summary: the first line of what that method says.
        references, is_asynchronous, remembers: as of `Stream`.
    """

    name: str
    cls: type[Stream]
    summary: str
    references: References
    is_asynchronous: bool
    remembers: bool


def nodes() -> tuple[Node, ...]:
    """Return all kinds of nodes, by name."""
    return tuple(
        Node(
            name=name,
            cls=cls,
            summary=(getattr(Stream, name).__doc__ or "").partition("\n")[0],
            references=cls.references,
            is_asynchronous=cls.is_asynchronous,
            remembers=cls.remembers,
        )
        for name, cls in sorted(_CLASSES.items())
    )
