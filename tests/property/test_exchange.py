"""A region of stages that fail, restart and crash: every group is committed once, as it was computed.

Each computation of a group has another value, like that of a nondeterministic operator. So the test notices a stage
that has read a batch of one computation while another computation was committed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from channel_parts import MemoryFiles, rows_of, spool_of, stages_of, values_of
from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from drainmark.jobs.errors import Fenced
from drainmark.jobs.errors.environment import ChannelFull, OutOfOrder
from drainmark.jobs.graph.annotations import Consistent
from drainmark.jobs.protocol.stage_flow import InFlight
from drainmark.jobs.runtime.stages.channels.channel import AT_ONCE
from drainmark.jobs.runtime.stages.channels.channel_group import Exchange
from drainmark.jobs.runtime.stages.channels.rows import ChannelRows
from drainmark.jobs.runtime.stages.channels.stage_endpoints import StageEnds, Taken, connect


@dataclass
class Committed:
    """The data that survives a crash.

    Attributes:
        parts: by stage, (first id, last id, values read, value made), in order.
    """

    through: Mapping[str, int]
    in_flight: Mapping[str, tuple[InFlight, ...]] = field(default_factory=dict)
    parts: dict[str, list[Any]] = field(default_factory=dict)


class Regions(RuleBasedStateMachine):
    """A machine in which stages take turns, a controller commits, and everything fails now and then."""

    streams: Sequence[tuple[str, str]]
    """From which stage to which."""

    @initialize(
        kind=st.sampled_from(["memory", "durable"]),
        slow=st.sampled_from(["", "a", "b", "c"]),
        batches=st.integers(1, 3),
        bytes_most=st.sampled_from([100, 10**9]),
    )
    def begin_region(self, kind: str, slow: str, batches: int, bytes_most: int) -> None:
        stages, channels = stages_of(self.streams, batches=batches)
        self.stages = [
            replace(stage, checkpoint_interval=dt.timedelta(1)) if stage.name == slow else stage for stage in stages
        ]
        self.slow = slow
        parameters = Consistent(
            trigger="operator-driven", alignment="unaligned", channels=kind, max_inflight_bytes=bytes_most
        )
        self.exchange = Exchange(self.stages, channels, parameters)
        self.plans = {stage.name: stage for stage in self.stages}
        self.files = MemoryFiles()
        self.epoch = self.serial = 0
        self.next_id = 1
        self.groups: list[tuple[int, int]] = []
        self.rows: list[ChannelRows] = []
        self.committed = Committed(dict.fromkeys(self.plans, 0))
        self.open()

    def open(self) -> None:
        self.epoch += 1
        self.exchange.open(
            self.epoch, spool_of(self.files), through=self.committed.through, in_flight=self.committed.in_flight
        )
        done = min(self.committed.through[stage.name] for stage in self.stages if not stage.inputs)
        self.groups = [group for group in self.groups if group[1] <= done]
        self.ends = {name: connect(self.exchange, name, self.epoch) for name in self.plans}

    def made(self, stage: str, ids: tuple[int, int]) -> tuple[str, dict[str, ChannelRows]]:
        self.serial += 1
        value = f"{stage}#{self.serial}"
        streams = {channel.stream for channel in self.plans[stage].outputs}
        rows: dict[str, ChannelRows] = {stream: rows_of(*range(ids[0], ids[1] + 1), value=value) for stream in streams}
        self.rows += rows.values()
        return value, rows

    def hand_over(self, ends: StageEnds, ids: tuple[int, int], taken: Taken | None) -> bool:
        name = ends.plan.name
        value, rows = self.made(name, ids)
        read = {stream: values_of(batch.rows) for stream, batch in taken.batches.items()} if taken else {}
        where = {"taken": taken} if taken else {"ids": ids}
        try:
            ends.hand_over((*ids, read, value), rows, **where, wait=AT_ONCE)
        except ChannelFull:
            for each in rows.values():
                each.release()
            assert any(not self.exchange.channels[channel.name].is_empty for channel in self.plans[name].outputs)
            return False
        return True

    # --- stages ------------------------------------------------------------------------------------------------------

    @rule(length=st.integers(1, 3), data=st.data())
    def begin_group(self, length: int, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([stage.name for stage in self.stages if not stage.inputs]))
        ends = self.ends[name]
        if not ends.room(AT_ONCE):
            return
        waiting = [group for group in self.groups if group[0] > self.exchange.through[ends.plan.name]]
        if not waiting:
            waiting = [(self.next_id, self.next_id + length - 1)]
            self.next_id += length + 1  # ids may be skipped, too
            self.groups += waiting
        self.hand_over(ends, waiting[0], None)

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        self.work(data.draw(st.sampled_from([stage.name for stage in self.stages if stage.inputs])))

    def work(self, name: str) -> bool:
        """Let a stage take its next step; say whether it did anything."""
        ends, through = self.ends[name], self.exchange.through
        got = ends.take(AT_ONCE)
        if got is None:
            behind = [channel for channel in ends.plan.inputs if through[channel.stage_from] <= through[name]]
            assert behind, f"{name} waits, and everything is there"
            return False
        expected = next(group for group in self.groups if group[0] > through[name])
        assert (got.first_id, got.last_id) == expected, "V89: what went before the batch is done"
        if not self.hand_over(ends, expected, got):
            self.restart(name)
            return False
        return True

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        """A stage fails before it hands over; it takes the group again, and the others go on (K10, X2)."""
        name = data.draw(st.sampled_from([stage.name for stage in self.stages if stage.inputs]))
        old = self.ends[name]
        got = old.take(AT_ONCE)
        self.restart(name)
        if got is not None:
            value, rows = self.made(name, (got.first_id, got.last_id))
            for ends in (old, self.ends[name]):
                with pytest.raises((Fenced, OutOfOrder, ChannelFull)):
                    ends.hand_over(value, rows, taken=got, wait=AT_ONCE)
            for each in rows.values():
                each.release()
        with pytest.raises(Fenced):
            old.take(AT_ONCE)

    def restart(self, name: str) -> None:
        self.ends[name] = connect(self.exchange, name, self.epoch)

    # --- the controller ----------------------------------------------------------------------------------------------

    @rule(is_aligned=st.booleans(), is_due=st.booleans(), is_lost=st.sampled_from([False, False, True]))
    def checkpoint(self, is_aligned: bool, is_due: bool, is_lost: bool) -> None:
        exchange = self.exchange
        upto = exchange.complete if is_aligned else None
        due = None if is_due else [name for name in self.plans if name != self.slow]
        snapshot = exchange.snapshot(upto, due=due)
        in_flight = snapshot.in_flight()
        snapshot.release()
        self.check(snapshot.through, in_flight)
        if is_aligned and is_due and exchange.complete >= max(self.committed.through.values()):
            assert not in_flight
            assert set(snapshot.through.values()) == {exchange.complete}
        assert all(count == 1 for count in self.files.writes.values()), "E30: written once"
        if is_lost:
            return self.crash()
        for part in snapshot.parts:
            self.committed.parts.setdefault(part.stage, []).append(part.made)
        self.committed.through, self.committed.in_flight = snapshot.through, in_flight
        return None

    def check(self, through: Mapping[str, int], in_flight: Mapping[str, tuple[InFlight, ...]]) -> None:
        """Assert that the batches in flight are exactly those between the reader's id and the writer's id."""
        for stage in self.stages:
            for channel in stage.inputs:
                low, high = through[channel.stage_to], through[channel.stage_from]
                expected = [group for group in self.groups if low < group[0] and group[1] <= high]
                found = [(each.first_id, each.last_id) for each in in_flight.get(channel.name, ())]
                assert found == expected, channel.name

    @rule()
    def crash(self) -> None:
        """Everything in memory is lost, and all ends that were connected are fenced (V110, V113)."""
        old = dict(self.ends)
        self.open()
        for name, ends in old.items():
            with pytest.raises(Fenced):
                ends.room(AT_ONCE) if self.plans[name].outputs else ends.take(AT_ONCE)
            with pytest.raises(Fenced):
                connect(self.exchange, name, self.epoch - 1)

    @precondition(lambda self: hasattr(self, "exchange"))
    @invariant()
    def nobody_is_ahead_of_what_feeds_it(self) -> None:
        through = self.exchange.through
        for stage in self.stages:
            assert all(through[channel.stage_from] >= through[stage.name] for channel in stage.inputs)
        sizes = [channel.bytes for channel in self.exchange.channels.values()]
        assert self.exchange.budget.used == sum(sizes)

    def teardown(self) -> None:
        if not hasattr(self, "exchange"):
            return
        while True in [self.go_on(stage.name) for stage in self.stages]:
            pass
        assert not any(channel.batches for channel in self.exchange.channels.values())
        self.checkpoint(True, True, False)
        self.compare()
        self.exchange.close()
        assert [rows.holders for rows in self.rows] == [0] * len(self.rows), "rows are let go of"

    def go_on(self, name: str) -> bool:
        """Let a stage take its next step; say whether it did anything."""
        if self.plans[name].inputs:
            return self.work(name)
        waiting = [group for group in self.groups if group[0] > self.exchange.through[name]]
        return bool(waiting) and self.hand_over(self.ends[name], waiting[0], None)

    def compare(self) -> None:
        """Assert that every stage did every group once, in order, and read the committed values of earlier stages."""
        made: dict[tuple[str, int], str] = {}
        for stage in self.stages:
            parts = self.committed.parts.get(stage.name, [])
            assert [(first, last) for first, last, _, _ in parts] == self.groups, stage.name
            made |= {(stage.name, first): value for first, _, _, value in parts}
        for stage in self.stages:
            for first, _, read, _ in self.committed.parts.get(stage.name, []):
                assert read == {channel.stream: {made[channel.stage_from, first]} for channel in stage.inputs}, (
                    f"{stage.name} saw another computation than the one that was committed"
                )


class Chain(Regions):
    streams = (("s", "a"), ("a", "b"))


class Diamond(Regions):
    streams = (("s", "a"), ("s", "b"), ("a", "c"), ("b", "c"))


class ShortCut(Regions):
    streams = (("s", "a"), ("a", "b"), ("s", "b"))


class TwoStarts(Regions):
    streams = (("s", "c"), ("t", "c"), ("c", "d"))


STATEFUL = settings(max_examples=examples(20), stateful_step_count=50, deadline=None)

TestChain = Chain.TestCase
TestChain.settings = STATEFUL
TestChain.pytestmark = [pytest.mark.seed("V103", "V107", "V109", "V110")]
TestDiamond = Diamond.TestCase
TestDiamond.settings = STATEFUL
TestDiamond.pytestmark = [pytest.mark.seed("V87", "V89", "K10", "K23")]
TestShortCut = ShortCut.TestCase
TestShortCut.settings = STATEFUL
TestShortCut.pytestmark = [pytest.mark.seed("V112", "V113", "F28")]
TestTwoStarts = TwoStarts.TestCase
TestTwoStarts.settings = STATEFUL
TestTwoStarts.pytestmark = [pytest.mark.seed("F1", "F5", "K6")]
