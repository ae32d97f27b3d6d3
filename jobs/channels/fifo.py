"""The order of a channel, without locks and bounds: what was put in, what the reader has taken, and what is done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jobs.channel_errors import OutOfOrder
from jobs.channels.items import Batch, DrainMarker, Item, Marker, ResetMarker
from jobs.protocol.flow import Half


class Fifo:
    """A FIFO whose entries stay until they are done with.

    An entry is the writer's until it is taken for the first time, and the reader's from then on: the two halves of a
    channel (F28). The FIFO holds the rows of its batches.

    Args:
        keeps: batches that are done with are kept until `forget`: their reader is at another id in the checkpoints than
            it is by now (K6).

    Attributes:
        bytes: that the batches take that are not done.
        kept_bytes: that those take that are kept.
    """

    def __init__(self, name: str, *, keeps: bool = False) -> None:
        self.name = name
        self.keeps = keeps
        self.bytes = 0
        self.kept_bytes = 0
        self._kept: list[Batch] = []
        self._entries: list[Item] = []
        self._taken = 0
        self._received = 0
        self._newest = 0
        self._newest_drain = DrainMarker(0)
        self._newest_reset: ResetMarker | None = None

    def __len__(self) -> int:
        """Return how many entries there are, markers among them."""
        return len(self._entries)

    @property
    def batches(self) -> int:
        return sum(isinstance(item, Batch) for item in self._entries)

    @property
    def newest(self) -> int:
        """Return the last id that was put in."""
        return self._newest

    # --- the writer's ------------------------------------------------------------------------------------------------

    def require_next(self, first_id: int, last_id: int) -> None:
        """Check that a batch of these ids may come now.

        Raises:
            OutOfOrder: its ids are not above all that came before (V107).
        """
        if first_id <= self._newest:
            raise OutOfOrder(f"{first_id}..{last_id} would come into channel {self.name!r} behind {self._newest}")

    def put(self, batch: Batch) -> None:
        """Enter a batch.

        Raises:
            OutOfOrder: see `require_next`.
        """
        self.require_next(batch.first_id, batch.last_id)
        batch.rows.hold()
        self._entries.append(batch)
        self._newest = batch.last_id
        self.bytes += batch.bytes

    def refill(self, batches: Iterable[tuple[Batch, Half]]) -> None:
        """Enter what a checkpoint found in flight, in order, each to its own half; the rows are handed over.

        Raises:
            OutOfOrder: ids come twice, or what was taken lies behind what was not.
        """
        for batch, half in batches:
            if half is Half.INPUT and self._received < len(self._entries):
                raise OutOfOrder(f"in channel {self.name!r} a batch was taken before the one ahead of it")
            self.put(batch)
            batch.rows.release()
            self._received += half is Half.INPUT

    def send(self, marker: Marker, *, overtakes: bool = False) -> None:
        """Enter a marker; one that was sent before is not sent again, for who starts anew may not know of it.

        Args:
            overtakes: it goes ahead of the batches that nobody has taken, not of other markers; so does one that is on
                its way already.

        Raises:
            OutOfOrder: a newer marker was sent (V77, V79).
        """
        if self._was_sent(marker):
            waiting = [index for index in range(self._taken, len(self._entries)) if self._entries[index] == marker]
            if not (waiting and overtakes):
                return
            del self._entries[waiting[0]]
            self._received -= waiting[0] < self._received
        place = len(self._entries)
        while overtakes and place > self._taken and isinstance(self._entries[place - 1], Batch):
            place -= 1
        self._entries.insert(place, marker)
        self._received += place < self._received

    def _was_sent(self, marker: Marker) -> bool:
        newest: Marker | None
        if isinstance(marker, DrainMarker):
            newest, is_newer = self._newest_drain, marker.sequence_id > self._newest_drain.sequence_id
            self._newest_drain = marker if is_newer else self._newest_drain
        else:
            newest, is_newer = self._newest_reset, True
            if self._newest_reset is not None:
                is_newer = marker.attempt > self._newest_reset.attempt
            self._newest_reset = marker if is_newer else self._newest_reset
        if not is_newer and marker != newest:
            raise OutOfOrder(f"{marker} would follow {newest} in channel {self.name!r}")
        return not is_newer

    # --- the reader's ------------------------------------------------------------------------------------------------

    def peek(self) -> Item | None:
        """Return what `take` would, None where there is nothing."""
        return self._entries[self._taken] if self._taken < len(self._entries) else None

    def take(self) -> Item | None:
        """Return the next entry, which becomes the reader's; None where there is none."""
        item = self.peek()
        if item is not None:
            self._taken += 1
            self._received = max(self._received, self._taken)
        return item

    def again(self) -> None:
        """Begin to give from the first entry that is not done."""
        self._taken = 0

    def done(self, item: Item) -> None:
        """Remove an entry that was taken, and the markers ahead of it.

        Raises:
            OutOfOrder: it was not taken, or a batch ahead of it is not done.
        """
        ahead = 0
        while ahead < self._taken and self._entries[ahead] is not item:
            if isinstance(self._entries[ahead], Batch):
                raise OutOfOrder(f"a batch of channel {self.name!r} is done with before the one ahead of it")
            ahead += 1
        if ahead == self._taken:
            raise OutOfOrder(f"a reader of channel {self.name!r} is done with what it did not take")
        self._remove(ahead + 1)

    # --- both --------------------------------------------------------------------------------------------------------

    def in_flight(self) -> Iterator[tuple[Batch, Half]]:
        """Yield the batches that are kept or not done, in order, with the half in which each is."""
        for batch in self._kept:
            yield batch, Half.INPUT
        for index, item in enumerate(self._entries):
            if isinstance(item, Batch):
                yield item, Half.INPUT if index < self._received else Half.OUTPUT

    def forget(self, through: int) -> None:
        """Let go of the batches up to an id that are kept."""
        for batch in self._kept:
            if batch.last_id <= through:
                self.kept_bytes -= batch.bytes
                batch.rows.release()
        self._kept = [batch for batch in self._kept if batch.last_id > through]

    def drop(self) -> None:
        """Forget all, markers too, as if nothing had ever been sent (V103)."""
        self._remove(len(self._entries))
        self.forget(self._newest)
        self._newest, self._newest_drain, self._newest_reset = 0, DrainMarker(0), None

    def _remove(self, count: int) -> None:
        gone, self._entries = self._entries[:count], self._entries[count:]
        self._taken, self._received = max(0, self._taken - count), max(0, self._received - count)
        for item in gone:
            if isinstance(item, Batch):
                self.bytes -= item.bytes
                if self.keeps:
                    self.kept_bytes += item.bytes
                    self._kept.append(item)
                else:
                    item.rows.release()
