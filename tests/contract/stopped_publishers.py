"""A publisher that stops before any of its steps: its successor takes over, and then it wakes, or dies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from drainmark.jobs.errors import Fenced

Step = tuple[Any, str]
"""A module or class, and the name of its function."""


class Killed(BaseException):
    """Ends a publisher that does nothing more."""


@dataclass(frozen=True)
class Publisher:
    """What it does, what its successor does while it is stopped, and what must hold after both."""

    publish: Callable[[], Any]
    take_over: Callable[[], Any]
    check: Callable[[str], None]


def stopped_everywhere(
    made: Callable[[int], Publisher], steps: Sequence[Step], *, dead: Sequence[Step] = ()
) -> list[str]:
    """Stop a publisher before its first step, one before its second, until there is no further one; return how each
    ended.

    Args:
        made: makes the publisher that stops before the n-th call of any of `steps`.
        dead: what fails after that step, where it is its last one.
    """
    ends: list[str] = []
    for number in range(1, 200):
        publisher = made(number)
        with pytest.MonkeyPatch.context() as patch:
            left = _stop_before(number, publisher.take_over, steps, dead, patch)
            try:
                publisher.publish()
                ends.append("done")
            except Fenced:
                ends.append("fenced")
            except Killed:
                ends.append("killed")
        if left():
            return ends
        publisher.check(f"before step {number}: {ends[-1]}")
    raise AssertionError("it never ends")


def _stop_before(
    number: int, action: Callable[[], Any], steps: Sequence[Step], dead: Sequence[Step], patch: pytest.MonkeyPatch
) -> Callable[[], int]:
    """Do something before the n-th step; returns how many steps were missing."""
    left = [number]

    def patched(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                patch.undo()
                action()
                for owner, name in dead:
                    patch.setattr(owner, name, _killed)
            return original(*arguments, **more)

        return call

    for owner, name in steps:
        patch.setattr(owner, name, patched(getattr(owner, name)))
    return lambda: max(left[0], 0)


def _killed(*_: Any, **__: Any) -> None:
    raise Killed
