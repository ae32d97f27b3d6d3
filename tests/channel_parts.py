"""Parts for the tests of channels: rows of a batch, a spool that keeps its files in memory, a stage that lags."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.protocol.records.triggers import Trigger
from drainmark.jobs.protocol.stage_flow import InFlight, channels_to_json, part_attempt
from drainmark.jobs.regions.stages import ChannelPlan, StagePlan
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.jobs.runtime.commit.staged_group import StagedGroup
from drainmark.jobs.runtime.input.inbox import Assigned, Group
from drainmark.jobs.runtime.stages.channels.channel import Channel, DurableChannel
from drainmark.jobs.runtime.stages.channels.rows import ArrowRows, Batch, ChannelRows, Spool

KINDS: dict[str, type[Channel]] = {"memory": Channel, "durable": DurableChannel}


class MemoryFiles:
    """A staging folder and a reader in one; it counts the writes of each batch."""

    def __init__(self) -> None:
        self.tables: dict[str, pa.Table] = {}
        self.writes: Counter[tuple[Any, ...]] = Counter()

    def write(self, table: pa.Table, stem: str) -> tuple[StagedFile, ...]:
        ids = table["_sequence_id"].to_pylist()
        self.writes[*ids, *set(table["value"].to_pylist())] += 1
        if not ids:
            return ()
        assert stem not in self.tables
        self.tables[stem] = table
        return (StagedFile(path=stem, size=table.nbytes, rows=len(ids), first_id=min(ids), last_id=max(ids)),)

    def write_frame(self, frame: Any, subdirectory: str) -> tuple[StagedFile, ...]:
        raise NotImplementedError

    def path(self, subdirectory: str) -> Path:
        raise NotImplementedError

    def read_each(self, files: Sequence[StagedFile]) -> Iterator[pa.Table]:
        return (self.tables[file.path] for file in files)

    def frame(self, session: Any, files: Any, schema: Any) -> Any:
        raise NotImplementedError


def spool_of(files: MemoryFiles) -> Spool:
    return Spool(files, files)


def rows_of(*ids: int, value: Any = "x") -> ArrowRows:
    """Return one row for each id, with the value."""
    numbers = pa.array(ids, pa.int64())
    return ArrowRows(pa.table({"value": pa.array([str(value)] * len(ids)), "_sequence_id": numbers}))


def batch_of(first: int, last: int, *, value: Any = "x") -> Batch:
    return Batch(first_id=first, last_id=last, rows=rows_of(*range(first, last + 1), value=value))


def ids_of(rows: ChannelRows) -> list[int]:
    table = rows.table()
    return [] if table is None else sorted(table["_sequence_id"].to_pylist())


def values_of(rows: ChannelRows) -> set[str]:
    table = rows.table()
    return set() if table is None else set(table["value"].to_pylist())


def stages_of(
    links: Sequence[tuple[str, str]], *, batches: int = 3, size: int = 10**9
) -> tuple[list[StagePlan], list[ChannelPlan]]:
    """Return stages without operators, joined by these channels; upstream stages first, in the order of the links."""
    channels = [
        ChannelPlan(
            name=f"{source}->{target}", upstream=source, output="", stage_from=source, stage_to=target,
            readers=(target,), connections=1, batches=batches, bytes=size,
        )
        for source, target in links
    ]  # fmt: skip
    names = dict.fromkeys(name for link in links for name in link)
    order = [name for name in names if all(target != name for _, target in links)]
    while len(order) < len(names):
        order += [
            name
            for name in names
            if name not in order and all(source in order for source, target in links if target == name)
        ]
    stages = [
        StagePlan(
            name=name, starts=(), operators=(), run_order=(),
            inputs=tuple(channel for channel in channels if channel.stage_to == name),
            outputs=tuple(channel for channel in channels if channel.stage_from == name),
        )
        for name in order
    ]  # fmt: skip
    return stages, channels


def commit_in_flight(owner: RegionOwner, trigger: Trigger, channel: str, **through: int) -> int:
    """Commit and publish a trigger with a batch in flight in a channel; return its id.

    Args:
        through: for each stage, the last id that it has done; the stage that writes the channel has done the trigger.
    """
    number = owner.outside.registry.progress.take_ids(owner.region, owner.epoch, 1)
    member = Assigned(sequence_id=number, trigger=trigger)
    group = Group(members=(member,), epoch=owner.epoch, attempt=part_attempt(uuid.uuid4().hex))
    channels = channels_to_json({channel: (InFlight(first_id=number, last_id=number),)})
    done = {channel.partition("[")[0].partition("->")[0]: number, **through}
    staged = StagedGroup(
        group=group, rows_in={}, tables={}, lookups={}, process_seconds=0.0, drain_seconds=0.0, stages=done,
        channels=channels,
    )  # fmt: skip
    owner.groups.publish(owner.groups.commit(staged))
    return number
