"""Events leave by a queue and a thread: a receiver that hangs, refuses or is absent holds up no region.

Some events have a number, that of the row that they tell of: they can be made again. The receiver takes them in their
order and without a gap, so one number says which it has. Other events are lost if it does not take them.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MOST_WAITING = 1000
"""Events that wait in the memory of this process; further ones are not taken."""

REST_SECONDS = 30.0
"""How long nothing is sent after a failure: else each event of a run would wait for a receiver that hangs."""

IDLE_SECONDS = 2.0
"""How long the thread waits for a further event before it ends; the next event begins another."""

SEND_SECONDS = 5.0
"""How long one request waits for the receiver's answer."""

END_SECONDS = 5.0
"""How long the end of a run waits for what is not sent yet."""

logger = logging.getLogger(__name__)

Make = Callable[[], Any]


class Refused(Exception):
    """The receiver will never take this event, however often it is sent."""


def direct_session() -> Any:
    """Return a session of `requests` that takes a redirect for a failure.

    Else an event would end at another address, or a post would go on as a GET whose answer says nothing about it.
    """
    from requests import Session, TooManyRedirects

    def refuse(response: Any, **_: Any) -> None:
        if 300 <= response.status_code < 400:
            to = response.headers.get("Location", "")
            raise TooManyRedirects(f"{response.status_code}: it redirects to {to!r}; name that address instead")

    session = Session()
    session.hooks["response"].append(refuse)
    return session


@dataclass(frozen=True, slots=True)
class _Waiting:
    make: Make
    number: int | None
    after: int


@dataclass(slots=True)
class EventSender:
    """The thread that sends events, in order.

    Attributes:
        send: sends one event; takes a bounded time. It may raise `Refused`, or any error for "not now".
        taken: the number of the newest event with a number that the receiver has, and of which it has all before.
        failures: how often the receiver was not there; each time, all that waits is dropped.
        lost: events that it will never get.
        why: what the last failure said; "" without one.
    """

    send: Callable[[Any], None]
    taken: int
    failures: int = 0
    lost: int = 0
    why: str = ""
    _queue: queue.Queue[_Waiting] = field(default_factory=lambda: queue.Queue(MOST_WAITING))
    _thread: threading.Thread | None = None
    _rests_until: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_resting(self) -> bool:
        """Say whether nothing is sent now, because the receiver was not there a moment ago."""
        return time.monotonic() < self._rests_until

    def put(self, make: Make) -> None:
        """Send an event without a number soon; never waits and never raises.

        Args:
            make: makes the event, in the thread.
        """
        if self.is_resting or not self._put(_Waiting(make, None, 0)):
            self._lose(1)

    def put_numbered(self, make: Make, number: int, after: int) -> bool:
        """Send an event with a number soon; return False if there is no room now. Never waits and never raises.

        Args:
            after: number of the event before it: it is dropped unless the receiver has that one.
        """
        return not self.is_resting and self._put(_Waiting(make, number, after))

    def flush(self, seconds: float) -> None:
        """Wait until all events are sent or dropped, at most so many seconds; then drop what still waits."""
        with self._queue.all_tasks_done:
            if self._queue.all_tasks_done.wait_for(lambda: not self._queue.unfinished_tasks, seconds):
                return
        self.why = f"no answer within {seconds:g} s"
        self._drop([])

    def _put(self, event: _Waiting) -> bool:
        with self._lock:
            try:
                self._queue.put_nowait(event)
            except queue.Full:
                return False
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="drainmark-events", daemon=True)
                self._thread.start()
        return True

    def _lose(self, number: int) -> None:
        with self._lock:
            self.lost += number

    def _work(self) -> None:
        while True:
            try:
                event = self._queue.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._queue.empty():
                        self._thread = None
                        return
                continue
            try:
                self._handle(event)
            finally:
                self._queue.task_done()

    def _handle(self, event: _Waiting) -> None:
        if event.number is not None and event.after != self.taken:
            return  # one before it was dropped; both are made again
        try:
            made = event.make()
        except Exception as error:
            logger.warning("an event could not be made", exc_info=True)
            self._refused(event, error)
            return
        try:
            self.send(made)
        except Refused as error:
            self._refused(event, error)
        except Exception as error:
            self._failed(event, error)
        else:
            self.taken = self.taken if event.number is None else event.number

    def _refused(self, event: _Waiting, error: Exception) -> None:
        """Go on without an event: to wait for it would hold up all that come after it, for ever."""
        self._lose(1)
        self.why = _told(error)
        self.taken = self.taken if event.number is None else event.number

    def _failed(self, event: _Waiting, error: Exception) -> None:
        self.why = _told(error)
        self._drop([event])

    def _drop(self, dropped: list[_Waiting]) -> None:
        """Drop events and all that wait, and rest."""
        self._rests_until = time.monotonic() + REST_SECONDS
        while True:
            try:
                dropped.append(self._queue.get_nowait())
            except queue.Empty:
                break
            self._queue.task_done()
        self._lose(sum(each.number is None for each in dropped))
        self.failures += 1


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
