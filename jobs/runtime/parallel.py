"""Actions side by side, each in a thread of its own: operators of a region reset concurrently."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence


def side_by_side(actions: Sequence[Callable[[], object]], name: str = "side by side") -> None:
    """Do several things at once, and wait for all of them, also where one fails: none goes on behind the caller.

    Args:
        name: of the threads. A single action gets none, and is done in the caller's.

    Raises:
        BaseException: what the first of them raised that failed; what others raised stands in its notes.
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

    threads = [threading.Thread(target=work, args=(action,), daemon=True, name=name) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        first, *others = failed
        for other in others:
            first.add_note(f"beside it: {type(other).__name__}: {other}")
        raise first
