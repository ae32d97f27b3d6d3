"""Streams on real threads: back-pressure, order, calls that end out of order; no test sleeps (C4, C8, E42, E53)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from waiting import SOON, eventually

from drainmark.jobs.errors.operator_code import StreamClosed, StreamStuck
from drainmark.jobs.streams import Acknowledged, ManualThreads, RealThreads, RefCounter, Stream


@pytest.fixture
def source() -> Iterator[Stream]:
    made = Stream(threads=RealThreads())
    yield made
    made.close()


@pytest.mark.seed("E42", "C8")
def test_a_full_buffer_lets_whoever_emits_wait(source: Stream) -> None:
    go, at_work = threading.Event(), threading.Event()
    found: list[int] = []

    def slow(x: int) -> None:
        at_work.set()
        assert go.wait(SOON)
        found.append(x)

    source.buffer(2).sink(slow)
    source.emit(0)
    assert at_work.wait(SOON)
    source.emit(1)
    source.emit(2)  # two data wait, and one is processed
    emitter = threading.Thread(target=source.emit, args=(3,))
    emitter.start()
    emitter.join(0.05)
    assert emitter.is_alive(), "there is no room"
    go.set()
    emitter.join(SOON)
    assert not emitter.is_alive()
    assert source.join(SOON)
    assert found == [0, 1, 2, 3]


@pytest.mark.seed("X8", "E53", "C4")
def test_what_ends_first_is_acknowledged_behind_what_came_first(source: Stream) -> None:
    """Three calls run; the last ends first, and neither its result nor its position overtakes the others."""
    gates = [threading.Event() for _ in range(3)]
    ended = threading.Semaphore(0)
    told: list[int] = []
    acknowledged = Acknowledged(told.append)

    def work(x: int) -> int:
        assert gates[x].wait(SOON)
        ended.release()
        return x * 10

    out = source.map_async(work, parallelism=3)
    found = out.sink_to_list()
    for position in range(3):
        source.emit(position, metadata=[{"ref": acknowledged.begin(position)}])
    for position in (2, 1):
        gates[position].set()
        assert ended.acquire(timeout=SOON)
    assert (found, told) == ([], [])
    gates[0].set()
    assert source.join(SOON)
    assert (found, told[-1], acknowledged.pending) == ([0, 10, 20], 2, 0)


@pytest.mark.seed("C16", "C17", "X8")
def test_many_threads_and_many_branches_let_everything_go(source: Stream) -> None:
    """Windows, pools, joins and buffers run in parallel: every datum is done at the end, in any order."""
    acknowledged = Acknowledged()
    left = source.map_async(lambda x: x, parallelism=4).buffer(3)
    right = source.buffer(5).map(lambda x: -x).map_async(abs, parallelism=2)
    pairs = left.zip(right, maxsize=2)
    found = pairs.partition(7, timeout=0.01).flatten().timed_window(0.01, 5).buffer(1).flatten().sink_to_list()
    lock = threading.Lock()

    def emit(numbers: range) -> None:
        for number in numbers:
            with lock:  # positions begin in the order in which they are emitted
                source.emit(number, metadata=[{"ref": acknowledged.begin(number)}])

    emitters = [threading.Thread(target=emit, args=(range(start, 400, 4),)) for start in range(4)]
    for emitter in emitters:
        emitter.start()
    for emitter in emitters:
        emitter.join(SOON)
        assert not emitter.is_alive()
    done = threading.Event()
    last = RefCounter(done.set)
    while acknowledged.pending and source.failure is None:
        source.join(SOON)
        threading.Event().wait(0.005)
    source.emit(400, metadata=[{"ref": last}])
    assert done.wait(SOON)
    assert source.failure is None
    assert sorted(found) == [(number, number) for number in range(401)]
    assert all(not list(node.held()) for node in source.graph())


def test_between_the_end_of_a_call_and_the_passing_on_of_its_result_nothing_looks_idle() -> None:
    """Otherwise a drain would treat a datum on its way as one that waits for other data."""
    looks: list[bool] = []

    class Watched(RealThreads):
        def lane(self, name: str) -> Any:
            lane = super().lane(name)
            put = lane.put

            def watched(task: Any, *, after: float = 0.0) -> None:
                looks.append(self.has_work())
                put(task, after=after)

            lane.put = watched  # type: ignore[method-assign]
            return lane

    source = Stream(threads=Watched())
    found = source.map_async(lambda x: x, parallelism=1).sink_to_list()
    source.emit(1)
    assert source.join(SOON)
    assert (looks, found) == ([True], [1])
    source.close()


def test_who_waits_for_what_nobody_brings_is_not_at_work(source: Stream) -> None:
    """`join` must not wait for a thread that waits for data; the thread goes on when the other side brings them."""
    other = Stream(threads=source.threads)
    found = source.buffer(9).zip(other, maxsize=1).sink_to_list()
    for datum in range(3):
        source.emit(datum)
    assert source.join(SOON)
    assert source.threads.is_waited()
    for datum in range(3):
        other.emit(datum)
    assert source.join(SOON)
    assert found == [(0, 0), (1, 1), (2, 2)]
    assert not source.threads.is_waited()


def test_closing_frees_whoever_waits(source: Stream) -> None:
    go, at_work = threading.Event(), threading.Event()
    counters = [RefCounter() for _ in range(3)]
    refused: list[BaseException] = []

    def slow(x: int) -> None:
        at_work.set()
        assert go.wait(SOON)

    source.buffer(1).sink(slow)

    def emit() -> None:
        try:
            source.emit(2, metadata=[{"ref": counters[2]}])
        except StreamClosed as error:
            refused.append(error)

    source.emit(0, metadata=[{"ref": counters[0]}])
    assert at_work.wait(SOON)
    source.emit(1, metadata=[{"ref": counters[1]}])
    emitter = threading.Thread(target=emit)
    emitter.start()
    eventually(source.threads.is_waited, "who emits and finds no room")
    source.close()
    emitter.join(SOON)
    assert not emitter.is_alive()
    assert len(refused) == 1
    go.set()
    assert source.join(SOON)
    assert [counter.is_done for counter in counters] == [True, False, False], "one was at work, and went through"
    assert all(counter.is_over for counter in counters)


def test_a_timer_fires_and_join_does_not_wait_for_it(source: Stream) -> None:
    found: list[Any] = []
    fired = threading.Event()
    window = source.timed_window(0.02)
    window.sink(lambda x: (found.append(x), fired.set()))
    source.emit(1)
    assert source.join(SOON)
    assert fired.wait(SOON)
    assert found == [[1]]
    asleep = Stream(threads=source.threads)
    asleep.delay(3600.0).sink(found.append)
    asleep.emit(2)
    assert asleep.join(SOON), "an hour is not waited for"
    assert asleep.threads.has_work()
    assert not asleep.threads.has_work(due=True)


def test_on_a_clock_by_hand_who_would_wait_for_ever_is_told() -> None:
    source, other = (Stream(threads=threads) for threads in [ManualThreads()] * 2)
    source.zip(other, maxsize=2)
    source.emit(1)
    source.emit(2)
    with pytest.raises(StreamStuck):
        source.emit(3)


def test_calls_may_end_in_the_opposite_order_by_hand() -> None:
    threads = ManualThreads(newest_first=True)
    source = Stream(threads=threads)
    called: list[int] = []
    found = source.map_async(lambda x: called.append(x) or x, parallelism=3).sink_to_list()
    for datum in range(3):
        source.emit(datum)
    threads.run()
    assert (called, found) == ([2, 1, 0], [0, 1, 2])


@pytest.mark.seed("C5", "E53")
@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit()], ids=["sys.exit", "GeneratorExit"])
def test_what_ends_a_thread_elsewhere_fails_its_datum_and_no_other(source: Stream, error: BaseException) -> None:
    """The failed datum's call ends last, so the other results are passed on after it, or never."""
    go = threading.Event()
    found: list[int] = []

    def called(x: int) -> int:
        assert x or go.wait(SOON)
        return x

    def took(x: int) -> None:
        if x == 0:
            raise error
        found.append(x)

    refs = [RefCounter() for _ in range(3)]
    source.map_async(called, parallelism=3).sink(took)
    for datum, ref in enumerate(refs):
        source.emit(datum, metadata=[{"ref": ref}])
    go.set()
    assert source.join(SOON)
    assert (found, [ref.is_done for ref in refs]) == ([1, 2], [False, True, True])
    assert source.failure is error is refs[0].failure


def test_wrong_sizes_are_refused_when_the_graph_is_built() -> None:
    source = Stream(threads=ManualThreads())
    for wrong in (
        lambda: source.buffer(0), lambda: source.partition(0), lambda: source.sliding_window(0),
        lambda: source.map_async(abs, parallelism=0), lambda: source.zip(source), lambda: source.slice(-1),
        lambda: source.partition_unique(1, keep="both"),  # type: ignore[arg-type]
        lambda: source.unique(maxsize=0), lambda: source.unique(maxsize=0, hashable=False),
        lambda: source.zip(Stream(), maxsize=0), lambda: source.combine_latest(Stream(), emit_on=Stream()),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            wrong()
