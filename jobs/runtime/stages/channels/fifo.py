"""The order of a channel, without locks and bounds: batches that were put in, taken, and done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from drainmark.jobs.errors.environment import OutOfOrder
from drainmark.jobs.protocol.stage_flow import Half
from drainmark.jobs.runtime.stages.channels.rows import Batch


class Fifo:
    """A FIFO in which batches stay until they are done.

    A batch belongs to the writer until it is taken for the first time, and to the reader from then on: these are the
    two halves of a channel. The FIFO holds the rows of its batches.

    Args:
        keeps: batches that are done are kept until `forget`, because checkpoints may have their reader at an earlier
            id than the one it has reached.

    Attributes:
        bytes: of the batches that are not done.
        kept_bytes: of the batches that are done and kept.
    """

    def __init__(self, name: str, *, keeps: bool = False) -> None:
        self.name = name
        self.keeps = keeps
        self.bytes = 0
        self.kept_bytes = 0
        self._kept: list[Batch] = []
        self._entries: list[Batch] = []
        self._taken = 0
        self._received = 0
        self._newest = 0

    @property
    def batches(self) -> int:
        return len(self._entries)

    # --- the writer's ------------------------------------------------------------------------------------------------

    def require_next(self, batch: Batch) -> None:
        """Check that a batch may come now.

        Raises:
            OutOfOrder: its ids are not above those of all batches before it.
        """
        if batch.first_id <= self._newest:
            ids = f"{batch.first_id}..{batch.last_id}"
            raise OutOfOrder(f"{ids} would come into channel {self.name!r} behind {self._newest}")

    def put(self, batch: Batch) -> None:
        """Put a batch in.

        Raises:
            OutOfOrder: see `require_next`.
        """
        self.require_next(batch)
        batch.rows.hold()
        self._entries.append(batch)
        self._newest = batch.last_id
        self.bytes += batch.bytes

    def refill(self, batches: Iterable[tuple[Batch, Half]]) -> None:
        """Put in the batches that a checkpoint found in flight, in order, each in its half; take over their rows.

        Raises:
            OutOfOrder: ids come twice, or a batch that was taken lies behind one that was not.
        """
        for batch, half in batches:
            if half is Half.INPUT and self._received < len(self._entries):
                raise OutOfOrder(f"in channel {self.name!r} a batch was taken before the one ahead of it")
            self.put(batch)
            batch.rows.release()
            self._received += half is Half.INPUT

    # --- the reader's ------------------------------------------------------------------------------------------------

    def peek(self) -> Batch | None:
        """Return the batch that `take` would return; None if there is none."""
        return self._entries[self._taken] if self._taken < len(self._entries) else None

    def take(self) -> Batch | None:
        """Return the next batch, which now belongs to the reader; None if there is none."""
        batch = self.peek()
        if batch is not None:
            self._taken += 1
            self._received = max(self._received, self._taken)
        return batch

    def again(self) -> None:
        """Give the batches again, from the first one that is not done."""
        self._taken = 0

    def done(self, batch: Batch) -> None:
        """Remove a batch that was taken.

        Raises:
            OutOfOrder: it was not taken, or a batch ahead of it is not done.
        """
        taken = self._entries[: self._taken]
        if batch not in taken:
            raise OutOfOrder(f"a reader of channel {self.name!r} is done with a batch that it did not take")
        if batch is not taken[0]:
            raise OutOfOrder(f"a batch of channel {self.name!r} is done with before the one ahead of it")
        self._remove(1)

    # --- both --------------------------------------------------------------------------------------------------------

    def in_flight(self) -> Iterator[tuple[Batch, Half]]:
        """Yield the batches that are kept or not done, in order, each with its half."""
        for batch in self._kept:
            yield batch, Half.INPUT
        for index, batch in enumerate(self._entries):
            yield batch, Half.INPUT if index < self._received else Half.OUTPUT

    def forget(self, through: int) -> None:
        """Release the kept batches up to an id (inclusive)."""
        for batch in self._kept:
            if batch.last_id <= through:
                self.kept_bytes -= batch.bytes
                batch.rows.release()
        self._kept = [batch for batch in self._kept if batch.last_id > through]

    def drop(self) -> None:
        """Forget all batches, as if none had ever been put in."""
        self._remove(len(self._entries))
        self.forget(self._newest)
        self._newest = 0

    def _remove(self, count: int) -> None:
        gone, self._entries = self._entries[:count], self._entries[count:]
        self._taken, self._received = max(0, self._taken - count), max(0, self._received - count)
        for batch in gone:
            self.bytes -= batch.bytes
            if self.keeps:
                self.kept_bytes += batch.bytes
                self._kept.append(batch)
            else:
                batch.rows.release()
