"""Parallel actions, each in a thread of its own; used to reset the operators of a region concurrently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from drainmark.jobs import world


def side_by_side(actions: Sequence[Callable[[], object]], name: str = "side by side") -> None:
    """Run several actions in parallel, and wait for all of them even if one fails, so that none outlives the call.

    Args:
        name: of the threads. A single action runs in the caller's thread.

    Raises:
        BaseException: the first error; its notes have the errors of the other actions.
    """
    if len(actions) < 2:
        for action in actions:
            action()
        return
    failed: list[BaseException] = []

    def work(action: Callable[[], object]) -> None:
        try:
            action()
        except BaseException as error:
            failed.append(error)

    threads = [world.start(partial(work, action), name) for action in actions]
    for thread in threads:
        thread.join()
    if failed:
        first, *others = failed
        for other in others:
            first.add_note(f"beside it: {type(other).__name__}: {other}")
        raise first
