"""One application on a home of its own, fed window by window: with consistent states, or the same operators without.

A *window* is a number of input files that lie there before it begins: the input is always ahead. Both lanes read files
of the same content with the same reader, run the operators by the same analysed plans, and stage what these put out
by the same code. Then

- *with states* a run of the region checkpoints each window, publishes it, and has the next one in hand meanwhile, as
  any run has while input lasts: what lies between the ends of two windows is what one took;
- *without* a window is a micro-batch of an autonomous part: a cursor moves, and each table gets a plain Delta commit.
  There is no claim, no checkpoint table, no sequence of states, and nothing to go back to.

Claims, scans, analysis, and a small window that opens each run with states, are outside of what is timed. So is what
comes round seldom: log checkpoints and compaction, every 20 groups or 50 plain commits, are met by neither lane.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_input import WrongResult

from jobs.runtime.blueprint import analyse
from jobs.runtime.micro_batches import MicroBatches
from orchestration.assembly import Opened, Workplace, region_run
from orchestration.discovery import Tick, is_periodic, scan_region
from resources.settings import Settings

if TYPE_CHECKING:
    from jobs.protocol.triggers import Trigger
    from resources.spark import SparkEngine

LONG_AGO = 1_000_000_000
NO_BOUND = 1 << 36
"""Bytes: no window is that large, so that its files are its only bound."""
_NO_EPOCH = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Files to be read again and again under new names: links, so that a gigabyte of input costs no disk.

    Attributes:
        files: of one size, in the order in which they take turns.
        rows: that a reader finds in each.
        tiny, tiny_rows: a small file, for the windows that are not timed.
        name: the path of the file of a number below the inbox; names are in the order of the numbers.
    """

    files: Sequence[Path]
    rows: int
    tiny: Path
    tiny_rows: int
    name: Callable[[int], str]


@dataclass(slots=True, kw_only=True)
class Lane(ABC):
    """A home with its inbox, and an application that processes it window by window.

    Attributes:
        opened: gives the application that reads an inbox.
        warming: files of the window that is not timed.
    """

    engine: SparkEngine
    folder: Path
    content: Content
    opened: Callable[[Path], Opened]
    warming: int = 1
    place: Workplace = field(init=False)
    application: Opened = field(init=False)
    _linked: int = 0
    _rows: int = 0
    _due_rows: int = 0

    def __post_init__(self) -> None:
        inbox = self.folder / "inbox"
        inbox.mkdir(parents=True)
        settings = Settings(
            home=self.folder / "home",
            project_root=self.folder,
            registry_url=f"sqlite:///{self.folder / 'home' / 'registry.db'}",
            max_group_bytes=NO_BOUND,
            s3_spool_bytes=NO_BOUND,
            slice_bytes=NO_BOUND,
        )
        self.place = Workplace(settings)
        self.place.use_engine(self.engine)
        self.application = self.opened(inbox)

    @abstractmethod
    def seconds(self, windows: int, files: int) -> list[float]:
        """Process so many windows of so many files, behind one that warms up; return the seconds of each.

        Raises:
            WrongResult: a window was not processed in one go.
        """

    @property
    def region(self) -> Any:
        return self.application.region()

    @property
    def is_periodic(self) -> bool:
        return bool(is_periodic(self.region))

    def put(self, files: int, *, tiny: bool = False) -> None:
        """Add a window to the input; in a periodic region it is one trigger, in others each file is one."""
        for number in range(self._linked, self._linked + files):
            source = self.content.tiny if tiny else self.content.files[number % len(self.content.files)]
            target = self.folder / "inbox" / self.content.name(number)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(source, target)
        self._linked += files
        self._due_rows += files * (self.content.tiny_rows if tiny else self.content.rows)
        scan_region(self.place, self.region, tick=Tick.QUEUE)

    def triggers(self, files: int) -> int:
        """Return how many triggers a window of so many files is."""
        return 1 if self.is_periodic else files

    def close(self) -> None:
        """Let go.

        Raises:
            WrongResult: not every row of the input was read.
        """
        pending = self.place.registry.pending_count(self.region.name)
        self.place.registry.close()
        if pending or self._rows != self._due_rows:
            msg = f"{self.region.name}: {self._rows} of {self._due_rows} rows were read, {pending} triggers are pending"
            raise WrongResult(msg)


class WithStates(Lane):
    """The region, run."""

    def seconds(self, windows: int, files: int) -> list[float]:
        """Process the windows in one run of the region."""
        warming = self.warming if self.is_periodic else files  # groups of one run are of one number of triggers
        self.put(warming, tiny=True)
        for _ in range(windows):
            self.put(files)
        run = region_run(self.place, self.application, self.region, max_group=self.triggers(files))
        ends, error = [], None
        try:
            run.claim()
            for report in run.groups():
                ends.append(time.monotonic())
                self._rows += report.rows_in
        except BaseException as raised:
            error = raised
            raise
        finally:
            run.hand_over(error)
        if len(ends) != windows + 1:
            msg = f"{self.region.name}: {len(ends)} groups, {windows + 1} were to be"
            raise WrongResult(msg)
        return [end - begin for begin, end in pairwise(ends)]


@dataclass(slots=True, kw_only=True)
class Without(Lane):
    """The same operators as micro-batches: no region, plain commits."""

    _batches: MicroBatches | None = None
    _reports: Iterator[Any] | None = None
    _most: int = 1

    def seconds(self, windows: int, files: int) -> list[float]:
        """Process the windows one by one; only the first ones of all have one before them."""
        if self._reports is None:
            self._reports = self._begun()
            self._next(self.warming, tiny=True)
        return [self._next(files) for _ in range(windows)]

    def _next(self, files: int, *, tiny: bool = False) -> float:
        self.put(files, tiny=tiny)
        self._most = self.triggers(files)
        began = time.monotonic()
        report = next(self._reports or iter(()), None)
        seconds = time.monotonic() - began
        if report is None or report.lost or report.files != self._most:
            msg = f"{self.region.name}: a window of {self._most} triggers gave {report}"
            raise WrongResult(msg)
        self._rows += report.rows_in
        return seconds

    def _begun(self) -> Iterator[Any]:
        """Begin micro-batches of the region's own plan, so that nothing but the region is missing."""
        region, registry = self.region, self.place.registry
        outside = self.place.outside(region.name, self.application.application)
        self._batches = MicroBatches(
            blueprint=analyse(region, self.application.application.name, self.application.params, outside),
            outside=outside,
            take=lambda source, limit: self._take(),
            numbers=lambda source, count: int(registry.take_ids(region.name, _NO_EPOCH, count)),
            run_id="without",
            small_bytes=self.place.settings.small_group_bytes,
        )
        self._batches.begin()
        return self._batches.batches()

    def _take(self) -> Sequence[Trigger]:
        """Move the cursor over the next window."""
        name, registry = self.region.name, self.place.registry
        found = registry.pending(name, self._most)
        if found:
            registry.mark_committed(name, _NO_EPOCH, [(trigger.id, 0) for trigger in found])
        return found

    def close(self) -> None:
        if self._batches is not None:
            self._batches.end()
        Lane.close(self)
