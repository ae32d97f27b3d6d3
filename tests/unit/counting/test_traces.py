"""The traces of the seed, count by count (C18–C21), and the faults of streamz (E40–E53)."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

from drainmark.jobs.streams import ManualThreads, RefCounter, Stream

Trace = list[Any]


class Boom(Exception):
    """The error that functions raise."""


class Traced:
    """A trace of the count each time a node of a chain takes a datum, and of the depth of the calls."""

    def __init__(self, counter: RefCounter) -> None:
        self.counter = counter
        self.trace: Trace = []
        self.depths: list[int] = []
        self._depth = -1

    def watch(self, source: Stream) -> None:
        """Wrap `_emit` and `update` of all nodes so that they note each call."""
        for node in source.graph():
            name = "emit" if node is source else type(node).__name__.lower()
            self._wrap(node, "update", name)
            self._wrap(node, "_emit", f"{name} emits" if node is not source else "emit")

    def _wrap(self, node: Stream, method: str, name: str) -> None:
        called = getattr(node, method)

        def noting(*arguments: Any) -> None:
            self._depth += 1
            self.depths.append(self._depth)
            if method == "update":
                self.trace.append((name, self.counter.count))
            called(*arguments)
            self._depth -= 1
            self.depths.append(self._depth)

        setattr(node, method, noting)


@pytest.mark.seed("C18", "C10", "C15", "C16")
def test_the_trace_of_a_chain_with_a_buffer() -> None:
    """emit 1, map 1, map emits 2, buffer keeps 3, unwound 1; later buffer emits 2, filter 2, sink 3, unwound 0."""
    threads = ManualThreads()
    done: list[int] = []
    ref = RefCounter(lambda: done.append(1))
    counts: Trace = []
    source = Stream(threads=threads)
    mapped = source.map(lambda x: counts.append(("map", ref.count)) or x + 1)
    kept = mapped.buffer(1000)
    sieve = kept.filter(lambda x: counts.append(("filter", ref.count)) or x % 2 == 0)
    sieve.sink(lambda x: counts.append((f"sink {x}", ref.count)))
    taken = kept.update

    def buffered(*arguments: Any) -> None:
        counts.append(("map emits", ref.count))
        taken(*arguments)
        counts.append(("buffer keeps", ref.count))

    kept.update = buffered  # type: ignore[method-assign]
    source.emit(1, metadata=[{"ref": ref}])
    assert counts == [("map", 1), ("map emits", 2), ("buffer keeps", 3)]
    assert (ref.count, done) == (1, []), "emit has returned, and says nothing (C4)"
    counts.clear()
    threads.run()
    assert counts == [("filter", 2), ("sink 2", 3)]
    assert (ref.count, done) == (0, [1])


@pytest.mark.seed("C20")
def test_a_datum_that_is_filtered_out_is_done_when_the_filter_returns() -> None:
    threads = ManualThreads()
    ref = RefCounter()
    source = Stream(threads=threads)
    counts: Trace = []
    sieve = source.map(lambda x: x + 1).buffer(1000).filter(lambda x: counts.append(ref.count) or x % 2 == 0)
    found = sieve.sink_to_list()
    source.emit(2, metadata=[{"ref": ref}])
    assert ref.count == 1
    threads.run()
    assert (counts, found, ref.count, ref.is_done) == ([2], [], 0, True)


@pytest.mark.seed("C19", "C21", "C7")
def test_the_trace_of_a_synchronous_chain() -> None:
    """Depth 0 to 5 and back; `emit` returns after the last function, and the count is zero then."""
    ref = RefCounter()
    source = Stream()
    found = source.map(lambda x: x + 1).map(lambda x: x * 2).sink_to_list()
    traced = Traced(ref)
    traced.watch(source)
    source.emit(1, metadata=[{"ref": ref}])
    assert found == [4]
    assert traced.trace == [("map", 1), ("map", 2), ("sink", 3)]
    assert traced.depths == [0, 1, 2, 3, 4, 5, 4, 3, 2, 1, 0, -1]
    assert (ref.count, ref.is_done) == (0, True)


@pytest.mark.seed("C6")
def test_all_branches_must_end() -> None:
    threads = ManualThreads()
    ref = RefCounter()
    source = Stream(threads=threads)
    quick, slow = source.map(str).sink_to_list(), source.delay(5.0).sink_to_list()
    source.emit(1, metadata=[{"ref": ref}])
    assert (quick, slow, ref.is_done) == (["1"], [], False)
    threads.advance(5.0)
    assert (slow, ref.is_done) == ([1], True)


# --- differences from streamz -------------------------------------------------------------------------------------


@pytest.mark.seed("E40")
def test_a_datum_that_nothing_follows_is_done() -> None:
    ref = RefCounter()
    Stream().emit(1, metadata=[{"ref": ref}])
    assert ref.is_done


@pytest.mark.seed("E40", "C5")
def test_an_exception_leaves_no_count_above_zero_and_is_no_success() -> None:
    failed: list[BaseException] = []
    ref = RefCounter(on_failure=failed.append)
    source = Stream()

    def boom(x: int) -> None:
        raise Boom

    source.map(str).sink(boom)
    beside = source.sink_to_list()
    with pytest.raises(Boom):
        source.emit(1, metadata=[{"ref": ref}])
    assert (ref.count, ref.is_done, len(failed), beside) == (0, False, 1, [])


@pytest.mark.seed("E45")
@pytest.mark.parametrize("keep", ["first", "last"])
def test_duplicates_that_are_dropped_get_done(keep: Any) -> None:
    threads = ManualThreads()
    refs = [RefCounter() for _ in range(8)]
    source = Stream(threads=threads)
    by_number = source.partition_unique(2, key=lambda x: x % 10, keep=keep).sink_to_list()
    by_time = source.timed_window_unique(1.0, key=lambda x: x % 10, keep=keep).sink_to_list()
    for datum, ref in zip((1, 11, 21, 2, 1, 11, 21, 2), refs, strict=True):
        source.emit(datum, metadata=[{"ref": ref}])
    threads.advance(1.0)
    assert by_number == ([(1, 2), (1, 2)] if keep == "first" else [(21, 2), (21, 2)])
    assert len(by_time) == 1
    assert all(ref.is_done for ref in refs)


@pytest.mark.seed("E53", "C5")
@pytest.mark.parametrize("stops", [False, True])
def test_what_map_async_failed_at_is_not_done(stops: bool) -> None:
    threads = ManualThreads()
    refs = [RefCounter() for _ in range(3)]
    source = Stream(threads=threads)

    def half(x: int) -> int:
        if x == 1:
            raise Boom
        return x

    found = source.map_async(half, parallelism=3, stop_on_exception=stops).sink_to_list()
    for datum, ref in enumerate(refs):
        source.emit(datum, metadata=[{"ref": ref}])
    threads.run()
    assert [ref.count for ref in refs] == [0, 0, 0]
    assert [ref.is_done for ref in refs] == [True, False, not stops]
    assert found == ([0] if stops else [0, 2])
    assert isinstance(source.failure, Boom)
    if stops:
        with pytest.raises(Boom):
            source.emit(3)
    else:
        source.emit(3)


@pytest.mark.seed("E41", "C12")
def test_every_element_of_a_list_holds_it() -> None:
    """If only the last element held the list, it would be done while an earlier element waits in a window."""
    ref = RefCounter()
    source = Stream(threads=ManualThreads())
    pairs = source.flatten().filter(lambda x: x != 3).partition(2).sink_to_list()
    source.emit([1, 2, 4, 3], metadata=[{"ref": ref}])
    assert (pairs, ref.is_done) == ([(1, 2)], False)
    source.emit([5])
    assert (pairs[1:], ref.is_done) == ([(4, 5)], True)


@pytest.mark.seed("E52")
def test_the_newest_datum_gets_done_too() -> None:
    threads = ManualThreads()
    refs = [RefCounter() for _ in range(2)]
    source = Stream(threads=threads)
    found = source.latest().sink_to_list()
    for datum, ref in enumerate(refs):
        source.emit(datum, metadata=[{"ref": ref}])
    assert [ref.is_done for ref in refs] == [True, False], "what was overtaken was dropped on purpose"
    threads.run()
    assert (found, refs[1].is_done) == ([1], True)


@pytest.mark.seed("C11")
def test_metadata_may_hold_more_than_a_counter() -> None:
    seen: Trace = []

    class Last(Stream):
        def update(self, x: Any, who: Stream, metadata: Any) -> None:
            seen.append((x, [dict(entry) for entry in metadata]))

    source = Stream(threads=ManualThreads())
    Last(source.map(str).partition(2))
    source.emit(1, metadata=[{"key": "a"}])
    source.emit(2, metadata=[{"key": "b"}])
    assert seen == [(("1", "2"), [{"key": "a"}, {"key": "b"}])]


@pytest.mark.seed("C11", "C16")
def test_metadata_may_be_an_iterator_or_a_list_that_is_used_again() -> None:
    class Again(Stream):
        def update(self, x: Any, who: Stream, metadata: Any) -> None:
            self._emit(x, (entry for entry in metadata))

    threads = ManualThreads()
    refs = [RefCounter() for _ in range(3)]
    source = Stream(threads=threads)
    Again(source).partition(3).sink_to_list()
    source.emit(0, metadata=({"ref": ref} for ref in refs[:1]))
    mine: list[Any] = []
    for ref in refs[1:2]:
        mine[:] = [{"ref": ref}]
        source.emit(1, metadata=mine)
    mine.clear()
    assert [ref.count for ref in refs] == [1, 1, 0], "the partition has both"
    source.emit(2, metadata=[{"ref": refs[2]}])
    assert all(ref.is_done for ref in refs)


# --- time ---------------------------------------------------------------------------------------------------------


@pytest.mark.seed("K14", "K16", "K17", "K18", "T11")
def test_a_replay_makes_larger_timed_windows_and_a_count_trigger_bounds_them() -> None:
    """A replay brings all events at once: no content is lost, but only a count trigger keeps the sizes of windows."""

    def windows(pause: float, count_trigger: int | None) -> list[list[int]]:
        threads = ManualThreads()
        source = Stream(threads=threads)
        found = source.timed_window(10.0, count_trigger=count_trigger).sink_to_list()
        for datum in range(60):
            source.emit(datum)
            threads.advance(pause)
        threads.advance(10.0)
        return found

    live, replayed = windows(5.0, None), windows(0.001, None)
    assert [[*chain(*found)] for found in (live, replayed)] == [list(range(60))] * 2
    assert (max(map(len, live)), max(map(len, replayed))) == (2, 60)
    bounded = windows(0.001, 2)
    assert ([*chain(*bounded)], max(map(len, bounded))) == (list(range(60)), 2)
    assert windows(5.0, 2) == bounded == live


@pytest.mark.seed("E43")
def test_a_rate_limit_lets_the_emitter_wait() -> None:
    threads = ManualThreads()
    source = Stream(threads=threads)
    times: list[float] = []
    source.rate_limit(2.0).sink(lambda _: times.append(threads.now()))
    for datum in range(4):
        source.emit(datum)
    threads.advance(5.0)
    source.emit(4)
    assert times == [0.0, 2.0, 4.0, 6.0, 11.0]
