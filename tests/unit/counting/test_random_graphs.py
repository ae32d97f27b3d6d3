"""Random graphs and random errors in functions: counts are right at rest, and nothing leaks (C5, C12–C17, C26)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import pytest

from drainmark.jobs.streams import ManualThreads, RefCounter, Stream, nodes
from drainmark.jobs.streams.batching import Gathering

GRAPHS = 60
NODES = 12
STEPS = 60
ROOM = 10**6
"""Enough room that no node waits: in a single thread, no other code could make room for it."""


class Boom(Exception):
    """The error that functions raise."""


def data_in(made: Any) -> set[int]:
    return set().union(*(data_in(one) for one in made)) if isinstance(made, Iterable) else {made}


class Graph:
    """A random graph with data in progress."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.threads = ManualThreads(newest_first=seed % 2 == 0)
        self.sources = [Stream(threads=self.threads) for _ in range(2)]
        self.ends: list[Stream] = list(self.sources)
        self.used: set[str] = set()
        self.counters: dict[int, RefCounter] = {}
        self.told: list[tuple[int, str]] = []
        self.raised: set[int] = set()
        for _ in range(NODES):
            self.grow()
        for end in self.ends:
            if not end.downstreams:
                end.sink(self.touch)
        self.ends = [node for node in self.ends if node.downstreams]

    def touch(self, x: Any) -> Any:
        """Return the input, or raise at random: an author's function."""
        if self.chance.random() < 0.03:
            self.raised |= data_in(x)
            raise Boom
        return x

    def grow(self) -> None:
        """Add a node after one or two existing nodes."""
        first, second = self.chance.sample(self.ends, 2)
        key = lambda x: sum(data_in(self.touch(x))) % 5  # noqa: E731
        n = self.chance.randrange(1, 4)
        ways: dict[str, Callable[[], Stream]] = {
            "map": lambda: first.map(self.touch),
            "starmap": lambda: first.map(lambda x: (x, 1)).starmap(lambda x, _: self.touch(x)),
            "filter": lambda: first.filter(lambda x: key(x) < 4),
            "accumulate": lambda: first.accumulate(lambda state, x: (state, self.touch(x)), 0, returns_state=True),
            "slice": lambda: first.slice(n, None, n),
            "flatten": lambda: first.map(lambda x: [x] * n).flatten(),
            "pluck": lambda: first.map(lambda x: (x,)).pluck(0),
            "unique": lambda: first.unique(n, key),
            "union": lambda: first.union(second),
            "rate_limit": lambda: first.rate_limit(0.1),
            "buffer": lambda: first.buffer(ROOM),
            "delay": lambda: first.delay(n),
            "latest": first.latest,
            "map_async": lambda: first.map_async(self.touch, parallelism=ROOM),
            "partition": lambda: first.partition(n, timeout=self.chance.choice([None, 2.0]), key=key),
            "partition_unique": lambda: first.partition_unique(n, key, self.chance.choice(["first", "last"])),
            "timed_window": lambda: first.timed_window(n, self.chance.choice([None, 3])),
            "timed_window_unique": lambda: first.timed_window_unique(n, key, self.chance.choice(["first", "last"])),
            "sliding_window": lambda: first.sliding_window(n, return_partial=self.chance.random() < 0.5),
            "collect": first.collect,
            "zip": lambda: first.zip(second, maxsize=ROOM),
            "combine_latest": lambda: first.combine_latest(second, emit_on=self.chance.choice([None, 0])),
            "zip_latest": lambda: first.zip_latest(second),
        }
        name = self.chance.choice(sorted(ways))
        self.used.add(name)
        self.ends.append(ways[name]())

    def run(self) -> None:
        for number in range(STEPS):
            with suppress(Boom):
                self.step(number)
            self.check()

    def step(self, number: int) -> None:
        way = self.chance.random()
        if way < 0.15:
            self.threads.advance(self.chance.random() * 3)
        elif way < 0.25:
            for node in self.sources[0].graph():
                if isinstance(node, Gathering):
                    node.flush()
        else:
            self.counters[number] = RefCounter(
                lambda: self.told.append((number, "done")), on_failure=lambda _: self.told.append((number, "failed"))
            )
            self.chance.choice(self.sources).emit(number, metadata=[{"ref": self.counters[number]}])

    def check(self) -> None:
        held = Counter(id(entry["ref"]) for node in self.graph for entry in node.held())
        assert {number: counter.count for number, counter in self.counters.items()} == {
            number: held[id(counter)] for number, counter in self.counters.items()
        }
        done = {number for number, how in self.told if how == "done"}
        assert not done & self.raised, "what raised is not done"

    @property
    def graph(self) -> set[Stream]:
        return {node for source in self.sources for node in source.graph()}


@pytest.mark.seed("C12", "C15", "C17", "C26", "T10")
@pytest.mark.parametrize("seed", range(GRAPHS))
def test_counts_are_right_whatever_the_graph_and_whatever_raises(seed: int) -> None:
    graph = Graph(seed)
    graph.run()
    kept = {number for number, counter in graph.counters.items() if counter.count}
    for source in graph.sources:
        source.close()
    assert not any(counter.count for counter in graph.counters.values())
    assert sorted(number for number, _ in graph.told) == sorted(graph.counters), "each is called back once"
    assert not kept & {number for number, how in graph.told if how == "done"}


def test_every_node_is_in_some_graph() -> None:
    used = set().union(*(Graph(seed).used for seed in range(GRAPHS)))
    assert used | {"sink", "sink_to_list"} == {node.name for node in nodes()}
