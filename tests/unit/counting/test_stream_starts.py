"""A counted stream before a region: cuts of whole data, acknowledged when they are committed (X8, C5, E21, N20, V105).

The tests use the real host of a start, without a region, and decide when to cut, commit and reset.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from waiting import SOON, eventually

from drainmark.jobs.errors import OperatorFailed
from drainmark.jobs.errors.operator_code import StreamRefused, StreamStuck
from drainmark.jobs.operators.sources.pushed.push_buffer import PUSHED_AT, PushBuffer
from drainmark.jobs.runtime.hosting.region_context import RegionContext
from drainmark.jobs.runtime.hosting.start_host import StartHost
from drainmark.jobs.runtime.hosting.submissions import Submissions
from drainmark.jobs.streams import BOUNDARY, ManualThreads, Stream, StreamStart
from drainmark.jobs.streams.all_or_nothing import Wholes
from drainmark.jobs.streams.graph_run import GraphRun
from drainmark.jobs.streams.progress import Progress

Flow = Callable[[Stream], Stream]


def table(found: Any) -> pa.Table:
    numbers = list(found) if isinstance(found, tuple | list) else [found]
    return pa.table({"n": pa.array(numbers, pa.int64())})


class Numbers(StreamStart):
    """A start that reads the numbers from 1 to `total` (inclusive); those above `allowed` are not available yet."""

    def __init__(self, flow: Flow, total: int = 1000, allowed: int = 0) -> None:
        self.total, self.allowed = total, allowed
        self.build = flow
        self.reads: list[Any] = []
        self.told: list[int] = []

    def read(self, after: Any, context: Any) -> Iterator[Any]:
        self.reads.append(after)
        for number in range((after or 0) + 1, self.total + 1):
            while number > self.allowed:
                if context.wait(0.001):
                    return
                yield None
            yield number, number

    def flow(self, source: Stream) -> Stream:
        return self.build(source)

    def acknowledge(self, position: int) -> None:
        self.told.append(position)


class Hosted:
    """A start on its host."""

    def __init__(self, folder: Path, made: Callable[[], StreamStart]) -> None:
        context = RegionContext(
            region="app/start", index=0, is_start_of_region=True, is_end_of_region=False, is_trigger_operator=True,
            drain_timeout=SOON, reset_timeout=SOON, operator="start",
        )  # fmt: skip
        self.buffer = PushBuffer(folder, rows=10**9, seconds=600.0)
        schema = pa.schema([("n", pa.int64())])
        submissions = Submissions(schema=schema, rows=10**9, seconds=600.0)
        self.host = StartHost.of(made(), context, submissions=submissions, buffer=self.buffer)
        self.handler: Any = self.host.handler
        self.host.reset()

    def cut(self) -> int:
        """Request a cut and wait for it; return its number."""
        before = self.host._newest
        self.host.submissions.ask()
        eventually(lambda: self.host._newest > before or self.host.failure)
        return self.host._newest

    def commit(self, cut: int) -> None:
        self.host.completed(100 + cut, cut)

    def rows(self, cut: int) -> list[int]:
        """Return the numbers in a cut, in order."""
        found = [json.loads(line) for line in self.buffer.segment(cut).read_text().splitlines()]
        assert all(set(row) == {"n", PUSHED_AT} for row in found)
        return [row["n"] for row in found]

    @property
    def all_rows(self) -> list[int]:
        return [number for cut, _ in self.buffer.sealed(0) for number in self.rows(cut)]

    def submitted(self, position: int) -> None:
        """Wait until everything up to a position (inclusive) is submitted."""
        eventually(lambda: (self.handler._progress.position or 0) >= position or self.host.failure)
        assert self.host.failure is None

    def ended(self) -> None:
        """Wait until the start's thread has ended and made its last cut."""
        eventually(lambda: self.host._own is None)


@pytest.fixture
def hosted(tmp_path: Path) -> Iterator[Callable[..., Hosted]]:
    made: list[Hosted] = []

    def host(flow: Flow = lambda source: source.map(table), kind: Any = Numbers, **more: Any) -> Hosted:
        made.append(Hosted(tmp_path / "buffer", lambda: kind(flow, **more)))
        return made[-1]

    yield host
    for one in made:
        one.host.close()


# --- acknowledging ------------------------------------------------------------------------------------------------


@pytest.mark.seed("X8", "N20", "C2", "C25")
def test_a_position_is_acknowledged_when_the_region_has_its_cut_and_not_before(hosted: Any) -> None:
    at = hosted()
    at.handler.allowed = 3
    at.submitted(3)
    assert at.handler.told == [], "submitted is not committed"
    assert (at.cut(), at.rows(1), at.handler.told) == (1, [1, 2, 3], [])
    at.handler.allowed = 5
    at.submitted(5)
    at.commit(1)
    assert at.handler.told == [3], "the rows behind it are in no committed cut"
    assert (at.cut(), at.rows(2)) == (2, [4, 5])
    at.commit(2)
    assert at.handler.told == [3, 5]


@pytest.mark.seed("X8")
def test_a_late_commit_covers_all_cuts_before_it(hosted: Any) -> None:
    at = hosted(allowed=2)
    at.submitted(2)
    at.cut()
    at.handler.allowed = 4
    at.submitted(4)
    at.cut()
    at.commit(2)
    assert at.handler.told == [4]


@pytest.mark.seed("C20", "X8")
def test_what_gives_no_rows_is_acknowledged_with_a_cut_too(hosted: Any) -> None:
    at = hosted(lambda source: source.filter(lambda n: n > 2).map(table), allowed=2)
    at.submitted(2)
    at.cut()
    assert at.handler.told == [], "its position is in no state yet"
    at.commit(1)
    assert (at.rows(1), at.handler.told) == ([], [2])


class Few(Numbers):
    """A start that takes ten data at most before a cut has them."""

    max_in_flight = 10


@pytest.mark.seed("X8")
def test_a_long_stretch_without_rows_is_cut_by_itself(hosted: Any) -> None:
    """No row makes a cut due; without a cut, the next run would read the whole stretch again."""
    at = hosted(lambda source: source.filter(lambda n: n < 0), kind=Few, allowed=25)
    eventually(lambda: at.host._newest or at.host.failure)
    at.commit(1)
    eventually(lambda: at.handler.told)
    assert at.handler.told[0] >= 10
    assert at.host.failure is None


@pytest.mark.seed("C25")
def test_a_run_that_ended_before_it_told_the_source_is_made_up_for(hosted: Any) -> None:
    first = hosted(allowed=3)
    first.submitted(3)
    first.cut()
    first.host.close()
    second = hosted(allowed=3)
    assert second.handler.reads == [3]
    second.commit(1)
    assert second.handler.told == [3]


def test_a_source_that_cannot_be_told_fails_the_run_and_is_told_later(hosted: Any) -> None:
    class Deaf(Numbers):
        def acknowledge(self, position: int) -> None:
            if position < 4:
                raise ValueError("no connection")
            super().acknowledge(position)

    at = hosted(kind=Deaf, allowed=3)
    at.submitted(3)
    at.commit(at.cut())
    assert isinstance(at.host.failure, OperatorFailed)
    assert "no connection" in str(at.host.failure)


# --- whole data ---------------------------------------------------------------------------------------------------


@pytest.mark.seed("C6")
def test_a_cut_has_all_rows_of_a_datum_or_none(hosted: Any) -> None:
    """One branch gives rows at once, another waits for a second datum: rows are submitted when both have theirs."""

    def flow(source: Stream) -> Stream:
        return source.map(lambda n: table(-n)).union(source.partition(2).map(table))

    at = hosted(flow, allowed=3)
    at.submitted(2)
    assert (at.cut(), at.rows(1)) == (1, [-1, -2, 1, 2])
    at.host.reset()
    at.handler.allowed = 4
    at.submitted(4)
    assert (at.cut(), at.rows(2)) == (2, [-3, -4, 3, 4])
    assert at.handler.reads == [None, 2]


@pytest.mark.seed("X8", "V105")
@pytest.mark.parametrize("commits", ["before the reset", "before the replay", "after the replay"])
def test_what_is_in_beyond_the_prefix_is_read_again_and_left_out(hosted: Any, commits: str) -> None:
    at = hosted(lambda source: source.partition(2, key=lambda n: n % 2).map(table), allowed=3)
    eventually(lambda: at.handler._progress.state()[1])
    assert (at.cut(), at.rows(1)) == (1, [1, 3])
    if commits == "before the reset":
        at.commit(1)
    at.handler.allowed = 0
    at.host.reset()
    if commits == "before the replay":
        at.commit(1)
    assert at.handler._progress.state() == (1, [3])
    at.handler.allowed = 3
    eventually(lambda: not at.handler._progress.has(3))
    if commits == "after the replay":
        at.commit(1)
    assert at.cut() == 2, "and the state still says what is in"
    at.handler.allowed = 4
    at.submitted(4)
    assert (at.cut(), at.rows(2), at.rows(3)) == (3, [], [2, 4])
    assert at.handler.told == [1]
    at.commit(3)
    assert (at.handler.told, at.handler.reads) == ([1, 4], [None, 1])


@pytest.mark.seed("E53", "X8")
def test_what_runs_beside_each_other_is_in_whole_cuts(hosted: Any) -> None:
    gates = {number: threading.Event() for number in (1, 2, 3)}

    def work(number: int) -> pa.Table:
        assert gates[number].wait(SOON)
        return table(number)

    at = hosted(lambda source: source.map_async(work, parallelism=3), allowed=3)
    gates[3].set()
    gates[2].set()
    assert (at.cut(), at.rows(1)) == (1, [])
    gates[1].set()
    at.submitted(3)
    assert (at.cut(), at.rows(2)) == (2, [1, 2, 3])


def test_a_source_at_its_end_flushes_and_its_last_cut_has_everything(hosted: Any) -> None:
    at = hosted(lambda source: source.buffer(2).partition(4).map(table), total=6, allowed=6)
    at.ended()
    eventually(lambda: at.host._newest)
    assert (at.all_rows, at.handler._progress.position) == ([1, 2, 3, 4, 5, 6], 6)


# --- failures -----------------------------------------------------------------------------------------------------


@pytest.mark.seed("C5", "E40", "E53")
@pytest.mark.parametrize("way", ["map", "map_async", "buffer"])
def test_what_fails_in_the_graph_fails_the_run_and_the_next_one_goes_on(hosted: Any, way: str) -> None:
    broken = [True]

    def work(number: int) -> pa.Table:
        if number == 3 and broken:
            raise ValueError("three")
        return table(number)

    flows: dict[str, Flow] = {
        "map": lambda source: source.map(work),
        "map_async": lambda source: source.map_async(work, parallelism=2),
        "buffer": lambda source: source.buffer(5).map(work),
    }
    at = hosted(flows[way], allowed=2)
    at.submitted(2)
    at.commit(at.cut())
    at.handler.allowed = 9
    eventually(lambda: at.host.failure)
    assert isinstance(at.host.failure, OperatorFailed)
    assert isinstance(at.host.failure.__cause__, ValueError)
    assert at.handler.told == [2]
    at.host.close()
    broken.clear()
    again = hosted(flows[way], total=5, allowed=5)
    again.ended()
    eventually(lambda: again.host._newest > 1)
    assert (again.handler.reads, again.all_rows) == ([2], [1, 2, 3, 4, 5])


@pytest.mark.seed("E47", "E49")
@pytest.mark.parametrize("flow", [
    lambda source: source.sliding_window(2).map(table),
    lambda source: source.unique().map(table),
    lambda source: source.accumulate(lambda total, n: total + n).map(table),
    lambda source: source.combine_latest(source.map(abs)).map(table),
])  # fmt: skip
def test_nodes_that_remember_are_refused(hosted: Any, flow: Flow) -> None:
    at = hosted(flow)
    eventually(lambda: at.host.failure)
    assert isinstance(at.host.failure, StreamRefused)


def test_what_is_no_table_or_has_no_metadata_is_refused(hosted: Any) -> None:
    at = hosted(lambda source: source, allowed=1)
    eventually(lambda: at.host.failure)
    assert isinstance(at.host.failure.__cause__, TypeError)


class Forgetful(Stream):
    """A node by an author that loses the metadata."""

    def update(self, x: Any, who: Stream, metadata: Any) -> None:
        self._emit(table(x))


def test_rows_that_belong_to_no_datum_are_refused(hosted: Any) -> None:
    at = hosted(Forgetful, allowed=1)
    eventually(lambda: at.host.failure)
    assert isinstance(at.host.failure, StreamRefused)


def test_a_stream_that_can_only_grow_is_stuck(hosted: Any) -> None:
    class Small(Numbers):
        max_in_flight = 4

    at = hosted(lambda source: source.partition(5).map(table), kind=Small, allowed=9)
    eventually(lambda: at.host.failure)
    assert isinstance(at.host.failure, StreamStuck)


@pytest.mark.seed("X8", "V105")
def test_a_cut_never_has_a_part_of_a_datum_that_could_not_be_submitted_as_a_whole(hosted: Any) -> None:
    """The first output is accepted, the second refused: a cut before the run ends would have half of the datum."""
    broken = [True]

    def outputs(number: int) -> list[pa.Table]:
        second = pa.table({"m": [number]}) if number == 2 and broken else table(-number)
        return [table(number), second]

    def flow(source: Stream) -> Stream:
        return source.map(outputs).flatten()

    at = hosted(flow, allowed=1)
    at.submitted(1)
    at.commit(at.cut())
    at.handler.allowed = 2
    eventually(lambda: at.host.failure)
    at.host._cut()  # the run has failed
    assert at.all_rows == [1, -1]
    at.host.failure = None  # as long as the thread has not noticed
    at.host.context.gate._torn.clear()
    with pytest.raises(OperatorFailed):
        at.host._cut()
    assert at.all_rows == [1, -1]
    at.host.close()
    broken.clear()
    again = hosted(flow, total=3, allowed=3)
    again.ended()
    eventually(lambda: again.host._newest > 1)
    assert again.all_rows == [1, -1, 2, -2, 3, -3]


def test_what_has_left_the_graph_and_is_not_submitted_is_in_flight() -> None:
    """Otherwise a source that ends, or a boundary, would not wait for these rows, and the next cut would lack them."""
    seen: list[int] = []
    threads = ManualThreads()
    life = GraphRun(
        Progress(lambda position: None), lambda source: source.partition(2).map(table), threads,
        lambda life, outputs, entered: seen.append(life.in_flight),
    )  # fmt: skip
    life.take(1, 1)
    life.take(2, 2)
    assert (seen, life.in_flight) == ([2], 0)


def none_of(source: Stream) -> Stream:
    return source.filter(lambda n: n < 0)


@pytest.mark.seed("E48")
@pytest.mark.parametrize(("way", "kept"), [
    ("reading", [("zip", [3, 0])]), ("draining", [("buffer", [2]), ("zip", [3, 0])]), ("boundary", [("zip", [2, 0])]),
])  # fmt: skip
def test_a_zip_one_side_of_which_never_comes_is_stuck_and_says_so(
    hosted: Any, way: str, kept: list[tuple[str, list[int]]]
) -> None:
    class Paired(Numbers):
        def read(self, after: Any, context: Any) -> Iterator[Any]:
            for item in super().read(after, context):
                yield item
                if item == (2, 2) and way == "boundary":
                    yield BOUNDARY

    def flow(source: Stream) -> Stream:
        left = source.buffer(10) if way == "draining" else source
        return left.zip(none_of(source), maxsize=3).map(lambda pair: table(pair[0]))

    at = hosted(flow, kind=Paired, total=6, allowed=6)
    eventually(lambda: at.host.failure)
    assert isinstance(at.host.failure, StreamStuck)
    assert (at.host.failure.operator, at.host.failure.facts["kept"]) == ("start", kept)
    at.ended()


# --- at random ----------------------------------------------------------------------------------------------------

RANDOM_FLOWS: dict[str, Flow] = {
    "pool": lambda source: source.map_async(lambda n: n, parallelism=3).map(table),
    "keys": lambda source: source.partition(3, key=lambda n: n % 4).buffer(2).map(table),
    "branches": lambda source: source.map(table).union(
        source.buffer(3).partition(4, timeout=0.003).map(lambda found: table([-n for n in found]))
    ),
    "windows": lambda source: source.map_async(lambda n: [n, -n], parallelism=2).flatten().timed_window(0.002, 5)
    .map(table),
    "unique": lambda source: source.partition_unique(3, key=lambda n: n % 5, timeout=0.003).map(table),
}  # fmt: skip
TWICE = {"branches", "windows"}


@pytest.mark.seed("X8", "V105", "T10", "K11", "K12")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", RANDOM_FLOWS)
def test_cuts_and_resets_at_random_lose_nothing_and_double_nothing(hosted: Any, name: str, seed: int) -> None:
    chance = random.Random(seed)
    total = 120
    at = hosted(RANDOM_FLOWS[name], total=total)
    while at.handler.allowed < total:
        at.handler.allowed = min(total, at.handler.allowed + chance.randrange(1, 15))
        for _ in range(chance.randrange(3)):
            if chance.random() < 0.5:
                at.commit(at.cut())
            else:
                at.host.reset()
        assert at.host.failure is None
    at.ended()
    eventually(lambda: at.handler._progress.position == total and not at.host.submissions._is_asked)
    at.commit(at.cut())
    assert at.host.failure is None
    wanted = Counter(range(1, total + 1))
    if name in TWICE:
        wanted += Counter(range(-total, 0))
    found = Counter(at.all_rows)
    if name == "unique":
        assert not found - wanted, "a duplicate of a key is dropped, whichever; nothing comes twice"
    else:
        assert found == wanted
    assert at.handler.told == sorted(set(at.handler.told)), "never backwards within a life"
    assert at.handler.told[-1] == total


# --- the bookkeeping ----------------------------------------------------------------------------------------------


def test_outputs_that_share_data_are_one_whole() -> None:
    wholes = Wholes()
    for number in range(1, 7):
        wholes.begin(number)
    wholes.add("a", [1, 2])
    wholes.add("b", [4, 5])
    wholes.add("c", [2, 4])
    wholes.add("d", [3])
    wholes.add("e", [1, 1])
    assert wholes.end(3) == ([3], ["d"])
    assert wholes.end(6) == ([6], [])
    assert [wholes.end(number) for number in (5, 1, 2)] == [None, None, None]
    assert wholes.open == 4
    assert wholes.end(4) == ([1, 2, 4, 5], ["a", "b", "c", "e"])
    assert wholes.open == 0


@pytest.mark.seed("E21", "V43")
def test_a_boundary_waits_for_a_state_of_all_before_it(hosted: Any) -> None:
    class Pairs(Numbers):
        def read(self, after: Any, context: Any) -> Iterator[Any]:
            for item in super().read(after, context):
                yield item
                if item is not None and item[0] % 2 == 0:
                    yield BOUNDARY

    at = hosted(lambda source: source.buffer(4).partition(3).map(table), kind=Pairs, allowed=9)
    for cut, rows in ((1, [1, 2]), (2, [3, 4])):
        eventually(lambda cut=cut: at.host._newest == cut)
        assert (at.rows(cut), at.handler._progress.position) == (rows, rows[-1]), "it waits, and reads nothing"
        at.commit(cut)
        assert at.handler.told[-1] == rows[-1]
    eventually(lambda: at.host._newest == 3)
    at.host.reset()
    eventually(lambda: at.host._newest == 4)
    assert (at.rows(3), at.rows(4)) == ([5, 6], [7, 8]), "make_consistent ended with the reset, and it goes on"


@pytest.mark.seed("E48")
@pytest.mark.parametrize("windows", [
    lambda source: source.partition(2, timeout=0.05), lambda source: source.rate_limit(0.02).timed_window(0.05),
    lambda source: source.buffer(1).partition(2, timeout=0.05),
    lambda source: source.buffer(1).union(source).rate_limit(0.0),
], ids=["the source", "the timer", "a buffer", "either"])  # fmt: skip
def test_a_zip_behind_a_node_with_a_timer_is_stuck_all_the_same(hosted: Any, windows: Flow) -> None:
    """A thread that waits for the lock of a node that waits for room is as stuck as the node: neither has work left."""
    at = hosted(lambda source: windows(source).zip(none_of(source), maxsize=1).map(table), total=9, allowed=9)
    eventually(lambda: at.host.failure)
    assert isinstance(at.host.failure, StreamStuck)
    at.ended()
