"""The channels of a region and the progress of its stages, which a checkpoint must see at one moment.

A stage takes a group from all its inputs, and hands over its results: rows to its outputs, and its *part* to the
controller, which commits it. Both happen at once or not at all. So a stage that fails has either done a group, or has
not and may do it again; no result is used twice. Ids are those of the region's groups. Every stage takes the groups
whole and in order.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from drainmark.jobs.errors import Fenced
from drainmark.jobs.errors.environment import OutOfOrder
from drainmark.jobs.graph.annotations import Alignment, Channels, Consistent
from drainmark.jobs.protocol.stage_flow import InFlight
from drainmark.jobs.regions.stages import ChannelPlan, StagePlan
from drainmark.jobs.runtime.stages.channels.channel import (
    FOREVER,
    Budget,
    Channel,
    DurableChannel,
    Overtaken,
    Wait,
    wait_until,
)
from drainmark.jobs.runtime.stages.channels.rows import Spool, StagePart


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A region at one moment; `release` it when its files are written. If it cannot be committed, the region is reset:
    no later snapshot has its parts again.

    Attributes:
        through: by name of a stage, the id up to which (inclusive) the snapshot and earlier ones have its work.
        parts: the parts of stages since the snapshot before, in the order of the stages, then of the ids.
        overtaken: by name of a channel that is not empty, the batches in flight.
    """

    through: Mapping[str, int]
    parts: tuple[StagePart, ...]
    overtaken: Mapping[str, tuple[Overtaken, ...]]
    _spool: Spool

    def in_flight(self) -> dict[str, tuple[InFlight, ...]]:
        """Return the batches in flight as a checkpoint row names them; write those that are not written yet.

        Raises:
            StoreUnavailable, SchemaMismatch, AccountingError: a batch cannot be written.
        """
        return {name: tuple(each.stage(self._spool) for each in batches) for name, batches in self.overtaken.items()}

    def release(self) -> None:
        """Release the rows of the batches in flight."""
        for batches in self.overtaken.values():
            for each in batches:
                each.release()


class Exchange:
    """All channels of a region.

    Args:
        stages, channels: of the plan.
        parameters: of the region: the kind of the channels, and the upper bound of the bytes in all of them.
    """

    def __init__(self, stages: Sequence[StagePlan], channels: Sequence[ChannelPlan], parameters: Consistent) -> None:
        self.stages = {stage.name: stage for stage in stages}
        self.changed = threading.Condition()
        self.budget = Budget(parameters.inflight_bytes_bound)
        kind = DurableChannel if parameters.channels == Channels.DURABLE else Channel
        self._keeps = _may_differ(parameters) and any(stage.checkpoint_interval is not None for stage in stages)
        self.channels: Mapping[str, Channel] = {
            plan.name: kind(
                plan.name,
                stream=plan.stream,
                batches=plan.batches,
                bytes=plan.bytes,
                budget=self.budget,
                changed=self.changed,
                keeps=self._keeps,
            )
            for plan in channels
        }
        self._through: dict[str, int] = {}
        self._recorded: dict[str, int] = {}
        self._parts: list[StagePart] = []
        self._epoch = -1
        self._spool: Spool | None = None

    def open(
        self,
        epoch: int,
        spool: Spool,
        *,
        through: Mapping[str, int],
        in_flight: Mapping[str, Sequence[InFlight]] | None = None,
    ) -> None:
        """Begin anew from a committed state: cut off every end, and forget parts that were not committed.

        Args:
            epoch: of the owner; the incarnation of all channels.
            spool: of this attempt; two attempts never share a folder.
            through: by name of each stage, the id up to which (inclusive) it has done everything.
            in_flight: by name of a channel, the batches that a checkpoint found in it.

        Raises:
            Fenced: the channels are open for a newer epoch.
            OutOfOrder: batches are in flight in a channel that the region does not have, or the stage that reads them
                has done them already.
        """
        found = in_flight or {}
        readers = {channel.name: stage.name for stage in self.stages.values() for channel in stage.inputs}
        with self.changed:
            if epoch < self._epoch:
                raise Fenced(f"the channels are open for epoch {self._epoch}, not for {epoch}")
            for name, batches in found.items():
                if batches and name not in self.channels:
                    raise OutOfOrder(f"{len(batches)} batches are in flight in {name!r}, and there is no such channel")
                if any(each.first_id <= through[readers[name]] for each in batches):
                    raise OutOfOrder(f"a batch in flight in {name!r} was done by the stage that reads it")
            for name, channel in self.channels.items():
                channel.open(epoch, spool, found.get(name, ()))
            self._epoch, self._spool = epoch, spool
            self._through = {name: through[name] for name in self.stages}
            self._recorded = dict(self._through)
            self._parts.clear()
            self.changed.notify_all()

    def close(self) -> None:
        """Close all channels: cut off every end, and release all rows."""
        with self.changed:
            for channel in self.channels.values():
                channel.close()
            self._parts.clear()
            self._spool = None
            self.changed.notify_all()

    def require(self, epoch: int) -> None:
        """Check that the channels are open for an epoch.

        Raises:
            Fenced: they are open for another one, or for none.
        """
        with self.changed:
            if epoch != self._epoch or self._spool is None:
                raise Fenced(f"the channels are open for epoch {self._epoch}, or not any more")

    # --- for the controller ------------------------------------------------------------------------------------------

    @property
    def through(self) -> Mapping[str, int]:
        """Return, by name of a stage, the id up to which (inclusive) it has done everything."""
        with self.changed:
            return dict(self._through)

    @property
    def begun(self) -> int:
        """Return the id up to which (inclusive) every start has sent all rows on: the limit of an unaligned state."""
        with self.changed:
            return min(self._through[name] for name, stage in self.stages.items() if not stage.inputs)

    @property
    def complete(self) -> int:
        """Return the id up to which (inclusive) every stage has done everything: the limit of an aligned state."""
        with self.changed:
            return min(self._through.values())

    @property
    def fits(self) -> bool:
        """Are all batches in the channels, and those kept for stages with an interval, within the bound on bytes?"""
        with self.changed:
            return self.budget.has_room(sum(channel.kept_bytes for channel in self.channels.values()))

    def wait_for(self, is_so: Callable[[], bool], wait: Wait = FOREVER) -> bool:
        """Wait until a predicate that depends on stages and channels is true; return whether it is."""
        with self.changed:
            return wait_until(self.changed, is_so, wait)

    def snapshot(self, upto: int | None = None, *, due: Collection[str] | None = None) -> Snapshot:
        """Return the region at this moment, with all parts that no earlier snapshot had.

        Args:
            upto: the last id of a group; work of stages above it is left to a later snapshot. Default: `begun`. With
                `complete` or less, no batch is in flight except those of the snapshot before: no snapshot goes back
                behind an earlier one.
            due: names of the stages with work that may enter the snapshot. The other stages, and those behind them,
                stay at their ids in the snapshot before, and the batches that follow are in flight. Default: all. It
                is also all if nothing is kept for such batches, or if they would take more bytes than channels may.

        Raises:
            Fenced: the channels are not open.
        """
        with self.changed:
            if self._spool is None:
                raise Fenced("the channels are not open")
            through = self._record(self.begun if upto is None else upto, due)
            of_channel = {
                channel.name: self.channels[channel.name].overtaken(
                    after=through[channel.stage_to], through=through[channel.stage_from]
                )
                for stage in self.stages.values()
                for channel in stage.inputs
            }
            for stage in self.stages.values():
                for channel in stage.inputs:
                    self.channels[channel.name].fifo.forget(through[stage.name])
            order = {name: place for place, name in enumerate(self.stages)}
            parts = [part for part in self._parts if part.last_id <= through[part.stage]]
            self._parts = [part for part in self._parts if part.last_id > through[part.stage]]
            return Snapshot(
                through=through,
                parts=tuple(sorted(parts, key=lambda part: (order[part.stage], part.first_id))),
                overtaken={name: batches for name, batches in of_channel.items() if batches},
                _spool=self._spool,
            )

    def _record(self, upto: int, due: Collection[str] | None) -> dict[str, int]:
        """Note the id of each stage in a snapshot: never above a stage that feeds it, or batches would come again."""
        if due is None or not self._keeps or not self.fits:
            due = self.stages
        upto = max(upto, *self._recorded.values())  # work of an earlier snapshot is done: it cannot be in flight again
        recorded: dict[str, int] = {}
        for name, stage in self.stages.items():
            before = self._recorded[name]
            wanted = min(self._through[name], upto) if name in due else before
            recorded[name] = max(before, min([wanted, *(recorded[channel.stage_from] for channel in stage.inputs)]))
        self._recorded = recorded
        return dict(recorded)

    # --- for the ends; the condition is held -------------------------------------------------------------------------

    def done(self, part: StagePart) -> None:
        """Note that a stage has done its part; see `StageEnds.hand_over`."""
        self._through[part.stage] = part.last_id
        self._parts.append(part)
        self.changed.notify_all()


def _may_differ(parameters: Consistent) -> bool:
    """May stages be at different ids in a state? Not in an aligned state, nor if the only state is at the end."""
    is_aligned = parameters.alignment == Alignment.ALIGNED and parameters.alignment_timeout is None
    return not is_aligned and parameters.checkpoint_interval != dt.timedelta(0)
