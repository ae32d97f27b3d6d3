"""`staying`: a run that goes on in the background, for tests of starts with their own threads (`dm.ThreadedStart`)."""

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
    """A run that scans and processes in a thread of this process until `end`, as `drainmark run --for` does.

    Attributes:
        scans: while it is cleared, the run takes no new input; set at the start.
        failure: the error that ended the run; None while it goes on, or if it ended without an error.
        is_seen: the test has called `ended`, so `staying` does not raise the failure again.
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
        """Wait until the region is claimed, and return the handler of a start.

        Args:
            start: its name; by default the first start.

        Raises:
            UnknownName: there is no such start.
            DrainmarkError: the error that ended the run.
        """
        self.wait_for(lambda: self._run.hosted.starts)
        starts = self._run.hosted.starts
        name = start or next(iter(starts))
        if name not in starts:
            raise UnknownName(f"no start {name!r} has a thread", remedy=nearest(name, list(starts)))
        return starts[name].handler

    def wait_for(self, is_so: Callable[[], Any], seconds: float = _SECONDS) -> None:
        """Wait until a predicate is true.

        Raises:
            AssertionError: it is still false after so many seconds.
            Exception: the error that ended the run.
        """
        until = time.monotonic() + seconds
        while not is_so():
            if self.failure is not None:
                raise self.failure
            _check(time.monotonic() < until, f"not so within {seconds:g} s")
            time.sleep(_PAUSE_SECONDS)

    def end(self) -> None:
        """End the run, and wait until it has ended; a second call does nothing."""
        self._is_over.set()
        self._thread.join(_SECONDS)
        _check(not self._thread.is_alive(), "the run does not end")

    def ended(self) -> BaseException | None:
        """Wait until the run ends by itself; return the error that ended it."""
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
    """Run an application in the background while the block is executed; the run ends with the block.

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
