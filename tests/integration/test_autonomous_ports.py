"""Autonomous ports take in nothing while a state is established or the region is reset (V59, V91, V105, V137)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from waiting import SOON, eventually

import drainmark as dm
from drainmark.jobs.errors import DrainTimeout
from drainmark.jobs.runtime.autonomous.input import Feeding
from drainmark.jobs.runtime.commit.operator_states import RegionStates
from drainmark.jobs.runtime.stages.pipeline import Pipeline
from drainmark.orchestration.testing.running import Result

pytestmark = pytest.mark.spark

RunApp = Callable[..., Result]
SCHEMA = "k string, n bigint"


def fed(checkpoints: str = "non-blocking") -> Callable[[], None]:
    def feeding() -> None:
        @dm.consistent(trigger="operator-driven", checkpoints=checkpoints)
        @dm.source(dm.DirectoryScan(path="in", format="csv", schema=SCHEMA))
        def orders(scanned: Any) -> Any:
            return scanned.drop("source_file")

        @dm.source(dm.DirectoryScan(path="out", format="json", schema=SCHEMA))
        def posts(scanned: Any) -> Any:
            return scanned.drop("source_file")

        @dm.functor
        def both(orders: Any, posts: Annotated[Any, dm.Autonomous]) -> Any:
            return orders.unionByName(posts)

        dm.sink(both, dm.DeltaAppend("both"))

    return feeding


def keys(result: Result) -> list[str]:
    return sorted(row["k"] for row in result.sink("both"))


@pytest.mark.seed("V59", "V91", "V132", "V137")
@pytest.mark.parametrize("checkpoints", ["blocking", "non-blocking"])
def test_who_takes_something_in_waits_until_the_flow_goes_on(
    run_app: RunApp, monkeypatch: pytest.MonkeyPatch, checkpoints: str
) -> None:
    """They wait until the state is frozen; with blocking checkpoints, until it is committed and published."""
    log: list[str] = []
    late: list[threading.Thread] = []

    def take(states: RegionStates) -> None:
        with states.ports.permit():
            log.append("taken")

    def freeze(states: RegionStates, staged: Any) -> Any:
        thread = threading.Thread(target=take, args=(states,))
        thread.start()
        late.append(thread)
        eventually(lambda: states.ports.waiting or not thread.is_alive())
        assert thread.is_alive(), "it was let in"
        log.append("frozen")
        return freezes(states, staged)

    def end(pipeline: Pipeline) -> Any:
        if checkpoints == "non-blocking":
            late[-1].join(SOON)  # the flow goes on while the checkpoint is pending
        log.append("ending")
        return ends(pipeline)

    def close(states: RegionStates) -> None:
        late[-1].join(SOON)  # it may go on because the flow does; a thread that comes after the end of a run may not
        closes(states)

    freezes, ends, closes = RegionStates.freeze, Pipeline.end, RegionStates.close
    monkeypatch.setattr(RegionStates, "freeze", freeze)
    monkeypatch.setattr(RegionStates, "close", close)
    monkeypatch.setattr(Pipeline, "end", end)
    result = run_app(fed(checkpoints), {"orders": {"1.csv": "a,1\n"}, "posts": {"1.json": '{"k":"x","n":8}\n'}})
    late[-1].join(SOON)
    wanted = ["frozen", "ending", "taken"] if checkpoints == "blocking" else ["frozen", "taken", "ending"]
    assert log == wanted
    assert keys(result) == ["a", "x"]


@pytest.mark.seed("V105", "V137")
def test_an_attempt_that_was_given_up_takes_nothing_in(
    run_app: RunApp, monkeypatch: pytest.MonkeyPatch, ahead: list[float]
) -> None:
    """Otherwise rows that came for the next attempt would be lost with the attempt that was given up."""
    entered, go = threading.Event(), threading.Event()
    ended: list[threading.Thread] = []
    attempts: list[Feeding] = []

    def take(feeding: Feeding, sources: Any) -> Any:
        attempts.append(feeding)
        if len(attempts) == 1:
            ended.append(threading.current_thread())
            entered.set()
            ahead.append(3600.0)
            go.wait(SOON)
        return takes(feeding, sources)

    takes = Feeding.take
    result = run_app(fed())
    monkeypatch.setattr(Feeding, "take", take)
    result.add({"orders": {"1.csv": "a,1\n"}, "posts": {"1.json": '{"k":"x","n":8}\n'}})
    with pytest.raises(DrainTimeout):
        result.run()
    assert entered.is_set()
    go.set()
    ended[0].join(SOON)
    assert not ended[0].is_alive()
    assert attempts[0].taken["posts"].files == 0
    result.run()
    assert keys(result) == ["a", "x"]
