"""`dm.push` and `drainmark push`: rows into the buffer of a `ReplayableStart`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import UsageError
from drainmark.jobs.operators.sources.pushed.push_buffer import Row
from drainmark.jobs.operators.sources.pushed.replayable_start import ReplayableStart
from drainmark.jobs.operators.sources.source import SlicedSource
from drainmark.orchestration.workplace.declaration import find_region, load_region, require_code
from drainmark.orchestration.workplace.workplace import Workplace

if TYPE_CHECKING:
    from drainmark.jobs.regions.plan import RegionPlan


def push(workplace: Workplace, region: str, rows: Iterable[Mapping[str, Any]], *, start: str | None = None) -> int:
    """Append rows to the buffer of a start; return the number of the segment that has them.

    They are durable when this returns. All of them are in one segment, so they get one sequence id.

    Args:
        region: `APP/START`, or `APP` if it has one region.
        start: name of the start, if the region has several that take rows.

    Raises:
        UnknownName: no such region, or its code cannot be found.
        UsageError: the region has no start that takes rows, or several; or a row is no JSON object.
    """
    return push_to(workplace, region_of(workplace, region), rows, start=start)


def region_of(workplace: Workplace, region: str) -> RegionPlan:
    """Return a region that may not have run yet: a scan of it, or the settings, tell the place of its code."""
    found = load_region(workplace, region)
    return (found or require_code(workplace, find_region(workplace, region)))[1]


def push_to(workplace: Workplace, region: RegionPlan, rows: Iterable[Row], *, start: str | None = None) -> int:
    """Append rows to the buffer of a start of a compiled region; see `push`."""
    name, taker = taker_of(region, start)
    try:
        return taker.kept(workplace.access(region.name), name, taker.buffer).push(rows)
    except (TypeError, ValueError) as error:
        remedy = "rows are mappings by column, of JSON's values"
        raise UsageError(f"a row cannot be pushed: {error}", remedy=remedy) from error


def taker_of(region: RegionPlan, start: str | None = None) -> tuple[str, ReplayableStart]:
    """Return the start that takes the rows of a push.

    Raises:
        UsageError: see `push`.
    """
    takers = {
        source.name: source.reads
        for source in region.starts
        if isinstance(source, SlicedSource) and type(source.reads) is ReplayableStart  # others fill their own
    }
    if start is None and len(takers) == 1:
        return next(iter(takers.items()))
    if start is not None and start in takers:
        return start, takers[start]
    if not takers:
        raise UsageError(f"no start of {region.name} takes rows", remedy="declare one with dm.ReplayableStart")
    msg = f"region {region.name!r} has no start {start!r} that takes rows" if start else f"{region.name}: which start?"
    raise UsageError(msg, remedy=f"--start, one of: {', '.join(takers)}")
