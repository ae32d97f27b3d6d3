"""A harness that stops a publisher before each of its steps: its successor takes over; then it wakes, or dies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from drainmark.jobs.errors import Fenced

Step = tuple[Any, str]
"""A module or class, and the name of its function."""


class Killed(BaseException):
    """The exception that ends a publisher: it does nothing more."""


@dataclass(frozen=True)
class Publisher:
    """The call of a publisher, the call of its successor while it is stopped, and the check after both."""

    publish: Callable[[], Any]
    take_over: Callable[[], Any]
    check: Callable[[str], None]


def stopped_everywhere(
    made: Callable[[int], Publisher], steps: Sequence[Step], *, dead: Sequence[Step] = ()
) -> list[str]:
    """Stop a publisher before its first step, another before its second, and so on to the last; return how each
    ended.

    Args:
        made: makes the publisher that stops before the n-th call of any of `steps`.
        dead: the functions that kill the publisher after it was stopped; none if it goes on.
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
    """Call `action` before the n-th step; return a function that tells how many steps were missing."""
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
