"""`RefCounter` and `Acknowledged`: counting down to one callback, and prefixes without holes (C14, E55, X8)."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from drainmark.jobs.errors.operator_code import ReferenceMiscounted
from drainmark.jobs.streams import Acknowledged, RefCounter, Stream
from drainmark.jobs.streams.references import release, retain


class Boom(Exception):
    """The error that callbacks raise."""


@pytest.mark.seed("C14", "E55")
def test_the_callback_comes_once_at_zero() -> None:
    told: list[str] = []
    counter = RefCounter(lambda: told.append("done"))
    assert (counter.count, counter.is_done) == (0, False)
    counter.retain(3)
    counter.release()
    counter.release(1)
    assert (counter.count, told) == (1, [])
    counter.release()
    assert (counter.count, counter.is_done, told) == (0, True, ["done"])


@pytest.mark.seed("E55")
def test_a_counter_may_begin_with_references() -> None:
    told: list[str] = []
    counter = RefCounter(lambda: told.append("done"), initial=2)
    counter.release(2)
    assert told == ["done"]


@pytest.mark.seed("C16")
def test_who_miscounts_is_told() -> None:
    """A reference that is taken too late, or released twice, would acknowledge a datum that is still held."""
    counter = RefCounter()
    with pytest.raises(ReferenceMiscounted):
        counter.release()
    counter.retain()
    counter.release()
    for wrong in (counter.retain, counter.release):
        with pytest.raises(ReferenceMiscounted):
            wrong()


@pytest.mark.seed("C5", "C16")
def test_references_to_several_data_are_taken_all_or_none() -> None:
    """One of three data is done already: the others keep their references, and have failed, since they stop here."""
    told: list[Any] = []
    held, other = (RefCounter(lambda: told.append("done"), on_failure=told.append, initial=1) for _ in range(2))
    over = RefCounter(initial=1)
    over.release()
    with pytest.raises(ReferenceMiscounted) as caught:
        retain([held, over, other], 2)
    assert (held.count, other.count, told) == (1, 1, [])
    release([held, other])
    assert told == [caught.value, caught.value]


@pytest.mark.seed("C5", "C16", "X8")
def test_what_goes_with_a_datum_that_is_done_already_is_not_acknowledged() -> None:
    acknowledged = Acknowledged()
    over = RefCounter(initial=1)
    over.release()
    source = Stream()
    source.map(abs)
    with pytest.raises(ReferenceMiscounted):
        source.emit(1, metadata=[{"ref": acknowledged.begin("a")}, {"ref": over}])
    assert (acknowledged.position, acknowledged.pending) == (None, 1)
    assert isinstance(acknowledged.failure, ReferenceMiscounted)


@pytest.mark.seed("C5")
def test_a_datum_that_failed_is_never_done() -> None:
    told: list[Any] = []
    counter = RefCounter(lambda: told.append("done"), on_failure=told.append)
    counter.retain(2)
    first, second = Boom("first"), Boom("second")
    counter.release()
    counter.fail(first)
    counter.fail(second)
    assert (told, counter.failure, counter.count) == ([], first, 1), "it is still held"
    counter.release()
    assert (told, counter.is_done, counter.is_over) == ([first], False, True)


def test_a_failure_of_what_nobody_holds_is_told_at_once_and_after_the_end_not_at_all() -> None:
    told: list[Any] = []
    counter, error = RefCounter(on_failure=told.append), Boom()
    counter.fail(error)
    assert told == [error]
    done = RefCounter(on_failure=told.append, initial=1)
    done.release()
    done.fail(error)
    assert (told, done.is_done) == ([error], True)


@pytest.mark.seed("E55")
def test_callbacks_run_in_a_loop_where_there_is_one() -> None:
    """The loop is one of asyncio, or one of tornado, which has another method."""
    told: list[Any] = []

    async def counted() -> None:
        loop = asyncio.get_running_loop()
        counter = RefCounter(lambda: told.append(threading.get_ident()), loop=loop, initial=1)
        with ThreadPoolExecutor(1) as pool:
            await loop.run_in_executor(pool, counter.release)
        await asyncio.sleep(0)
        assert told == [threading.get_ident()], "the thread of the loop, not the one that let go"

    asyncio.run(counted())

    class Tornado:
        def add_callback(self, call: Any) -> None:
            told.append(call)

    counter = RefCounter(lambda: told.append("called"), loop=Tornado(), initial=1)
    counter.release()
    assert callable(told[-1])
    told.pop()()
    assert told[-1] == "called"


def test_threads_may_let_go_beside_each_other() -> None:
    told: list[str] = []
    counter = RefCounter(lambda: told.append("done"), initial=8000)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(8):
            pool.submit(lambda: [counter.release() for _ in range(1000)])
    assert (counter.count, told) == (0, ["done"])


def test_all_are_let_go_also_where_a_callback_raises() -> None:
    def broken() -> None:
        raise Boom

    counters = [RefCounter(broken, initial=1), RefCounter(initial=1)]
    with pytest.raises(Boom):
        release(counters)
    assert [counter.count for counter in counters] == [0, 0]


# --- prefixes -----------------------------------------------------------------------------------------------------


def begun(acknowledged: Acknowledged, *positions: Any) -> list[RefCounter]:
    counters = [acknowledged.begin(position) for position in positions]
    for counter in counters:
        counter.retain()
    return counters


@pytest.mark.seed("X8", "C2", "C25", "C1")
def test_a_position_waits_for_those_before_it() -> None:
    told: list[int] = []
    acknowledged = Acknowledged(told.append, after=6)
    seven, eight, nine = begun(acknowledged, 7, 8, 9)
    eight.release()
    assert (told, acknowledged.position, acknowledged.beyond(), acknowledged.pending) == ([], 6, (8,), 3)
    seven.release()
    assert (told, acknowledged.position, acknowledged.beyond(), acknowledged.pending) == ([8], 8, (), 1)
    nine.release()
    assert (told, acknowledged.pending) == ([8, 9], 0)


@pytest.mark.seed("X8", "C5")
def test_a_position_that_failed_holds_back_all_behind_it() -> None:
    told: list[int] = []
    failed: list[Any] = []
    acknowledged = Acknowledged(told.append, on_failure=lambda *found: failed.append(found))
    one, two, three = begun(acknowledged, 1, 2, 3)
    error = Boom()
    acknowledged.check()
    two.fail(error)
    for counter in (one, two, three):
        counter.release()
    assert (told, failed, acknowledged.beyond()) == ([1], [(2, error)], (3,))
    with pytest.raises(Boom):
        acknowledged.check()
    (four,) = begun(acknowledged, 4)
    four.release()
    assert told == [1]


@pytest.mark.seed("X8", "C2")
def test_a_source_that_goes_on_when_it_is_told_is_told_of_that_next() -> None:
    told: list[int] = []

    def commit(position: int) -> None:
        told.append(position)
        if position < 3:
            (following,) = begun(acknowledged, position + 1)
            following.release()
            assert told[-1] == position, "never one call within another"

    acknowledged = Acknowledged(commit)
    (first,) = begun(acknowledged, 1)
    first.release()
    assert (told, acknowledged.position, acknowledged.pending) == ([1, 2, 3], 3, 0)


@pytest.mark.seed("X8")
def test_what_could_not_be_committed_is_committed_with_the_next() -> None:
    told: list[int] = []

    def commit(position: int) -> None:
        if position == 1:
            raise Boom
        told.append(position)

    acknowledged = Acknowledged(commit)
    one, two = begun(acknowledged, 1, 2)
    with pytest.raises(Boom):
        one.release()
    assert acknowledged.position is None
    two.release()
    assert (told, acknowledged.position) == ([2], 2)


@pytest.mark.seed("X8")
@pytest.mark.parametrize("seed", range(5))
def test_in_any_order_from_any_threads_the_prefix_only_grows(seed: int) -> None:
    told: list[int] = []
    acknowledged = Acknowledged(told.append)
    counters = begun(acknowledged, *range(400))
    random.Random(seed).shuffle(counters)
    with ThreadPoolExecutor(4) as pool:
        for start in range(4):
            pool.submit(lambda start=start: [counter.release() for counter in counters[start::4]])
    assert told == sorted(set(told))
    assert (told[-1], acknowledged.position, acknowledged.pending) == (399, 399, 0)
