"""Part `applications`: the applications of the paper's table 1, with the columns of that table.

The graph is counted from the compiled application: operators (sources, lookups and sinks are some of them), the stages
in which they work, the most readers of one operator, and the operators on the longest way from a source to a sink. The
paper has processing elements where there are stages here.

The rest is measured while the application takes a consistent state every window, as in `figure7`: windows of `WINDOW`
files of half a megabyte each, input always pending, after one window that does not count. Tuples a second are those of
the fastest window; the paper has the throughput without states. Seconds to drain and to commit are medians; the paper
has their sum. The state is what tables of states hold at the end, in Parquet, compressed.

A tuple is a line of syslog, a trade or quote, a word of a mail, or 1024 samples of a radio.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench_flows import APPLICATIONS, Flow
from bench_lanes import WithStates
from rich.console import Console
from rich.table import Table

from drainmark.jobs.graph.application import load_application
from drainmark.jobs.protocol.history import manifest_of
from drainmark.resources.spark.session import SparkEngine

if TYPE_CHECKING:
    from drainmark.jobs.regions.plan import ApplicationPlan

WINDOW, QUICK_WINDOW = 10, 5
WINDOWS, QUICK_WINDOWS = 4, 1
PERIOD_SECONDS = 8.0
_MB = 1e6

COLUMNS = ("operators", "stages", "fan_out", "path", "state_mb", "tuples_s", "drain_s")

PAPER: Mapping[str, tuple[float, ...]] = {
    "enron_ds": (20, 3, 5, 6, 12.0, 11781.82, 0.18),
    "enron_fs": (22, 3, 5, 5, 12.06, 25445.40, 1.03),
    "host_watch": (29, 7, 7, 13, 7.1, 192494.56, 1.16),
    "vwap": (26, 6, 4, 6, 2.37, 384245.91, 0.07),
    "lois": (22, 1, 3, 16, 1.4, 1855.71, 1.14),
}
"""Table 1, in the order of `COLUMNS`: the drain of the last column includes the checkpoint. HostWatch is LogWatch."""

_FLOWS: Mapping[str, Flow] = {
    **APPLICATIONS,
    "host_watch": replace(
        APPLICATIONS["log_watch"], name="host_watch", application=lambda: load_application("host_watch")
    ),
}
_TUPLES_A_ROW = {"enron_ds": 99_000, "enron_fs": 99_000, "lois": 65_000 / 1024}
"""A row of `enron_ds` is a mail, of `lois` a file; `bench_flows` has their sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The graph of an application, as table 1 counts it."""

    operators: int
    stages: int
    fan_out: int
    path: int

    @classmethod
    def of(cls, plan: ApplicationPlan) -> Shape:
        """Count an application with all its regions and what is beside them."""
        operators = plan.application.operators
        readers = Counter(port.upstream for operator in operators for port in operator.inputs)
        longest: dict[str, int] = {}
        waiting = list(operators)
        while waiting:
            ready = [each for each in waiting if all(port.upstream in longest for port in each.inputs)]
            assert ready, "no application of the paper has a loop"
            for each in ready:
                longest[each.name] = 1 + max((longest[port.upstream] for port in each.inputs), default=0)
            waiting = [each for each in waiting if each.name not in longest]
        return cls(
            operators=len(operators),
            stages=sum(len(region.stages) for region in plan.regions),
            fan_out=max(readers.values()),
            path=max(longest.values()),
        )


def measure(console: Console, *, quick: bool, root: Path) -> dict[str, float]:
    """Count and measure each application, and print its row beside that of the paper.

    Raises:
        WrongResult: rows were lost, or came twice.
    """
    engine = SparkEngine(f"local[{os.cpu_count()}]", {}, root / "spark")
    found: dict[str, tuple[float, ...]] = {}
    figures: dict[str, float] = {}
    for name in PAPER:
        flow, folder = _FLOWS[name], root / name
        lane = WithStates(engine=engine, folder=folder, content=flow.content(root / f"{name}-files"),
                          opened=flow.at_period(4 * PERIOD_SECONDS), warming=flow.starts)  # fmt: skip
        files = QUICK_WINDOW if quick else WINDOW
        lane.seconds(1, files)
        windows = QUICK_WINDOWS if quick else WINDOWS
        seconds = lane.seconds(windows, files)
        reports = lane.reports[-windows:]
        shape = Shape.of(lane.application.plan)
        tuples = files * lane.content.rows * _TUPLES_A_ROW.get(name, 1) / min(seconds)
        drain = statistics.median(report.drain_seconds for report in reports)
        found[name] = (shape.operators, shape.stages, shape.fan_out, shape.path, state_bytes(lane) / _MB, tuples, drain)
        figures |= {f"{name}_{column}": round(value, 4) for column, value in zip(COLUMNS, found[name], strict=True)}
        commit = statistics.median(report.checkpoint_seconds for report in reports)
        figures[f"{name}_checkpoint_s"] = round(commit, 4)
        lane.close()
        shutil.rmtree(folder)
    console.print(table(found, figures))
    return figures


def state_bytes(lane: WithStates) -> int:
    """Return the bytes of the files that the tables of a region's states have now."""
    store, history = lane.place.store(lane.region.name), lane.place.history(lane.region.name)
    manifest = manifest_of(history.states[max(history.states)])
    assert manifest is not None
    owned = [name for name in manifest.files if name.startswith("state/")]
    return sum(file.size for name in owned for file in store.table(name).files.live())


def table(found: Mapping[str, tuple[float, ...]], figures: Mapping[str, float]) -> Table:
    """Return the rows of applications, each above that of the paper."""
    made = Table(title="Table 1", title_justify="left")
    for column in ("application", *COLUMNS, "commit_s"):
        made.add_column(column)
    for name, ours in found.items():
        made.add_row(name, *map(_said, ours), _said(figures[f"{name}_checkpoint_s"]))
        made.add_row("  of the paper", *map(_said, PAPER[name]), "")
    return made


def _said(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"
