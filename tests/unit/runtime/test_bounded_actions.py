"""An exception that would end a process, such as SystemExit, is an ordinary failure in an author's code (V36)."""

from __future__ import annotations

from typing import Any

import pytest
from waiting import SOON

from drainmark.jobs.errors import DrainmarkError, OperatorFailed
from drainmark.jobs.runtime.timeout import Bounded, Grace


def result_of(action: Any) -> Any:
    def late(seconds: float) -> DrainmarkError:
        return DrainmarkError(f"it took longer than {seconds:g} s")

    return Bounded(action, SOON, Grace(lambda: False), late=late).result()


@pytest.mark.parametrize("error", [SystemExit(0), GeneratorExit(), KeyboardInterrupt()], ids=repr)
def test_an_action_ends_no_process_but_its_own_attempt(error: BaseException) -> None:
    """Otherwise `drainmark run` could exit with 0 although nothing was processed."""

    def action() -> None:
        raise error

    with pytest.raises(OperatorFailed, match=type(error).__name__):
        result_of(action)


def test_what_an_action_returns_or_raises_else_is_handed_on_as_it_is() -> None:
    assert result_of(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        result_of(lambda: 1 / 0)
