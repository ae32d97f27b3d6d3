"""The registry of nodes and of how each of them holds references. One contract test goes through it."""

from __future__ import annotations

from dataclasses import dataclass

from drainmark.jobs.streams import batching, merging, queues, simple_nodes  # noqa: F401 - they define the nodes
from drainmark.jobs.streams.stream import References, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A kind of node.

    Attributes:
        name: of the method of `Stream` that adds it.
        summary: the first line of that method's docstring.
        references, is_asynchronous, remembers: as in `Stream`.
    """

    name: str
    cls: type[Stream]
    summary: str
    references: References
    is_asynchronous: bool
    remembers: bool


def nodes() -> tuple[Node, ...]:
    """Return all kinds of nodes, sorted by name."""
    return tuple(
        Node(
            name=name,
            cls=cls,
            summary=(getattr(Stream, name).__doc__ or "").partition("\n")[0],
            references=cls.references,
            is_asynchronous=cls.is_asynchronous,
            remembers=cls.remembers,
        )
        for name, cls in sorted({**Stream.kinds, "sink_to_list": Stream.kinds["sink"]}.items())
    )
