"""The buffer of a `ReplayableStart` in a bucket: one object per push, which outlives the machine that pushed it.

    segment-000000000007.jsonl  never changes

Numbers are consecutive. A push puts its rows under the next number, only if no object has it. So two pushes never share
a number, even from different machines. The newest segment is never deleted: it tells the next number.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from drainmark.jobs import world
from drainmark.jobs.errors import InputMissing
from drainmark.jobs.failpoints import FailPoint
from drainmark.jobs.operators.sources.pushed.push_buffer import Row, lines_of, segment_name, segment_number
from drainmark.jobs.tasks.places import BucketPlace

if TYPE_CHECKING:
    from drainmark.jobs.operators.sources.contract import Files
    from drainmark.jobs.tasks.buckets import StoredObject

YOUNG_SECONDS = 24 * 3600.0
"""A segment is deleted only if it is older: a push that has looked up the next number must not find it free again."""

_PURGE_SECONDS = 60.0
"""The least time between two purges of a process: each one lists the segments."""


@dataclass(frozen=True, slots=True)
class BucketBuffer:
    """A buffer below a prefix; a segment has the rows of one push."""

    objects: Files

    def push(self, rows: Iterable[Row]) -> int:
        """Put rows as the next segment; return its number. The rows are durable when this returns.

        Raises:
            TypeError, ValueError: a row is no JSON object, or has a column `_pushed_at`; nothing was put.
            StoreUnavailable: the store does not accept the rows; they may be stored nevertheless.
            StoreRefused: the same, or two pushes could put the same segment: nothing was put then.
        """
        import pyarrow as pa

        # with a mark, so that no other push has the same bytes
        content, number = lines_of(rows, f"{time.time()} {uuid.uuid4().hex}"), self._newest()
        if content and not number:
            self.objects.require_put_if_absent()
        while content:
            number += 1
            try:
                world.pass_point(FailPoint.SEAL_BEFORE)
                self.objects.write(segment_name(number), pa.py_buffer(content))
                world.pass_point(FailPoint.SEAL_AFTER)
                break
            except FileExistsError:
                if self.read(number) == content:  # ours: the reply was lost
                    break
        _newest[self.objects.uri] = number, time.monotonic()
        return number

    def seal_if_due(self) -> None:
        """Do nothing: each push is a segment already."""

    def seal_all(self) -> None:
        """Do nothing, as `seal_if_due`."""

    def sealed(self, after: int) -> Iterator[tuple[int, int]]:
        """Yield number and size in bytes of the segments after a number, in order.

        It asks for one segment after the other. If the segment before is gone, it lists the prefix, since more segments
        may be gone.

        Raises:
            InputMissing: the newest segment is gone; Drainmark never deletes it.
        """
        while (size := self.size(after + 1)) is not None:
            after += 1
            yield after, size
        if not after or self.size(after) is None:
            numbers = self._numbers()
            if max(numbers, default=0) < after:
                msg = f"segment {after} and all that followed it are gone from {self.objects.uri}"
                remedy = "restore them: numbers must not be given again. Nothing but Drainmark may delete there"
                raise InputMissing(msg, remedy=remedy, triggers=())
            for number in numbers:
                size = self.size(number) if number > after else None
                if size is not None:
                    yield number, size

    def size(self, number: int) -> int | None:
        """Return the size of a segment in bytes, None if there is no such segment."""
        try:
            return self.objects.size(segment_name(number))
        except FileNotFoundError:
            return None

    def stored(self, number: int) -> StoredObject | None:
        """Return a segment as an object for tasks; None if it is gone, or tasks cannot fetch it: see `can_be_named`."""
        name, place = segment_name(number), self.objects.place
        if not isinstance(place, BucketPlace):
            return None
        try:
            stored = place.stored(name, *self.objects.stamp(name))
        except FileNotFoundError:
            return None
        return stored if stored.can_be_named else None

    def read(self, number: int) -> bytes:
        """Return the content of a segment."""
        import pyarrow as pa

        return bytes(pa.input_stream(self.objects.source(segment_name(number))).read())

    def place(self, number: int, target: Path) -> None:
        """Write a segment to a new file of this machine."""
        target.write_bytes(self.read(number))

    def purge(self, upto: int) -> None:
        """Delete the segments up to and including a number, except the newest and young ones; idempotent."""
        now = time.time()
        if now - _purged.get(self.objects.uri, 0.0) < _PURGE_SECONDS:
            return
        _purged[self.objects.uri] = now
        found = ((segment_number(name), at) for name, at in self.objects.modified("").items())
        times = {number: at for number, at in found if number is not None}
        newest = max(times, default=0)
        last = min(upto, newest - 1)
        doomed = [number for number in sorted(times) if number <= last and now - times[number] > YOUNG_SECONDS]
        if doomed:
            world.pass_point(FailPoint.PURGE_BEFORE)
            self.objects.remove([segment_name(number) for number in doomed])
            world.pass_point(FailPoint.PURGE_AFTER)

    def _newest(self) -> int:
        """Return the number of the newest segment that this process knows of.

        Later segments are too young to be deleted, so no number after it that was used is free again.
        """
        known, at = _newest.get(self.objects.uri, (0, 0.0))
        if known and time.monotonic() - at < YOUNG_SECONDS / 2:
            return known
        return max(self._numbers(), default=0)

    def _numbers(self) -> list[int]:
        numbers = (segment_number(name) for name in self.objects.names(""))
        return [number for number in numbers if number is not None]


_newest: dict[str, tuple[int, float]] = {}
_purged: dict[str, float] = {}
"""By address of a buffer: the newest number with the time at which it was found; the time of the last purge."""
