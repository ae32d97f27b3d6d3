"""A channel: a bounded, fenced FIFO with one writing and one reading end, in which batches stay until they are done.

A batch stays until the reader calls `done`. A reader that connects anew gets all batches again that were taken and are
not done. Each side has one end at a time, of the epoch that the channel is open for; an older end is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from drainmark.jobs import world
from drainmark.jobs.errors import Fenced, Interrupted
from drainmark.jobs.errors.environment import ChannelFull
from drainmark.jobs.protocol.stage_flow import Half, InFlight
from drainmark.jobs.runtime.stages.channels.fifo import Fifo
from drainmark.jobs.runtime.stages.channels.rows import Batch, FileRows, Spool, stem_of

POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Wait:
    """The bounds of a wait.

    Attributes:
        seconds: upper bound; None for no bound.
        is_cancelled: called at least every `POLL_SECONDS`; once it is true, the waiting thread gets `Interrupted`.
    """

    seconds: float | None = None
    is_cancelled: Callable[[], bool] | None = None


AT_ONCE = Wait(seconds=0.0)
FOREVER = Wait()


def wait_until(changed: threading.Condition, is_so: Callable[[], bool], wait: Wait) -> bool:
    """Wait, holding the condition, until a predicate is true. Code that makes it true must notify the condition.

    Returns:
        Whether the predicate is true; it is not if the time was over before.

    Raises:
        Interrupted: the wait was cancelled; this costs no attempt.
    """
    until = None if wait.seconds is None else world.monotonic() + wait.seconds
    while not is_so():
        if wait.is_cancelled is not None and wait.is_cancelled():
            raise Interrupted("the wait at a channel was given up", remedy="start it again: no attempt was counted")
        left = None if until is None else until - world.monotonic()
        if left is not None and left <= 0:
            return False
        polled = POLL_SECONDS if wait.is_cancelled is not None else None
        changed.wait(left if polled is None else polled if left is None else min(left, polled))
    return True


OneEnd = TypeVar("OneEnd", bound="ChannelEnd")


@dataclass(slots=True)
class Budget:
    """The bytes that all channels of a region may take together; a refill may exceed the limit.

    Attributes:
        limit: upper bound (inclusive); None for no bound.
    """

    limit: int | None = None
    used: int = 0

    def has_room(self, size: int) -> bool:
        return self.limit is None or self.used + size <= self.limit


@dataclass(frozen=True, slots=True, eq=False)
class Overtaken:
    """A batch that a checkpoint overtakes; it is held until `release`, even if the channel is closed meanwhile."""

    stream: str
    batch: Batch
    half: Half

    def stage(self, spool: Spool) -> InFlight:
        """Return the batch as a checkpoint row names it; write it if it is not written yet."""
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
    """A FIFO of batches; this kind leaves rows where they are: in memory (FLIP-76's *ad hoc*).

    All methods may be called by any thread.

    Args:
        name: as in the plan.
        stream: the stream that it carries; its files are named after the stream.
        batches: upper bound of the batches in it, including those that the reader works at.
        bytes: upper bound of their bytes; one batch always fits.
        budget: shared with the other channels of the region.
        changed: shared with the other channels, so that one wait can be for several of them.
        keeps: see `Fifo`.

    Attributes:
        fifo: the batches; the ends look at it, and take from it, while they hold the condition.
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
        """Begin anew: cut off both ends, drop the batches in the channel, and refill it from a checkpoint.

        A batch that belonged to the reader when the checkpoint overtook it belongs to the reader again, the others to
        the writer. The bounds do not apply to these batches.

        Raises:
            Fenced: the channel is open for a newer epoch.
            OutOfOrder: the batches in flight have ids twice, or are not in the order of their ids.
        """
        refilled = [
            (
                Batch(
                    first_id=each.first_id,
                    last_id=each.last_id,
                    rows=FileRows(each.files, reader=spool.reader, last_id=each.last_id),
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
        """Close the channel: cut off both ends, and release all rows."""
        with self.changed:
            self._drop()
            self._spool = None
            self.changed.notify_all()

    def writer(self, epoch: int) -> ChannelWriter:
        """Connect a writing end; the one before it is refused from now on.

        Raises:
            Fenced: the channel is open for another epoch, or for none.
        """
        with self.changed:
            return self._connected(ChannelWriter(self), epoch)

    def reader(self, epoch: int) -> ChannelReader:
        """Connect a reading end: it gets all batches that are not done, from the first; the one before it is refused.

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
        """Check that the channel is open, for an epoch if one is given; return its spool.

        Raises:
            Fenced: the channel is not open, or is open for another epoch.
        """
        with self.changed:
            if self._spool is None or epoch not in (None, self._epoch):
                raise Fenced(f"channel {self.name!r} is open for epoch {self._epoch}, or not any more")
            return self._spool

    def is_connected(self, end: ChannelEnd) -> bool:
        """Is this the connected end of its side?"""
        return self._ends.get(type(end)) is end

    # --- looking -----------------------------------------------------------------------------------------------------

    @property
    def batches(self) -> int:
        """Return the number of batches in the channel that are not done."""
        with self.changed:
            return self.fifo.batches

    @property
    def bytes(self) -> int:
        """Return the bytes of the batches that are not done."""
        with self.changed:
            return self.fifo.bytes

    @property
    def kept_bytes(self) -> int:
        """Return the bytes of the batches that are done and kept."""
        with self.changed:
            return self.fifo.kept_bytes

    @property
    def is_empty(self) -> bool:
        """Are all batches done?"""
        with self.changed:
            return self.fifo.batches == 0

    def has_room(self, size: int = 0) -> bool:
        """May a batch of so many bytes come in? It always may if the channel is empty, so that no batch is stuck
        forever. Without a size: is the channel not full?"""
        with self.changed:
            (most, bytes_most), count, asked = self._bounds, self.fifo.batches, max(size, 1)
            fits = self.fifo.bytes + asked <= bytes_most and self._budget.has_room(asked)
            return count == 0 or (count < most and fits)

    def overtaken(self, *, after: int = 0, through: int | None = None) -> tuple[Overtaken, ...]:
        """Hold the batches that a checkpoint overtakes, and return them in the order of their ids.

        Args:
            after: the checkpoint has all work of the reader up to this id (inclusive).
            through: the checkpoint has no work of the writer above this id.
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

    # --- for the ends; they hold the condition, except for `prepared` ------------------------------------------------

    def prepared(self, batch: Batch) -> Batch:
        """Return a batch as this kind of channel keeps it, and hold its rows once for the caller; may take a while.

        Raises:
            Fenced: the channel is not open.
        """
        batch.rows.hold()
        return batch

    def enter(self, batch: Batch) -> None:
        """Put a batch in, without regard to the bounds; see `Fifo.put`."""
        self._change(lambda: self.fifo.put(batch))

    def done(self, batch: Batch) -> None:
        """Remove a batch that was taken; see `Fifo.done`."""
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
    """A channel that stages each batch when it is produced (FLIP-76's *continuous*), and keeps only names of files."""

    def prepared(self, batch: Batch) -> Batch:
        spool = self.require()
        files = batch.rows.stage(spool, stem_of(self.stream, batch.first_id), batch.first_id, batch.last_id)
        return replace(batch, rows=FileRows(files, reader=spool.reader, last_id=batch.last_id))


class ChannelEnd:
    """One end of a channel."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._is_closed = False

    @property
    def is_cut_off(self) -> bool:
        """Was this end closed, is another one connected in its place, or was the channel opened anew?"""
        return self._is_closed or not self.channel.is_connected(self)

    def close(self) -> None:
        """Cut this end off: a stage that failed may neither send nor take any more batches."""
        with self.channel.changed:
            self._is_closed = True
            self.channel.changed.notify_all()

    def require(self) -> None:
        """Check that this end is connected.

        Raises:
            Fenced: this end is no longer connected.
        """
        with self.channel.changed:
            if self.is_cut_off:
                what = "writer" if isinstance(self, ChannelWriter) else "reader"
                raise Fenced(f"a {what} of channel {self.channel.name!r} was cut off", remedy="end this thread")

    def _wait(self, is_so: Callable[[], bool], wait: Wait) -> bool:
        """Wait, holding the condition, until a predicate is true; raise `Fenced` once this end is cut off."""
        is_it = wait_until(self.channel.changed, lambda: self.is_cut_off or is_so(), wait)
        self.require()
        return is_it


class ChannelWriter(ChannelEnd):
    """The writing end of a channel."""

    def put(self, batch: Batch, wait: Wait = FOREVER) -> None:
        """Wait for room (back-pressure), and put a batch in; the channel holds its rows from then on.

        Raises:
            ChannelFull, Interrupted: there was no room in time, or the wait was cancelled; the batch is not in.
            Fenced: another writer is connected, or the channel was opened anew.
            OutOfOrder: its ids are not above those of all batches before it.
        """
        channel = self.channel
        with channel.changed:
            self.require()
            channel.fifo.require_next(batch)
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
        """Return the batch that `take` would return now; None if it would wait.

        Raises:
            Fenced: another reader is connected, or the channel was opened anew.
        """
        with self.channel.changed:
            self.require()
            return self.channel.fifo.peek()

    def take(self, wait: Wait = FOREVER) -> Batch | None:
        """Return the next batch, in the order in which they were put in; it stays in until it is `done`.

        Returns:
            None if no batch came in time. The channel holds the rows; a caller that needs them longer holds them, too.

        Raises:
            Interrupted: the wait was cancelled.
            Fenced: see `peek`.
        """
        with self.channel.changed:
            self._wait(lambda: self.channel.fifo.peek() is not None, wait)
            return self.channel.fifo.take()

    def done(self, batch: Batch) -> None:
        """Remove a batch that the reader has worked through and does not need again.

        Raises:
            OutOfOrder: it was not taken, or a batch ahead of it is not done.
            Fenced: see `peek`.
        """
        with self.channel.changed:
            self.require()
            self.channel.done(batch)
