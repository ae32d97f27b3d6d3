"""Operators whose class the author writes: any grouping, every id, rewinding, three ways to keep chunks."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from harness import rows, run_once
from triggers import add_file, content, home, opened
from waiting import SOON

import drainmark as dm
from drainmark.jobs.state import keyed_state
from drainmark.orchestration.testing.processing import rewind
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark

FILES = 6
Row = dict[str, Any]
OUTPUT = "user string, n bigint, seen bigint"


class Counter(dm.StateHandler):
    """Figure 4 of the paper: it counts its tuples, and submits each with its number; its state has four callbacks."""

    def __init__(self) -> None:
        self.counter = 0
        self.seen: dm.CowDict[Any, int] = dm.CowDict()

    def process(self, rows: pa.Table, context: Any) -> Iterator[pa.Table]:
        for user in rows["user"].to_pylist():
            self.counter += 1
            self.seen[user] = self.seen.get(user, 0) + 1
            yield pa.table({"user": pa.array([user], pa.string()), "n": [self.counter], "seen": [self.seen[user]]})

    def checkpoint(self, checkpoint: dm.Checkpoint) -> None:
        checkpoint.write(self.counter)
        checkpoint.write(dict(self.seen))

    def reset(self, checkpoint: dm.Checkpoint) -> None:
        self.counter = checkpoint.read(int)
        self.seen = dm.CowDict(checkpoint.read(dict))

    def reset_to_initial_state(self) -> None:
        self.__init__()  # type: ignore[misc]


class FrozenCounter(Counter):
    """A counter whose checkpoint is written in the background, while it counts the next tuples."""

    non_blocking = True

    def prepare_for_non_blocking_checkpoint(self, sequence_id: int) -> None:
        self.frozen = (self.counter, self.seen.freeze())

    def checkpoint(self, checkpoint: dm.Checkpoint) -> None:
        for value in self.frozen:
            checkpoint.write(value)

    def reset(self, checkpoint: dm.Checkpoint) -> None:
        super().reset(checkpoint)

    def reset_to_initial_state(self) -> None:
        super().reset_to_initial_state()


@dataclasses.dataclass
class Automatic(dm.StateHandler):
    """V58: an operator whose fields are the state; it needs no callbacks."""

    counter: int = 0
    seen: dm.CowDict[Any, int] = dataclasses.field(default_factory=dm.CowDict)

    def process(self, rows: pa.Table, context: Any) -> list[pa.Table]:
        return list(Counter.process(self, rows, context))  # type: ignore[arg-type]


class FrozenAutomatic(Automatic):
    non_blocking = True


KINDS = [Counter, FrozenCounter, Automatic, FrozenAutomatic]


def expected(files: list[int]) -> list[Row]:
    """Return the rows of the sink after these files."""
    counter, seen, found = 0, {}, []
    for number in files:
        for row in content(number):
            counter += 1
            seen[row["user"]] = seen.get(row["user"], 0) + 1
            found.append({"user": row["user"], "n": counter, "seen": seen[row["user"]]})
    return found


def plain(found: list[Row]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in found)


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    for number in range(FILES):
        add_file(tmp_path / "inbox", number)
    return tmp_path / "inbox"


@dataclasses.dataclass(frozen=True)
class Way:
    """The counter; files in a group; bytes up to which state and group are in memory; the store of chunks."""

    kind: type
    size: int
    state_bytes: int = keyed_state.MEMORY_STATE_BYTES
    group_bytes: int = 8 << 20
    checkpoints: str = "non-blocking"
    store: str = "delta"

    def __str__(self) -> str:
        kept = "" if self.state_bytes else "-files"
        return f"{self.kind.__name__}-{self.size}{kept}-{self.checkpoints}-{self.store.partition(':')[0]}"


@pytest.mark.seed("V122", "N17", "N19", "V98", "V152")
@pytest.mark.parametrize(
    "way",
    [
        pytest.param(Way(Counter, 1), marks=pytest.mark.slow),
        pytest.param(Way(Counter, 4, state_bytes=0, checkpoints="blocking"), marks=pytest.mark.slow),
        pytest.param(Way(FrozenCounter, 1), marks=pytest.mark.slow),
        pytest.param(Way(FrozenCounter, 4, group_bytes=0), marks=pytest.mark.slow),
        pytest.param(Way(FrozenCounter, 2, state_bytes=0, store="states"), marks=pytest.mark.slow),
        pytest.param(Way(Automatic, 6, store="states"), marks=pytest.mark.slow),
        Way(FrozenAutomatic, 3, checkpoints="blocking", store="delta://states"),
    ],
    ids=str,
)
def test_a_handler_s_state_is_known_at_every_id(
    tmp_path: Path, inbox: Path, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    """Any grouping gives the same rows, also after a rewind to an id inside a group, and in another process (E16)."""
    monkeypatch.setattr(keyed_state, "MEMORY_STATE_BYTES", way.state_bytes)
    monkeypatch.setattr(keyed_state, "_IMAGE_MINIMUM_ROWS", 3)

    def declare(events: Any) -> None:
        counted = dm.operator(way.kind, output=OUTPUT, name="counter", inputs=[events])
        dm.sink(counted, dm.DeltaAppend("counted"))

    application = opened("counting", inbox, declare, checkpoints=way.checkpoints)
    with home(tmp_path / "home", engine, small_group_bytes=way.group_bytes, state_store=way.store) as place:
        run_once(place, application, max_group=way.size)
        assert plain(rows(place, "counting/events", "counted", ids=False)) == plain(expected(list(range(FILES))))
        for to, upto in ((3, FILES), (0, 2)):
            rewind(place, "counting/events", to, 10_000)
            assert plain(rows(place, "counting/events", "counted", ids=False)) == plain(expected(list(range(to))))
            run_once(place, application, max_group=FILES - way.size + 1, max_triggers=upto - to)
            assert plain(rows(place, "counting/events", "counted", ids=False)) == plain(expected(list(range(upto))))
        assert threading.active_count() < 60


def test_slow_calls_overlap_and_rows_stay_in_order(tmp_path: Path, inbox: Path, engine: SparkEngine) -> None:
    """V138: as many calls run at once as there are threads; the rows of an id are as if called one by one."""
    together, calls = threading.Barrier(3), itertools.count()

    def doubled(row: Row) -> list[Row] | None:
        if next(calls) < 3:
            together.wait(SOON)  # no call passes alone
        if row["n"] is None:
            return None
        return [{"user": row["user"], "n": row["n"] * factor} for factor in (1, 2)]

    def declare(events: Any) -> None:
        found = dm.parallel_map(doubled, output="user string, n bigint", threads=3, inputs=[events])
        dm.sink(dm.operator(Numbered, output="place bigint, n bigint", inputs=[found]), dm.DeltaAppend("doubled"))

    application = opened("doubling", inbox, declare)
    with home(tmp_path / "home", engine) as place:
        run_once(place, application, max_group=4)
        found = rows(place, "doubling/events", "doubled", ids=False)
    wanted = [row["n"] * factor for number in range(FILES) for row in content(number) if row["n"] is not None
              for factor in (1, 2)]  # fmt: skip
    assert [row["n"] for row in sorted(found, key=lambda row: row["place"])] == wanted


class Numbered(dm.StateHandler):
    """An operator that numbers the rows of a run in the order in which they come."""

    place = 0

    def process(self, rows: pa.Table, context: Any) -> pa.Table:
        first, self.place = self.place, self.place + rows.num_rows
        return pa.table({"place": pa.array(range(first, self.place), pa.int64()), "n": rows["n"]})


class Failing(Counter):
    """A counter that fails once at some ids, after it has counted; these counts must not stay."""

    failed: ClassVar[set[int]] = set()

    def process(self, rows: pa.Table, context: Any) -> Iterator[pa.Table]:
        yield from super().process(rows, context)
        if rows.num_rows and len(self.failed) < 3 and context.reset_attempt <= 0 and self.counter not in self.failed:
            self.failed.add(self.counter)
            if len(self.failed) == 2:
                context.reset_region("asked for")
            raise ValueError("injected")


@pytest.mark.seed("E19", "N2", "V99", "V101", "V104")
def test_what_a_failed_attempt_counted_is_gone(tmp_path: Path, inbox: Path, engine: SparkEngine) -> None:
    Failing.failed = set()

    def declare(events: Any) -> None:
        dm.sink(dm.operator(Failing, output=OUTPUT, name="counter", inputs=[events]), dm.DeltaAppend("counted"))

    application = opened("failing", inbox, declare)
    with home(tmp_path / "home", engine) as place:
        for _ in range(4):
            with contextlib.suppress(dm.DrainmarkError):
                run_once(place, application, max_group=3)
        assert plain(rows(place, "failing/events", "counted", ids=False)) == plain(expected(list(range(FILES))))
        assert len(Failing.failed) == 3


class Patient(Counter):
    """A counter that waits for a service: it gives up twice, and takes what there is at the third try."""

    tries: ClassVar[list[int]] = []

    def process(self, rows: pa.Table, context: Any) -> Iterator[pa.Table]:
        self.tries.append(context.reset_attempt)
        if 0 <= context.reset_attempt < 2:
            context.reset_region("the service is away")
        yield from super().process(rows, context)


@pytest.mark.seed("E19", "V38")
def test_a_handler_knows_how_often_the_region_was_reset_in_a_row(
    tmp_path: Path, inbox: Path, engine: SparkEngine
) -> None:
    """Each failed attempt is followed by another run, which has a new handler."""
    Patient.tries.clear()

    def declare(events: Any) -> None:
        dm.sink(dm.operator(Patient, output=OUTPUT, name="counter", inputs=[events]), dm.DeltaAppend("counted"))

    application = opened("patient", inbox, declare)
    with home(tmp_path / "home", engine) as place:
        for _ in range(2):
            with pytest.raises(dm.DrainmarkError):
                run_once(place, application, max_group=1)
        assert place.history("patient/events").attempts == 1, "the last one counts with the next claim"
        run_once(place, application, max_group=1)
        assert plain(rows(place, "patient/events", "counted", ids=False)) == plain(expected(list(range(FILES))))
    assert [tried for tried in Patient.tries if tried > 0] == [1, 2]
    assert Patient.tries[-1] == -1, "a state was drained since"


class Slow(Counter):
    """A counter whose first checkpoint does not end before the second id is processed."""

    non_blocking = True
    second: ClassVar[threading.Event]
    waited: ClassVar[list[bool]]

    def process(self, rows: pa.Table, context: Any) -> Iterator[pa.Table]:
        if context.sequence_id == 2:
            self.second.set()
        return super().process(rows, context)

    def prepare_for_non_blocking_checkpoint(self, sequence_id: int) -> None:
        self.frozen = (self.counter, dict(self.seen))

    def checkpoint(self, checkpoint: dm.Checkpoint) -> None:
        if checkpoint.sequence_id == 1:
            self.waited.append(self.second.wait(SOON))
        for value in self.frozen:
            checkpoint.write(value)

    def reset(self, checkpoint: dm.Checkpoint) -> None:
        super().reset(checkpoint)

    def reset_to_initial_state(self) -> None:
        super().reset_to_initial_state()


class Meeting(FrozenCounter):
    """A counter whose checkpoint does not end before that of the other one has begun."""

    together: ClassVar[threading.Barrier]
    met: ClassVar[list[int]]

    def checkpoint(self, checkpoint: dm.Checkpoint) -> None:
        self.together.wait(SOON)
        self.met.append(checkpoint.sequence_id)
        super().checkpoint(checkpoint)

    def reset(self, checkpoint: dm.Checkpoint) -> None:
        super().reset(checkpoint)

    def reset_to_initial_state(self) -> None:
        super().reset_to_initial_state()


@pytest.mark.seed("V115", "V116", "V117", "N23", "N24")
def test_operators_of_a_chain_checkpoint_at_the_same_time(tmp_path: Path, inbox: Path, engine: SparkEngine) -> None:
    """A group goes on after the drain: the second operator drains and checkpoints while the first one's is written."""
    Meeting.together, Meeting.met = threading.Barrier(2), []

    def declare(events: Any) -> None:
        first = dm.operator(Meeting, output=OUTPUT, name="first", inputs=[events])
        second = dm.operator(Meeting, output=OUTPUT, name="second", inputs=[first])
        dm.sink(second, dm.DeltaAppend("counted"))

    files = 3
    application = opened("meeting", inbox, declare)
    with home(tmp_path / "home", engine) as place:
        run_once(place, application, max_group=1, max_triggers=files)
        assert plain(rows(place, "meeting/events", "counted", ids=False)) == plain(expected(list(range(files))))
    assert sorted(Meeting.met) == sorted([*range(1, files + 1)] * 2)


class Together(Counter):
    """A counter whose reset does not end before that of the other one has begun."""

    barrier: ClassVar[threading.Barrier]
    met: ClassVar[list[int]]

    def reset(self, checkpoint: dm.Checkpoint) -> None:
        self.barrier.wait(SOON)
        self.met.append(checkpoint.sequence_id)
        super().reset(checkpoint)


@pytest.mark.seed("V115", "N23", "N24", "N5")
@pytest.mark.parametrize(
    "is_buffered",
    [pytest.param(False, marks=pytest.mark.slow, id="in a stage"), pytest.param(True, id="in two stages")],
)
def test_operators_of_a_chain_reset_at_the_same_time(
    tmp_path: Path, inbox: Path, engine: SparkEngine, is_buffered: bool
) -> None:
    """Each waits for the other one: if they were called in turn, the first would wait in vain."""
    Together.barrier, Together.met = threading.Barrier(2), []

    def declare(events: Any) -> None:
        first = dm.operator(Together, output=OUTPUT, name="first", inputs=[events])
        between = dm.buffered(first) if is_buffered else first
        second = dm.operator(Together, output=OUTPUT, name="second", inputs=[between])
        dm.sink(second, dm.DeltaAppend("counted"))

    application = opened("together", inbox, declare)
    with home(tmp_path / "home", engine) as place:
        run_once(place, application, max_group=FILES, max_triggers=2)
        run_once(place, application, max_group=FILES)
        assert Together.met == [2, 2]
        assert plain(rows(place, "together/events", "counted", ids=False)) == plain(expected(list(range(FILES))))


@pytest.mark.seed("N14", "N21", "N22", "V116")
@pytest.mark.parametrize("size", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_tuples_flow_while_a_checkpoint_is_pending(tmp_path: Path, inbox: Path, engine: SparkEngine, size: int) -> None:
    """They are tuples of the next group, or of the next id of the same group."""
    Slow.second, Slow.waited = threading.Event(), []

    def declare(events: Any) -> None:
        dm.sink(dm.operator(Slow, output=OUTPUT, name="counter", inputs=[events]), dm.DeltaAppend("counted"))

    application = opened("slow", inbox, declare)
    with home(tmp_path / "home", engine) as place:
        run_once(place, application, max_group=size)
        assert plain(rows(place, "slow/events", "counted", ids=False)) == plain(expected(list(range(FILES))))
    assert Slow.waited == [True]
