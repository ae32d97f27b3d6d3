"""Both kinds of channel against a model: FIFO, nothing lost or doubled after any restart, bounded, fenced."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from channel_parts import KINDS, MemoryFiles, batch_of, ids_of, spool_of, values_of
from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from drainmark.jobs.errors import Fenced
from drainmark.jobs.errors.environment import ChannelFull, OutOfOrder
from drainmark.jobs.protocol.stage_flow import Half, InFlight
from drainmark.jobs.runtime.stages.channels.channel import (
    AT_ONCE,
    FOREVER,
    Budget,
    Channel,
    ChannelReader,
    ChannelWriter,
)
from drainmark.jobs.runtime.stages.channels.rows import Batch

BATCHES, ROWS_BYTES = 3, 400


@dataclass
class Known:
    """The model's facts about a batch."""

    first: int
    last: int
    value: str
    is_received: bool = False


@dataclass
class Saved:
    """A checkpoint: the batches in flight by the channel, and by the model."""

    batches: tuple[InFlight, ...]
    known: list[Known] = field(default_factory=list)


class Channels(RuleBasedStateMachine):
    """One writer and one reader, checkpoints, restarts of either side, and restores under a new epoch."""

    kind: type[Channel]

    @initialize(limit=st.sampled_from([None, 150, 10**6]), keeps=st.booleans())
    def begin(self, limit: int | None, keeps: bool) -> None:
        self.files = MemoryFiles()
        self.spool = spool_of(self.files)
        self.budget = Budget(limit)
        self.channel = self.kind("a->b", stream="a", batches=BATCHES, bytes=ROWS_BYTES, budget=self.budget, keeps=keeps)
        self.keeps = keeps
        self.epoch, self.next_id, self.serial = 1, 1, 0
        self.entries: list[Known] = []
        self.kept: list[Known] = []
        self.taken: list[Batch] = []
        self.saved: list[Saved] = []
        self.old: list[ChannelReader | ChannelWriter] = []
        self.channel.open(1, self.spool)
        self.connect()

    def connect(self) -> None:
        self.writer, self.reader = self.channel.writer(self.epoch), self.channel.reader(self.epoch)
        self.taken = []

    # --- the writer --------------------------------------------------------------------------------------------------

    @rule(length=st.integers(1, 4))
    def put(self, length: int) -> None:
        self.serial += 1
        value = f"v{self.serial}"
        batch = batch_of(self.next_id, self.next_id + length - 1, value=value)
        before, room = self.channel.batches, self.channel.has_room(batch.bytes)
        assert room or before  # one batch always fits
        try:
            self.writer.put(batch, AT_ONCE)
        except ChannelFull:
            assert before
            size = self.channel.bytes + batch.bytes
            assert before >= BATCHES or size > ROWS_BYTES or size > (self.budget.limit or size)
            batch.rows.release()
            assert batch.rows.holders == 0
            return
        assert before < BATCHES
        assert before == 0 or self.channel.bytes <= ROWS_BYTES
        batch.rows.release()
        self.entries.append(Known(self.next_id, self.next_id + length - 1, value))
        self.next_id += length
        assert batch.rows.holders == (1 if self.kind is Channel else 0)

    @rule(back=st.integers(1, 3))
    def put_twice(self, back: int) -> None:
        """A writer that restarts may put a batch again; the channel refuses it."""
        newest = max((known.last for known in (*self.kept, *self.entries)), default=0)
        if newest:
            with pytest.raises(OutOfOrder):
                self.writer.put(batch_of(max(1, newest - back), newest + 5), FOREVER)

    # --- the reader --------------------------------------------------------------------------------------------------

    @rule()
    def take(self) -> None:
        item = self.reader.take(AT_ONCE)
        if len(self.taken) == len(self.entries):
            assert item is None
            return
        known = self.entries[len(self.taken)]
        known.is_received = True
        assert item is not None
        self.compare(item, known)
        self.taken.append(item)

    def compare(self, batch: Batch, known: Known) -> None:
        assert (batch.first_id, batch.last_id) == (known.first, known.last)
        assert ids_of(batch.rows) == list(range(known.first, known.last + 1))
        assert values_of(batch.rows) == {known.value}

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.taken) - 1))
        if index:
            with pytest.raises(OutOfOrder):
                self.reader.done(self.taken[index])
            return
        self.reader.done(self.taken.pop(0))
        gone = self.entries.pop(0)
        self.kept += [gone] if self.keeps else []

    @rule()
    def done_with_what_was_not_taken(self) -> None:
        with pytest.raises(OutOfOrder):
            self.reader.done(batch_of(1, 1))
        waiting = self.reader.peek()
        if waiting is not None:
            with pytest.raises(OutOfOrder):
                self.reader.done(waiting)

    # --- restarts ----------------------------------------------------------------------------------------------------

    @rule()
    def reader_begins_again(self) -> None:
        self.old.append(self.reader)
        self.reader = self.channel.reader(self.epoch)
        self.taken = []

    @rule()
    def writer_begins_again(self) -> None:
        self.old.append(self.writer)
        self.writer = self.channel.writer(self.epoch)

    @rule(through=st.integers(0, 40))
    def forget(self, through: int) -> None:
        with self.channel.changed:
            self.channel.fifo.forget(through)
        self.kept = [known for known in self.kept if known.last > through]

    @rule(data=st.data())
    def checkpoint(self, data: st.DataObject) -> None:
        """A checkpoint overtakes the batches that the reader has not finished, up to the writer's id in it (F1)."""
        batches = [*self.kept, *self.entries]
        ends = [0, *(known.last for known in batches)]
        after = data.draw(st.sampled_from(ends))
        through = data.draw(st.sampled_from([None, *(end for end in ends if end >= after)]))
        overtaken = self.channel.overtaken(after=after, through=through)
        expected = [known for known in batches if known.last > after and (through is None or known.first <= through)]
        found = tuple(each.stage(self.spool) for each in overtaken)
        assert tuple(each.stage(self.spool) for each in overtaken) == found  # each file is written once (E30)
        for each in overtaken:
            each.release()
        assert [(each.first_id, each.last_id) for each in found] == [(known.first, known.last) for known in expected]
        halves = [Half.INPUT if known.is_received or known in self.kept else Half.OUTPUT for known in expected]
        assert [each.half for each in found] == halves
        assert all(count == 1 for count in self.files.writes.values())
        self.saved.append(Saved(found, [replace(known) for known in expected]))

    @precondition(lambda self: self.saved)
    @rule(data=st.data(), same_epoch=st.booleans())
    def restore(self, data: st.DataObject, same_epoch: bool) -> None:
        """A crash or a reset: the channel is refilled from a checkpoint, and all connected ends are fenced (F28)."""
        saved = data.draw(st.sampled_from(self.saved))
        cut = data.draw(st.integers(0, max([0, *(known.last for known in saved.known)])))
        known = [replace(each) for each in saved.known]
        batches: list[InFlight] = list(saved.batches)
        if cut:  # a rewind, which may split a batch
            known = [replace(each, last=min(each.last, cut)) for each in known if each.first <= cut]
            batches = [kept for each in saved.batches if (kept := each.up_to(cut)) is not None]
        self.old += [self.reader, self.writer]
        self.epoch += not same_epoch
        self.channel.open(self.epoch, self.spool, batches)
        with pytest.raises(Fenced):
            self.channel.open(self.epoch - 1, self.spool)
        with pytest.raises(Fenced):
            self.channel.writer(self.epoch - 1)
        for each, batch in zip(known, batches, strict=True):
            each.is_received = batch.half is Half.INPUT
        self.entries, self.kept = known, []
        self.connect()

    @invariant()
    def the_old_are_fenced(self) -> None:
        for end in getattr(self, "old", [])[-3:]:
            calls: list[Any] = (
                [lambda end=end: end.take(AT_ONCE), end.peek, lambda end=end: end.done(batch_of(1, 1))]
                if isinstance(end, ChannelReader)
                else [lambda end=end: end.put(batch_of(999, 999), AT_ONCE)]
            )
            for call in calls:
                with pytest.raises(Fenced):
                    call()

    @invariant()
    def it_is_as_full_as_the_model(self) -> None:
        if not hasattr(self, "channel"):
            return
        assert self.channel.batches == len(self.entries)
        assert self.channel.is_empty == (not self.entries)
        assert self.budget.used == self.channel.bytes
        assert (self.channel.bytes > 0) == bool(self.entries)
        assert (self.channel.kept_bytes > 0) == bool(self.kept)

    def teardown(self) -> None:
        if not hasattr(self, "channel"):
            return
        self.reader_begins_again()
        while len(self.taken) < len(self.entries):
            self.take()
        assert self.reader.take(AT_ONCE) is None
        self.channel.close()
        assert (self.channel.batches, self.channel.bytes, self.budget.used, self.channel.kept_bytes) == (0, 0, 0, 0)
        with pytest.raises(Fenced):
            self.reader.take(AT_ONCE)
        with pytest.raises(Fenced):
            self.channel.reader(self.epoch)


class MemoryChannels(Channels):
    kind = KINDS["memory"]


class DurableChannels(Channels):
    kind = KINDS["durable"]


STATEFUL = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


TestMemoryChannels = MemoryChannels.TestCase
TestMemoryChannels.settings = STATEFUL
TestMemoryChannels.pytestmark = [pytest.mark.seed("V107", "V110", "V113", "F7", "F29")]
TestDurableChannels = DurableChannels.TestCase
TestDurableChannels.settings = STATEFUL
TestDurableChannels.pytestmark = [pytest.mark.seed("V111", "F1", "F27", "F28", "E30")]
