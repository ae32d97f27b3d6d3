"""The result of a group in numbers: for progress bars, Dagster's events and benchmarks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from drainmark.jobs.protocol.failure_policy import SPLIT
from drainmark.jobs.runtime.commit.staged_group import StagedGroup


def steps_outside(staged: StagedGroup) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the work of autonomous operators beside a group, as (step, numbers)."""
    for source, taken in staged.feeds.items():
        yield "feed", {"source": source, **asdict(taken)}
    for table, sent in staged.sent.items():
        yield "sent", {"table": table, **asdict(sent)}


def trouble_of(step: str, numbers: Mapping[str, Any]) -> str | None:
    """Return a message about a step with trouble: a split group with the reason, a file that is not as it was scanned,
    failures or lost rows of autonomous operators, a table without a catalogue name. Return None for other steps."""
    if step == SPLIT:
        return f"a group of {numbers['triggers']} files failed and is done again file by file: {numbers['error']}"
    if step == "input" and not numbers["halts"]:
        return f"{numbers['error']}; the region goes on without it: {numbers['remedy']}"
    if step == "feed" and (numbers["error"] or numbers["bad"]):
        lost = numbers["error"] or f"{numbers['bad']} rows or files could not be read and are left out"
        return f"autonomous source {numbers['source']}: {lost}; the region goes on"
    if step == "sent" and numbers["error"]:
        return f"autonomous table {numbers['table']}: {numbers['error']}; the region goes on"
    if step == "register" and numbers["failed"]:
        return f"{numbers['table']} has no name {numbers['name']}: {numbers['failed']}; the region goes on"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """The numbers of one published group: for a Dagster event and a progress bar.

    Attributes:
        pending_seconds: how long the region was CHECKPOINT_PENDING for it, with the flow resumed.
        alignment: of a region with several stages, else "".
        inflight_batches, inflight_bytes: the batches in flight that its state includes.
        restarts: how often stages began a batch again by themselves since the last commit.
        dropped_intervals: checkpoint intervals that ended while the commit before it was under way.
        lags: by visible table that is behind its history, the last id that it shows.
    """

    region: str
    first_id: int
    last_id: int
    first_uri: str
    last_uri: str
    epoch: int
    rows_in: int
    rows_quarantined: int
    bytes_in: int
    rows_out: Mapping[str, int]
    versions: Mapping[str, int]
    process_seconds: float
    drain_seconds: float
    checkpoint_seconds: float
    publish_seconds: float
    pending_seconds: float = 0.0
    alignment: str = ""
    inflight_batches: int = 0
    inflight_bytes: int = 0
    restarts: int = 0
    dropped_intervals: int = 0
    lags: Mapping[str, int] = field(default_factory=dict)

    @property
    def triggers(self) -> int:
        return self.last_id - self.first_id + 1

    @property
    def step(self) -> dict[str, Any]:
        """Return the numbers of its step."""
        parts = ("process", "drain", "checkpoint", "publish")
        return {
            "first_id": self.first_id,
            "last_id": self.last_id,
            "rows_in": self.rows_in,
            "seconds": round(self.process_seconds + self.drain_seconds, 3),
            "durations": {part: round(getattr(self, f"{part}_seconds"), 3) for part in parts},
            "versions": dict(self.versions),
        }

    @classmethod
    def of(
        cls,
        staged: StagedGroup,
        *,
        region: str,
        versions: Mapping[str, int],
        checkpoint_seconds: float,
        publish_seconds: float,
        pending_seconds: float = 0.0,
        lags: Mapping[str, int],
    ) -> GroupReport:
        """Return the numbers of a published group."""
        group = staged.group
        return cls(
            region=region,
            first_id=group.first_id,
            last_id=group.last_id,
            first_uri=group.members[0].trigger.uri,
            last_uri=group.members[-1].trigger.uri,
            epoch=group.epoch,
            rows_in=sum(staged.rows_in.values()),
            rows_quarantined=sum(staged.rows_quarantined.values()),
            bytes_in=sum(member.trigger.size_bytes for member in group.members),
            rows_out={name: sum(file.rows for file in table.files) for name, table in staged.tables.items()},
            versions=dict(versions),
            process_seconds=staged.process_seconds,
            drain_seconds=staged.drain_seconds,
            checkpoint_seconds=checkpoint_seconds,
            publish_seconds=publish_seconds,
            pending_seconds=pending_seconds,
            dropped_intervals=staged.dropped_intervals,
            lags=dict(lags),
        )
