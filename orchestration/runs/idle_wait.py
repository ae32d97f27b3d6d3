"""A run that has nothing to do waits for the next file: that one then costs no run of its own, only its group.

It goes when nothing came for a while, when its time is over, when somebody else wants the region or its place, or when
the code on disk is not the code that it runs. While the thread of a start lives in it, no while is too long.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from drainmark.jobs.errors import DrainmarkError
from drainmark.jobs.graph.own_modules import files_of, own_modules
from drainmark.orchestration.discovery.source_watch import LOOK_SECONDS, SourceWatch
from drainmark.orchestration.workplace.hand_off import Requests
from drainmark.orchestration.workplace.workplace import Opened
from drainmark.resources.registry.registry import Registry

if TYPE_CHECKING:
    from drainmark.jobs.regions.plan import RegionPlan
    from drainmark.resources.settings import Settings

REST_SECONDS = 2.0
"""Without anything new, after which what was published is noted: `status` and `history` are whole then."""
_SELDOM_SECONDS = 2.0
"""Between two looks at what changes seldom: code, and the queue of runs."""


@dataclass(slots=True, kw_only=True)
class Lingering:
    """Decides between two groups whether a run stays.

    Attributes:
        seconds: to wait for the next file.
        until: `time.monotonic()` from which on it waits no more.
        interrupted: the run was told to end.
        requests: of operators' verbs.
        code: the files whose change ends the run.
        is_in_the_way: does another run wait for its turn?
        has_failed: did the thread of a start fail? That is for the run to say.
        hosts_threads: does the thread of a start live in the run? Who waits for it waits for no file.
        rest: called once where nothing has come for a moment.
    """

    region: str
    registry: Registry
    watch: SourceWatch
    seconds: float
    until: float
    interrupted: threading.Event
    requests: Requests
    code: CodeFiles
    is_in_the_way: Callable[[], bool] = lambda: False
    has_failed: Callable[[], bool] = lambda: False
    hosts_threads: Callable[[], bool] = lambda: False
    rest: Callable[[], None] = lambda: None
    why: str = ""
    _seldom_at: float = field(default=float("-inf"))

    def has_more(self) -> bool:
        """Wait; True when there is something to do, if only to obey a request to halt or an interruption.

        False says in `why` what it goes for.
        """
        begun, is_at_rest = time.monotonic(), False
        idle_until = begun + self.seconds
        while True:
            if self.interrupted.is_set() or self.has_failed():
                return True
            if self.registry.region_info(self.region).halt_requested is not None:
                return True
            if (why := self._goes()) is not None:
                self.why = why
                return False
            now = time.monotonic()
            if now >= self.until:  # also where more is pending, as where a thread never rests: the next run takes it
                self.why = "its time is over"
                return False
            if self.registry.pending_count(self.region):
                return True
            if self.hosts_threads():
                idle_until = now + self.seconds  # counts from its end
            if now >= idle_until:
                self.why = f"nothing came for {self.seconds:g} s"
                return False
            if not is_at_rest and now - begun >= REST_SECONDS:
                is_at_rest = True
                self.rest()
            self.interrupted.wait(LOOK_SECONDS)

    def is_asked(self) -> bool:
        """Say whether an operator's verb waits for the region."""
        return self.requests.is_asked()

    def _goes(self) -> str | None:
        if self.is_asked():
            return "somebody asked for the region"
        now = time.monotonic()
        if now >= self._seldom_at:
            self._seldom_at = now + _SELDOM_SECONDS
            if (changed := self.code.changed()) is not None:
                return f"{changed} is another one now"
            if self._is_in_the_way():
                return "another run waits for its turn"
        try:
            self.watch.look()
        except (DrainmarkError, OSError) as error:  # the sensor says so, and a new run decides what follows
            return str(error)
        return None

    def _is_in_the_way(self) -> bool:
        """Ask; a storage of Dagster's that does not answer now is asked again soon: what this run did is done."""
        try:
            return self.is_in_the_way()
        except Exception:
            return False


def linger_seconds(region: RegionPlan, settings: Settings) -> float:
    """Return how long a run of a region that a sensor started waits for more; 0 where it does not."""
    own = region.parameters.linger
    return settings.linger_seconds if own is None else own.total_seconds()


class CodeFiles:
    """The files that a run's code was loaded from, as they were when it began."""

    def __init__(self, opened: Opened, project_root: Path) -> None:
        origin = opened.application.origin
        places = own_modules(Path(origin)).values() if origin else ()
        own = [origin, *(str(file) for place in places for file in files_of(place))] if origin else []
        loaded = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        below = f"{project_root}/"
        own += [path for path in loaded if path and path.startswith(below) and "/site-packages/" not in path]
        self._stamps: Mapping[str, tuple[int, int] | None] = {path: _stamp(path) for path in own}

    def changed(self) -> str | None:
        """Return the first file that is not what it was."""
        return next((path for path, stamp in self._stamps.items() if _stamp(path) != stamp), None)


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        facts = Path(path).stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size
