"""The entries in the answers of `trace`: the outcome of a trigger at one id, or a trigger that has no id yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drainmark.jobs.protocol.chains import reads_in
from drainmark.jobs.protocol.history import RegionHistory, retracted_by
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.records.triggers import RETRACTION, Trigger, TriggerStatus
from drainmark.jobs.runtime.messages import scanned_identity
from drainmark.orchestration.tracing.traced_tables import TracedTables
from drainmark.orchestration.views.status import iso

if TYPE_CHECKING:
    import datetime as dt

NUMBERED = frozenset({RowKind.STATE, RowKind.SKIP})


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEntries:
    """The outcomes of the triggers in the rows of one region's checkpoint table.

    Attributes:
        times: commit time of each attempt.
        tables: the tables that have the rows of a state.
    """

    region: str
    rows: Sequence[CheckpointRow]
    history: RegionHistory
    times: Mapping[str, dt.datetime]
    tables: TracedTables

    def of_ids(self, numbers: Iterable[int], *, with_tables: bool = True) -> list[dict[str, Any]]:
        """Return an entry for every row of some ids, oldest first."""
        wanted = set(numbers)
        found = [row for row in self.rows if row.kind in NUMBERED and row.sequence_id in wanted]
        return [self.of(row, with_tables=with_tables) for row in found]

    def of(self, row: CheckpointRow, *, with_tables: bool = True) -> dict[str, Any]:
        """Return the entry of one committed row of a trigger; every key is always present."""
        row = self.history.states.rows.told(row)
        is_state = row.kind is RowKind.STATE
        identity = scanned_identity(row.trigger_identity or {})
        return {
            "region": self.region,
            "trigger": row.trigger_uri,
            "trigger_kind": row.trigger_kind,
            "identity": identity,
            "output": (row.trigger_identity or {}).get("output") or None,
            "sequence_id": row.sequence_id if row.kind in NUMBERED else None,
            "epoch": row.epoch,
            "status": self._status(row),
            "withdrawn_by": self._withdrawn_by(row),
            "replaced_by": self.history.replaced_by(row.sequence_id) if is_state else None,
            "retracted_by": retracted_by(self.history, row.sequence_id) if is_state else None,
            "group": [row.group_first, row.group_last] if is_state else None,
            "rows_in": row.rows_in,
            "rows_quarantined": row.detail.get("rows_quarantined", 0) if is_state else None,
            "unmet": dict(row.detail.get("unmet") or {}) if is_state else None,
            "bytes_in": row.bytes_in,
            "committed_at": iso(self.times.get(row.attempt, row.recorded_at)),
            "attempt": row.attempt,
            "run_id": row.run_id,
            "graph_fingerprint": row.graph_fingerprint,
            "params_hash": row.params_hash,
            "drainmark_version": row.drainmark_version,
            "reason": row.detail.get("reason") or row.detail.get("why"),
            "reads": [each.to_json() for each in reads_in(row.trigger_identity or {})],
            "sinks": self.tables.sinks(row) if is_state and with_tables else [],
        }

    def _status(self, row: CheckpointRow) -> str:
        if row.kind is RowKind.REFUSED:
            return TriggerStatus.REFUSED.value
        if row.sequence_id not in self.history.states:
            return "withdrawn"
        if row.kind is RowKind.SKIP:
            return TriggerStatus.SKIPPED.value
        if row.trigger_kind == RETRACTION:
            return RETRACTION
        if retracted_by(self.history, row.sequence_id) is not None:
            return "retracted"
        return "replaced" if self.history.replaced_by(row.sequence_id) is not None else TriggerStatus.COMMITTED.value

    def _withdrawn_by(self, row: CheckpointRow) -> int | None:
        """Return the id of the rewind that withdrew a state, None if no rewind did."""
        if row.kind not in NUMBERED or row.sequence_id in self.history.states:
            return None
        later = (r for r in self.rows if r.kind is RowKind.REWIND and r.sequence_id > row.sequence_id)
        return next((r.sequence_id for r in later if r.detail["to"] < row.sequence_id), None)


def waiting_entry(trigger: Trigger) -> dict[str, Any]:
    """Return the entry of a trigger that has no id."""
    none = dict.fromkeys(
        (
            "sequence_id",
            "epoch",
            "withdrawn_by",
            "replaced_by",
            "retracted_by",
            "group",
            "rows_in",
            "rows_quarantined",
            "unmet",
            "committed_at",
            "attempt",
            "run_id",
            "graph_fingerprint",
            "params_hash",
            "drainmark_version",
        )
    )
    return {
        "region": trigger.region,
        "trigger": trigger.uri,
        "trigger_kind": "file",
        "identity": dict(trigger.identity),
        "output": trigger.output or None,
        **none,
        "status": trigger.status.value,
        "bytes_in": trigger.size_bytes,
        "reason": trigger.reason,
        "reads": [each.to_json() for each in reads_in(trigger.identity)],
        "sinks": [],
    }
