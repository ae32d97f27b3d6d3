"""The ends of one stage: the channels as the thread of a stage sees them.

No markers travel between the batches. A channel brings every group in one batch, empty if the group has no rows. So the
batch of a group is the drain marker of its connection, and no row of the group comes after it. A stage takes a group
when each of its channels, not only each of its ports, has brought it. An autonomous port has no channel; its rows wait
until a group has its ids.

A loop on a control port is within a stage: first its operators hand on the group's rows, then the rows from the control
port change their state, and only then the stage hands over its part for a checkpoint. The batches of a group leave with
that hand-over, before a checkpoint of the group is written. A reset is a new incarnation of all channels: each is
emptied and refilled from the checkpoint before a stage gets its ends, so that no connection brings rows from before it.
A stage at work may finish, but its hand-over is fenced: its rows are dropped, and can be in no state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from drainmark.jobs import world
from drainmark.jobs.errors import Fenced
from drainmark.jobs.errors.environment import ChannelFull, OutOfOrder
from drainmark.jobs.failpoints import ChannelPoint
from drainmark.jobs.regions.stages import StagePlan
from drainmark.jobs.runtime.stages.channels.channel import (
    AT_ONCE,
    FOREVER,
    ChannelEnd,
    ChannelReader,
    ChannelWriter,
    Wait,
    wait_until,
)
from drainmark.jobs.runtime.stages.channels.channel_group import Exchange
from drainmark.jobs.runtime.stages.channels.rows import Batch, ChannelRows, StagePart


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A group as a stage gets it.

    Attributes:
        batches: by stream, one for each channel that the stage reads; the channels hold them until the hand-over.
    """

    first_id: int
    last_id: int
    batches: Mapping[str, Batch]


@dataclass(kw_only=True, eq=False)
class StageEnds:
    """The ends of one stage while it runs, for one thread. As a context manager they are cut off at the end, so that
    nothing gets through after a failure."""

    exchange: Exchange
    plan: StagePlan
    readers: Mapping[str, ChannelReader]
    writers: Mapping[str, ChannelWriter]

    def __enter__(self) -> StageEnds:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cut these ends off."""
        with self.exchange.changed:
            ends: tuple[ChannelEnd, ...] = (*self.readers.values(), *self.writers.values())
            for end in ends:
                end.close()

    def room(self, wait: Wait = FOREVER) -> bool:
        """Wait until no channel that the stage writes is full; no group begins before that (back-pressure).

        Raises:
            Fenced, Interrupted: see `ChannelWriter.put`.
        """
        channels = [self.exchange.channels[name] for name in self.writers]
        return self._wait(lambda: all(channel.has_room() for channel in channels), wait)

    def take(self, wait: Wait = FOREVER) -> Taken | None:
        """Return the next group from all channels that the stage reads, once each of them has brought it.

        Returns:
            None if no group came in time.

        Raises:
            Fenced, Interrupted: see `ChannelReader.take`.
            OutOfOrder: channels bring different groups.
        """
        found: list[Taken] = []

        def is_there() -> bool:
            got = self._next()
            if got is not None:
                found.append(got)
            return bool(found)

        return found[0] if self._wait(is_there, wait) else None

    def hand_over(
        self,
        made: Any,
        outputs: Mapping[str, ChannelRows],
        *,
        ids: tuple[int, int] | None = None,
        taken: Taken | None = None,
        wait: Wait = FOREVER,
    ) -> None:
        """Hand over the stage's results for a group, all at once: rows to its channels, its part to the controller.

        Args:
            made: see `StagePart`.
            outputs: by stream, the rows of each stream that a channel of the stage carries. Once the channels have the
                rows, they are released for the caller.
            ids: first and last id of the group, from a stage of starts.
            taken: the group, from other stages; its batches are done after this.
            wait: for room in the channels.

        Raises:
            ChannelFull, Fenced, Interrupted: see `ChannelWriter.put`; nothing is handed over, nothing is released.
            OutOfOrder: this group was handed over before, or was not taken from these ends.
        """
        if (taken is None) == bool(self.readers) or (taken is None) == (ids is None):
            raise OutOfOrder(f"stage {self.plan.name!r} hands over a group that it has not taken")
        first, last = ids or (taken.first_id, taken.last_id)  # type: ignore[union-attr]
        channels = self.exchange.channels
        self._require()
        kept: dict[str, Batch] = {}
        try:
            for plan in self.plan.outputs:
                batch = Batch(first_id=first, last_id=last, rows=outputs[plan.stream])
                kept[plan.name] = channels[plan.name].prepared(batch)
            world.pass_point(ChannelPoint.HAND_OVER_BEFORE)
            with self.exchange.changed:
                if not self._wait(lambda: all(channels[name].has_room(kept[name].bytes) for name in kept), wait):
                    raise ChannelFull(
                        f"the channels of stage {self.plan.name!r} had no room for {first}..{last} in time",
                        remedy="give them wider bounds in dm.buffered, or raise group_timeout",
                    )
                self._settle(made, first, last, kept, taken)
        finally:
            for batch in kept.values():
                batch.rows.release()
        for rows in outputs.values():
            rows.release()
        world.pass_point(ChannelPoint.HAND_OVER_AFTER)

    # --- inside; the condition is held -------------------------------------------------------------------------------

    def _settle(self, made: Any, first: int, last: int, kept: Mapping[str, Batch], taken: Taken | None) -> None:
        exchange, own = self.exchange, self.plan.name
        if first <= exchange.through[own]:
            raise OutOfOrder(f"stage {own!r} hands {first}..{last} over and has done {exchange.through[own]}")
        for name, batch in kept.items():
            exchange.channels[name].fifo.require_next(batch)  # check all before the first put
        if taken is not None:
            for plan in self.plan.inputs:
                self.readers[plan.name].done(taken.batches[plan.stream])
        for name, batch in kept.items():
            exchange.channels[name].enter(batch)
        exchange.done(StagePart(stage=own, first_id=first, last_id=last, made=made))

    def _next(self) -> Taken | None:
        heads = {name: batch for name, reader in self.readers.items() if (batch := reader.peek()) is not None}
        if not heads or len(heads) < len(self.readers):
            return None
        groups = {(batch.first_id, batch.last_id) for batch in heads.values()}
        if len(groups) != 1:
            raise OutOfOrder(f"the channels of stage {self.plan.name!r} bring different groups: {sorted(groups)}")
        for reader in self.readers.values():
            reader.take(AT_ONCE)  # the batch is there
        first, last = groups.pop()
        return Taken(first_id=first, last_id=last, batches={plan.stream: heads[plan.name] for plan in self.plan.inputs})

    def _wait(self, is_so: Callable[[], bool], wait: Wait) -> bool:
        with self.exchange.changed:
            is_it = wait_until(self.exchange.changed, lambda: self._is_cut_off() or is_so(), wait)
            self._require()
            return is_it

    def _require(self) -> None:
        if self._is_cut_off():
            raise Fenced(f"stage {self.plan.name!r} was cut off from its channels", remedy="end this thread")

    def _is_cut_off(self) -> bool:
        ends: tuple[ChannelEnd, ...] = (*self.readers.values(), *self.writers.values())
        return any(end.is_cut_off for end in ends)


def connect(exchange: Exchange, stage: str, epoch: int) -> StageEnds:
    """Return new ends of a stage. Those that it had are cut off, and batches that it had not done come again.

    Raises:
        Fenced: the channels are open for another epoch.
    """
    with exchange.changed:
        exchange.require(epoch)
        plan, channels = exchange.stages[stage], exchange.channels
        return StageEnds(
            exchange=exchange,
            plan=plan,
            readers={each.name: channels[each.name].reader(epoch) for each in plan.inputs},
            writers={each.name: channels[each.name].writer(epoch) for each in plan.outputs},
        )
