"""One contract for every node: each hold on a datum is counted, also after errors; no leaks (C12–C17, C26, T10).

At rest, the count of a datum is exactly the number of times that nodes hold it. A datum that no node holds is done if
it went through or was dropped on purpose. It has failed if code that handled it raised an error.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from unit.counting.node_cases import CASES, Case, data_in

from drainmark.jobs.errors.operator_code import StreamClosed
from drainmark.jobs.streams import ManualThreads, RefCounter, References, Stream, nodes
from drainmark.jobs.streams.retained_nodes import Keeping, Kept


class Boom(Exception):
    """The error that authors' functions raise."""


class Probe(Stream):
    """A node after the tested one: it notes each datum, and raises at one of the emissions."""

    def __init__(self, upstream: Stream, booms_at: int = -1) -> None:
        self.outputs: list[Any] = []
        self.metadata: list[Any] = []
        self.booms_at = booms_at
        super().__init__(upstream)

    def update(self, x: Any, who: Stream, metadata: Any) -> None:
        self.outputs.append(x)
        self.metadata.append(metadata)
        if len(self.outputs) - 1 == self.booms_at:
            raise Boom


class Holder(Keeping):
    """A node after the tested one: like an asynchronous node, it keeps all data until the test releases them."""

    def __init__(self, upstream: Stream) -> None:
        self.items: list[Kept] = []
        super().__init__(upstream)

    def update(self, x: Any, who: Stream, metadata: Any) -> None:
        self.items.append(self._keep(x, metadata))

    def _kept(self) -> list[Kept]:
        return self.items

    def _forget(self) -> None:
        self.items.clear()

    def let_all_go(self) -> None:
        items = list(self.items)
        self.items.clear()
        self._let_go(items)


class Scene:
    """A case in progress: its data, their counters, and the outcome of each datum."""

    def __init__(self, case: Case, *, bad: int | None = None) -> None:
        self.case, self.bad = case, bad
        self.threads = ManualThreads()
        self.sources = [Stream(threads=self.threads) for _ in range(case.sources)]
        self.node = case.build(self.sources, self.touch)
        self.counters: dict[int, RefCounter] = {}
        self.told: list[tuple[int, str]] = []
        self.raised = 0

    def touch(self, x: int) -> int:
        """Return the datum, as the author's function; raise at the bad one."""
        if x == self.bad:
            raise Boom
        return x

    def counter(self, number: int) -> RefCounter:
        return RefCounter(
            lambda: self.told.append((number, "done")), on_failure=lambda error: self.told.append((number, "failed"))
        )

    def feed(self) -> None:
        for source, datum in self.case.feed:
            try:
                self.step(source, datum)
            except Boom:
                self.raised += 1
            self.check()
        self.threads.advance(self.case.seconds)
        self.check()

    def step(self, source: int, datum: Any) -> None:
        if datum == "flush":
            self.node.flush()  # type: ignore[attr-defined]
        elif source < 0:
            self.threads.advance(-source)
        else:
            entries = [{"ref": self.counters.setdefault(one, self.counter(one))} for one in sorted(data_in(datum))]
            self.sources[source].emit(datum, metadata=entries)

    def check(self) -> None:
        """Check each count against `held` of all nodes; nothing else holds data, since no call runs in this thread."""
        held = Counter(id(entry["ref"]) for node in self.sources[0].graph() for entry in node.held())
        for datum, counter in self.counters.items():
            assert counter.count == held[id(counter)], f"{datum} is counted {counter.count} times"
            assert counter.is_over == (not counter.count), datum

    @property
    def done(self) -> set[int]:
        return {datum for datum, how in self.told if how == "done"}

    @property
    def failed(self) -> set[int]:
        return {datum for datum, counter in self.counters.items() if counter.failure is not None}

    @property
    def kept(self) -> set[int]:
        return {datum for datum, counter in self.counters.items() if counter.count}

    def end(self) -> None:
        """Close the stream; check that each datum is released, and that each callback came exactly once."""
        kept = self.kept
        self.sources[0].close()
        assert not any(counter.count for counter in self.counters.values())
        assert all(isinstance(self.counters[datum].failure, StreamClosed | Boom) for datum in kept)
        assert sorted(datum for datum, _ in self.told) == sorted(self.counters), "each once"
        assert not self.done & kept, "what is given up is not done"


def ids(cases: list[Case]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.id)


@pytest.mark.seed("C16", "E44", "E46", "E50", "E51")
@ids(CASES)
def test_a_node_emits_what_it_says_and_holds_what_it_keeps(case: Case) -> None:
    scene = Scene(case)
    probe = Probe(scene.node)
    scene.feed()
    assert probe.outputs == case.wanted
    assert scene.kept == case.kept
    assert scene.done == set(scene.counters) - case.kept
    assert not scene.failed
    scene.end()


@pytest.mark.seed("C9", "C12", "C13", "E41")
@ids(CASES)
def test_metadata_go_with_the_datum_every_time_that_it_is_emitted(case: Case) -> None:
    """C12, C13: an output has all its metadata and no others; streamz gives a list's only to its last element."""
    scene = Scene(case)
    probe = Probe(scene.node)
    scene.feed()
    names = {id(counter): datum for datum, counter in scene.counters.items()}
    for output, metadata in zip(probe.outputs, probe.metadata, strict=True):
        found = {names[id(entry["ref"])] for entry in metadata}
        siblings = {one for datum in found for one in sibling_data(case, datum)}
        assert data_in(output) <= found <= siblings


def sibling_data(case: Case, number: int) -> set[int]:
    """Return the numbers that came in the same datum as a number."""
    return next(data_in(datum) for source, datum in case.feed if source >= 0 and number in data_in(datum))


@pytest.mark.seed("C15", "C16", "C17", "T10")
@ids(CASES)
def test_what_an_asynchronous_node_behind_it_keeps_is_not_done(case: Case) -> None:
    scene = Scene(case)
    holder, probe = Holder(scene.node), Probe(scene.node)
    scene.feed()
    emitted = set().union(*(data_in(output) for output in probe.outputs))
    assert not scene.done & emitted
    holder.let_all_go()
    scene.check()
    assert scene.done == set(scene.counters) - case.kept
    scene.end()


def emissions(cases: list[Case]) -> Iterator[Any]:
    for case in cases:
        for number in range(len(case.wanted)):
            yield pytest.param(case, number, id=f"{case.id}-{number}")


@pytest.mark.seed("C15", "T10", "E40")
@pytest.mark.parametrize(("case", "number"), emissions(CASES))
def test_what_raises_behind_it_fails_what_was_emitted_and_nothing_else(case: Case, number: int) -> None:
    """C5: an exception never counts as done; E40: it leaves no count above zero."""
    scene = Scene(case)
    first = Holder(scene.node)
    probe = Probe(scene.node, number)
    last = Holder(scene.node)
    scene.feed()
    lost = {one for datum in data_in(probe.outputs[number]) for one in sibling_data(case, datum)}
    assert scene.failed == lost
    assert (scene.raised == 1) != (scene.node.failure is not None), "whoever emits is told, or else it is noted"
    for holder in (first, last):
        holder.let_all_go()
    scene.check()
    assert not scene.done & lost
    assert scene.done | scene.kept | lost == set(scene.counters)
    scene.end()


def calls(cases: list[Case]) -> Iterator[Any]:
    for case in cases:
        if case.calls:
            numbers = [one for source, datum in case.feed if source >= 0 for one in sorted(data_in(datum))]
            yield from (pytest.param(case, number, id=f"{case.id}-{number}") for number in numbers)


@pytest.mark.seed("T10", "E40")
@pytest.mark.parametrize(("case", "number"), calls(CASES))
def test_what_raises_in_it_fails_its_datum_and_nothing_else(case: Case, number: int) -> None:
    """E53: streamz acknowledges a datum at which `map_async` failed."""
    scene = Scene(case, bad=number)
    probe = Probe(scene.node)
    scene.feed()
    lost = sibling_data(case, number)
    if number in scene.failed:  # a starmap calls the function with only one of two numbers
        assert scene.failed == lost
        assert number not in set().union(*(data_in(output) for output in probe.outputs)) or len(lost) > 1
    else:
        assert case.node == "starmap"
    assert not scene.done & scene.failed
    scene.end()


@pytest.mark.seed("C17")
@ids([case for case in CASES if case.kept])
def test_closing_gives_up_what_is_kept_and_takes_nothing_more(case: Case) -> None:
    scene = Scene(case)
    Probe(scene.node)
    scene.feed()
    scene.end()
    assert scene.failed == case.kept
    with pytest.raises(StreamClosed):
        scene.sources[0].emit(99)


# --- the registry -------------------------------------------------------------------------------------------------


@pytest.mark.seed("C22", "C26")
def test_every_node_is_registered_and_has_a_case() -> None:
    adding = {
        name
        for name, method in inspect.getmembers(Stream, inspect.isfunction)
        if not name.startswith("_") and inspect.signature(method).return_annotation in ("Stream", "_Flushed")
    }
    assert {node.name for node in nodes()} == adding | {"sink_to_list"}
    assert {case.node for case in CASES} == {node.name for node in nodes()}
    assert all(node.summary for node in nodes())


def below(cls: type) -> Iterator[type]:
    for child in cls.__subclasses__():
        yield child
        yield from below(child)


@pytest.mark.seed("C26")
def test_no_class_of_a_node_is_left_out() -> None:
    ours = {
        cls for cls in below(Stream) if cls.__module__.startswith("drainmark.jobs.streams") and cls.__name__[0] != "_"
    }
    between = {cls for cls in ours if cls.__subclasses__() or inspect.isabstract(cls)}
    assert {node.cls for node in nodes()} == ours - between


@pytest.mark.seed("C16")
@ids(CASES)
def test_a_node_does_with_references_what_the_registry_says(case: Case) -> None:
    """The registry says whether a node holds a datum after it emitted it, and whether it may return before it emits."""
    entry = next(node for node in nodes() if node.name == case.node)
    scene = Scene(case)
    probe = Probe(scene.node)
    scene.feed()
    again = scene.kept & set().union(*(data_in(output) for output in probe.outputs))
    if again:
        assert entry.references in (References.LEFT, References.REPLACED)
        assert entry.remembers
    if scene.kept:
        assert entry.is_asynchronous
        assert entry.references is not References.NONE


def test_functions_of_an_author_are_seen_by_every_case_that_says_so() -> None:
    """A case that does not call the function would pass the test of exceptions without testing it."""
    for case in CASES:
        seen: list[Any] = []
        looking: Callable[[Any], Any] = lambda x, seen=seen: seen.append(x) or x  # noqa: E731
        scene = Scene(case)
        scene.touch = looking  # type: ignore[method-assign]
        scene.node = case.build(scene.sources, looking)
        Probe(scene.node)
        scene.feed()
        assert bool(seen) == case.calls, case.id
