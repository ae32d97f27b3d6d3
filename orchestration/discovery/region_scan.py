"""The scan of a region: it reads its sources, and makes pending triggers of new input.

In an operator-driven region, each new file of a folder is a trigger; other starts are cut into consecutive slices. In
a periodic region a tick cuts all starts at once, into one trigger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.errors import InputChanged, UsageError
from drainmark.jobs.failpoints import FailPoint
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource, queue_of
from drainmark.jobs.operators.sources.source import Source
from drainmark.jobs.protocol.history import target_before
from drainmark.jobs.protocol.records.triggers import PERIOD, NewTrigger, kind_of, slices_of
from drainmark.jobs.runtime.input.slices import (
    LIMIT,
    NUMBER,
    cut_all,
    cut_period,
    dropped_ticks,
    next_limit,
    positions,
    uri_of_period,
)
from drainmark.jobs.runtime.messages import resume_command
from drainmark.jobs.scan.findings import ScanResult
from drainmark.orchestration.discovery.scan_recording import record_scan
from drainmark.orchestration.discovery.state_inputs import UnreadFiles
from drainmark.orchestration.workplace.application_identity import require_own_file
from drainmark.orchestration.workplace.moved_inputs import require_inputs_in_place
from drainmark.orchestration.workplace.region_sources import has_folder, is_periodic, source_folder, source_of
from drainmark.orchestration.workplace.workplace import Workplace, require_known

if TYPE_CHECKING:
    from drainmark.jobs.protocol.history import RegionHistory
    from drainmark.jobs.protocol.records.triggers import Trigger as KnownTrigger
    from drainmark.jobs.regions.plan import RegionPlan

_SLICES_A_SCAN = 5000


class Tick(Enum):
    """The rule by which a scan of a periodic region cuts a slice; other regions ignore it."""

    NOW = "now"  # cut a slice at any time: a caller asked for it
    BACKLOG = "backlog"  # cut a further slice, unless it would have input of endless starts only
    DUE = "due"  # cut a slice if a period has passed since the last state or reset ended
    QUEUE = "queue"  # as BACKLOG, also while slices are pending: for tests of groups of several slices


def scan_region(
    workplace: Workplace, region: RegionPlan, *, now: Callable[[], float] = world.now, tick: Tick = Tick.NOW
) -> ScanResult:
    """Scan a region's sources once and add new input to the registry; `on_change` decides about changed files.

    In a folder or prefix with more than `scan_whole_files` files, it compares the files that can have changed and a
    part of the rest, so that an idle tick over a million files takes milliseconds.

    Raises:
        UsageError: the folder does not exist; the region's triggers were of another kind until now; the region belongs
            to an application in another file; or committed files would be read again under another path.
        InputChanged: a committed input changed and the policy is to halt.
        RegistryLost: the registry has no rows of a region with committed states, so all input would seem new.
    """
    require_known(workplace, region.name)
    newest = require_same_inputs(workplace, region)
    if has_folder(region):
        return _scan_folder(workplace, region, source_of(region), region.name, now=now)
    if is_periodic(region):
        return _tick(workplace, region, newest, now=now, tick=tick)
    return _cut(workplace, region, newest)


def require_same_inputs(workplace: Workplace, region: RegionPlan) -> KnownTrigger | None:
    """Refuse a region whose committed input another scan would not know for what it is; return its newest trigger.

    Raises:
        UsageError: as `scan_region`.
    """
    require_own_file(workplace, region)
    require_inputs_in_place(workplace, region)
    newest = workplace.registry.triggers.newest(region.name)
    if newest is not None:
        _require_same_kind(region, newest)
    return newest


def _require_same_kind(region: RegionPlan, newest: KnownTrigger) -> None:
    """Refuse a region whose earlier triggers are of another kind: new input cannot be told from committed input."""
    was_file, was_period = not slices_of(newest.identity), kind_of(newest.identity) == PERIOD
    if was_file != has_folder(region) or was_period != is_periodic(region):
        was = "files" if was_file else "periods" if was_period else "slices of one start"
        msg = f"the triggers of {region.name!r} were {was} until now, and are to be others"
        remedy = (
            "to read all input anew and keep what is there, write it as an application in another file, with other"
            " tables; or give the start another name here, which leaves the old region without code, and drop that:"
            f" drainmark tables drop --region {region.name}"
        )
        raise UsageError(msg, remedy=remedy)


def _scan_folder(
    workplace: Workplace, region: RegionPlan, source: DirectorySource, queue: str, *, now: Callable[[], float]
) -> ScanResult:
    unread = UnreadFiles(workplace, region.name)

    def was_refused(file: KnownTrigger) -> bool:
        number = file.sequence_id or 0
        if queue != region.name:  # a queue has the number of the period
            periods = workplace.registry.triggers.by_uri(region.name, uri_of_period(region.name, number))
            number = max((each.sequence_id or 0 for each in periods), default=0)
        return unread.holds(number, file.uri)

    try:
        return record_scan(
            workplace.registry,
            queue,
            workplace.inputs,
            source_folder(workplace, source),
            source.scan,
            now=now(),
            was_refused=was_refused,
        )
    except InputChanged as error:
        if queue == region.name:  # no rewind takes a new file into the slice of a period
            horizon = region.parameters.rewind_horizon
            before = target_before(workplace.history(region.name), error.facts["first_id"], horizon)
            anew = f"drainmark reset {region.name} --to {before} --accept-loss"
            error.remedy = f"{error.remedy}; or take the new one: {anew}"
            error.commands = (resume_command(region.name), f"{anew} --yes")
        raise


# --- slices of one start ------------------------------------------------------------------------------------------


def upcoming(workplace: Workplace, region: RegionPlan) -> Iterator[NewTrigger]:
    """Return the slices of an operator-driven start that a scan would record now."""
    return _slices_behind(workplace, region, workplace.registry.triggers.newest(region.name))


def _slices_behind(workplace: Workplace, region: RegionPlan, newest: KnownTrigger | None) -> Iterator[NewTrigger]:
    start = next(start for start in region.starts if isinstance(start, Source))
    return cut_all(start, newest.identity if newest else None, workplace.access(region.name), _SLICES_A_SCAN)


def _cut(workplace: Workplace, region: RegionPlan, newest: KnownTrigger | None) -> ScanResult:
    found: list[NewTrigger] = []
    stopped: Exception | None = None
    slices = _slices_behind(workplace, region, newest)
    try:
        found.extend(slices)
    except Exception as error:
        stopped = error  # the slices before the error are complete, and are taken first
    world.pass_point(FailPoint.SLICE_BEFORE)
    workplace.registry.triggers.add(region.name, found, after=newest.order_index if newest else 0)
    world.pass_point(FailPoint.SLICE_NOTED)
    if stopped is not None and not found:
        raise stopped
    return ScanResult(new=tuple(found), seen=len(found))


# --- periods ------------------------------------------------------------------------------------------------------


def _tick(
    workplace: Workplace, region: RegionPlan, newest: KnownTrigger | None, *, now: Callable[[], float], tick: Tick
) -> ScanResult:
    """Scan the folders of a periodic region, and cut a slice if it is due and no slice is pending."""
    registry, found = workplace.registry, ScanResult()
    starts = [start for start in region.starts if isinstance(start, Source)]
    if tick is not Tick.QUEUE and registry.pending_count(region.name):
        return found
    history = workplace.history(region.name)
    if tick is Tick.DUE and seconds_to_tick(region, history, now()) > 0:
        return found
    taken = newest.identity if newest is not None else None
    for start in starts:
        if isinstance(start, DirectorySource):
            _note_taken(workplace, region, start, taken)
            seen = _scan_folder(workplace, region, start, queue_of(region.name, start.name), now=now)
            found = found.with_batch(replace(seen, new=(), beyond=0))
    world.pass_point(FailPoint.SLICE_BEFORE)
    limit, dropped = pace(workplace, region, history, taken)
    trigger = cut_period(
        starts,
        taken,
        workplace.access(region.name),
        limit=limit,
        dropped=dropped,
        with_endless=tick in (Tick.NOW, Tick.DUE),
    )
    if trigger is None:
        return found
    world.pass_point(FailPoint.SLICE_LISTED)
    if not registry.triggers.add(region.name, [trigger], after=newest.order_index if newest else 0):
        return found  # another process has cut a slice: files that this one would take are in the next
    world.pass_point(FailPoint.SLICE_NOTED)
    for start in starts:
        if isinstance(start, DirectorySource):
            _note_taken(workplace, region, start, trigger.identity)
    return replace(found, new=(trigger,))


def _note_taken(workplace: Workplace, region: RegionPlan, start: Source, identity: Any) -> None:
    """Record the files of a start that belong to slices: a change of such a file is a change of a committed file."""
    after = positions(identity).get(start.name)
    if after is not None:
        queue = queue_of(region.name, start.name)
        workplace.registry.triggers.take_queued(queue, int(after["order"]), int(identity[NUMBER]))


def pace(workplace: Workplace, region: RegionPlan, history: RegionHistory, newest: Any) -> tuple[int | None, int]:
    """Return the number of bytes that the next slice may have, and the number of ticks during the last state."""
    period = region.parameters.period.total_seconds() if region.parameters.period is not None else 0.0
    if not period:
        return None, 0  # there is only one checkpoint, at the end
    limit = int((newest or {}).get(LIMIT) or workplace.settings.slice_bytes)
    last = history.states.get(history.committed_id)
    if last is None:
        return limit, 0
    parts = (last.detail.get("process_seconds"), last.drain_seconds, last.checkpoint_seconds)
    seconds = sum(each or 0.0 for each in parts)
    return next_limit(limit, taken=last.bytes_in or 0, seconds=seconds, period=period), dropped_ticks(seconds, period)


def seconds_to_tick(region: RegionPlan, history: RegionHistory, now: float) -> float:
    """Return the seconds to the next tick, which is one period after the end of the last state or reset.

    It is 0 if the tick is due, or if there was no state or reset yet. If the clock was set back, it is a whole period.
    """
    period = region.parameters.period.total_seconds() if region.parameters.period is not None else 0.0
    ends = [moment for moment in (history.totals.last_commit, history.totals.last_reset) if moment is not None]
    if not ends:
        return 0.0
    passed = now - max(ends)
    return max(0.0, period - passed) if passed >= 0 else period
