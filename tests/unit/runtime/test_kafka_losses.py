"""Records that a `KafkaSource` treats as lost, on a model of a topic; `tests/kafka` uses a real broker (FM-K1)."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import drainmark as dm
from drainmark.jobs.errors import InputMissing, UsageError
from drainmark.jobs.operators.sources.kafka_topic import OffsetRange, Offsets, Stood, TopicLook
from drainmark.jobs.operators.sources.slices import Position, Slice, SliceLimit
from drainmark.jobs.protocol.records.triggers import slices_of
from drainmark.orchestration.discovery.region_scan import Tick, scan_region
from drainmark.orchestration.verbs import orders
from drainmark.orchestration.workplace.declaration import remember
from drainmark.orchestration.workplace.workplace import Workplace, open_application
from drainmark.resources.inputs.source_access import RegionAccess
from drainmark.resources.settings import Settings

ONE = SliceLimit(source="s")
_IDENTITIES = itertools.count(1)


@dataclass
class Log:
    """A partition: the leader epoch of each record, and the first offset that retention has left."""

    epochs: list[int] = field(default_factory=list)
    leader: int = 0
    first: int = 0

    def append(self, records: int) -> None:
        self.epochs += [self.leader] * records

    def elect(self, keeping: int | None = None) -> None:
        """Let another leader take over that has only the first `keeping` records; None: all of them."""
        del self.epochs[len(self.epochs) if keeping is None else keeping :]
        self.leader += 1


class Model:
    """A model of `jobs.operators.sources.kafka_topic.Topic`, and of a region's reach with this one topic."""

    region = "app/s"

    def __init__(self, *records: int) -> None:
        self.logs = [Log() for _ in records]
        self.identity = f"topic {next(_IDENTITIES)}"
        self.asked: list[tuple[int, int]] = []
        for log, number in zip(self.logs, records, strict=True):
            log.append(number)

    def kafka(self, topic: str, *, servers: str, cluster: str | None) -> Model:
        return self

    def look(self) -> TopicLook:
        logs = dict(enumerate(self.logs))
        return TopicLook(
            identity=self.identity, first={each: log.first for each, log in logs.items()},
            end={each: len(log.epochs) for each, log in logs.items()},
            epochs={each: log.leader for each, log in logs.items()},
        )  # fmt: skip

    def kept_look(self, seconds: float) -> TopicLook | None:
        return None

    def is_compacted(self) -> bool:
        return False

    def others_from(self, stood: Sequence[Stood]) -> Offsets:
        """Return the ends of epochs, as brokers report them (KIP-320)."""
        assert all(self.logs[each.partition].leader == each.now > each.epoch for each in stood)
        self.asked += [(each.partition, each.offset) for each in stood]
        ends = {each.partition: sum(e <= each.epoch for e in self.logs[each.partition].epochs) for each in stood}
        return {each.partition: min(each.offset, ends[each.partition]) for each in stood}

    def at_time(self, moment: dt.datetime) -> Offsets:
        raise NotImplementedError

    def committed(self, group: str) -> Offsets:
        raise NotImplementedError

    def commit(self, group: str, offsets: Offsets) -> None:
        raise NotImplementedError

    def read(self, identity: str, ranges: Sequence[OffsetRange], columns: Sequence[str]) -> Iterator[Any]:
        raise NotImplementedError


SOURCE: Any = dm.KafkaSource("t", "h:1", max_messages=3)


def cut(model: Any, after: Position | None = None) -> list[Slice]:
    found: list[Slice] = []
    while (piece := SOURCE.next_slice(after, model, ONE)) is not None:
        found.append(Slice.from_json(piece.to_json()))
        after = found[-1].end
    return found


def lost(model: Any, after: Position | None, waiting: Sequence[Slice] = ()) -> Slice:
    """Return the slice over the lost records; `waiting` are the slices that are cut and not committed."""
    joined = None
    if waiting:
        joined = Slice(start=waiting[0].start, end=waiting[-1].end, size_bytes=0, facts=waiting[0].facts)
    piece = SOURCE.past_loss(after, model, "s", waiting=joined)
    assert piece is not None
    return piece


def refused(model: Any, after: Position | None) -> list[tuple[int, int, int]]:
    with pytest.raises(InputMissing) as caught:
        SOURCE.next_slice(after, model, ONE)
    (command,) = caught.value.commands
    assert command == "drainmark resume app/s --accept-loss --reason '…'"
    assert command in (caught.value.remedy or "")
    return list(caught.value.facts["lost"])


def offsets(piece: Slice) -> dict[str, int]:
    found: dict[str, int] = piece.end["offsets"]
    return found


def test_records_that_were_written_anew_under_offsets_that_were_read_are_noticed() -> None:
    """After an unclean election the log has grown beyond the region's position, so offsets do not show the loss."""
    model = Model(6, 6)
    (_, last) = cut(model)
    model.logs[0].elect(keeping=4)
    model.logs[0].append(5)
    assert refused(model, last.end) == [(0, 4, 6)]
    loss = lost(model, last.end)
    assert (loss.facts["lost"], offsets(loss)) == ([[0, 4, 6]], {"0": 4, "1": 6})
    assert [offsets(piece) for piece in cut(model, loss.end)] == [{"0": 7, "1": 6}, {"0": 9, "1": 6}]


def test_a_look_from_before_a_slice_of_another_process_is_not_used() -> None:
    """With a backlog a process uses its last look for a second; records that came since are not lost."""
    model: Any = Model(9, 1)
    earlier = model.look()
    model.logs[1].append(2)
    other = SOURCE.next_slice(None, model, ONE)
    model.kept_look = lambda seconds: earlier
    assert offsets(other) == {"0": 3, "1": 3}
    assert offsets(SOURCE.next_slice(other.end, model, ONE)) == {"0": 6, "1": 3}
    SOURCE.check(other, model, "s")


def test_a_clean_election_costs_nothing_and_is_asked_about_while_the_region_stands_there() -> None:
    model = Model(6)
    (_, last) = cut(model)
    assert model.asked == [], "nobody is asked while the leader stays"
    model.logs[0].elect()
    model.logs[0].append(2)
    (more,) = cut(model, last.end)
    assert (offsets(more), model.asked) == ({"0": 8}, [(0, 6)])
    assert SOURCE.past_loss(more.end, model, "s", waiting=None) is None


def test_an_end_that_was_cut_off_and_written_to_a_little_is_lost_from_the_cut_on() -> None:
    """The loss does not begin at the new end: the region has never read the rewritten records."""
    model = Model(6)
    (_, last) = cut(model)
    model.logs[0].elect(keeping=2)
    model.logs[0].append(2)
    assert refused(model, last.end) == [(0, 2, 6)]
    loss = lost(model, last.end)
    assert [offsets(piece) for piece in cut(model, loss.end)] == [{"0": 4}]
    assert offsets(loss) == {"0": 2}


def test_what_was_cut_and_is_lost_behind_readable_records_is_passed_with_all_that_waits() -> None:
    """The first waiting slices can still be read and begin before the loss; the last one cannot be read."""
    model = Model(9)
    pieces = cut(model)
    model.logs[0].elect(keeping=7)
    model.logs[0].append(4)
    SOURCE.check(pieces[1], model, "s")
    with pytest.raises(InputMissing):
        SOURCE.check(pieces[2], model, "s")
    loss = lost(model, None, pieces)
    assert (loss.facts["lost"], offsets(loss)) == ([[0, 7, 9]], {"0": 0})
    assert [offsets(piece) for piece in cut(model, loss.end)] == [{"0": 3}, {"0": 6}, {"0": 9}, {"0": 11}]
    behind = lost(model, pieces[0].end, pieces[1:])
    assert (behind.facts["lost"], offsets(behind)) == ([[0, 7, 9]], {"0": 3})


def test_what_retention_took_and_what_was_written_anew_are_both_named() -> None:
    model = Model(9)
    pieces = cut(model)
    model.logs[0].elect(keeping=7)
    model.logs[0].append(4)
    model.logs[0].first = 5
    loss = lost(model, pieces[0].end, pieces[1:])
    assert (loss.facts["lost"], offsets(loss)) == ([[0, 3, 5], [0, 7, 9]], {"0": 5})
    model.logs[0].first = 8
    loss = lost(model, pieces[0].end, pieces[1:])
    assert (loss.facts["lost"], offsets(loss)) == ([[0, 3, 9]], {"0": 8})


def test_a_topic_that_was_made_anew_under_known_offsets_is_another_one() -> None:
    model = Model(6)
    pieces = cut(model)
    model.identity, model.logs = "anew", [Log([0] * 20)]
    for ask in (
        lambda: SOURCE.next_slice(pieces[-1].end, model, ONE), lambda: SOURCE.check(pieces[0], model, "s"),
    ):  # fmt: skip
        with pytest.raises(InputMissing, match="made anew"):
            ask()
    loss = lost(model, pieces[0].end, pieces[1:])
    assert (loss.facts["lost"], offsets(loss)) == ([[0, 3, None]], {"0": 0})
    assert SOURCE.label(loss, "s", model) == "kafka:t#0:3..(lost)"


def test_the_epochs_of_partitions_that_are_not_read_any_more_are_kept() -> None:
    """So a loss in such a partition is noticed when it is read again."""
    model = Model(3, 3)
    (first,) = cut(model)
    model.logs[1].elect(keeping=1)
    model.logs[1].append(4)
    model.logs[0].append(2)
    alone: Any = dm.KafkaSource("t", "h:1", max_messages=3, partitions=[0])
    second = alone.next_slice(first.end, model, ONE)
    assert offsets(second) == {"0": 5, "1": 3}
    assert refused(model, second.end) == [(1, 1, 3)]


def test_brokers_that_tell_no_epochs_are_asked_nothing() -> None:
    model = Model(6)
    (_, last) = cut(model)
    blind = {**last.end, "epochs": {}}
    model.logs[0].elect(keeping=4)
    assert refused(model, blind) == [(0, 4, 6)]
    assert model.asked == []


# --- together with a folder ---------------------------------------------------------------------------------------

BESIDE_A_FOLDER = """
import drainmark as dm

ROW = "n bigint"


@dm.consistent(trigger="periodic", period=0)
@dm.source(dm.KafkaSource("t", "h:1", format="json", schema=ROW))
def orders(scanned):
    return scanned


@dm.consistent(trigger="periodic", period=0)
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema=ROW, settle=0))
def prices(scanned):
    return scanned


@dm.functor
def both(orders, prices):
    return dm.select(orders, "n").unionByName(dm.select(prices, "n"))


dm.sink(both, dm.DeltaAppend("kept"))
"""


@pytest.mark.seed("FM-K1", "V40")
def test_the_files_of_a_slice_that_waits_are_cut_anew_with_what_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scan that cut the slice took the files from their queue; accepting the loss drops this slice."""
    model = Model(3)
    monkeypatch.setattr(RegionAccess, "kafka", lambda *_, **__: model)
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (tmp_path / "beside.py").write_text(BESIDE_A_FOLDER)
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    opened = open_application(str(tmp_path / "beside.py"))
    region = opened.region("beside/orders")
    remember(place, opened, region)

    def cut_now(tick: Tick = Tick.NOW) -> dict[str, Any]:
        (trigger,) = scan_region(place, region, tick=tick).new
        return dict(slices_of(trigger.identity))

    (inbox / "1.csv").write_text("1\n")
    first = cut_now()
    with place.registry.database.writing() as connection:  # as after a run
        connection.exec_driver_sql("UPDATE drainmark_trigger SET status = 'committed' WHERE region = 'beside/orders'")
    (inbox / "2.csv").write_text("2\n")
    model.logs[0].append(3)
    waiting = cut_now()
    assert waiting["prices"]["files"] == 1
    model.logs[0].first = 4
    seen = orders.resume(place, region.name, "they are gone", accept_loss=True)
    assert "{'orders': [[0, 3, 4]]}" in seen.plan[-1]
    model.logs[0].first = 5
    later = orders.resume(place, region.name, "they are gone", accept_loss=True)
    assert later.bound != seen.bound, "more is lost, so it is another plan"
    with pytest.raises(UsageError, match="by now beside/orders has lost"):
        seen.act()
    assert place.registry.pending_count(region.name) == 1, "nothing was changed"
    assert later.act().facts["lost"] == {"orders": [[0, 3, 5]]}
    assert place.registry.pending_count(region.name) == 1, "the loss alone"
    anew = cut_now(Tick.QUEUE)
    assert (anew["prices"]["from"], anew["prices"]["files"]) == (first["prices"]["to"], 1)
    assert anew["prices"]["list"] == waiting["prices"]["list"], "2.csv, and not 1.csv again"
    place.registry.close()
