"""The stages and channels of a region, for `explain`; the text leaves them out for a region of one stage."""

from __future__ import annotations

from typing import Any

from drainmark.jobs.graph.annotations import Alignment, Channels, size_text
from drainmark.jobs.regions.formatting import columns, counted, duration, names, seconds
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.regions.stages import StagePlan


def stage_lines(region: RegionPlan) -> list[str]:
    """Return the lines of a region of several stages; none for a region of one stage."""
    if len(region.stages) == 1:
        return []
    parameters = region.parameters
    kind = "in memory" if parameters.channels == Channels.MEMORY else "in files as they are produced"
    return [
        f"  alignment   {_alignment(region)}",
        "  stages",
        *columns([_stage_row(stage) for stage in region.stages], indent=4),
        f"  channels    {kind}, {size_text(parameters.inflight_bytes_bound)} in all",
        *columns(
            [
                (
                    channel.name,
                    f"read by {', '.join(channel.readers)}",
                    f"at most {counted(channel.batches, 'batch')}",
                    size_text(channel.bytes),
                    f"by {', '.join(channel.keys)}" if channel.keys else "",
                )
                for channel in region.channels
            ],
            indent=4,
        ),
    ]


def stages_json(region: RegionPlan) -> list[dict[str, Any]]:
    """Return the stages, upstream first; see `explain.as_json`."""
    return [
        {
            "stage": stage.name,
            "starts": names(stage.starts),
            "operators": names(stage.operators),
            "followers": names(stage.followers),
            "inputs": [channel.name for channel in stage.inputs],
            "outputs": [channel.name for channel in stage.outputs],
            "checkpoint_interval_seconds": seconds(stage.checkpoint_interval),
        }
        for stage in region.stages
    ]


def channels_json(region: RegionPlan) -> list[dict[str, Any]]:
    """Return the channels; see `explain.as_json`."""
    return [
        {
            "channel": channel.name,
            "stream": channel.stream,
            "from": channel.stage_from,
            "to": channel.stage_to,
            "readers": list(channel.readers),
            "kind": str(region.parameters.channels),
            "batches": channel.batches,
            "bytes": channel.bytes,
            "keys": list(channel.keys),
        }
        for channel in region.channels
    ]


def _stage_row(stage: StagePlan) -> tuple[str, ...]:
    interval = stage.checkpoint_interval
    return (
        stage.name,
        ", ".join(names(stage.operators)),
        f"← {', '.join(channel.name for channel in stage.inputs)}" if stage.inputs else "",
        f"checkpointed every {duration(interval)}" if interval is not None else "",
    )


def _alignment(region: RegionPlan) -> str:
    parameters = region.parameters
    if parameters.alignment == Alignment.UNALIGNED:
        return "unaligned: a state overtakes what is in flight, which becomes part of it"
    text = "aligned: a state is established when all stages are done with it"
    if parameters.alignment_timeout is not None:
        text += f", or after {duration(parameters.alignment_timeout)} unaligned"
    return text
