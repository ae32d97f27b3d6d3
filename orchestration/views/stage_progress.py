"""The progress of a region's stages, and the batches in flight, as values for `status` and `metrics`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drainmark.jobs.protocol.history import RegionHistory


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
