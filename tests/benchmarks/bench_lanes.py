"""One application on a home of its own, fed window by window: with consistent states, or the same pipeline without.

A *window* is a number of input files that are all there before it begins: the input is always ahead. Both lanes read
files of the same content with the same reader, run the operators by the same analysed plans, stage the rows of sinks by
the same code, and work on two windows at a time: one is read and processed while the previous one is published. Then

- *with states* each window is a consistent state: changes of operator state are written, a checkpoint row is committed,
  state tables and sinks are published, and the registry is told;
- *without* operator state stays in memory and is neither written nor committed. A cursor moves, and each sink gets a
  plain Delta commit. There is no claim, no checkpoint table, no sequence of states, and no state for a rewind: a crash
  loses the operators' state.

The time of a window is the time between the ends of two windows. It does not include claims, scans, analysis, or the
small window that opens each run. It does not include rare work either: no lane reaches log checkpoints and compaction,
which come every 20 groups or 50 plain commits.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_input import WrongResult

from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
from drainmark.jobs.runtime.analysis.blueprint import Blueprint, analyse
from drainmark.jobs.runtime.autonomous.tables import Outlets
from drainmark.jobs.runtime.autonomous_run import AutonomousRun, BatchReport
from drainmark.jobs.runtime.commit.operator_states import RegionStates
from drainmark.jobs.runtime.commit.staged_group import StagedGroup, StagedTable
from drainmark.jobs.runtime.group.group_work import GroupWork
from drainmark.jobs.runtime.group.output_staging import OutputStaging
from drainmark.jobs.runtime.group.stream_passing import Border
from drainmark.jobs.runtime.input.attempt import Attempt
from drainmark.jobs.runtime.input.executors import OperatorExecutors
from drainmark.jobs.runtime.input.inbox import Group
from drainmark.jobs.tasks.judged_rows import require_text
from drainmark.orchestration.discovery.region_scan import Tick, scan_region
from drainmark.orchestration.runs.region_runs import region_outside, region_run
from drainmark.orchestration.workplace.region_sources import is_periodic
from drainmark.orchestration.workplace.workplace import Opened, Workplace
from drainmark.resources.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.operator import Operator
    from drainmark.jobs.protocol.records.triggers import Trigger
    from drainmark.jobs.runtime.group.group_report import GroupReport
    from drainmark.resources.spark.session import SparkEngine

LONG_AGO = 1_000_000_000
NO_BOUND = 1 << 36
"""Bytes; no window is so large, so only the number of files bounds a window."""
_NO_EPOCH = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Files that are read again and again under new names: links, so that a gigabyte of input takes no disk space.

    Attributes:
        files: files of one size, in the order in which they repeat.
        rows: the number of rows that a reader finds in each file.
        tiny, tiny_rows: a small file and its number of rows, for the windows that are not timed.
        name: takes the number of a file; returns its path below the inbox. The paths sort in the order of the numbers.
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
        opened: returns the application that reads an inbox.
        warming: number of files of the window that is not timed; used only in a periodic region.
        small_bytes: windows of up to so many bytes (inclusive) come back by Arrow; the default is that of the settings.
    """

    engine: SparkEngine
    folder: Path
    content: Content
    opened: Callable[[Path], Opened]
    warming: int = 1
    small_bytes: int = 8 * 1024 * 1024
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
            slice_bytes=NO_BOUND,
            small_group_bytes=self.small_bytes,
        )
        self.place = Workplace(settings)
        self.place.use_engine(self.engine)
        self.application = self.opened(inbox)

    def seconds(self, windows: int, files: int) -> list[float]:
        """Process `windows` windows of `files` files in one run, after one that warms up; return the seconds of each.

        Raises:
            WrongResult: a window was not processed in one go.
        """
        warming = self.warming if self.is_periodic else files  # all groups of a run have the same number of triggers
        self.put(warming, tiny=True)
        for _ in range(windows):
            self.put(files)
        ends = list(self.ends(self.triggers(files)))
        if len(ends) != windows + 1:
            msg = f"{self.region.name}: {len(ends)} windows ended, {windows + 1} were to be"
            raise WrongResult(msg)
        return [end - begin for begin, end in pairwise(ends)]

    @abstractmethod
    def ends(self, triggers: int) -> Iterator[float]:
        """Process the pending input in windows of `triggers` triggers; yield the monotonic time at the end of each."""

    @property
    def region(self) -> Any:
        """Return the first region, which reads the files."""
        return self.application.plan.regions[0]

    @property
    def is_periodic(self) -> bool:
        return bool(is_periodic(self.region))

    def put(self, files: int, *, tiny: bool = False) -> None:
        """Add a window to the input; in a periodic region it is one trigger, in other regions each file is one."""
        for number in range(self._linked, self._linked + files):
            source = self.content.tiny if tiny else self.content.files[number % len(self.content.files)]
            target = self.folder / "inbox" / self.content.name(number)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(source, target)
        self._linked += files
        self._due_rows += files * (self.content.tiny_rows if tiny else self.content.rows)
        scan_region(self.place, self.region, tick=Tick.QUEUE)

    def triggers(self, files: int) -> int:
        """Return the number of triggers of a window of `files` files."""
        return 1 if self.is_periodic else files

    def close(self) -> None:
        """Close the registry.

        Raises:
            WrongResult: not every row of the input was read.
        """
        pending = self.place.registry.pending_count(self.region.name)
        self.place.registry.close()
        if pending or self._rows != self._due_rows:
            msg = f"{self.region.name}: {self._rows} of {self._due_rows} rows were read, {pending} triggers are pending"
            raise WrongResult(msg)


@dataclass(slots=True, kw_only=True)
class WithStates(Lane):
    """The lane that runs the region.

    Attributes:
        reports: of all windows so far.
    """

    reports: list[GroupReport] = field(default_factory=list)

    def ends(self, triggers: int) -> Iterator[float]:
        run = region_run(self.place, self.application, self.region, max_group=triggers)
        error = None
        try:
            run.claim()
            for report in run.groups():
                yield time.monotonic()
                self._rows += report.rows_in
                self.reports.append(report)
        except BaseException as raised:
            error = raised
            raise
        finally:
            run.hand_over(error)


@dataclass(slots=True, kw_only=True)
class Without(Lane):
    """The same pipeline without states: only the additional work of a region is missing."""

    _pipeline: Stateless | None = None
    _most: int = 1

    def ends(self, triggers: int) -> Iterator[float]:
        self._most = triggers
        if self._pipeline is None:
            self._pipeline = self._begun()
        for report in self._pipeline.batches():
            yield time.monotonic()
            self._rows += report.rows_in
            if report.lost or report.files != triggers:
                msg = f"{self.region.name}: a window of {triggers} triggers gave {report}"
                raise WrongResult(msg)

    def _begun(self) -> Stateless:
        """Begin with the region's own plan, so that only the states are missing."""
        region, registry = self.region, self.place.registry
        outside = region_outside(self.place, region.name, self.application.application)
        blueprint = analyse(region, self.application.application.name, self.application.params, outside)
        pipeline = Stateless(
            blueprint=blueprint,
            outside=outside,
            states=RegionStates(blueprint=blueprint, outside=outside, is_tiered=False),
            take=lambda source, limit: self._take(),
            numbers=lambda source, count: int(registry.progress.take_ids(region.name, _NO_EPOCH, count)),
            run_id="without",
        )
        pipeline.begin()
        return pipeline

    def _take(self) -> Sequence[Trigger]:
        """Move the cursor over the next window."""
        name, registry = self.region.name, self.place.registry
        found = registry.triggers.pending(name, self._most)
        if found:
            registry.triggers.settle(name, _NO_EPOCH, [(trigger.order_index, 0) for trigger in found])
        return found

    def close(self) -> None:
        if self._pipeline is not None:
            self._pipeline.end()
        Lane.close(self)


# --- without states -----------------------------------------------------------------------------------------------


def kept_by(blueprint: Blueprint) -> set[str]:
    """Return the tables that only states and rewinds need: operators' states, and histories of upsert sinks."""
    return {*blueprint.states(), *(table.history for table in blueprint.tables if table.history)}


class InMemoryStaging(OutputStaging):
    """Staging that does not stage changes of operator state: they come back by Arrow, for any size of a group."""

    def _write(self, operator: Operator, name: str, frame: DataFrame, computed: Callable[[], None]) -> StagedTable:
        if name not in kept_by(self.blueprint):
            return OutputStaging._write(self, operator, name, frame, computed)
        rows = frame.toArrow()
        staged = self._write_rows(operator, name, rows, computed)
        seen = self.executors.of(operator).local(rows, frame) if self._is_read(operator, name) else frame
        return replace(staged, frame=seen)

    def _write_rows(self, operator: Operator, name: str, rows: pa.Table, computed: Callable[[], None]) -> StagedTable:
        if name not in kept_by(self.blueprint):
            return OutputStaging._write_rows(self, operator, name, rows, computed)
        require_text(operator, rows)
        computed()
        return StagedTable(files=(), rows=rows)


class InMemory(GroupWork):
    """The work on a group that stages no state."""

    def _output_staging(
        self, attempt: Attempt, executors: OperatorExecutors, pool: ThreadPoolExecutor
    ) -> OutputStaging:
        return InMemoryStaging(
            attempt=attempt, executors=executors, blueprint=self.blueprint, states=self.states, pool=pool
        )


class Stateless(AutonomousRun):
    """A run of micro-batches that writes no operator state, and works on two windows at a time, as a region does."""

    def batches(self) -> Iterator[BatchReport]:
        """Process the pending input; yield a window's report when it is published, while the next one is processed.

        Raises:
            InputChanged, InputMissing: a file of a window has changed, or is gone.
        """
        with ThreadPoolExecutor(1) as processing, ThreadPoolExecutor(1) as publishing:
            staging = self._next(processing)
            while staging is not None:
                staged = self.states.freeze(staging.result())
                publication = publishing.submit(self._publish, self._sinks(staged))
                staging = self._next(processing)
                versions, rows = publication.result()
                yield self._reported(staged, versions, rows)
                if staging is not None:
                    staging.exception()  # wait: the next window must have read the states before they are replaced
                self.states.checkpointed(staged)

    def _next(self, processing: ThreadPoolExecutor) -> Future[StagedGroup] | None:
        """Begin to process the pending input; return None if there is none."""
        source = next(op for op in self.blueprint.region.operators if isinstance(op, DirectorySource))
        triggers = self.take(source, 0)
        return processing.submit(self._processed, self._group(source, triggers)) if triggers else None

    def _processed(self, group: Group) -> StagedGroup:
        return InMemory.of(self.states, group, size=group.bytes_to_read, outlets=Outlets(), border=Border()).stage()

    def _sinks(self, staged: StagedGroup) -> StagedGroup:
        """Return the group unchanged, after a check that no state of it was written.

        Raises:
            WrongResult: a state was written, so this lane is not one without states.
        """
        written = [name for name in kept_by(self.blueprint) & staged.tables.keys() if staged.tables[name].files]
        if written:
            raise WrongResult(f"states were written, and nothing of them is to be: {', '.join(written)}")
        return staged

    def _reported(self, staged: StagedGroup, versions: Mapping[str, int], rows: Mapping[str, int]) -> BatchReport:
        return BatchReport(
            part=self.blueprint.region.name,
            files=len(staged.group.members),
            lost=0,
            rows_in=sum(staged.rows_in.values()),
            rows_quarantined=sum(staged.rows_quarantined.values()),
            bytes_in=staged.group.bytes_to_read,
            rows_out=rows,
            versions=versions,
            seconds=staged.process_seconds + staged.drain_seconds,
        )
