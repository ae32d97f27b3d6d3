"""Cases for each node of a counted stream: a declaration and an expectation per configuration (C26, T10, E40–E52).

Data are distinct numbers, so the outputs show from which data they were made. Nodes that compare data use the last
digit as the key: 1 and 11 have the same key. `touch` takes the place of an author's function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from drainmark.jobs.streams import Stream

Touch = Callable[[Any], Any]
Feed = Sequence[tuple[int, Any]]
"""Pairs (source, datum). A negative source lets that many seconds pass. The datum "flush" flushes the node."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A configuration of a node.

    Attributes:
        build: takes the sources and the author's function; returns the node.
        wanted: the outputs that it must emit.
        kept: the data that it holds after the whole feed, when nothing more is due.
        seconds: the seconds that pass after the feed.
        calls: the node calls the author's function.
    """

    node: str
    build: Callable[[list[Stream], Touch], Stream]
    feed: Feed
    wanted: list[Any]
    kept: frozenset[int] = frozenset()
    sources: int = 1
    seconds: float = 0.0
    calls: bool = False
    name: str = ""

    @property
    def id(self) -> str:
        return f"{self.node}_{self.name}" if self.name else self.node


@dataclass
class Cases:
    """A collector of cases."""

    found: list[Case] = field(default_factory=list)

    def add(self, node: str, build: Any, feed: Feed, wanted: list[Any], **more: Any) -> None:
        more["kept"] = frozenset(more.get("kept", ()))
        self.found.append(Case(node=node, build=build, feed=feed, wanted=wanted, **more))


def data_in(made: Any) -> set[int]:
    """Return the data that an output or an input contains."""
    if isinstance(made, Iterable):
        return set().union(*(data_in(one) for one in made))
    return {made}


def of(*data: Any) -> Feed:
    return [(0, datum) for datum in data]


def digit(touch: Touch) -> Touch:
    return lambda x: touch(x) % 10


def summed(touch: Touch) -> Callable[[int, int], tuple[int, int]]:
    return lambda state, x: (state + touch(x), x)


cases = Cases()
add = cases.add

add("map", lambda s, f: s[0].map(f), of(1, 2), [1, 2], calls=True)
add("starmap", lambda s, f: s[0].starmap(lambda a, b: (f(a), b)), of((1, 2), (3, 4)), [(1, 2), (3, 4)], calls=True)
add("filter", lambda s, f: s[0].filter(lambda x: f(x) % 2), of(1, 2, 3), [1, 3], calls=True)
add("accumulate", lambda s, f: s[0].accumulate(summed(f), 0, returns_state=True), of(1, 2, 3), [1, 2, 3], calls=True)
add("slice", lambda s, f: s[0].slice(1, 5, 2), of(1, 2, 3, 4, 5, 6, 7), [2, 4])
add("flatten", lambda s, f: s[0].map(lambda x: [f(one) for one in x]).flatten(), of((1, 2), (), (3,)), [1, 2, 3],
    calls=True)  # fmt: skip
add("pluck", lambda s, f: s[0].map(lambda x: (f(x), 0)).pluck(0), of(1, 2), [1, 2], calls=True)
add("pluck", lambda s, f: s[0].map(lambda x: (x, x, 0)).pluck([1, 0]), of(1, 2), [(1, 1), (2, 2)], name="list")
add("unique", lambda s, f: s[0].unique(key=digit(f)), of(1, 11, 2, 21, 3), [1, 2, 3], calls=True)
add("unique", lambda s, f: s[0].unique(1, digit(f)), of(1, 11, 2, 21), [1, 2, 21], calls=True, name="maxsize")
add("unique", lambda s, f: s[0].unique(2, lambda x: [f(x) % 10], hashable=False), of(1, 2, 11, 3, 12), [1, 2, 3, 12],
    calls=True, name="unhashable")  # fmt: skip
add("union", lambda s, f: s[0].union(s[1]), [(0, 1), (1, 2), (0, 3)], [1, 2, 3], sources=2)
add("rate_limit", lambda s, f: s[0].rate_limit(2.0), of(1, 2, 3), [1, 2, 3])
add("sink", lambda s, f: s[0].sink(f), of(1, 2), [], calls=True)
add("sink_to_list", lambda s, f: [s[0].sink_to_list(), s[0].downstreams[0]][1], of(1, 2), [])

add("buffer", lambda s, f: s[0].buffer(2), of(1, 2, 3, 4), [1, 2, 3, 4])
add("delay", lambda s, f: s[0].delay(5.0), [(0, 1), (-2, 0), (0, 2), (0, 3)], [1, 2, 3], seconds=5.0)
add("delay", lambda s, f: s[0].delay(5.0), [(0, 1), (-2, 0), (0, 2)], [1], seconds=3.0, kept={2}, name="not_due")
add("latest", lambda s, f: s[0].latest(), of(1, 2, 3), [3])
add("latest", lambda s, f: s[0].latest(), [(0, 1), (-1, 0), (0, 2)], [1, 2], name="slow")
add("map_async", lambda s, f: s[0].map_async(f, parallelism=2), of(1, 2, 3), [1, 2, 3], calls=True)

add("partition", lambda s, f: s[0].partition(2), of(1, 2, 3), [(1, 2)], kept={3})
add("partition", lambda s, f: s[0].partition(2, key=digit(f)), of(1, 2, 11, 21), [(1, 11)], kept={2, 21}, calls=True,
    name="key")  # fmt: skip
add("partition", lambda s, f: s[0].partition(3, timeout=4.0), [(0, 1), (-3, 0), (0, 2), (-1, 0), (0, 3)],
    [(1, 2), (3,)], seconds=4.0, name="timeout")  # fmt: skip
add("partition", lambda s, f: s[0].partition(2, timeout=4.0), [(0, 1), (0, 2), (-3, 0), (0, 3), (-3, 0)], [(1, 2)],
    kept={3}, name="timeout_of_an_earlier_one")  # fmt: skip
add("partition", lambda s, f: s[0].partition(5), [*of(1, 2), (-1, "flush"), (0, 3)], [(1, 2)], kept={3}, name="flush")
add("partition_unique", lambda s, f: s[0].partition_unique(2, digit(f)), of(1, 11, 2, 3), [(1, 2)], kept={3},
    calls=True, name="first")  # fmt: skip
add("partition_unique", lambda s, f: s[0].partition_unique(3, digit(f), "last"), of(1, 2, 11, 3, 4), [(2, 11, 3)],
    kept={4}, calls=True, name="last")  # fmt: skip
add("partition_unique", lambda s, f: s[0].partition_unique(9, digit(f), timeout=1.0), of(1, 11, 2), [(1, 2)],
    calls=True, seconds=1.0, name="timeout")  # fmt: skip
add("timed_window", lambda s, f: s[0].timed_window(2.0), [*of(1, 2), (-2, 0), (0, 3)], [[1, 2], [3]], seconds=9.0)
add("timed_window", lambda s, f: s[0].timed_window(2.0, 2), of(1, 2, 3, 4, 5), [[1, 2], [3, 4], [5]], seconds=2.0,
    name="count_trigger")  # fmt: skip
add("timed_window", lambda s, f: s[0].timed_window(2.0), of(1, 2), [], seconds=1.0, kept={1, 2}, name="open")
add("timed_window_unique", lambda s, f: s[0].timed_window_unique(2.0, digit(f)), of(1, 11, 2), [(1, 2)], seconds=2.0,
    calls=True, name="first")  # fmt: skip
add("timed_window_unique", lambda s, f: s[0].timed_window_unique(2.0, digit(f), "last"), of(1, 2, 11), [(2, 11)],
    seconds=2.0, calls=True, name="last")  # fmt: skip
add("timed_window_unique", lambda s, f: s[0].timed_window_unique(2.0, digit(f), count_trigger=2), of(1, 11, 2, 3),
    [(1, 2), (3,)], seconds=2.0, calls=True, name="count_trigger")  # fmt: skip
add("sliding_window", lambda s, f: s[0].sliding_window(2), of(1, 2, 3), [(1,), (1, 2), (2, 3)], kept={3})
add("sliding_window", lambda s, f: s[0].sliding_window(3, return_partial=False), of(1, 2, 3, 4), [(1, 2, 3), (2, 3, 4)],
    kept={3, 4}, name="full")  # fmt: skip
add("collect", lambda s, f: s[0].collect(), [*of(1, 2), (-1, "flush"), (-1, "flush"), (0, 3)], [(1, 2)], kept={3})

add("zip", lambda s, f: s[0].zip(s[1]), [(0, 1), (0, 2), (1, 3), (1, 4), (1, 5)], [(1, 3), (2, 4)], kept={5}, sources=2)
add("zip", lambda s, f: s[0].zip(s[1], s[2]), [(2, 1), (1, 2), (0, 3)], [(3, 2, 1)], sources=3, name="three")
add("combine_latest", lambda s, f: s[0].combine_latest(s[1]), [(0, 1), (0, 2), (1, 3), (1, 4)], [(2, 3), (2, 4)],
    kept={2, 4}, sources=2)  # fmt: skip
add("combine_latest", lambda s, f: s[0].combine_latest(s[1], emit_on=1), [(1, 1), (0, 2), (0, 3), (1, 4)], [(3, 4)],
    kept={3, 4}, sources=2, name="emit_on")  # fmt: skip
add("zip_latest", lambda s, f: s[0].zip_latest(s[1]), [(0, 1), (0, 2), (1, 3), (1, 4), (0, 5)],
    [(1, 3), (2, 3), (5, 4)], kept={4}, sources=2)  # fmt: skip
add("zip_latest", lambda s, f: s[0].zip_latest(s[1]), [(0, 1), (0, 2)], [], kept={1, 2}, sources=2, name="waiting")

CASES = cases.found
