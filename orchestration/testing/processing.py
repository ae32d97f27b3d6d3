"""One pass over a region in this process, as `run --attempts 1` does it, without waiting between attempts."""

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
    from drainmark.jobs.scan.findings import ScanResult
    from drainmark.resources.settings import Settings


def scan(workplace: Workplace, opened: Opened, region: RegionPlan) -> ScanResult:
    """Scan a region's sources, and leave the note of its declaration that commands read.

    A periodic region is scanned until only endless sources have new input.
    """
    remember(workplace, opened, region)
    if not is_periodic(region):
        return scan_region(workplace, region)
    found = scan_region(workplace, region, tick=Tick.QUEUE)
    while found.new:
        found = scan_region(workplace, region, tick=Tick.QUEUE)
    return found


def drive(run: RegionRun) -> list[GroupReport]:
    """Claim, process the pending triggers, and hand over, even if an error ends the run; then raise that error."""
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
    """Compact managed tables, except upsert sinks, and the checkpoint table; unlike maintenance, from two files on."""
    with owning(region_owner(workplace, region, report=report)) as owner:
        store = workplace.store(region)
        for table in owner.history.tables:
            if table.is_managed and table.role is not TableRole.UPSERT:
                target = store.table(table.name)
                staging = store.staging(table, owner.epoch, uuid.uuid4().hex)
                target.upkeep.compact(target.txn_version() or 0, staging, files_at_least=2)
        store.checkpoint.compact(files_at_least=2)


def settings_of(home: Path, project_root: Path, **more: Any) -> Settings:
    """Return the settings of a test's home; the environment and any `drainmark.toml` are not read."""
    from drainmark.resources.settings import Settings

    values = {"registry_url": f"sqlite:///{home / 'registry.db'}", **more}
    return Settings(home=home, project_root=project_root, **values)
