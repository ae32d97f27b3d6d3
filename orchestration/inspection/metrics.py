"""Metrics of a region in Prometheus' format: those of IBM Streams, progress, throughput, durations.

Each region has a text file, `<home>/metrics/<app>__<start>.prom`, for the textfile collector of node_exporter. The
owner of the region rewrites it as a whole, at most every `EVERY_SECONDS` between two groups, and when it ends or halts.
Processes come and go, so the numbers are counted from the checkpoint table, including states that a rewind withdrew.
A process that is killed leaves the file unchanged; `drainmark metrics` counts again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.protocol.counters import UNMET, Totals
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.manifest import TableRole
from drainmark.jobs.protocol.transitions import State
from drainmark.jobs.state.runs import runs_of
from drainmark.orchestration.inspection.region_view import RegionView, channels_of, moment_of, stages_of
from drainmark.resources.storage.folder import write_whole

if TYPE_CHECKING:
    from drainmark.orchestration.workplace.workplace import Workplace
    from drainmark.resources.checkpoints.checkpoint_table import CheckpointTable

EVERY_SECONDS = 15.0
"""Prometheus' usual scrape interval: it reads the file no more often."""

PREFIX = "drainmark_"
"""Before the name of every metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric, its name without the prefix; `samples` are (suffix of the name, further labels, value)."""

    name: str
    kind: str
    help: str
    samples: Sequence[tuple[str, Mapping[str, str], float | None]]


def region_metrics(workplace: Workplace, region: str, read: Callable[[], RegionHistory] | None = None) -> list[Metric]:
    """Return the current metrics of a region; `read`: see `moment_of`."""
    return _metrics(present_of(workplace, region, read))


def as_text(metrics: Mapping[str, Sequence[Metric]]) -> str:
    """Return the metrics of regions in Prometheus' text format, version 0.0.4, which groups regions by metric."""
    by_name: dict[str, list[tuple[str, Metric]]] = {}
    for region, found in metrics.items():
        for metric in found:
            by_name.setdefault(metric.name, []).append((region, metric))
    lines: list[str] = []
    for name, entries in by_name.items():
        lines.append(f"# HELP {PREFIX}{name} {entries[0][1].help}")
        lines.append(f"# TYPE {PREFIX}{name} {entries[0][1].kind}")
        for region, metric in entries:
            for suffix, labels, value in metric.samples:
                if value is None:
                    continue
                told = ",".join(f'{key}="{_escaped(text)}"' for key, text in {"region": region, **labels}.items())
                lines.append(f"{PREFIX}{name}{suffix}{{{told}}} {_number(value)}")
    return "".join(f"{line}\n" for line in lines)


def as_json(region: str, metrics: Sequence[Metric]) -> dict[str, Any]:
    """Return a region's metrics by full name, None if there is no value yet; the state is given by its name.

    A metric with another label, such as the stage, is a mapping from the label's values to numbers.
    """
    found: dict[str, Any] = {"region": region}
    for metric in metrics:
        for suffix, labels, value in metric.samples:
            name = f"{PREFIX}{metric.name}{suffix}"
            if not labels:
                found[name] = value
            elif metric.name not in labels:
                found.setdefault(name, {})[next(iter(labels.values()))] = value
            elif value:
                found[name] = labels[metric.name]
    return found


# --- the file -----------------------------------------------------------------------------------------------------


def metrics_path(workplace: Workplace, region: str) -> Path:
    """Return the path of a region's file."""
    return workplace.home / "metrics" / f"{region.replace('/', '__')}.prom"


def is_due(step: str, at: float) -> bool:
    """Say whether to show a region anew after a step of the protocol: at its outcome, and at groups from a time on."""
    return step in ("release", "halt") or (step == "group" and time.monotonic() >= at)


@dataclass(slots=True, kw_only=True)
class MetricsFile:
    """The metrics file of a region, updated by the process that works on the region.

    Attributes:
        checkpoint: that of the run, which caches the rows it has read.
    """

    workplace: Workplace
    region: str
    checkpoint: CheckpointTable
    _written: float = field(default_factory=time.monotonic)

    def follow(self, step: str, _: object) -> None:
        """Write the file if it is due after a step of the protocol."""
        if is_due(step, self._written + EVERY_SECONDS):
            self.write()

    def write(self) -> None:
        """Write the file atomically, so that a collector never reads half of it."""
        self._written = time.monotonic()
        metrics = region_metrics(self.workplace, self.region, self.checkpoint.history)
        write_whole(metrics_path(self.workplace, self.region), as_text({self.region: metrics}))


# --- the metrics --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """A region at a moment, with what the registry knows of its triggers; None if the registry is lost.

    Attributes:
        oldest_pending_at: time at which the next pending file was found, seconds since 1970 UTC; None without one.
    """

    moment: RegionView
    pending: int | None = None
    oldest_pending_at: float | None = None


def present_of(workplace: Workplace, region: str, read: Callable[[], RegionHistory] | None = None) -> Present:
    """Read a region's facts; see `moment_of`."""
    from drainmark.orchestration.workplace.workplace import existing_registry

    registry = existing_registry(workplace)
    moment = moment_of(workplace, registry, region, read)
    if registry is None:
        return Present(moment=moment)
    waiting = registry.triggers.pending(region, 1)
    return Present(
        moment=moment,
        pending=registry.pending_count(region),
        oldest_pending_at=waiting[0].discovered_at.timestamp() if waiting else None,
    )


def _metrics(present: Present) -> list[Metric]:
    history, state = present.moment.history, present.moment.state
    totals = history.totals
    gauges: list[tuple[str, str, float | None]] = [
        ("halted", "1 while the region waits for an operator", int(history.halt is not None)),
        ("committed_sequence_id", "last completed drain: newest committed sequence id in force", history.committed_id),
        ("published_sequence_id", "newest sequence id that every sink shows", history.shown_id),
        ("lag_seconds", "lag: for how long a visible table has lacked committed rows", lag_seconds(history)),
        ("last_reset_sequence_id", "last completed reset: the sequence id that was returned to", totals.last_reset_id),
        ("reset_attempt", "current reset attempt: resets in a row without a committed state", history.attempts),
        ("epoch", "number of take-overs", history.epoch),
        ("pending_triggers", "backlog: triggers that were found and are not committed yet", present.pending),
        ("oldest_pending_timestamp_seconds", "when the next file that waits was found", present.oldest_pending_at),
        ("last_commit_timestamp_seconds", "when the last state was committed", totals.last_commit),
        ("last_reset_timestamp_seconds", "when the last reset was completed", totals.last_reset),
        ("drain_average_seconds", "average time in which a group drained", totals.average("drain")),
        ("reset_average_seconds", "average time of a reset", totals.average("reset")),
    ]
    found = [
        Metric(
            name="state",
            kind="gauge",
            help="state of the region's controller, 1 for the one that holds",
            samples=[("", {"state": each.value}, int(each is state)) for each in State],
        )
    ]
    found += [_single(name, "gauge", told, value) for name, told, value in gauges]
    found += [_single(f"{name}_total", "counter", told, totals.counts.get(key, 0)) for name, key, told in _COUNTERS]
    found += [_summary(name, told, totals) for name, told in _DURATIONS]
    if unmet := {key.removeprefix(UNMET): count for key, count in totals.counts.items() if key.startswith(UNMET)}:
        told = "rows of committed states that do not meet an expectation"
        found.append(_by("expectation", "rows_unmet_total", "counter", told, unmet))
    return [*found, *_state_metrics(history), *_flow_metrics(history)]


def _state_metrics(history: RegionHistory) -> list[Metric]:
    """Return the sizes of keyed states' runs, without the changes since the newest runs; nothing before the first."""
    names = [table.name for table in history.tables if table.role is TableRole.CHANGES]
    runs = {name.removeprefix("state/"): runs_of(history.image_of(name, history.committed_id)) for name in names}
    found = {name: each for name, each in runs.items() if each}
    if not found:
        return []
    told = "of the sorted runs that a keyed state is made of; merges make them fewer"
    number, rows, size = (
        {name: value(each) for name, each in found.items()}
        for value in (len, lambda each: sum(run.rows for run in each), lambda each: sum(run.size for run in each))
    )
    return [
        _by("state", "state_runs", "gauge", f"number {told}", number),
        _by("state", "state_rows", "gauge", f"rows {told}", rows),
        _by("state", "state_bytes", "gauge", f"bytes {told}", size),
    ]


def lag_seconds(history: RegionHistory) -> float:
    """Return the seconds since the commit of the oldest state that some visible table lacks; 0 if no table lags."""
    first = history.states.ids.at_least(min(history.lags.values()) + 1) if history.lags else None
    row = history.states.get(first) if first is not None else None
    return 0.0 if row is None else max(0.0, time.time() - row.recorded_at.timestamp())


def _flow_metrics(history: RegionHistory) -> list[Metric]:
    """Return the progress of stages and the batches in flight; nothing for a region of one stage."""
    if not history.flow.through:
        return []
    found = {"stage": stages_of(history), "channel": channels_of(history)}
    return [
        _by(label, name, kind, told, {each["name"]: each[fact] for each in found[label]})
        for label, fact, name, kind, told in _OF_FLOW
    ]


_OF_FLOW = (
    (
        "stage",
        "through",
        "stage_through_sequence_id",
        "gauge",
        "newest sequence id that a stage has done everything up to",
    ),
    ("stage", "behind", "stage_behind", "gauge", "committed states that a stage has not done yet"),
    ("stage", "restarts", "stage_restarts_total", "counter", "batches that a stage began again by itself"),
    ("channel", "batches", "inflight_batches", "gauge", "batches in flight in a channel, by the newest checkpoint"),
    ("channel", "bytes", "inflight_bytes", "gauge", "bytes in flight in a channel, by the newest checkpoint"),
)
"""Label, key of `stages_of` or `channels_of`, name, kind and help of a metric."""


def _by(label: str, name: str, kind: str, told: str, values: Mapping[str, float]) -> Metric:
    samples = [("", {label: each}, value) for each, value in values.items()]
    return Metric(name=name, kind=kind, help=told, samples=samples)


_COUNTERS = (
    ("groups", "groups", "groups committed, each by one commit"),
    ("states", "states", "consistent states committed, one a file; also those that a rewind withdrew"),
    ("rows_in", "rows_in", "rows read in committed states"),
    ("rows_quarantined", "rows_quarantined", "rows of committed states that were quarantined"),
    ("bytes_in", "bytes_in", "bytes of the files of committed states"),
    ("dropped_intervals", "dropped_intervals", "checkpoint intervals that ended during a commit and were dropped"),
    ("accepted_losses", "accepted_losses", "accepted losses of input, each a state without rows"),
    ("dropped_ticks", "dropped_ticks", "ticks of the period that passed during a state and were dropped"),
    ("skipped", "skip", "files that an operator skipped"),
    ("rewinds", "rewind", "rewinds to an earlier state"),
    ("halts", "halt", "halts"),
)
_DURATIONS = (
    ("process", "reading and computing a group"),
    ("drain", "closing and comparing the files of a group when its rows are computed; all the work of one of 0.3.0"),
    ("checkpoint", "the one commit of a group to the checkpoint table"),
    ("publish", "bringing the tables up to a group"),
    ("reset", "returning to the last committed state, or rewinding to an earlier one"),
)


def _single(name: str, kind: str, told: str, value: float | None) -> Metric:
    return Metric(name=name, kind=kind, help=told, samples=[("", {}, value)])


def _summary(name: str, told: str, totals: Totals) -> Metric:
    seconds, number = (totals.counts.get(f"{name}_{part}", 0) for part in ("seconds", "number"))
    samples: list[tuple[str, Mapping[str, str], float]] = [("_sum", {}, seconds), ("_count", {}, number)]
    return Metric(name=f"{name}_seconds", kind="summary", help=f"seconds of {told}", samples=samples)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
