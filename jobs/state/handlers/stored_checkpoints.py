"""The checkpoints of one operator in an entry of a `DataStore`: saved with the header last, retired from the oldest.

Keys: `<id>.<chunk>`, where chunk 0 is the header; `<id>.next` and `<id>.previous`, the ids saved after and before it,
since a store lists nothing; `head`, the ids at both ends, and the ids that are being written or deleted. After a crash
the next opening finishes the work that `head` names. The region's checkpoint table, not this store, decides which ids
count.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import takewhile

from drainmark.jobs import world
from drainmark.jobs.errors import Fenced
from drainmark.jobs.errors.operator_code import CheckpointUnreadable
from drainmark.jobs.failpoints import StorePoint
from drainmark.jobs.state.handlers.checkpoint import HEADER, CheckpointReader, CheckpointWriter, Header
from drainmark.jobs.state.handlers.data_store import DataStoreEntry
from drainmark.jobs.state.handlers.encoding import RESTORE

_HEAD = b"head"


@dataclass(slots=True)
class _Head:
    """The ends of the chain of checkpoints, and the work under way.

    Attributes:
        oldest, last: ids, 0 without one.
        begun: id -> its chunks, for checkpoints that are being written.
        leaving: ids of checkpoints that are being deleted.
        epoch: of the owner that wrote this; 0 if a version wrote it that did not note the epoch.
    """

    oldest: int = 0
    last: int = 0
    begun: dict[int, list[int]] = field(default_factory=dict)
    leaving: list[int] = field(default_factory=list)
    epoch: int = 0

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> _Head:
        value = json.loads(content)
        begun = {int(at): chunks for at, chunks in value["begun"].items()}
        epoch = value.get("epoch", 0)
        return cls(oldest=value["oldest"], last=value["last"], begun=begun, leaving=value["leaving"], epoch=epoch)


class StoredCheckpoints:
    """The checkpoints of one operator; one object for each owner of the region, one call at a time.

    Args:
        entry: named after application and operator, so that it is the same in every run.
        epoch: of the region's owner; the commits of a store cannot refuse an older owner, so `head` names the epoch.

    Raises:
        Fenced: from every method that writes: an owner of a higher epoch has the entry.
    """

    def __init__(self, entry: DataStoreEntry, epoch: int = 0) -> None:
        self.entry = entry
        self.epoch = epoch
        self._head: _Head | None = None

    def save(self, checkpoints: Sequence[CheckpointWriter]) -> None:
        """Store finished checkpoints, of rising ids, chunks first and headers last; durable when this returns.

        The ids are new: a sequence id is never used twice. Checkpoints that are stored already stay unchanged.

        Raises:
            CheckpointUnreadable: an id is below the newest, and is not stored.
        """
        head = self._opened()
        checkpoints = [each for each in checkpoints if not self._has(each)]
        if not checkpoints:
            return
        head.begun = {each.sequence_id: sorted(each.changed) for each in checkpoints}
        self._put_head()
        world.pass_point(StorePoint.CHUNKS_BEFORE)
        pairs: dict[bytes, bytes] = {}
        before = head.last
        for each in checkpoints:
            number = each.sequence_id
            pairs.update({_key(number, chunk): content for chunk, content in each.changed.items()})
            pairs.update({_next(before): b"%d" % number, _previous(number): b"%d" % before} if before else {})
            before = number
        self.entry.put_all(pairs)
        world.pass_point(StorePoint.CHUNKS_WRITTEN)
        self.entry.put_all({_key(each.sequence_id, HEADER): each.finish().to_bytes() for each in checkpoints})
        world.pass_point(StorePoint.CHUNKS_AFTER)
        head.oldest, head.last, head.begun = head.oldest or checkpoints[0].sequence_id, before, {}
        self._put_head()

    def _has(self, checkpoint: CheckpointWriter) -> bool:
        if checkpoint.sequence_id > self._current.last:
            return False
        return self._header(checkpoint.sequence_id) == checkpoint.finish()

    def load(self, sequence_id: int) -> CheckpointReader:
        """Return the checkpoint of an id that was saved.

        Raises:
            CheckpointUnreadable: it is gone, or damaged.
        """
        return CheckpointReader(header=self._header(sequence_id), fetch=self.chunk)

    def chunk(self, index: int, at: int) -> bytes:
        """Return a chunk by its index and the id under which it was written.

        Raises:
            KeyError: it is gone.
        """
        return self.entry.get(_key(at, index))

    def withdraw(self, to: int) -> None:
        """Delete the checkpoints after an id: they were never committed, or a rewind withdrew them.

        Args:
            to: the last id that counts, 0 for the initial state.

        Raises:
            CheckpointUnreadable: that id is not stored; nothing was deleted.
        """
        head = self._opened()
        leaving: list[int] = []
        last = head.last
        while last > to:
            leaving.append(last)
            last = self._linked(_previous(last))
        if leaving and last < to:  # a link is missing: `to` must be stored all the same, else nothing is deleted
            last = self._header(to).sequence_id
        head.last, head.oldest = last, min(head.oldest, last)
        self._let_go(leaving)

    def newest_epoch(self) -> int:
        """Return the epoch of the last owner that wrote here, 0 before the first."""
        try:
            return _Head.from_bytes(self.entry.get(_HEAD)).epoch
        except KeyError:
            return 0

    def retire(self, through: int) -> int:
        """Delete checkpoints and chunks that no state from an id on needs (to retire an id retires all lower ones).

        The newest checkpoint at or below `through` stays: it is the state at that id.

        Returns:
            the number of checkpoints that were deleted.
        """
        head = self._opened()
        leaving: list[int] = []
        while head.oldest and 0 < (after := self._linked(_next(head.oldest))) <= through:
            leaving.append(head.oldest)
            head.oldest = after
        self._let_go(leaving)
        return len(leaving)

    # --- how -------------------------------------------------------------------------------------------------------

    def _opened(self) -> _Head:
        """Return the head, after finishing the work that it names."""
        if self._head is None:
            self._head = self._stored_head() or _Head(epoch=self.epoch)
            if self._head.epoch != self.epoch:
                self._head.epoch = self.epoch
                self._put_head()
        if self._head.begun:
            self._settle()
        if self._head.leaving:
            self._put_head()  # the call that failed may not have put it
            self._finish_leaving()
        return self._head

    def _settle(self) -> None:
        """Take over the begun checkpoints before the first one without a header, and delete the others.

        Headers are written side by side: one may be stored while an earlier one is not. The checkpoints after that
        one are in no chain, and their group is not committed.
        """
        head = self._current
        numbers = sorted(head.begun)
        whole = list(takewhile(lambda number: self.entry.exists(_key(number, HEADER)), numbers))
        for number in numbers[len(whole) :]:
            links = (_next(number), _previous(number))
            self.entry.delete_all([*(_key(number, chunk) for chunk in (HEADER, *head.begun[number])), *links])
        if whole:
            head.oldest, head.last = head.oldest or whole[0], whole[-1]
        head.begun = {}

    def _let_go(self, numbers: list[int]) -> None:
        """Delete checkpoints that are out of the chain, and the chunks that only they refer to."""
        if numbers:
            self._current.leaving = numbers
            self._put_head()
            world.pass_point(StorePoint.RETIRE_BEFORE)
            self._finish_leaving()
            self._put_head()

    def _finish_leaving(self) -> None:
        head = self._current
        ends = [self._header(number) for number in {head.oldest, head.last} - {0}] if head.leaving else []
        kept = {(at, chunk) for end in ends for chunk, at in enumerate(end.written_at, 1)}
        for number in head.leaving:
            if self.entry.exists(_key(number, HEADER)):
                # also older chunks: those that newer checkpoints wrote anew were needed until now
                referred = {(at, chunk) for chunk, at in enumerate(self._header(number).written_at, 1)}
                gone = [_key(at, chunk) for at, chunk in sorted(referred - kept)]
                self.entry.delete_all([*gone, _next(number), _previous(number)])
                self.entry.delete(_key(number, HEADER))
        head.leaving = []

    @property
    def _current(self) -> _Head:
        if self._head is None:
            raise RuntimeError("not opened")
        return self._head

    def _stored_head(self) -> _Head | None:
        """Return the stored `head`; None in a new entry.

        Raises:
            Fenced: an owner of a higher epoch wrote it.
        """
        try:
            head = _Head.from_bytes(self.entry.get(_HEAD))
        except KeyError:
            return None
        if head.epoch > self.epoch:
            msg = f"{self.entry.name} has epoch {head.epoch}; this owner's is {self.epoch}"
            raise Fenced(msg)
        return head

    def _put_head(self) -> None:
        self._stored_head()
        self.entry.put(_HEAD, self._current.to_bytes())

    def _header(self, sequence_id: int) -> Header:
        try:
            return Header.from_bytes(self.entry.get(_key(sequence_id, HEADER)))
        except KeyError as error:
            msg = f"{self.entry.name} has no checkpoint of id {sequence_id}"
            raise CheckpointUnreadable(msg, remedy=RESTORE) from error

    def _linked(self, link: bytes) -> int:
        """Return the id that a link names, if its checkpoint was saved completely; else 0."""
        try:
            number = int(self.entry.get(link))
        except KeyError:
            return 0
        return number if self.entry.exists(_key(number, HEADER)) else 0


def _key(sequence_id: int, chunk: int) -> bytes:
    return b"%d.%d" % (sequence_id, chunk)


def _next(sequence_id: int) -> bytes:
    return b"%d.next" % sequence_id


def _previous(sequence_id: int) -> bytes:
    return b"%d.previous" % sequence_id
