"""The order of calls to a handler, its locks and permits, and the actions allowed in a call (N6, N13–N20, E17–E22)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from waiting import SOON, eventually

from drainmark.jobs.errors import DrainTimeout, Interrupted, ResetTimeout
from drainmark.jobs.errors.operator_code import CheckpointUnreadable, PermitViolation, ResetWanted
from drainmark.jobs.runtime.hosting.handler_host import HandlerAttempt, HandlerHost
from drainmark.jobs.runtime.hosting.region_context import RegionContext
from drainmark.jobs.state.handlers.checkpoint import Checkpoint
from drainmark.jobs.state.handlers.cow_dict import CowDict
from drainmark.jobs.state.handlers.data_store import DataStoreEntry
from drainmark.jobs.state.handlers.state_handler import StateHandler, callbacks_missing
from drainmark.jobs.state.handlers.stored_checkpoints import StoredCheckpoints
from drainmark.resources.checkpoints.data_stores import DirectoryDataStore

SCHEMA = pa.schema([("n", pa.int64())])
NOTHING = SCHEMA.empty_table()


def table(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


def hosted(make: Callable[[], StateHandler], *, stored: StoredCheckpoints | None = None) -> tuple[HandlerHost, Any]:
    context = RegionContext(
        region="app/start", index=3, is_start_of_region=False, is_end_of_region=False, is_trigger_operator=False,
        drain_timeout=SOON, reset_timeout=SOON, consistent_ports=(True,), operator="op",
    )  # fmt: skip
    host = HandlerHost.of(make(), context, entry="app/op", schema=SCHEMA, stored=stored)
    host.reset({})
    return host, host.handler


@contextmanager
def impatient(host: HandlerHost) -> Iterator[None]:
    """Let a host wait for next to nothing in the block; outside of it, all the work of a busy machine is in time."""
    context = host.context
    context.drain_timeout = context.reset_timeout = 0.2
    yield
    context.drain_timeout = context.reset_timeout = SOON


def step(host: HandlerHost, rows: dict[int, pa.Table]) -> tuple[list[tuple[int, int]], dict[int, bytes]]:
    """Process ids; return the pairs (id, n) of the output, and all rows of the state's table."""
    output, changes = host.step(range(min(rows), max(rows) + 1), rows, NOTHING)
    late = host.take(host.life)()
    return (
        list(zip(output["_sequence_id"].to_pylist(), output["n"].to_pylist(), strict=True)),
        chunks(pa.concat_tables([changes, late])),
    )


def chunks(changes: pa.Table) -> dict[int, bytes]:
    return dict(zip(changes["chunk"].to_pylist(), changes["value"].to_pylist(), strict=True))


class Recorder(StateHandler):
    """A handler that notes every call, and whether the calling thread has the lock."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.n = 0

    def note(self, *call: Any, locked: bool = True) -> None:
        assert self.lock.is_mine == locked, call
        self.calls.append(call if len(call) > 1 else call[0])

    def process(self, rows: pa.Table, context: RegionContext) -> pa.Table:
        self.note("process", context.sequence_id)
        self.n += rows.num_rows
        return rows

    def drain(self) -> None:
        self.note("drain")

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        self.note("checkpoint", checkpoint.sequence_id)
        checkpoint.write(self.n)

    def region_checkpointed(self, sequence_id: int) -> None:
        self.note("region checkpointed", sequence_id)

    def reset(self, checkpoint: Checkpoint) -> None:
        self.note("reset", checkpoint.sequence_id)
        self.n = checkpoint.read(int)

    def reset_to_initial_state(self) -> None:
        self.note("initial")
        self.n = 0

    def retire_checkpoint(self, sequence_id: int) -> None:
        self.note("retire", sequence_id)


class NonBlocking(Recorder):
    """A non-blocking handler whose checkpoint waits for `go`."""

    non_blocking: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()

    def prepare_for_non_blocking_checkpoint(self, sequence_id: int) -> None:
        self.note("prepare", sequence_id)
        self.frozen = self.n

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        assert self.go.wait(SOON)
        self.note("checkpoint", checkpoint.sequence_id, locked=False)
        checkpoint.write(self.frozen)


@pytest.mark.seed("V11", "V82", "V121", "N7", "N9")
def test_the_order_of_a_blocking_handler() -> None:
    """N13: rows, drain, checkpoint at each id; N20: only starts learn that the region has the id; this is no start."""
    host, handler = hosted(Recorder)
    step(host, {1: table(7), 2: NOTHING, 3: table(8, 9)})
    host.context.gate.completed()
    host.retire(1)
    assert handler.calls == [
        ("process", 1), "drain", ("checkpoint", 1),
        ("process", 2), "drain", ("checkpoint", 2),
        ("process", 3), "drain", ("checkpoint", 3),
        ("retire", 1),
    ]  # fmt: skip


@pytest.mark.seed("E17", "V121")
def test_nobody_waits_for_a_busy_handler_to_tell_it_what_retires() -> None:
    host, handler = hosted(Recorder)
    step(host, {1: table(7)})
    is_busy, is_done = threading.Event(), threading.Event()

    def work() -> None:
        with handler.lock:
            is_busy.set()
            assert is_done.wait(SOON)

    thread = threading.Thread(target=work)
    thread.start()
    assert is_busy.wait(SOON)
    host.retire(1)
    assert ("retire", 1) not in handler.calls
    is_done.set()
    thread.join(SOON)
    host.retire(2)
    assert handler.calls[-1] == ("retire", 2)


@pytest.mark.seed("N15", "N16", "N22", "V116", "N8")
def test_a_non_blocking_handler_goes_on_while_its_checkpoint_is_written() -> None:
    host, handler = hosted(NonBlocking)
    handler.go.clear()
    output, changes = host.step([1], {1: table(1, 2)}, NOTHING)
    finish = host.take(host.life)
    assert (output.num_rows, changes.num_rows) == (2, 0)
    second: list[Any] = []
    group = threading.Thread(target=lambda: second.append(host.step([2], {2: table(3)}, NOTHING)))
    group.start()
    eventually(lambda: ("process", 2) in handler.calls)
    assert handler.calls == [("process", 1), "drain", ("prepare", 1), ("process", 2)] or handler.calls[-1] == "drain"
    assert handler.n == 3, "the state goes on"
    handler.go.set()
    first = chunks(finish())
    group.join(SOON)
    assert handler.calls.index(("checkpoint", 1)) < handler.calls.index(("prepare", 2))
    chunks(host.take(host.life)())
    host.reset(first)
    assert handler.n == 2, "what was frozen, whatever came since"


@pytest.mark.seed("N13", "N14", "N19", "V74")
def test_the_order_of_a_mixed_region() -> None:
    """The flow resumes when the blocking handler has written its state, and the other one has frozen its state."""
    blocking, first = hosted(Recorder)
    other, second = hosted(NonBlocking)
    second.go.clear()
    for host in (blocking, other):
        host.step([1], {1: table(1)}, NOTHING)
    assert first.calls == [("process", 1), "drain", ("checkpoint", 1)]
    assert second.calls == [("process", 1), "drain", ("prepare", 1)]
    assert blocking.context.gate.is_open
    assert other.context.gate.is_open
    second.go.set()
    for host in (blocking, other):
        host.take(host.life)()
        host.context.gate.completed()
    assert second.calls[-1] == ("checkpoint", 1)


@pytest.mark.seed("N11", "V134", "V98", "V104", "E10")
def test_a_reset_goes_to_a_state_or_to_the_beginning() -> None:
    host, handler = hosted(Recorder)
    assert handler.calls == [], "what is fresh needs no reset"
    assert (host.context.sequence_id, host.context.reset_attempt) == (1, 0)
    _, state = step(host, {1: table(1, 2), 2: table(3)})
    assert host.context.reset_attempt == -1
    step(host, {3: table(4, 5, 6)})
    host.reset(state)
    assert (handler.n, handler.calls[-1]) == (3, ("reset", 2))
    assert (host.context.sequence_id, host.context.reset_attempt) == (3, 0)
    host.reset({})
    assert (handler.n, handler.calls[-1], host.context.reset_attempt) == (0, "initial", 1)


@pytest.mark.seed("V160")
def test_chunks_that_did_not_change_are_no_rows() -> None:
    @dataclass
    class Large(StateHandler):
        large: bytes = b"x" * 300_000
        n: int = 0

        def process(self, rows: pa.Table, context: Any) -> None:
            self.n += 1

    host, handler = hosted(Large)
    _, first = step(host, {1: NOTHING})
    _, second = step(host, {2: NOTHING})
    assert len(first) > 4
    assert len(second) == 2, "the header and the last chunk"
    host.reset(first | second)
    assert (handler.n, len(handler.large)) == (2, 300_000)


class Talkative(StateHandler):
    """A handler that submits rows in the callback named by `where`."""

    where: ClassVar[str] = ""

    def say(self, name: str) -> None:
        if self.where == name:
            self.context.submit(table(99))  # type: ignore[attr-defined]

    def process(self, rows: pa.Table, context: RegionContext) -> Iterator[pa.Table]:
        self.say("process")
        yield rows

    def drain(self) -> None:
        self.say("drain")

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        self.say("checkpoint")

    def reset(self, checkpoint: Checkpoint) -> None:
        self.say("reset")

    def reset_to_initial_state(self) -> None:
        self.say("initial")


@pytest.mark.seed("V128", "V130", "V10", "V83", "V84")
def test_drain_may_submit_and_checkpoint_may_not() -> None:
    for where in ("process", "drain"):
        host, _ = hosted(type("T", (Talkative,), {"where": where}))
        output, _ = step(host, {1: table(1)})
        assert sorted(output) == [(1, 1), (1, 99)]
    host, _ = hosted(type("T", (Talkative,), {"where": "checkpoint"}))
    with pytest.raises(PermitViolation):
        step(host, {1: table(1)})
    host, _ = hosted(type("T", (Talkative,), {"where": "initial"}))
    step(host, {1: table(1)})
    with pytest.raises(PermitViolation):
        host.reset({})


@pytest.mark.seed("E19")
def test_an_operator_may_ask_for_a_reset() -> None:
    class Asks(Recorder):
        def process(self, rows: pa.Table, context: RegionContext) -> pa.Table:
            if rows.num_rows > 1:
                context.reset_region("the other side hung up")
            return super().process(rows, context)

    host, handler = hosted(Asks)
    _, state = step(host, {1: table(1)})
    with pytest.raises(ResetWanted) as wanted:
        step(host, {2: table(2), 3: table(3, 4)})
    assert (wanted.value.operator, wanted.value.facts["reason"]) == ("op", "the other side hung up")
    host.reset(state)
    assert handler.n == 1
    step(host, {4: table(5)})
    with pytest.raises(PermitViolation):
        host.context.reset_region("from a thread without a permit")


@pytest.mark.seed("E19", "V137", "V9", "V85", "V138")
def test_a_thread_submits_under_a_permit_and_what_it_changed_is_of_that_state() -> None:
    host, handler = hosted(Recorder)

    def work() -> None:
        with host.context.permit(), handler.lock:
            handler.n += 100
            host.context.submit(table(100))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(SOON)
    output, state = step(host, {1: table(1)})
    assert output == [(1, 100), (1, 1)]
    host.reset(state)
    assert handler.n == 101
    with pytest.raises(PermitViolation):
        host.context.submit(table(1))
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(SOON)
    host.reset({})
    assert step(host, {2: NOTHING})[0] == [], "what was submitted before a reset is gone with it"


@pytest.mark.seed("V129", "V131")
def test_a_permit_that_is_kept_ends_in_a_time_out() -> None:
    host, _ = hosted(Recorder)
    taken, go = threading.Event(), threading.Event()

    def keep() -> None:
        with host.context.permit():
            taken.set()
            go.wait(SOON)

    thread = threading.Thread(target=keep)
    thread.start()
    assert taken.wait(SOON)
    with impatient(host), pytest.raises(DrainTimeout):
        step(host, {1: table(1)})
    with impatient(host), pytest.raises(ResetTimeout):
        host.reset({})
    go.set()
    thread.join(SOON)
    host.reset({})
    assert step(host, {2: table(2)})[0] == [(2, 2)]


@pytest.mark.seed("V37")
@pytest.mark.parametrize("to", [0, 1])
def test_a_reset_of_the_handlers_own_that_does_not_end_ends_in_a_time_out(to: int) -> None:
    class Stuck(Recorder):
        go = threading.Event()

        def reset(self, checkpoint: Checkpoint) -> None:
            assert self.go.wait(SOON)
            super().reset(checkpoint)

        def reset_to_initial_state(self) -> None:
            assert self.go.wait(SOON)
            super().reset_to_initial_state()

    host, handler = hosted(Stuck)
    _, state = step(host, {1: table(1)})
    step(host, {2: table(2)})
    for _ in range(2):
        late = pytest.raises(ResetTimeout, match=r"reset\(\) did not return|the lock was not given back")
        with impatient(host), late as caught:
            host.reset(state if to else {})
        assert caught.value.operator == host.context.operator
    handler.go.set()
    eventually(lambda: ("reset", 1) in handler.calls if to else "initial" in handler.calls)
    host.reset(state if to else {})
    assert handler.n == to
    assert step(host, {to + 1: table(5)})[0] == [(to + 1, 5)]


@pytest.mark.seed("V77", "V101")
def test_an_attempt_that_was_given_up_changes_nothing() -> None:
    """Its thread wakes after the reset, and stops at the row that it was processing."""

    class Slow(Recorder):
        entered, go = threading.Event(), threading.Event()

        def process(self, rows: pa.Table, context: RegionContext) -> pa.Table:
            if context.sequence_id == 1:
                self.entered.set()
                self.go.wait(SOON)
            return super().process(rows, context)

    host, handler = hosted(Slow)
    ended: list[BaseException] = []

    def attempt() -> None:
        try:
            step(host, {1: table(1), 2: table(2)})
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    assert handler.entered.wait(SOON)
    reset = threading.Thread(target=host.reset, args=({},))
    reset.start()
    eventually(lambda: not host.context.gate.is_open)
    handler.go.set()
    reset.join(SOON)
    thread.join(SOON)
    assert isinstance(ended[0], Interrupted)
    assert handler.n == 0
    assert step(host, {3: table(3)})[0] == [(3, 3)]


@pytest.mark.seed("V105", "V133")
def test_an_attempt_given_up_in_its_checkpoint_gives_no_permits_while_the_reset_goes_on() -> None:
    class Held(Recorder):
        entered, go, resetting, done = (threading.Event() for _ in range(4))

        def checkpoint(self, checkpoint: Checkpoint) -> None:
            self.entered.set()
            assert self.go.wait(SOON)
            super().checkpoint(checkpoint)

        def reset_to_initial_state(self) -> None:
            self.resetting.set()
            assert self.done.wait(SOON)
            super().reset_to_initial_state()

    host, handler = hosted(Held)

    def given_up() -> None:
        with pytest.raises(Interrupted):
            step(host, {1: table(1), 2: table(2)})

    attempt = threading.Thread(target=given_up)
    attempt.start()
    assert handler.entered.wait(SOON)
    reset = threading.Thread(target=host.reset, args=({},))
    reset.start()
    eventually(lambda: host.life == 2)
    handler.go.set()
    assert handler.resetting.wait(SOON)
    eventually(lambda: host.context.gate.waiting == 1)  # the attempt waits with its next id
    assert not host.context.gate.is_open
    handler.done.set()
    reset.join(SOON)
    attempt.join(SOON)
    assert host.context.gate.is_open
    assert step(host, {3: table(3)})[0] == [(3, 3)]


def test_an_attempt_that_was_given_up_before_it_came_to_the_handler_finds_it_shut() -> None:
    """Earlier operators of its group took too long; the next life already processes the same ids."""
    host, handler = hosted(Recorder)
    late = HandlerAttempt(host, host.life)
    host.reset({})
    with pytest.raises(Interrupted):
        late.step(range(1, 2), {1: table(1, 2)}, NOTHING)
    assert handler.n == 0
    assert HandlerAttempt(host, host.life).step(range(1, 2), {1: table(1)}, NOTHING)[0].num_rows == 1


def test_an_attempt_given_up_while_it_awaits_a_checkpoint_leaves_the_next_life_alone() -> None:
    """Otherwise the next checkpoint would be compared with one that does not count, and chunks would be missing."""

    class Large(NonBlocking):
        ballast = b"x" * 200_000

        def checkpoint(self, checkpoint: Checkpoint) -> None:
            super().checkpoint(checkpoint)
            checkpoint.write(self.ballast)

    host, handler = hosted(Large)
    handler.go.clear()

    def given_up() -> None:
        with pytest.raises(Interrupted):
            step(host, {1: table(1), 2: table(2)})

    attempt = threading.Thread(target=given_up)
    attempt.start()
    eventually(lambda: handler.calls.count("drain") == 2)
    reset = threading.Thread(target=host.reset, args=({},))
    reset.start()
    eventually(lambda: host.life == 2)
    handler.go.set()
    reset.join(SOON)
    attempt.join(SOON)
    _, state = step(host, {3: table(3)})
    assert len(state) == 5, "every chunk is written anew"
    host.reset(state)
    assert handler.n == 1


class Slow(DataStoreEntry):
    """A store in which the thread "given up" waits for `go` before it writes certain chunks."""

    def __init__(self, entry: DataStoreEntry) -> None:
        self.entry, self.name, self.value_limit = entry, entry.name, entry.value_limit
        self.held, self.go = threading.Event(), threading.Event()

    def _write(self, pairs: Mapping[bytes, bytes]) -> None:
        if threading.current_thread().name == "given up" and any(key.endswith(b".1") for key in pairs):
            self.held.set()
            assert self.go.wait(SOON)
        self.entry.put_all(pairs)

    def get(self, key: bytes) -> bytes:
        return self.entry.get(key)

    def exists(self, key: bytes) -> bool:
        return self.entry.exists(key)

    def delete_all(self, keys: Iterable[bytes]) -> None:
        self.entry.delete_all(keys)


@pytest.mark.seed("V163", "V167")
@pytest.mark.parametrize("is_begun", [True, False], ids=["is being stored", "is not stored yet"])
def test_a_group_that_was_given_up_stores_nothing_behind_a_reset(tmp_path: Path, is_begun: bool) -> None:
    entry = Slow(DirectoryDataStore(tmp_path).create("app/op"))
    host, handler = hosted(Recorder, stored=StoredCheckpoints(entry))
    _, first = step(host, {1: table(1)})
    host.step([2], {2: table(2)}, NOTHING)
    finish, ended = host.take(host.life), []

    def given_up() -> None:
        try:
            finish()
        except Interrupted as error:
            ended.append(error)

    thread = threading.Thread(target=given_up, name="given up")
    if is_begun:
        thread.start()
        assert entry.held.wait(SOON)
    reset = threading.Thread(target=host.reset, args=(first,))
    reset.start()
    eventually(lambda: host.life == 2)
    if is_begun:
        assert handler.calls[-1] != ("reset", 1), "it waits until nobody writes"
    entry.go.set()
    reset.join(SOON)
    if not is_begun:
        thread.start()
    thread.join(SOON)
    assert len(ended) == (not is_begun)
    assert handler.n == 1
    for number in (3, 4, 5):
        step(host, {number: table(number)})
    host.retire(3)
    again = StoredCheckpoints(entry.entry)
    assert [again.load(number).read() for number in (3, 4, 5)] == [2, 3, 4]
    assert not any(entry.exists(b"%d.%d" % (number, chunk)) for number in (1, 2) for chunk in (0, 1))


@pytest.mark.seed("V163")
def test_storing_that_does_not_end_ends_the_reset(tmp_path: Path) -> None:
    entry = Slow(DirectoryDataStore(tmp_path).create("app/op"))
    host, _ = hosted(Recorder, stored=StoredCheckpoints(entry))
    host.step([1], {1: table(1)}, NOTHING)
    thread = threading.Thread(target=host.take(host.life), name="given up")
    thread.start()
    assert entry.held.wait(SOON)
    with impatient(host), pytest.raises(ResetTimeout):
        host.reset({})
    entry.go.set()
    thread.join(SOON)
    host.reset({})
    assert not entry.exists(b"1.0")


@pytest.mark.seed("V77", "E13")
def test_who_was_given_up_takes_no_checkpoints_of_the_next_life() -> None:
    """An attempt hangs while its states are frozen; it wakes when the next group is drained."""
    host, _ = hosted(Recorder)
    host.step([1], {1: table(1)}, NOTHING)
    late = partial(host.take, host.life)
    host.reset({})
    host.step([2], {2: table(2, 3)}, NOTHING)
    with pytest.raises(Interrupted):
        late()
    assert [writer.sequence_id for writer in host._drained[host.life].finished] == [2]


@pytest.mark.seed("N6", "V58", "V123")
def test_what_is_written_has_to_be_read_and_frozen() -> None:
    class Writes(StateHandler):
        def checkpoint(self, checkpoint: Checkpoint) -> None: ...

    class Frozen(Recorder):
        non_blocking = True

    @dataclass
    class Plain(StateHandler):
        n: int = 0

    assert callbacks_missing(StateHandler) == ()
    assert callbacks_missing(Plain) == ()
    assert callbacks_missing(Recorder) == ()
    assert callbacks_missing(Writes) == ("reset", "reset_to_initial_state")
    assert callbacks_missing(Frozen) == ("prepare_for_non_blocking_checkpoint",)
    host, _ = hosted(type("Stateless", (StateHandler,), {"process": lambda self, rows, context: rows}))
    assert step(host, {1: table(1)})[0] == [(1, 1)]


@pytest.mark.seed("V58", "N27")
def test_a_dataclass_is_saved_by_itself() -> None:
    @dataclass
    class Sums(StateHandler):
        non_blocking: ClassVar[bool] = True
        by_key: CowDict[int, list[int]] = field(default_factory=CowDict)
        total: int = 0
        added_later: str = "default"

        def process(self, rows: pa.Table, context: Any) -> None:
            for n in rows["n"].to_pylist():
                self.by_key.setdefault(n % 2, []).append(n)
                self.total += n

    host, handler = hosted(Sums)
    _, state = step(host, {1: table(1, 2), 2: table(3)})
    step(host, {3: table(50, 51)})
    host.reset(state)
    assert ({key: list(found) for key, found in handler.by_key.items()}, handler.total) == ({0: [2], 1: [1, 3]}, 6)
    assert isinstance(handler.by_key, CowDict)
    host.reset({})
    assert (dict(handler.by_key), handler.total, handler.added_later) == ({}, 0, "default")


@pytest.mark.seed("V120")
def test_values_read_in_another_order_fail_the_reset() -> None:
    class Wrong(Recorder):
        def reset(self, checkpoint: Checkpoint) -> None:
            checkpoint.read(str)

    host, _ = hosted(Wrong)
    _, state = step(host, {1: table(1)})
    with pytest.raises(CheckpointUnreadable):
        host.reset(state)


def test_other_columns_than_declared_are_an_error() -> None:
    host, _ = hosted(type("T", (StateHandler,), {"process": lambda self, rows, context: pa.table({"m": [1]})}))
    with pytest.raises(ValueError, match="declares"):
        step(host, {1: table(1)})
