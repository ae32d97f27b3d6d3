"""A region at one moment: its past is in the checkpoint table, its owner in the registry, and both change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drainmark.jobs.protocol.history import RegionHistory, retracted_by
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.transitions import State, state_of

if TYPE_CHECKING:
    from drainmark.orchestration.workplace.workplace import Workplace
    from drainmark.resources.registry.lease import Owner
    from drainmark.resources.registry.queries import Looks, RegionInfo


_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionView:
    """What both stores say; no owner came or left between the two answers.

    Attributes:
        owner: who holds the lease, alive or not; None if nobody does, or the registry is lost.
        info: of the registry; None if it is lost.
    """

    history: RegionHistory
    owner: Owner | None = None
    info: RegionInfo | None = None

    @property
    def living(self) -> Owner | None:
        """Return the owner if it is alive."""
        return self.owner if self.owner is not None and self.owner.is_alive else None

    @property
    def whose(self) -> tuple[object, ...]:
        """Return what changes with each owner that takes the lease, claims, or gives the lease up."""
        epoch = self.info.epoch if self.info is not None else None
        return epoch, self.owner and (self.owner.run_id, self.owner.acquired_at, self.owner.is_alive)

    @property
    def state(self) -> State:
        """Return the state of the region."""
        return state_of(self.history, self.info.state if self.info else None, is_owned=self.living is not None)


def moment_of(
    workplace: Workplace, registry: Looks | None, region: str, read: Callable[[], RegionHistory] | None = None
) -> RegionView:
    """Read both stores of a region.

    If an owner came or left meanwhile, they are read again: with the history from before and the lease from after a
    clean hand-over the owner would seem to have died, and so it would with the lease from before a claim.

    Args:
        registry: None if it is lost.
        read: reads the checkpoint table, by default that of the workplace.
    """
    from drainmark.resources.registry.lease import describe

    read = read or (lambda: workplace.history(region))
    if registry is None:
        return RegionView(history=read())

    def look(history: RegionHistory) -> RegionView:
        owner = describe(registry, region, lease_seconds=workplace.settings.lease_seconds)
        return RegionView(history=history, owner=owner, info=registry.region_info(region))

    found = look(RegionHistory())
    for _ in range(_TRIES):
        before, found = found, look(read())
        if before.whose == found.whose:
            break
    return found


def stages_of(history: RegionHistory) -> list[dict[str, Any]]:
    """Return the committed progress of each stage: `behind` is a number of states, `restarts` those of the stage."""
    flow = history.flow
    return [
        {
            "name": name,
            "through": through,
            "behind": len(history.states.ids.above(through)) if flow.channels else 0,
            "restarts": flow.restarts.get(name, 0),
        }
        for name, through in flow.through.items()
    ]


def channels_of(history: RegionHistory) -> list[dict[str, Any]]:
    """Return the number of `batches` in flight in each channel, by the newest row, and the `bytes` of their files."""
    flow = history.flow
    found = {name: flow.channels.get(name, ()) for name in sorted({*flow.links, *flow.channels})}
    return [
        {"name": name, "batches": len(batches), "bytes": sum(batch.bytes for batch in batches)}
        for name, batches in found.items()
    ]


def facts_of(row: CheckpointRow, history: RegionHistory) -> dict[str, Any]:
    """Return what every view of a committed row of a trigger tells, by the names that it has there.

    Args:
        row: with its detail, see `told` of the history's rows.
    """
    is_state = row.kind is RowKind.STATE
    has_group = row.group_first is not None and row.group_last is not None
    return {
        "sequence_id": row.sequence_id,
        "group": [row.group_first, row.group_last] if has_group else None,
        "rows_in": row.rows_in,
        "rows_quarantined": (row.detail.get("rows_quarantined") or 0) if is_state else None,
        "bytes_in": row.bytes_in,
        "replaced_by": history.replaced_by(row.sequence_id) if is_state else None,
        "retracted_by": retracted_by(history, row.sequence_id) if is_state else None,
        "reason": row.detail.get("reason") or row.detail.get("why"),
    }
