"""The wait of an idle run for the next file, so that the file costs only its group, and no new run.

Dagster needs seconds to start a run. If none waits here, the sensor's tick itself watches the folder.

The run ends when nothing came for `seconds`, when its time is over, when a verb asks for the region, when another run
waits for its place, or when its code changed on disk. While the thread of a start runs in it, `seconds` do not count.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from drainmark.jobs import world
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
"""Seconds without new input after which the publishing is noted, so that `status` and `history` are complete."""
_SELDOM_SECONDS = 2.0
"""Seconds between two looks at the code and at the queue of runs, which change seldom."""


@dataclass(slots=True, kw_only=True)
class Lingering:
    """The decision, when nothing is pending, whether a run stays or ends.

    Attributes:
        seconds: to wait for the next file.
        until: when it stops waiting, by the monotonic clock.
        interrupted: set when the run must end.
        requests: of verbs that want the region.
        code: the files whose change ends the run.
        is_in_the_way: says whether another run waits for its turn.
        has_failed: says whether the thread of a start failed; the run itself then raises the error.
        hosts_threads: says whether the thread of a start runs in the run; meanwhile the idle time does not count.
        rest: called once, when nothing came for REST_SECONDS.
        why: the reason to end, after `has_more` returned False.
    """

    region: str
    registry: Registry
    watch: SourceWatch
    seconds: float
    until: float
    interrupted: world.Flag
    requests: Requests
    code: CodeFiles
    is_in_the_way: Callable[[], bool] = lambda: False
    has_failed: Callable[[], bool] = lambda: False
    hosts_threads: Callable[[], bool] = lambda: False
    rest: Callable[[], None] = lambda: None
    why: str = ""
    _seldom_at: float = field(default=float("-inf"))

    def has_more(self) -> bool:
        """Wait; return True if there is work, which may also be a request to halt, an interruption or a failed start.

        If it returns False, the run is to end, and `why` has the reason.
        """
        begun, is_at_rest = world.monotonic(), False
        idle_until = begun + self.seconds
        while True:
            if self.interrupted.is_set() or self.has_failed():
                return True
            if self.registry.region_info(self.region).halt_requested is not None:
                return True
            if (why := self._goes()) is not None:
                self.why = why
                return False
            now = world.monotonic()
            if now >= self.until:  # even if more is pending, as with a thread that never pauses: the next run takes it
                self.why = "its time is over"
                return False
            if self.registry.pending_count(self.region):
                return True
            if self.hosts_threads():
                idle_until = now + self.seconds  # the idle time counts from the end of the thread
            if now >= idle_until:
                self.why = f"nothing came for {self.seconds:g} s"
                return False
            if not is_at_rest and now - begun >= REST_SECONDS:
                is_at_rest = True
                self.rest()
            self.interrupted.wait(LOOK_SECONDS)

    def is_asked(self) -> bool:
        """Say whether a verb waits for the region."""
        return self.requests.is_asked()

    def _goes(self) -> str | None:
        if self.is_asked():
            return "another process asked for the region"
        now = world.monotonic()
        if now >= self._seldom_at:
            self._seldom_at = now + _SELDOM_SECONDS
            if (changed := self.code.changed()) is not None:
                return f"{changed} is another one now"
            if self._is_in_the_way():
                return "another run waits for its turn"
        try:
            self.watch.look()
        except (DrainmarkError, OSError) as error:  # the sensor reports it, and a new run handles it
            return str(error)
        return None

    def _is_in_the_way(self) -> bool:
        """Say whether another run waits; an error of Dagster's storage counts as no: the next look asks again."""
        try:
            return self.is_in_the_way()
        except Exception:
            return False


def linger_seconds(region: RegionPlan, settings: Settings) -> float:
    """Return the seconds that a run started by a sensor waits for more input; 0 if it does not wait."""
    own = region.parameters.linger
    return settings.linger_seconds if own is None else own.total_seconds()


class CodeFiles:
    """The files from which a run's code was loaded, with their times and sizes at its start."""

    def __init__(self, opened: Opened, project_root: Path) -> None:
        origin = opened.application.origin
        places = own_modules(Path(origin)).values() if origin else ()
        own = [origin, *(str(file) for place in places for file in files_of(place))] if origin else []
        loaded = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        below = f"{project_root}/"
        own += [path for path in loaded if path and path.startswith(below) and "/site-packages/" not in path]
        self._stamps: Mapping[str, tuple[int, int] | None] = {path: _stamp(path) for path in own}

    def changed(self) -> str | None:
        """Return the first file that changed, None if none did."""
        return next((path for path, stamp in self._stamps.items() if _stamp(path) != stamp), None)


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        facts = Path(path).stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size
