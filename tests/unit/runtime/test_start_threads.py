"""The thread of a start during cuts and resets, without a region (V105, V134, E21)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from waiting import SOON, eventually

from drainmark.jobs.errors import DrainmarkError, ResetTimeout
from drainmark.jobs.operators.sources.pushed.push_buffer import PUSHED_AT, PushBuffer
from drainmark.jobs.runtime.hosting.region_context import RegionContext
from drainmark.jobs.runtime.hosting.start_host import StartHost
from drainmark.jobs.runtime.hosting.submissions import Submissions
from drainmark.jobs.state.handlers.checkpoint import Checkpoint, CheckpointWriter, packed
from drainmark.jobs.state.handlers.state_handler import StartHandler

Hosted = Callable[[Callable[[], StartHandler], pa.Schema], StartHost]


@pytest.fixture
def hosted(tmp_path: Path) -> Iterator[Hosted]:
    made: list[StartHost] = []

    def make(handler: Callable[[], StartHandler], schema: pa.Schema) -> StartHost:
        context = RegionContext(
            region="app/start", index=0, is_start_of_region=True, is_end_of_region=False, is_trigger_operator=True,
            drain_timeout=SOON, reset_timeout=SOON, operator="start",
        )  # fmt: skip
        buffer = PushBuffer(tmp_path / "buffer", rows=1000, seconds=600.0)
        submissions = Submissions(schema=schema, rows=1000, seconds=600.0)
        made.append(StartHost.of(handler(), context, submissions=submissions, buffer=buffer))
        return made[-1]

    yield make
    for host in made:
        host.close()


def cut_rows(host: StartHost) -> list[dict[str, Any]]:
    """Return the rows of all cuts, in order."""
    paths = [host.buffer.segment(number) for number, _ in host.buffer.sealed(0)]
    found = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != PUSHED_AT} for row in found]


class Three(StartHandler):
    """A start that submits three numbers, then waits for `go`, as if it closed a connection."""

    def __init__(self) -> None:
        self.n, self.calls = 0, 0
        self.submitted, self.go = threading.Event(), threading.Event()

    def run(self, context: Any) -> None:
        self.calls += 1
        with context.permit(), self.lock:
            if self.n < 3:
                context.submit(pa.table({"n": list(range(self.n, 3))}))
                self.n = 3
        self.submitted.set()
        assert self.go.wait(SOON)

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        checkpoint.write(self.n)

    def reset(self, checkpoint: Checkpoint) -> None:
        self.n = checkpoint.read(int)

    def reset_to_initial_state(self) -> None:
        self.n = 0


@pytest.mark.seed("V105", "V134")
def test_a_reset_while_run_is_returning_has_it_called_again(hosted: Hosted) -> None:
    """The reset drops the submitted rows, so `run` must submit them again."""
    host = hosted(Three, pa.schema([("n", pa.int64())]))
    handler = host.handler
    assert isinstance(handler, Three)
    host.reset()
    assert handler.submitted.wait(SOON)
    host.reset()
    handler.go.set()
    eventually(lambda: len(cut_rows(host)) == 3)
    assert cut_rows(host) == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert (handler.calls, host.failure) == (2, None)
    eventually(lambda: host._own is None)
    host.reset()
    eventually(lambda: handler.calls == 3 and host._own is None)
    assert len(cut_rows(host)) == 3, "it goes on from its newest cut"


@pytest.mark.seed("V37", "V105")
def test_a_reset_of_the_handlers_own_that_does_not_end_ends_in_a_time_out(hosted: Hosted) -> None:
    class Stuck(Three):
        may_reset = threading.Event()

        def reset_to_initial_state(self) -> None:
            assert self.may_reset.wait(SOON)
            super().reset_to_initial_state()

    host = hosted(Stuck, pa.schema([("n", pa.int64())]))
    handler = host.handler
    assert isinstance(handler, Stuck)
    handler.go.set()
    host.reset()  # a new handler has nothing to reset
    assert handler.submitted.wait(SOON)
    eventually(lambda: len(cut_rows(host)) == 3 and not host._cutting.locked())
    host.context.reset_timeout = 0.2
    host.buffer = PushBuffer(host.buffer.folder.with_name("another"), rows=1000, seconds=600.0)
    for _ in range(2):
        with pytest.raises(ResetTimeout, match=r"reset\(\) did not return|the lock was not given back"):
            host.reset()
    handler.may_reset.set()
    eventually(lambda: handler.n == 0)
    host.context.reset_timeout = SOON
    host.reset()
    eventually(lambda: len(cut_rows(host)) == 3)


@pytest.mark.seed("V105", "H26")
def test_a_cut_that_another_owner_made_first_counts_and_run_is_called_again(hosted: Hosted) -> None:
    """Another owner made the cut: this one goes on from its state, and submits the missing rows again."""
    host = hosted(Three, pa.schema([("n", pa.int64())]))
    handler = host.handler
    assert isinstance(handler, Three)
    host.reset()
    assert handler.submitted.wait(SOON)
    writer = CheckpointWriter(sequence_id=1)
    writer.write(1)
    writer.finish()
    assert host.buffer.seal_with(1, [{"n": 0}], packed(writer))
    handler.go.set()
    eventually(lambda: len(cut_rows(host)) == 3)
    assert cut_rows(host) == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert (handler.calls, host.failure) == (2, None)


class Torn(Three):
    """A start that counts, waits for `go` inside of its permit, and submits rows of another schema, which is refused.

    Attributes:
        catches: whether `run` catches the error, and goes on with the right rows.
    """

    catches = False

    def run(self, context: Any) -> None:
        try:
            with context.permit(), self.lock:
                self.n += 1
                self.submitted.set()
                assert self.go.wait(SOON)
                context.submit(pa.table({"other": [self.n]}))
        except (ValueError, DrainmarkError):
            if not self.catches:
                raise
            with context.permit(), self.lock:
                context.submit(pa.table({"n": [self.n]}))


def cut_while_held(hosted: Hosted) -> tuple[StartHost, Torn]:
    """Return a `Torn` on its host: it holds its permit, and a cut is under way, which waits for that."""
    host = hosted(Torn, pa.schema([("n", pa.int64())]))
    handler = host.handler
    assert isinstance(handler, Torn)
    host.reset()
    assert handler.submitted.wait(SOON)
    host.submissions.ask()
    eventually(host._cutting.locked)
    return host, handler


@pytest.mark.seed("V105")
@pytest.mark.parametrize("ends", ["an error", "the end of the run"])
def test_no_cut_is_made_of_a_permit_that_was_broken_off(hosted: Hosted, ends: str) -> None:
    """The state has counted a row that was not submitted: if a cut had both, no later run would submit it."""
    host, handler = cut_while_held(hosted)
    if ends == "the end of the run":
        closing = threading.Thread(target=host.close)
        closing.start()
        eventually(lambda: host._is_over and host.submissions._is_over)
    handler.go.set()
    eventually(lambda: not host.is_running)
    host.close()
    assert cut_rows(host) == []
    assert list(host.buffer.sealed(0)) == []


@pytest.mark.seed("V105")
def test_a_thread_that_catches_its_error_and_goes_on_is_cut(hosted: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Torn, "catches", True)
    host, handler = cut_while_held(hosted)
    handler.go.set()
    eventually(lambda: cut_rows(host) == [{"n": 1}])
    assert host.failure is None


class Mapped(StartHandler):
    """A start that submits one row with maps."""

    table = pa.table({
        "tags": pa.array([[("a", 1), ("b", None)]], pa.map_(pa.string(), pa.int64())),
        "deep": pa.array([[{"in": [("c", "d")]}]], pa.list_(pa.struct([("in", pa.map_(pa.string(), pa.string()))]))),
    })  # fmt: skip

    def run(self, context: Any) -> None:
        with context.permit(), self.lock:
            context.submit(self.table)


@pytest.mark.seed("V146")
def test_a_map_is_stored_as_an_object(hosted: Hosted) -> None:
    """Spark reads a column of type map from a JSON object; it reads a list of pairs as null."""
    host = hosted(Mapped, Mapped.table.schema)
    host.reset()
    eventually(lambda: len(cut_rows(host)) == 1)
    assert cut_rows(host) == [{"tags": {"a": 1, "b": None}, "deep": [{"in": {"c": "d"}}]}]
