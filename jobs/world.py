"""The world outside of a process: clocks, chance, other threads, and every effect that others can see.

The protocol meets the world through this module only (`tests/architecture/test_world.py`). A process is in the plain
`World`, which does what it is asked. Another one can be entered in its place: `failpoints.Armed`, whose steps fail on
purpose, or the simulator's, in which a seed decides who acts next, what fails, and what time it is.
"""

from __future__ import annotations

import functools
import random
import threading
import time as _time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from typing import Generic, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Seam(StrEnum):
    """The kinds of calls that leave a process: each can fail, be late, or lose its answer."""

    REGISTRY_READ = "registry.read"
    REGISTRY_WRITE = "registry.write"
    DELTA_OPEN = "delta.open"
    DELTA_COMMIT = "delta.commit"
    DELTA_UPKEEP = "delta.upkeep"
    STORE_WRITE = "store.write"
    STORE_READ = "store.read"
    STORE_LIST = "store.list"
    STORE_REMOVE = "store.remove"
    SINK_FILE = "sink.file"
    SINK_DATABASE = "sink.database"


class Flag(Protocol):
    """What `threading.Event` does."""

    def set(self) -> None: ...
    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Thread(Protocol):
    """A started thread."""

    @property
    def ident(self) -> int | None: ...
    def join(self, timeout: float | None = None) -> None: ...
    def is_alive(self) -> bool: ...


class World:
    """The world as it is; a subclass alters what it must."""

    def now(self) -> float:
        """Return the time of this machine's clock, seconds since 1970 UTC; it may jump."""
        return _time.time()

    def monotonic(self) -> float:
        """Return seconds since some moment; they never go back."""
        return _time.monotonic()

    def sleep(self, seconds: float) -> None:
        _time.sleep(seconds)

    def token(self) -> str:
        """Return 32 hexadecimal digits that nobody else has."""
        return uuid.uuid4().hex

    def between(self, low: float, high: float) -> float:
        """Return a random number; no secret."""
        return random.uniform(low, high)  # noqa: S311

    def start(self, work: Callable[[], object], name: str) -> Thread:
        """Run `work` in a thread of its own, which does not keep the process alive."""
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread

    def event(self) -> Flag:
        """Return an event, not set yet, for which threads of this world can wait."""
        return threading.Event()

    def pass_point(self, point: str) -> None:
        """Pass a step of the protocol; see `failpoints`."""

    def whole(self) -> AbstractContextManager[object]:
        """Return the context of a transaction inside which this process must not be stopped."""
        return nullcontext()

    def across(self, seam: Seam, deed: Callable[[], T], on: object = None) -> T:
        """Make a call that leaves the process, and return its answer.

        Args:
            on: what is called: a folder, a table, a database.

        Raises:
            Exception: the errors of the call. One does not tell whether the call had its effect.
        """
        return deed()

    def transaction(self, seam: Seam) -> AbstractContextManager[object]:
        """Return the context of a transaction: its effect is there at its end, all of it or nothing."""
        return nullcontext()


PLAIN = World()
_entered: World = PLAIN


@contextmanager
def entered(world: World) -> Iterator[None]:
    """Be in another world inside the block, with all threads of the process."""
    before = enter(world)
    try:
        yield
    finally:
        enter(before)


def enter(world: World) -> World:
    """Be in another world from now on, with all threads of the process; return the one before."""
    global _entered
    before, _entered = _entered, world
    return before


def leave(world: World) -> None:
    """Be in the plain world again, if the process is in this one."""
    if _entered is world:
        enter(PLAIN)


def now() -> float:
    return _entered.now()


def monotonic() -> float:
    return _entered.monotonic()


def sleep(seconds: float) -> None:
    _entered.sleep(seconds)


def token() -> str:
    return _entered.token()


def between(low: float, high: float) -> float:
    return _entered.between(low, high)


def start(work: Callable[[], object], name: str) -> Thread:
    return _entered.start(work, name)


def event() -> Flag:
    return _entered.event()


def pass_point(point: str) -> None:
    _entered.pass_point(point)


def whole() -> AbstractContextManager[object]:
    return _entered.whole()


def across(seam: Seam, deed: Callable[[], T], on: object = None) -> T:
    return _entered.across(seam, deed, on)


def transaction(seam: Seam) -> AbstractContextManager[object]:
    return _entered.transaction(seam)


class Answer(Generic[T]):
    """The result or the error of work in a thread of its own, which begins at once.

    Attributes:
        error: of the work that has ended; None if it has a result.
        thread: that of the work.
    """

    def __init__(self, work: Callable[[], T], name: str) -> None:
        self._work = work
        self._found: list[T] = []
        self.error: BaseException | None = None
        self._over = event()
        self.thread = start(self._do, name)

    def _do(self) -> None:
        try:
            self._found.append(self._work())
        except BaseException as error:
            self.error = error
        self._over.set()

    @property
    def is_there(self) -> bool:
        """Say whether the work has ended."""
        return self._over.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end of the work; return False if it has not ended after so many seconds."""
        return self._over.wait(seconds)

    def get(self) -> T:
        """Return the result when the work has ended, or raise its error."""
        self.wait()
        if self.error is not None:
            raise self.error
        return self._found[0]


def crosses(seam: Seam) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Declare that every call of a function leaves the process, on its first argument; see `World.across`."""

    def declare(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def crossing(*arguments: P.args, **named: P.kwargs) -> T:
            return _entered.across(seam, functools.partial(function, *arguments, **named), arguments[0])

        return crossing

    return declare
