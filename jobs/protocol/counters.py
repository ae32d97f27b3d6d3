"""Sums over the rows of a checkpoint table, including rows that a rewind withdrew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, PublishNote, RowKind
from drainmark.jobs.protocol.records.manifest import late_of
from drainmark.jobs.protocol.records.triggers import DROPPED, slices_of

_COUNTED = frozenset({RowKind.SKIP, RowKind.REWIND, RowKind.HALT})

UNMET = "unmet/"
"""Prefix of the counts of rows that do not meet an expectation; the name of the expectation follows."""


@dataclass(slots=True)
class Totals:
    """Sums over rows; each row is added once, in commit order.

    Attributes:
        counts: by name; a duration as `<name>_number` and `<name>_seconds`.
        last_commit, last_reset: seconds since 1970.
        newest: the latest time that any row has, seconds since 1970.
        rows: number of rows added.
    """

    counts: dict[str, float] = field(default_factory=dict)
    last_commit: float | None = None
    last_reset: float | None = None
    last_reset_id: int | None = None
    newest: float = 0.0
    rows: int = 0

    def add(self, row: CheckpointRow) -> None:
        """Add a row to the sums."""
        self.rows += 1
        self.newest = max(self.newest, row.recorded_at.timestamp())
        if row.kind is RowKind.STATE:
            self._state(row)
        elif row.kind is RowKind.PROGRESS:
            self._late(row)
        elif row.kind is RowKind.PUBLISHED:
            self._published(row)
        elif row.kind in _COUNTED:
            self._count(row.kind.value)

    def copy(self) -> Totals:
        return Totals(dict(self.counts), self.last_commit, self.last_reset, self.last_reset_id, self.newest, self.rows)

    def average(self, name: str) -> float | None:
        """Return the mean seconds of a duration; None before the first one."""
        number = self.counts.get(f"{name}_number", 0)
        return self.counts[f"{name}_seconds"] / number if number else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Totals:
        return cls(**{**value, "counts": dict(value["counts"])})

    def _state(self, row: CheckpointRow) -> None:
        self._count("states")
        self._count("rows_in", row.rows_in or 0)
        self._count("bytes_in", row.bytes_in or 0)
        self._remarked(row.detail)
        self._count("dropped_ticks", (row.trigger_identity or {}).get(DROPPED, 0))
        if any("lost" in piece for piece in slices_of(row.trigger_identity or {}).values()):
            self._count("accepted_losses")
        if row.sequence_id == row.group_last:
            self._count("groups")
            self._timed("process", row.detail.get("process_seconds") or 0.0)
            self._timed("drain", row.drain_seconds or 0.0)
            self.last_commit = row.recorded_at.timestamp()
            self._late(row)

    def _late(self, row: CheckpointRow) -> None:
        manifest = row.detail.get("manifest") or {}
        for remark in late_of(manifest).values():
            self._remarked(remark)
        if dropped := manifest.get("dropped_intervals"):
            self._count("dropped_intervals", dropped)

    def _remarked(self, remark: Mapping[str, Any]) -> None:
        self._count("rows_quarantined", remark.get("rows_quarantined") or 0)
        for name, rows in (remark.get("unmet") or {}).items():
            self._count(f"{UNMET}{name}", rows)

    def _published(self, row: CheckpointRow) -> None:
        note = PublishNote.from_row(row)
        for seconds in note.commit_seconds.values():
            self._timed("checkpoint", seconds)
        for seconds in note.publish_seconds.values():
            self._timed("publish", seconds)
        for reset in note.resets:
            self._timed("reset", reset["seconds"])
            self.last_reset, self.last_reset_id = row.recorded_at.timestamp(), reset["to"]

    def _timed(self, name: str, seconds: float) -> None:
        self._count(f"{name}_number")
        self._count(f"{name}_seconds", seconds)

    def _count(self, name: str, by: float = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + by
