"""Events leave by a queue and a thread: a receiver that hangs, refuses or is absent holds up no region.

Some events have a number, that of the row that they tell of: they can be made again. They are sent in their order, so
one number says which the receiver has. Other events are lost if it does not take them.

A receiver that is away, or asks for patience, gets the events with numbers later, all of them. If it takes others but
not this one, it gets this one a bounded number of times: else it would hold up all that come after it, for ever.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from drainmark.jobs import world
from drainmark.jobs.printable import printable_cell

MOST_WAITING = 1000
"""Events that wait in the memory of this process; further ones are not taken."""

REST_SECONDS = 30.0
"""How long nothing is sent after a failure: else each event of a run would wait for a receiver that hangs."""

PATIENCE_SECONDS = 900.0
"""The longest time for which a receiver gets nothing because it asks for patience: its answer may be wrong."""

IDLE_SECONDS = 2.0
"""How long the thread waits for a further event before it ends; the next event begins another."""

SEND_SECONDS = 5.0
"""How long one request waits for the receiver's answer."""

END_SECONDS = 5.0
"""How long the end of a run waits for what is not sent yet."""

MOST_TRIES = 3
"""How often an event with a number is sent to a receiver that takes others, before it is left out."""

GIVE_UP_SECONDS = 600.0
"""How long it is tried at least, by the clock: a receiver may have a short fault of one kind of events."""

_TEXT = 300
"""Characters of an answer that are told."""

logger = logging.getLogger(__name__)

Make = Callable[[], Any]


class EventRefused(Exception):
    """The receiver will never take this event, however often it is sent."""


class Faulty(Exception):
    """The receiver is there and failed at this event: perhaps it takes it later, and perhaps it takes others now."""


class Busy(Exception):
    """The receiver asks for patience.

    Attributes:
        seconds: how long it wants to get nothing, at most `PATIENCE_SECONDS`; 0 if it does not say.
    """

    def __init__(self, why: str, seconds: float = 0.0) -> None:
        super().__init__(why)
        self.seconds = seconds


def failure_of(response: Any) -> Exception | None:
    """Return what the answer of a receiver says about the event that it did not take; None if it took it.

    Args:
        response: of `requests`.
    """
    status = response.status_code
    if status < 300:
        return None
    if status < 400:
        to = response.headers.get("Location", "")
        return ConnectionError(f"{status}: it redirects to {to!r}; name that address instead")
    text = printable_cell(" ".join(response.text.split())[:_TEXT])
    why = f"{status} {response.reason}: {text}".rstrip(": ")
    if status in (400, 413, 422):
        return EventRefused(why)
    if status in (429, 503):
        return Busy(why, _patience(response.headers.get("Retry-After")))
    if status >= 500 and status not in (502, 504):  # those two come from a proxy that does not reach the receiver
        return Faulty(why)
    return ConnectionError(why)  # a wrong address or key: it concerns all events


def _patience(told: str | None) -> float:
    from urllib3.exceptions import InvalidHeader
    from urllib3.util import Retry

    try:
        return min(float(Retry().parse_retry_after(told)), PATIENCE_SECONDS) if told else 0.0
    except (InvalidHeader, ValueError, OverflowError):
        return 0.0


def direct_session(judge: Callable[[Any], None] | None = None) -> Any:
    """Return a session of `requests` that follows no redirect.

    Else an event would end at another address, or a post would go on as a GET whose answer says nothing about it.

    Args:
        judge: gets each answer, and raises what it says; by default what `failure_of` returns.
    """
    from requests import Session

    def hook(response: Any, **_: Any) -> None:
        if judge is not None:
            judge(response)
        elif failure := failure_of(response):
            raise failure

    session = Session()
    session.hooks["response"].append(hook)
    return session


@dataclass(frozen=True, slots=True)
class Position:
    """What a receiver has of the events with numbers.

    Attributes:
        taken: the number of the newest event that needs not be sent again, and none before it does.
        tries: how often the event after it was not taken by a receiver that takes others.
        since: when the first of these tries was, in seconds since 1970.
    """

    taken: int
    tries: int = 0
    since: float = 0.0

    def __str__(self) -> str:
        return f"{self.taken} {self.tries} {self.since}" if self.tries else str(self.taken)

    @classmethod
    def of(cls, text: str) -> Position:
        """Return the position whose text this is."""
        taken, *tried = text.split()
        return cls(int(taken), int(tried[0]), float(tried[1])) if tried else cls(int(taken))

    def failed(self) -> Position:
        """Return the position after one more try."""
        return Position(self.taken, self.tries + 1, self.since if self.tries else world.now())

    @property
    def is_hopeless(self) -> bool:
        """Say whether the event after it was tried often enough."""
        return self.tries >= MOST_TRIES and world.now() - self.since >= GIVE_UP_SECONDS


@dataclass(frozen=True, slots=True)
class _Waiting:
    make: Make
    number: int | None
    after: int


@dataclass(slots=True)
class EventSender:
    """The thread that sends events, in order.

    Attributes:
        send: sends one event; takes a bounded time. It may raise `EventRefused`, `Faulty` or `Busy`, or any other error
            if the receiver was not there.
        position: which events with numbers the receiver has.
        left_out: is called, in the thread, with the number of an event that it will never get, and why.
        failures: how often events with numbers were dropped, to be made again.
        lost: events that it will never get.
        why: what the last failure said; "" without one.
    """

    send: Callable[[Any], object]
    position: Position = Position(0)
    left_out: Callable[[int, str], None] = lambda number, why: None
    failures: int = 0
    lost: int = 0
    why: str = ""
    _queue: queue.Queue[_Waiting] = field(default_factory=lambda: queue.Queue(MOST_WAITING))
    _thread: threading.Thread | None = None
    _rests_until: float = 0.0
    _holds_until: float = 0.0
    _takes_others: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_resting(self) -> bool:
        """Say whether no event with a number is sent now, because one was not taken a moment ago."""
        return time.monotonic() < max(self._rests_until, self._holds_until)

    @property
    def is_half_full(self) -> bool:
        """Say whether so many events wait that no older ones need to be made yet."""
        return self._queue.qsize() > MOST_WAITING // 2

    def put(self, make: Make) -> None:
        """Send an event without a number soon; never waits and never raises.

        Args:
            make: makes the event, in the thread.
        """
        if time.monotonic() < self._rests_until or not self._put(_Waiting(make, None, 0)):
            self._lose()

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
        self._drop(REST_SECONDS)

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

    def _lose(self, number: int = 1) -> None:
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
        if event.number is not None and event.after != self.position.taken:
            return  # one before it was dropped; both are made again
        try:
            made = event.make()
        except Exception as error:
            logger.warning("an event could not be made", exc_info=True)
            self._leave_out(event, error)
            return
        try:
            self.send(made)
        except EventRefused as error:
            self._leave_out(event, error)
        except Exception as error:
            self._failed(event, error)
        else:
            self._takes_others = True
            if event.number is not None:
                self.position = Position(event.number)

    def _leave_out(self, event: _Waiting, error: Exception) -> None:
        """Go on without an event."""
        self._lose()
        self.why = _told(error)
        if event.number is not None:
            self.position = Position(event.number)
            self.left_out(event.number, self.why)

    def _failed(self, event: _Waiting, error: Exception) -> None:
        self.why = _told(error)
        seconds = max(REST_SECONDS, error.seconds if isinstance(error, Busy) else 0.0)
        if event.number is None:
            self._lose()
        elif self._is_hopeless(error):
            self._leave_out(event, error)
        else:
            self._holds_until = time.monotonic() + seconds
            self.failures += 1
        if not isinstance(error, Faulty):
            self._drop(seconds)

    def _is_hopeless(self, error: Exception) -> bool:
        """Count a try of an event with a number; say whether it was the last one."""
        if not self._takes_others or isinstance(error, Busy):
            return False
        self._takes_others = False
        self.position = self.position.failed()
        return self.position.is_hopeless

    def _drop(self, seconds: float) -> None:
        """Drop all events that wait, and send nothing for so many seconds."""
        self._rests_until = time.monotonic() + seconds
        dropped = []
        while True:
            try:
                dropped.append(self._queue.get_nowait())
            except queue.Empty:
                break
            self._queue.task_done()
        lost = sum(each.number is None for each in dropped)
        self._lose(lost)
        self.failures += len(dropped) > lost


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
