"""A channel: a FIFO with one writing and one reading end, bounded, fenced, and kept until it is done with.

What is put in stays until the reader says `done`. A reader that connects anew gets everything again that was taken and
not done. There is one end of a side at a time, of the epoch that the channel is open for; an older one is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from drainmark.jobs.errors import Fenced
from drainmark.jobs.errors.channels import ChannelFull
from drainmark.jobs.protocol.stage_flow import Half, InFlight
from drainmark.jobs.runtime.stages.channels.batches import Batch
from drainmark.jobs.runtime.stages.channels.fifo import Fifo
from drainmark.jobs.runtime.stages.channels.rows import FileRows, Spool, spooled, stem_of
from drainmark.jobs.runtime.stages.channels.waiting import FOREVER, Wait, wait_until

OneEnd = TypeVar("OneEnd", bound="ChannelEnd")


@dataclass(slots=True)
class Budget:
    """Bytes that all channels of a region may take together; soft while they are refilled.

    Attributes:
        limit: None for as many as they like.
    """

    limit: int | None = None
    used: int = 0

    def has_room(self, size: int) -> bool:
        return self.limit is None or self.used + size <= self.limit


@dataclass(frozen=True, slots=True, eq=False)
class Overtaken:
    """A batch that a checkpoint overtakes: held until `release`, whatever becomes of the channel meanwhile."""

    stream: str
    batch: Batch
    half: Half

    def stage(self, spool: Spool) -> InFlight:
        """Return it as a checkpoint row names it, written if nobody has written it yet."""
        batch = self.batch
        files = batch.rows.stage(spool, stem_of(self.stream, batch.first_id), batch.first_id, batch.last_id)
        return InFlight(
            first_id=batch.first_id,
            last_id=batch.last_id,
            files=files,
            rows=sum(file.rows for file in files),
            bytes=sum(file.size for file in files),
            half=self.half,
        )

    def release(self) -> None:
        self.batch.rows.release()


class Channel:
    """A FIFO of batches; this kind keeps rows where they are: in memory (FLIP-76's *ad hoc*).

    All methods may be called by any thread.

    Args:
        name: as in the plan.
        stream: that it carries; its files are named after it.
        batches: bound on the batches in it, those that the reader works at among them.
        bytes: bound on what they take; one batch always fits.
        budget: shared with the other channels of the region.
        changed: shared with them, so that one wait can be for several of them.
        keeps: see `Fifo`.

    Attributes:
        fifo: what is in it; the ends look at it, and take from it, with the condition held.
    """

    def __init__(
        self,
        name: str,
        *,
        stream: str = "",
        batches: int,
        bytes: int,  # noqa: A002 - the plan's word
        budget: Budget | None = None,
        changed: threading.Condition | None = None,
        keeps: bool = False,
    ) -> None:
        self.name = name
        self.stream = stream or name
        self.changed = changed or threading.Condition()
        self._bounds = batches, bytes
        self._budget = budget or Budget()
        self.fifo = Fifo(name, keeps=keeps)
        self._epoch = -1
        self._spool: Spool | None = None
        self._ends: dict[type[ChannelEnd], ChannelEnd] = {}

    # --- opening and connecting --------------------------------------------------------------------------------------

    def open(self, epoch: int, spool: Spool, in_flight: Iterable[InFlight] = ()) -> None:
        """Begin anew: both ends are cut off, what was in the channel is dropped, what a checkpoint had is back.

        What was the reader's when the checkpoint overtook it is the reader's again, and the rest the writer's;
        the bounds do not count for it.

        Raises:
            Fenced: the channel is open for a newer epoch.
            OutOfOrder: what is in flight has ids twice, or in no order.
        """
        refilled = [
            (
                Batch(
                    first_id=each.first_id,
                    last_id=each.last_id,
                    rows=FileRows(each.files, each.rows, each.bytes, reader=spool.reader, last_id=each.last_id),
                ),
                each.half,
            )
            for each in in_flight
        ]
        with self.changed:
            if epoch < self._epoch:
                raise Fenced(f"channel {self.name!r} is open for epoch {self._epoch}, not for {epoch}")
            self._drop()
            self._epoch, self._spool = epoch, spool
            self._change(lambda: self.fifo.refill(refilled))

    def close(self) -> None:
        """End: both ends are cut off, and all rows are let go of."""
        with self.changed:
            self._drop()
            self._spool = None
            self.changed.notify_all()

    def writer(self, epoch: int) -> ChannelWriter:
        """Connect the writing end; the one before it is refused from now on.

        Raises:
            Fenced: the channel is open for another epoch, or for none.
        """
        with self.changed:
            return self._connected(ChannelWriter(self), epoch)

    def reader(self, epoch: int) -> ChannelReader:
        """Connect the reading end: it gets everything that is not done, from the first; the one before it is refused.

        Raises:
            Fenced: the channel is open for another epoch, or for none.
        """
        with self.changed:
            reader = self._connected(ChannelReader(self), epoch)
            self.fifo.again()
            return reader

    def _connected(self, end: OneEnd, epoch: int) -> OneEnd:
        self.require(epoch)
        self._ends[type(end)] = end
        self.changed.notify_all()
        return end

    def require(self, epoch: int | None = None) -> Spool:
        """Check that the channel is open, for an epoch if one is given; return where it stages.

        Raises:
            Fenced: it is not.
        """
        with self.changed:
            if self._spool is None or epoch not in (None, self._epoch):
                raise Fenced(f"channel {self.name!r} is open for epoch {self._epoch}, or not any more")
            return self._spool

    def is_connected(self, end: ChannelEnd) -> bool:
        """Is this the end of its side?"""
        return self._ends.get(type(end)) is end

    # --- looking -----------------------------------------------------------------------------------------------------

    @property
    def batches(self) -> int:
        """Return how many batches are in it."""
        with self.changed:
            return self.fifo.batches

    @property
    def bytes(self) -> int:
        """Return what they take."""
        with self.changed:
            return self.fifo.bytes

    @property
    def kept_bytes(self) -> int:
        """Return what the batches take that are done with and kept."""
        with self.changed:
            return self.fifo.kept_bytes

    @property
    def is_empty(self) -> bool:
        """Is nothing in it?"""
        with self.changed:
            return self.fifo.batches == 0

    def has_room(self, size: int = 0) -> bool:
        """May a batch of so many bytes come in? Into a channel without any it always may, so that nothing ever sticks;
        without a size: is the channel not full?"""
        with self.changed:
            (most, bytes_most), count, asked = self._bounds, self.fifo.batches, max(size, 1)
            fits = self.fifo.bytes + asked <= bytes_most and self._budget.has_room(asked)
            return count == 0 or (count < most and fits)

    def overtaken(self, *, after: int = 0, through: int | None = None) -> tuple[Overtaken, ...]:
        """Return the batches that a checkpoint overtakes, held, by id.

        Args:
            after: the reader has everything up to this id in the checkpoint.
            through: the writer has nothing above this id in it.
        """
        with self.changed:
            found = tuple(
                Overtaken(self.stream, batch, half)
                for batch, half in self.fifo.in_flight()
                if batch.last_id > after and (through is None or batch.first_id <= through)
            )
            for each in found:
                each.batch.rows.hold()
            return found

    # --- for the ends; but for `prepared` the condition is held ------------------------------------------------------

    def prepared(self, batch: Batch) -> Batch:
        """Return a batch as this kind of channel keeps it, its rows held once for the caller; may take a while.

        Raises:
            Fenced: the channel is not open.
        """
        batch.rows.hold()
        return batch

    def enter(self, batch: Batch) -> None:
        """Put a batch in, whatever the bounds; see `Fifo.put`."""
        self._change(lambda: self.fifo.put(batch))

    def done(self, batch: Batch) -> None:
        """Remove what was taken; see `Fifo.done`."""
        self._change(lambda: self.fifo.done(batch))

    def _change(self, change: Callable[[], None]) -> None:
        before = self.fifo.bytes
        try:
            change()
        finally:
            self._budget.used += self.fifo.bytes - before
            self.changed.notify_all()

    def _drop(self) -> None:
        self._change(self.fifo.drop)
        self._ends.clear()


class DurableChannel(Channel):
    """A channel whose batches are staged as they are produced (FLIP-76's *continuous*); it keeps names of files."""

    def prepared(self, batch: Batch) -> Batch:
        spool = self.require()
        batch.rows.stage(spool, stem_of(self.stream, batch.first_id), batch.first_id, batch.last_id)
        return Batch(first_id=batch.first_id, last_id=batch.last_id, rows=spooled(batch.rows, spool, batch.last_id))


class ChannelEnd:
    """One end of a channel."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._is_closed = False

    @property
    def is_cut_off(self) -> bool:
        """Was it closed, is another one connected in its place, or was the channel opened anew?"""
        return self._is_closed or not self.channel.is_connected(self)

    def close(self) -> None:
        """Let nothing more through: what failed may neither send nor take anything."""
        with self.channel.changed:
            self._is_closed = True
            self.channel.changed.notify_all()

    def require(self) -> None:
        """Check that this end is connected.

        Raises:
            Fenced: it is not any more.
        """
        with self.channel.changed:
            if self.is_cut_off:
                what = "writer" if isinstance(self, ChannelWriter) else "reader"
                raise Fenced(f"a {what} of channel {self.channel.name!r} was cut off", remedy="end this thread")

    def _wait(self, is_so: Callable[[], bool], wait: Wait) -> bool:
        """Wait until something is so, or this end is cut off, which raises; the condition is held."""
        is_it = wait_until(self.channel.changed, lambda: self.is_cut_off or is_so(), wait)
        self.require()
        return is_it


class ChannelWriter(ChannelEnd):
    """The writing end of a channel."""

    def put(self, batch: Batch, wait: Wait = FOREVER) -> None:
        """Put a batch in, waiting for room (back-pressure); the channel holds its rows from then on.

        Raises:
            ChannelFull, Interrupted: there was no room in time, or the wait was given up; the batch is not in.
            Fenced: another writer is connected, or the channel was opened anew.
            OutOfOrder: its ids are not above all that came before.
        """
        channel = self.channel
        with channel.changed:
            self.require()
            channel.fifo.require_next(batch.first_id, batch.last_id)
        kept = channel.prepared(batch)
        try:
            with channel.changed:
                if not self._wait(lambda: channel.has_room(kept.bytes), wait):
                    raise ChannelFull(
                        f"channel {channel.name!r} had no room for {batch.first_id}..{batch.last_id} in time",
                        remedy="give it wider bounds in dm.buffered, or raise group_timeout",
                    )
                channel.enter(kept)
        finally:
            kept.rows.release()


class ChannelReader(ChannelEnd):
    """The reading end of a channel."""

    def peek(self) -> Batch | None:
        """Return what `take` would give now, None where it would wait.

        Raises:
            Fenced: another reader is connected, or the channel was opened anew.
        """
        with self.channel.changed:
            self.require()
            return self.channel.fifo.peek()

    def take(self, wait: Wait = FOREVER) -> Batch | None:
        """Return the next batch, in the order in which they were put in; it stays in until it is `done`.

        Returns:
            None where nothing came in time. The channel holds the rows; whoever needs them longer holds them, too.

        Raises:
            Interrupted: the wait was given up.
            Fenced: as of `peek`.
        """
        with self.channel.changed:
            self._wait(lambda: self.channel.fifo.peek() is not None, wait)
            return self.channel.fifo.take()

    def done(self, batch: Batch) -> None:
        """Say that a batch was dealt with, and will not be needed again.

        Raises:
            OutOfOrder: it was not taken, or a batch ahead of it is not done.
            Fenced: as of `peek`.
        """
        with self.channel.changed:
            self.require()
            self.channel.done(batch)
