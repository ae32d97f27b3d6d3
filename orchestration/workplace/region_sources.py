"""The input of a region: its starts, their folders, and the kind of their triggers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drainmark.jobs.errors import UsageError
from drainmark.jobs.graph.annotations import TriggerKind
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
from drainmark.jobs.operators.sources.source import SlicedSource, Source
from drainmark.jobs.operators.sources.table_source import TableSource
from drainmark.jobs.protocol.records.addresses import is_object
from drainmark.orchestration.workplace.workplace import Workplace

if TYPE_CHECKING:
    from drainmark.jobs.graph.operator import Operator
    from drainmark.jobs.regions.plan import RegionPlan


def source_of(region: RegionPlan) -> DirectorySource:
    """Return the directory source that triggers an operator-driven region.

    Raises:
        UsageError: the region is periodic, or has no directory source.
    """
    for start in region.starts:
        if isinstance(start, DirectorySource) and not is_periodic(region):
            return start
    msg = f"region {region.name!r} is not triggered by the files of a folder"
    raise UsageError(msg, remedy="its slices are cut one behind the other: rewind it, and run it again")


def source_folder(workplace: Workplace, source: DirectorySource) -> str:
    """Return the folder, or the prefix of a bucket, that a source scans; paths count from the project's root."""
    path = source.scan.path
    return path if is_object(path) else str(workplace.settings.project_root / path)


def is_periodic(region: RegionPlan) -> bool:
    return region.parameters.trigger == TriggerKind.PERIODIC


def has_folder(region: RegionPlan) -> bool:
    """Say whether every file of a folder is a trigger of the region."""
    return not is_periodic(region) and any(isinstance(start, DirectorySource) for start in region.starts)


def has_threads(region: RegionPlan) -> bool:
    """Say whether the region has a start with a thread of its own, which lives only while a run does."""
    return any(isinstance(start, Source) and start.has_thread for start in region.starts)


def shown_folder(workplace: Workplace, region: RegionPlan) -> str:
    """Return the origin of a region's input as a text for people: folders, or kinds and names of its starts."""
    return ", ".join(
        source_folder(workplace, start)
        if isinstance(start, DirectorySource)
        else f"{start.reads.kind} of {start.name}"
        if isinstance(start, SlicedSource)
        else start.name
        for start in region.starts
    )


def settle_of(region: RegionPlan) -> float:
    """Return the longest time for which the files of a start must stay unchanged before it takes them."""
    return max((start.scan.settle for start in region.starts if isinstance(start, DirectorySource)), default=0.0)


def tables_read(operator: Operator) -> tuple[str, ...]:
    """Return the tables, by path, whose rows an operator brings into its region or its application."""
    if isinstance(operator, SlicedSource) and isinstance(operator.reads, TableSource):
        return (f"lake/{operator.reads.table}",)
    return tuple(f"lake/{table}" for table in operator.tables_read)
