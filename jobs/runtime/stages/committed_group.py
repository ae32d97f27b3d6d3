"""The group of a batch in flight, from the history: its triggers are committed, and settled long ago."""

from __future__ import annotations

from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow
from drainmark.jobs.protocol.records.triggers import Trigger, TriggerStatus
from drainmark.jobs.runtime.input.inbox import Assigned, Group
from drainmark.jobs.runtime.messages import scanned_identity


def group_of(history: RegionHistory, epoch: int, first: int, last: int) -> Group:
    """Return the group of committed ids, without an attempt yet; its files are not read again.

    Args:
        epoch: of the owner that works on the group now.
    """
    members = tuple(
        Assigned(sequence_id=number, trigger=trigger_of(history.states[number])) for number in range(first, last + 1)
    )
    return Group(members=members, epoch=epoch, attempt="")


def trigger_of(row: CheckpointRow) -> Trigger:
    """Return the trigger that a state's row names."""
    kept = row.trigger_identity or {}
    return Trigger(
        id=0,
        region=row.region,
        uri=row.trigger_uri or "",
        identity=scanned_identity(kept),
        identity_key="",
        size_bytes=row.bytes_in or 0,
        output=str(kept.get("output", "")),
        origin=str(kept.get("origin", "scan")),
        order_index=row.trigger_order or 0,
        status=TriggerStatus.COMMITTED,
        sequence_id=row.sequence_id,
        discovered_at=row.recorded_at,
    )
