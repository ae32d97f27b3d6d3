"""The file of a region's page, `<home>/pages/<app>/<start>.html`, written by the process that works on the region.

The graph of the code that ran last is beside it: processes without the code, such as a verb or the server, show it.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from drainmark.jobs.protocol.history import RegionHistory
from drainmark.orchestration.html_report.page import page
from drainmark.orchestration.inspection import SHOWN_STATES
from drainmark.orchestration.inspection.metrics import is_due
from drainmark.orchestration.inspection.region_report import RegionFacts, region_report, rows_wanted
from drainmark.orchestration.inspection.region_view import moment_of
from drainmark.orchestration.inspection.status import status_at
from drainmark.orchestration.workplace.declaration import noted_folder
from drainmark.orchestration.workplace.workplace import looks
from drainmark.resources.checkpoints.newest_rows import NewestRows
from drainmark.resources.storage.folder import write_whole

if TYPE_CHECKING:
    from drainmark.jobs.regions.plan import RegionPlan
    from drainmark.orchestration.workplace.workplace import Workplace
    from drainmark.resources.checkpoints.checkpoint_table import CheckpointTable
    from drainmark.resources.settings import Settings

EVERY_SECONDS = 15.0
"""Shortest time between two writes of the page while groups are processed."""

_SHARE = 50
"""If a page takes long to write, its writes take at most 1/_SHARE of a run's time."""


def page_path(home: Path, region: str) -> Path:
    """Return the path of a region's page."""
    return home / "pages" / f"{region}.html"


def page_link(settings: Settings, region: str) -> str | None:
    """Return the address of a region's page; None if no server serves it."""
    return f"{settings.pages_url}/{quote(region)}" if settings.pages_url else None


def report_of(
    workplace: Workplace,
    region: str,
    checkpoint: CheckpointTable,
    graph: Mapping[str, Any] | None,
    *,
    last: int = SHOWN_STATES,
) -> dict[str, Any]:
    """Return the current report of a region (`inspection/region_report.py`); this changes nothing.

    Args:
        graph: see `known_graph`.
    """
    is_there, registry = checkpoint.exists(), looks(workplace)
    moment = moment_of(workplace, registry, region, checkpoint.history if is_there else RegionHistory)
    newest = checkpoint.newest(rows=rows_wanted(last), states=last) if is_there else NewestRows()
    facts = RegionFacts(
        status=status_at(workplace, registry, region, moment),
        history=moment.history,
        newest=newest,
        graph=graph,
        folder=noted_folder(workplace, region),
        now=dt.datetime.now(dt.UTC),
        last=last,
    )
    return region_report(facts)


def known_graph(home: Path, region: str) -> dict[str, Any] | None:
    """Return the graph of the code that ran last; None if no run wrote one."""
    with suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads(_graph_path(home, region).read_text("utf-8"))
        return found
    return None


def _graph_path(home: Path, region: str) -> Path:
    return page_path(home, region).with_suffix(".graph.json")


# --- kept by runs ------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class PageFile:
    """The page of a region, written while one process works on the region.

    Attributes:
        checkpoint: that of the run, because it keeps the rows that it has read.
        plan: the region's code, None if the process has no code.
    """

    workplace: Workplace
    region: str
    checkpoint: CheckpointTable
    plan: RegionPlan | None
    _due: float = field(default_factory=lambda: time.monotonic() + EVERY_SECONDS)

    def follow(self, step: str, _: object) -> None:
        """Write the page if it is due after a step of the protocol."""
        if is_due(step, self._due):
            self.write()

    def write(self) -> None:
        """Write the page, and the graph if it changed."""
        began = time.monotonic()
        self._due = began + EVERY_SECONDS
        home = self.workplace.home
        graph = known_graph(home, self.region)
        if self.plan is not None:
            from drainmark.jobs.regions.explain import region_json

            own = json.loads(json.dumps(region_json(self.plan)))
            if graph != own:
                graph = own
                write_whole(_graph_path(home, self.region), json.dumps(own))
        report = report_of(self.workplace, self.region, self.checkpoint, graph)
        write_whole(page_path(home, self.region), page(report, self.workplace.settings.dagster_url))
        ended = time.monotonic()
        self._due = ended + max(EVERY_SECONDS, _SHARE * (ended - began))
