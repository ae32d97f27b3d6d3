"""Channels between real threads: they wait, give up and are cut off; a stress test does all of it at once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from channel_parts import KINDS, MemoryFiles, batch_of, ids_of, rows_of, spool_of, stages_of, values_of
from waiting import SOON

from drainmark.jobs import failpoints
from drainmark.jobs.errors import AccountingError, Fenced, Interrupted
from drainmark.jobs.errors.environment import ChannelFull, OutOfOrder
from drainmark.jobs.failpoints import ChannelPoint, InjectedFailure
from drainmark.jobs.graph.annotations import Consistent
from drainmark.jobs.runtime.stages.channels.channel import AT_ONCE, Channel, Wait
from drainmark.jobs.runtime.stages.channels.channel_group import Exchange
from drainmark.jobs.runtime.stages.channels.rows import Batch
from drainmark.jobs.runtime.stages.channels.stage_endpoints import StageEnds, Taken, connect

PATIENT = Wait(seconds=SOON)


@pytest.fixture(params=sorted(KINDS))
def channel(request: pytest.FixtureRequest) -> Channel:
    made = KINDS[request.param]("a->b", stream="a", batches=2, bytes=10**6)
    made.open(1, spool_of(MemoryFiles()))
    return made


def waiting(action: Callable[[], Any]) -> Future[Any]:
    """Start an action in a thread, check that it waits, and return its future."""
    begun: Future[Any] = Future()

    def work() -> None:
        try:
            begun.set_result(action())
        except BaseException as error:
            begun.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    threading.Event().wait(0.05)
    assert not begun.done()
    return begun


def test_a_writer_waits_for_room_and_a_reader_for_a_batch(channel: Channel) -> None:
    writer, reader = channel.writer(1), channel.reader(1)
    taking = waiting(lambda: reader.take(PATIENT))
    writer.put(batch_of(1, 1))
    first = taking.result(SOON)
    writer.put(batch_of(2, 2))
    putting = waiting(lambda: writer.put(batch_of(3, 3), PATIENT))
    assert channel.batches == 2
    reader.done(first)
    putting.result(SOON)
    assert [item.first_id for item in (reader.take(), reader.take())] == [2, 3]  # type: ignore[union-attr]


def test_a_large_batch_waits_until_the_channel_is_empty_and_then_fits() -> None:
    channel = Channel("a->b", batches=9, bytes=1)
    channel.open(1, spool_of(MemoryFiles()))
    writer, reader = channel.writer(1), channel.reader(1)
    writer.put(batch_of(1, 50))
    putting = waiting(lambda: writer.put(batch_of(51, 99), PATIENT))
    reader.done(reader.take())  # type: ignore[arg-type]
    putting.result(SOON)
    assert channel.bytes > 1


@pytest.mark.seed("V36")
def test_a_wait_ends_when_its_time_is_over_or_when_it_is_given_up(channel: Channel) -> None:
    writer, reader = channel.writer(1), channel.reader(1)
    assert reader.take(Wait(seconds=0.01)) is None
    for number in (1, 2):
        writer.put(batch_of(number, number))
    with pytest.raises(ChannelFull):
        writer.put(batch_of(3, 3), Wait(seconds=0.01))
    given_up = threading.Event()
    putting = waiting(lambda: writer.put(batch_of(3, 3), Wait(is_cancelled=given_up.is_set)))
    given_up.set()
    with pytest.raises(Interrupted):
        putting.result(SOON)
    assert channel.batches == 2
    with pytest.raises(Interrupted):
        channel.writer(1).put(batch_of(3, 3), Wait(seconds=SOON, is_cancelled=lambda: True))


@pytest.mark.seed("V110", "V111")
@pytest.mark.parametrize("how", ["writer", "open", "close"])
def test_who_waits_to_put_is_cut_off(channel: Channel, how: str) -> None:
    writer = channel.writer(1)
    for number in (1, 2):
        writer.put(batch_of(number, number))
    putting = waiting(lambda: writer.put(batch_of(3, 3), PATIENT))
    if how == "writer":
        channel.writer(1)
    elif how == "open":
        channel.open(2, spool_of(MemoryFiles()))
    else:
        channel.close()
    with pytest.raises(Fenced):
        putting.result(SOON)


@pytest.mark.seed("V110", "V111")
@pytest.mark.parametrize("how", ["reader", "open", "close", "end"])
def test_who_waits_to_take_is_cut_off(channel: Channel, how: str) -> None:
    reader = channel.reader(1)
    taking = waiting(lambda: reader.take(PATIENT))
    if how == "reader":
        channel.reader(1)
    elif how == "open":
        channel.open(1, spool_of(MemoryFiles()))
    elif how == "close":
        channel.close()
    else:
        reader.close()
    with pytest.raises(Fenced):
        taking.result(SOON)


@pytest.mark.seed("V107", "V109")
def test_what_failed_lets_nothing_more_through(channel: Channel) -> None:
    writer = channel.writer(1)
    writer.put(batch_of(1, 1))
    writer.close()
    with pytest.raises(Fenced):
        writer.put(batch_of(2, 2))
    reader = channel.reader(1)
    assert isinstance(reader.take(AT_ONCE), Batch)
    assert reader.take(AT_ONCE) is None


def test_rows_are_held_as_long_as_anybody_needs_them() -> None:
    rows = rows_of(1, 2)
    rows.hold()
    rows.release()
    rows.release()
    assert rows.holders == 0
    with pytest.raises(AccountingError):
        rows.hold()
    with pytest.raises(AccountingError):
        rows.release()


def test_rows_of_other_ids_than_the_group_has_are_not_staged() -> None:
    with pytest.raises(AccountingError):
        rows_of(3, 9).stage(spool_of(MemoryFiles()), "x", 3, 8)


@pytest.mark.seed("E30")
def test_rows_are_staged_once_by_however_many_threads() -> None:
    files, rows = MemoryFiles(), rows_of(1, 2)
    with ThreadPoolExecutor(8) as pool:
        written = set(pool.map(lambda _: rows.stage(spool_of(files), "x", 1, 2), range(32)))
    assert len(written) == 1
    assert sum(files.writes.values()) == 1


# --- a region ----------------------------------------------------------------------------------------------------

DIAMOND = [("s", "a"), ("s", "b"), ("a", "c"), ("b", "c")]


def region(kind: str = "memory", *, batches: int = 2, inflight: int = 10**9) -> Exchange:
    stages, channels = stages_of(DIAMOND, batches=batches)
    exchange = Exchange(
        stages, channels, Consistent(trigger="operator-driven", channels=kind, max_inflight_bytes=inflight)
    )
    exchange.open(1, spool_of(MemoryFiles()), through=dict.fromkeys("sabc", 0))
    return exchange


def send(ends: StageEnds, number: int) -> None:
    ends.hand_over(f"s{number}", {"s": rows_of(number, value=f"s{number}")}, ids=(number, number), wait=PATIENT)


def pass_on(ends: StageEnds, name: str) -> None:
    """Let a stage process its next group, which must be available."""
    got = ends.take(AT_ONCE)
    assert got is not None
    ends.hand_over(f"{name}{got.first_id}", {name: rows_of(got.first_id, value=f"{name}{got.first_id}")}, taken=got)


def test_a_start_waits_for_room_in_all_its_channels() -> None:
    exchange = region(batches=1)
    start, fast = connect(exchange, "s", 1), connect(exchange, "a", 1)
    send(start, 1)
    got = fast.take(PATIENT)
    assert isinstance(got, Taken)
    fast.hand_over("a1", {"a": rows_of(1)}, taken=got)
    assert not start.room(AT_ONCE)
    slow = connect(exchange, "b", 1)
    roomy = waiting(lambda: start.room(PATIENT))
    got = slow.take(PATIENT)
    assert isinstance(got, Taken)
    slow.hand_over("b1", {"b": rows_of(1)}, taken=got)
    assert roomy.result(SOON)


@pytest.mark.seed("V87", "V88", "V89", "V108", "N23")
def test_a_stage_takes_a_group_when_every_connection_has_brought_it_and_before_a_checkpoint() -> None:
    exchange = region()
    ends = {name: connect(exchange, name, 1) for name in "sabc"}
    send(ends["s"], 1)
    send(ends["s"], 2)
    for name in "aab":
        assert ends["c"].take(AT_ONCE) is None
        pass_on(ends[name], name)
    got = ends["c"].take(AT_ONCE)
    assert got is not None
    assert (got.first_id, got.last_id, set(got.batches)) == (1, 1, {"a", "b"})
    ends["c"].hand_over("c", {}, taken=got)
    assert ends["c"].take(AT_ONCE) is None, "`b` has not brought the second group"
    snapshot = exchange.snapshot()  # the first snapshot, so it has all groups handed over so far
    assert [(part.stage, part.last_id) for part in snapshot.parts] == [
        ("s", 1), ("s", 2), ("a", 1), ("a", 2), ("b", 1), ("c", 1),
    ]  # fmt: skip
    snapshot.release()


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.seed("V100", "V101", "V102", "V103", "V113")
def test_a_reset_empties_and_refills_every_channel_before_a_stage_gets_its_ends(kind: str) -> None:
    exchange, spool = region(kind, batches=9), spool_of(MemoryFiles())
    exchange.open(1, spool, through=dict.fromkeys("sabc", 0))
    old = {name: connect(exchange, name, 1) for name in "sabc"}
    send(old["s"], 1)
    pass_on(old["a"], "a")
    snapshot = exchange.snapshot()
    in_flight = snapshot.in_flight()
    snapshot.release()
    send(old["s"], 2)
    pass_on(old["a"], "a")
    doomed = old["b"].take(AT_ONCE)  # `b` works on this group, and finishes it after the reset
    exchange.open(2, spool, through=snapshot.through, in_flight=in_flight)
    rows = rows_of(1, value="doomed")
    with pytest.raises(Fenced):
        old["b"].hand_over("doomed", {"b": rows}, taken=doomed)
    found = {name: [each.batch.first_id for each in of.overtaken()] for name, of in exchange.channels.items()}
    assert found == {"s->a": [], "s->b": [1], "a->c": [1], "b->c": []}, "of the second group nothing is left"
    new = {name: connect(exchange, name, 2) for name in "abc"}
    assert new["a"].take(AT_ONCE) is None
    assert new["c"].take(AT_ONCE) is None
    pass_on(new["b"], "b")
    got = new["c"].take(AT_ONCE)
    assert got is not None
    assert {stream: values_of(batch.rows) for stream, batch in got.batches.items()} == {"a": {"a1"}, "b": {"b1"}}


def test_a_hand_over_without_its_group_or_with_another_is_refused() -> None:
    exchange = region()
    start, other = connect(exchange, "s", 1), connect(exchange, "a", 1)
    rows = rows_of(1)
    with pytest.raises(OutOfOrder):
        start.hand_over("x", {"s": rows})
    with pytest.raises(OutOfOrder):
        other.hand_over("x", {"a": rows}, ids=(1, 1))
    send(start, 1)
    with pytest.raises(OutOfOrder):
        send(start, 1)
    assert exchange.through == {"s": 1, "a": 0, "b": 0, "c": 0}
    assert rows.holders == 1


def test_ends_are_cut_off_with_their_block() -> None:
    exchange = region()
    with connect(exchange, "s", 1) as ends:
        send(ends, 1)
    with pytest.raises(Fenced):
        send(ends, 2)


@pytest.mark.parametrize("point", [ChannelPoint.HAND_OVER_BEFORE, ChannelPoint.HAND_OVER_AFTER])
@pytest.mark.seed("K10", "X2")
def test_a_stage_that_fails_around_its_hand_over_has_handed_over_once(point: ChannelPoint) -> None:
    exchange = region()
    send(connect(exchange, "s", 1), 1)
    ends, rows = connect(exchange, "a", 1), rows_of(1, value="first")
    got = ends.take(AT_ONCE)
    assert isinstance(got, Taken)
    failpoints.arm(f"{point}:raise")
    try:
        with pytest.raises(InjectedFailure):
            ends.hand_over("first", {"a": rows}, taken=got)
    finally:
        failpoints.arm("")
    ends = connect(exchange, "a", 1)
    again = ends.take(AT_ONCE)
    if point is ChannelPoint.HAND_OVER_BEFORE:
        assert rows.holders == 1
        assert isinstance(again, Taken)
        ends.hand_over("second", {"a": rows_of(1, value="second")}, taken=again)
    else:
        assert again is None
    (part,) = exchange.snapshot().parts[1:]
    (batch,) = exchange.channels["a->c"].overtaken()
    assert values_of(batch.batch.rows) == {part.made}


@dataclass
class Stress:
    """A diamond of stages that go on while others, except the start, fail now and then and begin again."""

    exchange: Exchange
    groups: int
    fails: dict[str, set[int]]
    ended: threading.Event = field(default_factory=threading.Event)
    serial: Iterator[int] = field(default_factory=lambda: iter(range(10**9)))
    parts: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in "sabc"})

    @property
    def wait(self) -> Wait:
        return Wait(seconds=SOON, is_cancelled=self.ended.is_set)

    def begin(self) -> None:
        with connect(self.exchange, "s", 1) as ends:
            for number in range(1, self.groups + 1):
                assert ends.room(self.wait)
                value = f"s{next(self.serial)}"
                rows = {"s": rows_of(number, value=value)}
                ends.hand_over((number, {}, value), rows, ids=(number, number), wait=self.wait)

    def work(self, name: str) -> None:
        while self.exchange.through[name] < self.groups:
            with connect(self.exchange, name, 1) as ends:
                while self.exchange.through[name] < self.groups and self.step(name, ends):
                    pass

    def step(self, name: str, ends: StageEnds) -> bool:
        """Process the next group; return False if the stage fails at it."""
        got = ends.take(self.wait)
        assert isinstance(got, Taken)
        assert all(ids_of(batch.rows) == [got.first_id] for batch in got.batches.values())
        read = {stream: values_of(batch.rows) for stream, batch in got.batches.items()}
        value = f"{name}{next(self.serial)}"
        rows = {name: rows_of(got.first_id, value=value)} if name != "c" else {}
        if got.first_id in self.fails[name]:
            self.fails[name].discard(got.first_id)
            return False
        ends.hand_over((got.first_id, read, value), rows, taken=got, wait=self.wait)
        return True

    def checkpoint(self) -> None:
        snapshot = self.exchange.snapshot()
        in_flight = snapshot.in_flight()
        snapshot.release()
        for part in snapshot.parts:
            self.parts[part.stage].append(part.made)
        for plan in (plan for stage in self.exchange.stages.values() for plan in stage.inputs):
            low, high = snapshot.through[plan.stage_to], snapshot.through[plan.stage_from]
            assert [each.first_id for each in in_flight.get(plan.name, ())] == list(range(low + 1, high + 1))

    def run(self) -> None:
        with ThreadPoolExecutor(4) as pool:
            working = [pool.submit(self.begin), *(pool.submit(self.work, name) for name in "abc")]
            until = time.monotonic() + SOON
            try:
                while min(map(len, self.parts.values())) < self.groups and time.monotonic() < until:
                    self.checkpoint()
            finally:
                self.ended.set()
            for each in working:
                each.result()


@pytest.mark.parametrize("inflight", [1, 10**9])
@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.seed("V107", "V109", "V113", "X2", "F5")
def test_stages_in_threads_fail_and_are_checkpointed_meanwhile(kind: str, inflight: int) -> None:
    groups, chance = 120, random.Random(7)
    fails = {name: {chance.randrange(1, groups) for _ in range(8)} for name in "abc"}
    stress = Stress(region(kind, inflight=inflight), groups, fails)
    stress.run()
    made = {(name, number): value for name, found in stress.parts.items() for number, _, value in found}
    for name, found in stress.parts.items():
        assert [number for number, _, _ in found] == list(range(1, groups + 1)), name
        for number, read, _ in found:
            assert read == {stream: {made[stream, number]} for stream in read}
    assert not any(fails.values())
    assert not any(channel.batches for channel in stress.exchange.channels.values())
