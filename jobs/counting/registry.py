"""The registry of nodes: what each does with references. One contract test goes through it (C26, T10)."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.counting import elementwise, gathering, joining, queues
from jobs.counting.stream import References, Stream

_CLASSES: dict[str, type[Stream]] = {
    "accumulate": elementwise.Accumulate,
    "buffer": queues.Buffer,
    "collect": gathering.Collect,
    "combine_latest": joining.CombineLatest,
    "delay": queues.Delay,
    "filter": elementwise.Filter,
    "flatten": elementwise.Flatten,
    "latest": queues.Latest,
    "map": elementwise.Map,
    "map_async": queues.MapAsync,
    "partition": gathering.Partition,
    "partition_unique": gathering.PartitionUnique,
    "pluck": elementwise.Pluck,
    "rate_limit": elementwise.RateLimit,
    "sink": elementwise.Sink,
    "sink_to_list": elementwise.Sink,
    "slice": elementwise.Slice,
    "sliding_window": gathering.SlidingWindow,
    "starmap": elementwise.Starmap,
    "timed_window": gathering.TimedWindow,
    "timed_window_unique": gathering.TimedWindowUnique,
    "union": elementwise.Union,
    "unique": elementwise.Unique,
    "zip": joining.Zip,
    "zip_latest": joining.ZipLatest,
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
