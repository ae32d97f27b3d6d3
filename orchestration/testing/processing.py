"""One pass over a region, in this process: what `run --attempts 1` does, less the waiting between attempts."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from drainmark.jobs.protocol.records.manifest import TableRole
from drainmark.orchestration.discovery.region_scan import Tick, scan_region
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.workplace.declaration import remember
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.region_sources import is_periodic
from drainmark.orchestration.workplace.workplace import Opened, Workplace

if TYPE_CHECKING:
    from pathlib import Path

    from drainmark.jobs.regions.plan import RegionPlan
    from drainmark.jobs.runtime.group.group_report import GroupReport
    from drainmark.jobs.runtime.outside import Report
    from drainmark.jobs.runtime.region_run import RegionRun
    from drainmark.jobs.runtime.scan.found import ScanResult
    from drainmark.resources.settings import Settings


def scan(workplace: Workplace, opened: Opened, region: RegionPlan) -> ScanResult:
    """Scan a region's sources, once or, in a periodic region, until nothing but endless ones has news; and leave the
    note that the operators' verbs read.
    """
    remember(workplace, opened, region)
    if not is_periodic(region):
        return scan_region(workplace, region)
    found = scan_region(workplace, region, tick=Tick.QUEUE)
    while found.new:
        found = scan_region(workplace, region, tick=Tick.QUEUE)
    return found


def drive(run: RegionRun) -> list[GroupReport]:
    """Claim, process what is pending, hand over; raises what ends the run, handed over all the same."""
    error: BaseException | None = None
    try:
        run.claim()
        return list(run.groups())
    except BaseException as raised:
        error = raised
        raise
    finally:
        run.hand_over(error)


def rewind(workplace: Workplace, region: str, to: int, horizon: int, *, report: Report | None = None) -> None:
    """Take a region back to a committed id.

    Raises:
        RewindRefused: see `RegionHistory.check_rewind`.
    """
    with owning(region_owner(workplace, region, report=report)) as owner:
        owner.rewind(to, horizon)


def compact(workplace: Workplace, region: str, *, report: Report | None = None) -> None:
    """Compact every table of rows and the checkpoint table as maintenance does, only earlier."""
    with owning(region_owner(workplace, region, report=report)) as owner:
        store = workplace.store(region)
        for table in owner.history.tables:
            if table.is_managed and table.role is not TableRole.UPSERT:
                target = store.table(table.name)
                staging = store.staging(table, owner.epoch, uuid.uuid4().hex)
                target.upkeep.compact(target.txn_version() or 0, staging, files_at_least=2)
        store.checkpoint.compact(files_at_least=2)


def settings_of(home: Path, project_root: Path, **more: Any) -> Settings:
    """Return the settings of a home of a test's own; the environment and any `drainmark.toml` are not asked."""
    from drainmark.resources.settings import Settings

    values = {"registry_url": f"sqlite:///{home / 'registry.db'}", **more}
    return Settings(home=home, project_root=project_root, **values)
