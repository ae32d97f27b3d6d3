"""The two ends of a channel, of one incarnation each: what is cut off may neither send nor take anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from drainmark.jobs.errors import Fenced
from drainmark.jobs.errors.channels import ChannelFull
from drainmark.jobs.runtime.stages.channels.batches import Batch
from drainmark.jobs.runtime.stages.channels.waiting import FOREVER, Wait, wait_until

if TYPE_CHECKING:
    from drainmark.jobs.runtime.stages.channels.channel import Channel


class End:
    """One end of a channel."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._is_closed = False

    @property
    def is_cut_off(self) -> bool:
        """Was it closed, is another one connected in its place, or was the channel opened anew?"""
        return self._is_closed or not self.channel.is_connected(self)

    def close(self) -> None:
        """Let nothing more through: what failed may neither send nor take anything (V107, V109)."""
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
                what = "writer" if isinstance(self, Writer) else "reader"
                raise Fenced(f"a {what} of channel {self.channel.name!r} was cut off", remedy="end this thread")

    def _wait(self, is_so: Callable[[], bool], wait: Wait) -> bool:
        """Wait until something is so, or this end is cut off, which raises; the condition is held."""
        is_it = wait_until(self.channel.changed, lambda: self.is_cut_off or is_so(), wait)
        self.require()
        return is_it


class Writer(End):
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
            channel.require_next(batch)
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


class Reader(End):
    """The reading end of a channel."""

    def peek(self) -> Batch | None:
        """Return what `take` would give now, None where it would wait.

        Raises:
            Fenced: another reader is connected, or the channel was opened anew.
        """
        with self.channel.changed:
            self.require()
            return self.channel.peek()

    def take(self, wait: Wait = FOREVER) -> Batch | None:
        """Return the next batch, in the order in which they were put in; it stays in until it is `done`.

        Returns:
            None where nothing came in time. The channel holds the rows; whoever needs them longer holds them, too.

        Raises:
            Interrupted: the wait was given up.
            Fenced: as of `peek`.
        """
        with self.channel.changed:
            self._wait(lambda: self.channel.peek() is not None, wait)
            return self.channel.take()

    def done(self, batch: Batch) -> None:
        """Say that a batch was dealt with, and will not be needed again.

        Raises:
            OutOfOrder: it was not taken, or a batch ahead of it is not done.
            Fenced: as of `peek`.
        """
        with self.channel.changed:
            self.require()
            self.channel.done(batch)
