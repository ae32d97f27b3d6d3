"""`staying`: a run that stays, for tests of starts with threads of their own (`dm.ThreadedStart`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import DrainmarkError, Fenced, UnknownName
from drainmark.jobs.graph.application import nearest
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.runs.region_runs import region_run

if TYPE_CHECKING:
    from drainmark.jobs.runtime.region_run import RegionRun
    from drainmark.orchestration.testing.running import Result

_PAUSE_SECONDS = 0.02
_SECONDS = 60.0


class Staying:
    """A run that scans and processes in a thread of this process until it is ended, as `drainmark run --for` does.

    Attributes:
        scans: cleared, it takes nothing new; set at first.
        failure: what ended it; None while it goes on, or where it ended well.
        is_seen: a test has asked for it.
    """

    def __init__(self, result: Result) -> None:
        self._result = result
        self._run: RegionRun = region_run(result.workplace, result.opened, result.region)
        self._run.hosted.takes_starts = True
        self.scans = threading.Event()
        self.scans.set()
        self.failure: BaseException | None = None
        self.is_seen = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="a run that stays")
        self._thread.start()

    def handler(self, start: str | None = None) -> Any:
        """Return the handler of a start, as soon as the region is claimed.

        Args:
            start: its name, where there are several.

        Raises:
            UnknownName: there is none.
            DrainmarkError: what ended the run.
        """
        self.wait_for(lambda: self._run.hosted.starts)
        starts = self._run.hosted.starts
        name = start or next(iter(starts))
        if name not in starts:
            raise UnknownName(f"no start {name!r} has a thread", remedy=nearest(name, list(starts)))
        return starts[name].handler

    def wait_for(self, is_so: Callable[[], Any], seconds: float = _SECONDS) -> None:
        """Wait until something is so.

        Raises:
            AssertionError: it is not, after so many seconds.
            Exception: what ended the run.
        """
        until = time.monotonic() + seconds
        while not is_so():
            if self.failure is not None:
                raise self.failure
            _check(time.monotonic() < until, f"not so within {seconds:g} s")
            time.sleep(_PAUSE_SECONDS)

    def end(self) -> None:
        """End the run, and wait for that; again is harmless."""
        self._is_over.set()
        self._thread.join(_SECONDS)
        _check(not self._thread.is_alive(), "the run does not end")

    def ended(self) -> BaseException | None:
        """Wait until the run ends by itself; return what ended it."""
        until = time.monotonic() + _SECONDS
        while self._thread.is_alive():
            _check(time.monotonic() < until, "the run does not end")
            time.sleep(_PAUSE_SECONDS)
        self.is_seen = True
        return self.failure

    def _work(self) -> None:
        error: BaseException | None = None
        try:
            self._run.claim()
            while not self._is_over.wait(_PAUSE_SECONDS):
                if self.scans.is_set():
                    scan_region(self._result.workplace, self._result.region)
                self._result.groups += list(self._run.groups())
        except BaseException as raised:
            error = self.failure = raised
        finally:
            try:
                self._run.hand_over(error)
            except DrainmarkError as late:
                self.failure = late if isinstance(late, Fenced) else self.failure or late


@contextmanager
def staying(result: Result) -> Iterator[Staying]:
    """Let a run of an application stay while the block goes on; it ends with the block.

        result = run_app("app.py")
        with dm.testing.staying(result) as run:
            run.wait_for(lambda: result.status["committed_sequence_id"] >= 1)

    Raises:
        Exception: the error that ended the run, if the block did not see it.
    """
    run = Staying(result)
    seen = None
    try:
        yield run
    except BaseException as error:
        seen = error
        raise
    finally:
        run.end()
        if seen is None and run.failure is not None and not run.is_seen:
            raise run.failure


def _check(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise AssertionError(otherwise)
