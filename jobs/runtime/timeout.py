"""Actions in threads of their own: one with a time limit, which a signal ends with grace; or several in parallel."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Generic, TypeVar

from drainmark.jobs import world
from drainmark.jobs.errors import DrainmarkError, Interrupted, OperatorFailed

T = TypeVar("T")

INTERRUPT_GRACE_SECONDS = 10.0
POLL_SECONDS = 0.05


@dataclass(slots=True)
class Grace:
    """The ten seconds that work under way has after a signal, counted from the first call that sees the signal."""

    is_interrupted: Callable[[], bool]
    _until: float | None = None

    def is_over(self) -> bool:
        if not self.is_interrupted():
            return False
        if self._until is None:
            self._until = world.monotonic() + INTERRUPT_GRACE_SECONDS
        return world.monotonic() > self._until


class Bounded(Generic[T]):
    """An action in a thread of its own, for a bounded time: it returns its result in time, or it is abandoned.

    An abandoned action may go on for a while, so it must only stage files, or write under a fence that refuses it.

    Args:
        seconds: time limit; after it, `cancel` is called and `late(seconds)` raised.
        grace: the time that the action has after a signal.
        cancel: stops jobs that the action started elsewhere (Spark jobs).
        may_abandon: says whether the action may still be abandoned; if not, it is waited for.
        name: of the thread.
    """

    def __init__(
        self,
        action: Callable[[], T],
        seconds: float,
        grace: Grace,
        *,
        late: Callable[[float], DrainmarkError],
        cancel: Callable[[], None] = lambda: None,
        may_abandon: Callable[[], bool] = lambda: True,
        name: str = "bounded",
    ) -> None:
        self.cancel = cancel
        self._seconds, self._grace, self._late, self._may_abandon = seconds, grace, late, may_abandon
        self._deadline = world.monotonic() + seconds
        self._abandoned: DrainmarkError | None = None

        def work() -> T:
            try:
                return action()
            except Exception:
                raise
            except BaseException as error:  # e.g. SystemExit: it must not end the waiting thread as a signal would
                raise OperatorFailed(f"{type(error).__name__}: {error}") from error

        self._answer = world.Answer(work, name)

    @property
    def thread(self) -> world.Thread:
        return self._answer.thread

    def frames(self) -> Iterator[FrameType]:
        """Yield the frames of the thread, the innermost first; none if it has ended."""
        frame = sys._current_frames().get(self.thread.ident or 0)
        while frame is not None:
            yield frame
            frame = frame.f_back

    @property
    def is_over(self) -> bool:
        """Say whether the action has returned or raised."""
        return self._answer.is_there

    def has_ended(self, seconds: float = 0.0) -> bool:
        """Wait at most so many seconds; say whether the action is over, or is abandoned: `result` tells which."""
        if self._abandoned is None and not self._answer.wait(seconds):
            is_interrupted = self._grace.is_over()
            is_late = world.monotonic() > self._deadline
            if not ((is_interrupted or is_late) and self._may_abandon()):
                return False
            self.cancel()  # before `late`, which may tell what was cancelled
            if is_interrupted:
                remedy = "start it again: no attempt was counted"
                self._abandoned = Interrupted("the group was abandoned", remedy=remedy)
            else:
                self._abandoned = self._late(self._seconds)
        return True

    def result(self) -> T:
        """Return the result of the action, or raise its error.

        Raises:
            Interrupted: the grace after a signal is over; costs no attempt.
        """
        while not self.has_ended(POLL_SECONDS):
            pass
        if self._abandoned is not None:
            raise self._abandoned
        return self._answer.get()


def side_by_side(actions: Sequence[Callable[[], object]]) -> None:
    """Run several actions in parallel, and wait for all of them even if one fails, so that none outlives the call.

    A single action runs in the caller's thread.

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

    threads = [world.start(partial(work, action), "side by side") for action in actions]
    for thread in threads:
        thread.join()
    if failed:
        first, *others = failed
        for other in others:
            first.add_note(f"beside it: {type(other).__name__}: {other}")
        raise first
