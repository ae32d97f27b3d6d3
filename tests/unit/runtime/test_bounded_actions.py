"""What ends a process elsewhere is, in code of an author's that a run calls, a failure like any other (V36)."""

from __future__ import annotations

import datetime as dt
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.errors import DrainmarkError, Interrupted, OperatorFailed
from jobs.runtime import bounded, probing
from jobs.runtime.bounded import Bounded, Grace
from orchestration.assembly import probe_first_use

PATIENCE = 20.0


def result_of(action: Any) -> Any:
    def late(seconds: float) -> DrainmarkError:
        return DrainmarkError(f"it took longer than {seconds:g} s")

    return Bounded(action, PATIENCE, Grace(lambda: False), late=late).result()


@pytest.mark.parametrize("error", [SystemExit(0), GeneratorExit(), KeyboardInterrupt()], ids=repr)
def test_an_action_ends_no_process_but_its_own_attempt(error: BaseException) -> None:
    """`drainmark run` would exit with 0, and nothing were processed."""

    def action() -> None:
        raise error

    with pytest.raises(OperatorFailed, match=type(error).__name__):
        result_of(action)


def test_what_an_action_returns_or_raises_else_is_handed_on_as_it_is() -> None:
    assert result_of(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        result_of(lambda: 1 / 0)


@pytest.mark.parametrize("is_interrupted", [True, False])
def test_a_function_that_hangs_while_it_is_tried_holds_no_run_up(
    monkeypatch: pytest.MonkeyPatch, is_interrupted: bool
) -> None:
    """The probe comes before the claim: without a bound neither a signal nor `drain_timeout` would end it."""
    go, ended = threading.Event(), threading.Event()

    def hangs(*_: object) -> None:
        go.wait(PATIENCE)
        ended.set()

    monkeypatch.setattr(probing, "probe_if_changed", hangs)
    monkeypatch.setattr(bounded, "INTERRUPT_GRACE_SECONDS", 0.0)
    parameters = SimpleNamespace(drain_timeout=dt.timedelta(seconds=PATIENCE if is_interrupted else 0.01))
    run: Any = SimpleNamespace(
        blueprint=SimpleNamespace(region=SimpleNamespace(parameters=parameters)), region="app/lines", outside=None,
        interrupted=threading.Event(),
    )  # fmt: skip
    place: Any = SimpleNamespace(registry=None)
    try:
        if is_interrupted:
            run.interrupted.set()
            with pytest.raises(Interrupted):
                probe_first_use(place, run)
        else:
            probe_first_use(place, run)  # the run finds out, and counts an attempt
        assert not ended.is_set()
    finally:
        go.set()
