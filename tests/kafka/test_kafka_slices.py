"""`KafkaSource` on a real broker, without Spark: the offsets of slices, and the records in them (C23–C25, E54)."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from broker import Broker

import drainmark as dm
from drainmark.jobs.errors import InputMissing, StoreUnavailable, UsageError
from drainmark.jobs.operators.sources import kafka_source
from drainmark.jobs.operators.sources.slices import Position, Slice, SliceLimit
from drainmark.jobs.runtime.input.slices import slice_of
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.inputs.source_access import RegionAccess
from drainmark.resources.kafka import consumer
from drainmark.resources.kafka import topic as kafka
from drainmark.resources.settings import Settings

ONE = SliceLimit(source="s")
TICK = SliceLimit(source="s", is_periodic=True)

pytestmark = pytest.mark.kafka


@pytest.fixture
def access(tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[RegionAccess]:
    monkeypatch.setattr(kafka_source, "_KEPT_SECONDS", -1.0)  # changes of a test are seen at once
    clusters = {"main": {"bootstrap_servers": broker.servers}}
    settings = Settings(
        home=tmp_path / "home", project_root=tmp_path, kafka=clusters, registry_url=f"sqlite:///{tmp_path}/registry.db"
    )
    place = Workplace(settings)
    yield place.access("app/s")
    place.registry.close()


def source_of(topic: str, **more: Any) -> dm.KafkaSource:
    return dm.KafkaSource(topic, cluster="main", **more)


def cut(
    source: dm.KafkaSource, access: RegionAccess, after: Position | None = None, how: SliceLimit = ONE
) -> list[Slice]:
    """Cut all slices, and return them as the registry gives them back.

    A broker that has just started may not know its newest epoch yet; a run waits for that, too.
    """
    found: list[Slice] = []
    while (piece := next_slice(source, after, access, how)) is not None:
        found.append(Slice.from_json(json.loads(json.dumps(piece.to_json()))))
        after = found[-1].end
    return found


def next_slice(source: dm.KafkaSource, after: Position | None, access: RegionAccess, how: SliceLimit) -> Slice | None:
    """Cut one slice; ask a broker that does not answer yet again for 20 seconds."""
    end = time.monotonic() + 20
    while True:
        try:
            return source.next_slice(after, access, how)
        except StoreUnavailable:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


def rows(source: dm.KafkaSource, access: RegionAccess, piece: Slice) -> list[dict[str, Any]]:
    return [row for batch in source.read(piece, access) for row in batch.to_pylist()]


def values(source: dm.KafkaSource, access: RegionAccess, pieces: list[Slice]) -> list[list[Any]]:
    return [[row["value"] for row in rows(source, access, piece)] for piece in pieces]


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [str(number).encode() for number in range(first, first + count)]


# --- ranges -------------------------------------------------------------------------------------------------------


def test_a_slice_is_a_range_over_all_partitions_and_at_most_so_many_offsets_of_each(
    access: RegionAccess, broker: Broker
) -> None:
    topic = broker.new_topic(3)
    broker.send_all(topic, {0: numbered(5), 1: numbered(1, 100)})
    source = source_of(topic, max_messages=2)
    pieces = cut(source, access)
    assert [piece.end["offsets"] for piece in pieces] == [
        {"0": 2, "1": 1, "2": 0}, {"0": 4, "1": 1, "2": 0}, {"0": 5, "1": 1, "2": 0}
    ]  # fmt: skip
    assert values(source, access, pieces) == [[b"0", b"1", b"100"], [b"2", b"3"], [b"4"]]
    assert [row["_position"] for row in rows(source, access, pieces[0])] == [
        {"block": 0, "row": 0}, {"block": 0, "row": 1}, {"block": 1, "row": 0}
    ]  # fmt: skip
    assert len({source.label(piece, "s", access) for piece in pieces}) == 3
    assert [piece.size_bytes for piece in pieces] == [3 * 1024, 2 * 1024, 1024]


def test_a_slice_is_read_again_as_it_was_whatever_came_after_it(access: RegionAccess, broker: Broker) -> None:
    topic = broker.new_topic(2)
    broker.send_all(topic, {0: numbered(300), 1: numbered(300, 1000)})
    source = source_of(topic, metadata=["key", "partition", "offset", "timestamp", "headers"])
    (piece,) = cut(source, access)
    before = rows(source, access, piece)
    broker.send_all(topic, {0: numbered(50, 300), 1: numbered(50, 2000)})
    assert rows(source, access, piece) == before
    assert len(before) == 600
    assert source.next_slice(piece.end, access, ONE) is not None
    source.check(piece, access, "s")


def test_a_record_comes_with_its_key_headers_and_time(access: RegionAccess, broker: Broker) -> None:
    topic = broker.new_topic()
    broker.send(topic, [b"v", None], key=b"\xff", headers=[("a", b"1"), ("a", None)], timestamp=86_400_000)
    source = source_of(topic, metadata=["key", "partition", "offset", "timestamp", "headers"])
    (piece,) = cut(source, access)
    found = rows(source, access, piece)
    assert found[0] == {
        "_position": {"block": 0, "row": 0}, "value": b"v", "key": b"\xff", "partition": 0, "offset": 0,
        "timestamp": dt.datetime(1970, 1, 2, tzinfo=dt.UTC),
        "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
    }  # fmt: skip
    assert found[1]["value"] is None


def test_a_time_that_no_timestamp_holds_is_null_and_stops_nothing(access: RegionAccess, broker: Broker) -> None:
    """A producer gave nanoseconds; newer brokers refuse such a time by default."""
    topic = broker.new_topic(message_timestamp_after_max_ms=str(2**63 - 1))
    broker.send(topic, [b"v"], timestamp=1_700_000_000_000_000_000)
    source = source_of(topic)
    (piece,) = cut(source, access)
    assert [(row["value"], row["timestamp"]) for row in rows(source, access, piece)] == [(b"v", None)]


def test_a_periodic_slice_ends_where_its_bytes_do_and_each_partition_gets_its_share(
    access: RegionAccess, broker: Broker
) -> None:
    topic = broker.new_topic(2)
    broker.send_all(topic, {0: numbered(10), 1: numbered(10)})
    source = source_of(topic, message_bytes=10, max_messages=1)
    (all_of_it,) = cut(source, access, how=TICK)
    assert all_of_it.end["offsets"] == {"0": 10, "1": 10}
    first = source.next_slice(None, access, SliceLimit(source="s", is_periodic=True, max_bytes=80))
    assert first is not None
    assert first.end["offsets"] == {"0": 4, "1": 4}


def test_some_partitions_may_be_read_alone(access: RegionAccess, broker: Broker) -> None:
    topic = broker.new_topic(2)
    broker.send_all(topic, {0: numbered(2), 1: numbered(2, 10)})
    source = source_of(topic, partitions=[1])
    pieces = cut(source, access)
    assert values(source, access, pieces) == [[b"10", b"11"]]
    others = cut(source_of(topic, partitions=[0]), access, pieces[0].end)
    assert values(source, access, others) == [[b"0", b"1"]]
    assert cut(source, access, others[0].end) == []
    with pytest.raises(UsageError, match="partition 7"):
        source_of(topic, partitions=[7]).next_slice(None, access, ONE)


def test_partitions_that_are_added_begin_at_0_in_a_later_slice(access: RegionAccess, broker: Broker) -> None:
    topic = broker.new_topic(1)
    broker.send(topic, numbered(2))
    source = source_of(topic)
    (first,) = cut(source, access)
    broker.add_partitions(topic, 3)
    assert source.next_slice(first.end, access, ONE) is None
    broker.send(topic, numbered(1, 50), 2)
    (second,) = cut(source, access, first.end)
    assert values(source, access, [first, second]) == [[b"0", b"1"], [b"50"]]


def test_partitions_that_a_broker_does_not_know_yet_are_waited_for(
    access: RegionAccess, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker tells new partitions before they have a leader; the topic is not gone."""
    topic = broker.new_topic(1)
    source = source_of(topic)
    described = kafka.KafkaTopic._described

    def and_one_more(self: Any) -> Any:
        found = described(self)
        partitions = [*found.partitions, SimpleNamespace(id=1)]
        return SimpleNamespace(topic_id=found.topic_id, partitions=partitions)

    monkeypatch.setattr(kafka.KafkaTopic, "_described", and_one_more)
    with pytest.raises(StoreUnavailable):
        source.next_slice({"topic": "", "offsets": {"0": 0}, "epochs": {}}, access, ONE)


# --- the beginning of the first run -------------------------------------------------------------------------------


@pytest.mark.seed("E54")
def test_latest_is_where_the_first_scan_found_the_end(access: RegionAccess, broker: Broker) -> None:
    topic = broker.new_topic(1)
    broker.send(topic, numbered(3))
    source = source_of(topic, start_from="latest")
    (anchor,) = cut(source, access)
    assert values(source, access, [anchor]) == [[]]
    assert slice_of({"slices": {"s": anchor.to_json()}}, "s") == anchor
    broker.send(topic, numbered(2, 3))
    assert values(source, access, cut(source, access, anchor.end)) == [[b"3", b"4"]]


def test_a_time_is_the_first_record_that_is_not_older(access: RegionAccess, broker: Broker) -> None:
    topic = broker.new_topic(2)
    for second in range(4):
        broker.send(topic, numbered(1, second), timestamp=1_700_000_000_000 + second * 1000)
    since = dt.datetime.fromtimestamp(1_700_000_002, dt.UTC)
    source = source_of(topic, start_from=since.isoformat())
    assert values(source, access, cut(source, access)) == [[b"2", b"3"]]
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    assert cut(source_of(topic, start_from=later.isoformat()), access) == []


def test_the_group_says_only_where_the_very_first_run_begins(access: RegionAccess, broker: Broker) -> None:
    """C25: later runs never use the offsets of the group."""
    topic = broker.new_topic(2)
    broker.send_all(topic, {0: numbered(4), 1: numbered(2, 10)})
    access.kafka(topic, servers="", cluster="main").commit("others", {0: 3})
    source = source_of(topic, group_id="others", start_from="group")
    (first,) = cut(source, access)
    assert values(source, access, [first]) == [[b"3", b"10", b"11"]]
    source.on_checkpointed(iter([first]), access, "s", beyond_horizon=False)
    assert broker.committed("others", topic) == {0: 4, 1: 2}
    access.kafka(topic, servers="", cluster="main").commit("others", {0: 0})
    assert cut(source, access, first.end) == []


# --- transactions -------------------------------------------------------------------------------------------------


def test_only_committed_records_are_read_and_counted(access: RegionAccess, broker: Broker) -> None:
    topic = broker.new_topic(1)
    broker.transact(topic, numbered(2))
    broker.transact(topic, numbered(3, 100), commit=False)
    broker.transact(topic, numbered(1, 2))
    source = source_of(topic, max_messages=2)
    pieces = cut(source, access)
    assert [value for found in values(source, access, pieces) for value in found] == [b"0", b"1", b"2"]
    assert pieces[-1].end["offsets"] == {"0": 9}  # including the marks of three transactions
    assert [source.read(piece, access) is not None for piece in pieces]


def test_a_range_of_marks_and_aborted_records_alone_is_read_to_its_end(access: RegionAccess, broker: Broker) -> None:
    topic = broker.new_topic(1)
    broker.send(topic, numbered(1))
    source = source_of(topic)
    (first,) = cut(source, access)
    broker.transact(topic, numbered(5), commit=False)
    (second,) = cut(source, access, first.end)
    assert values(source, access, [second]) == [[]]
    broker.send(topic, numbered(1, 9))
    assert values(source, access, [second]) == [[]]


def test_an_open_transaction_holds_back_what_is_behind_it_and_nothing_before_it(
    access: RegionAccess, broker: Broker
) -> None:
    topic = broker.new_topic(1)
    broker.send(topic, numbered(2))
    producer = broker.open_transaction(topic, numbered(2, 2))
    broker.send(topic, numbered(1, 4))
    source = source_of(topic)
    (first,) = cut(source, access)
    assert values(source, access, [first]) == [[b"0", b"1"]]
    producer.commit_transaction(30)
    (second,) = cut(source, access, first.end)
    assert values(source, access, [first, second]) == [[b"0", b"1"], [b"2", b"3", b"4"]]


# --- losses -------------------------------------------------------------------------------------------------------


def test_offsets_that_retention_took_are_named_before_and_while_they_are_read(
    access: RegionAccess, broker: Broker
) -> None:
    """The error names the partition and the lost offsets (FM-K1)."""
    topic = broker.new_topic(2)
    broker.send_all(topic, {0: numbered(10), 1: numbered(10)})
    source = source_of(topic, max_messages=4)
    pieces = cut(source, access)
    broker.drop_before(topic, 1, 6)
    for piece in pieces[:2]:
        with pytest.raises(InputMissing, match="partition 1"):
            source.check(piece, access, "s")
        with pytest.raises(InputMissing, match="partition 1"):
            rows(source, access, piece)
    with pytest.raises(InputMissing) as caught:
        source.next_slice(pieces[0].end, access, TICK)
    assert caught.value.facts["lost"] == [(1, 4, 6)]
    assert "--accept-loss" in (caught.value.remedy or "")
    loss = source.past_loss(pieces[0].end, access, "s", waiting=None)
    assert loss is not None
    assert loss.facts["lost"] == [[1, 4, 6]]
    assert loss.end["offsets"] == {"0": 4, "1": 6}
    assert rows(source, access, loss) == []
    source.check(loss, access, "s")
    assert values(source, access, cut(source, access, loss.end, TICK)) == [numbered(6, 4) + numbered(4, 6)]


def test_a_topic_that_was_made_anew_is_another_one(access: RegionAccess, broker: Broker) -> None:
    topic = broker.new_topic(1)
    broker.send(topic, numbered(3))
    source = source_of(topic)
    (piece,) = cut(source, access)
    broker.delete_topic(topic)
    with pytest.raises(InputMissing, match="offset 3"):
        source.next_slice(piece.end, access, TICK)
    with pytest.raises(UsageError):
        source.past_loss(piece.end, access, "s", waiting=None)
    broker.topic(topic, 1)
    broker.send(topic, numbered(5, 10))
    for ask in (
        lambda: source.next_slice(piece.end, access, TICK),
        lambda: rows(source, access, piece),
        lambda: source.check(piece, access, "s"),
    ):
        with pytest.raises(InputMissing, match="made anew"):
            ask()
    loss = source.past_loss(piece.end, access, "s", waiting=None)
    assert loss is not None
    assert loss.facts["lost"] == [[0, 3, None]]
    assert values(source, access, cut(source, access, loss.end)) == [numbered(5, 10)]


def test_records_written_anew_under_offsets_that_were_found_are_not_taken_for_them(
    access: RegionAccess, broker: Broker
) -> None:
    """An unclean election cuts off the end of a partition. Here its disk loses it, which needs no second broker."""
    topic = broker.new_topic(1)
    broker.send(topic, numbered(5))
    source = source_of(topic)
    (piece,) = cut(source, access)
    broker.stop()
    for file in (broker.folder / "data" / f"{topic}-0").iterdir():
        if file.name != "partition.metadata":
            file.unlink()
    (broker.folder / "data" / ".kafka_cleanshutdown").unlink(missing_ok=True)
    broker.start()
    with pytest.raises(InputMissing, match="offsets 0 to 4"):
        source.next_slice(piece.end, access, TICK)
    with pytest.raises(InputMissing, match="ends at offset 0"):
        source.check(piece, access, "s")
    broker.send(topic, numbered(9, 100))
    with pytest.raises(InputMissing, match="written anew"):
        rows(source, access, piece)
    with pytest.raises(InputMissing) as caught:  # its end is above the source's position: only the epoch tells
        source.next_slice(piece.end, access, TICK)
    assert caught.value.facts["lost"] == [(0, 0, 5)]
    with pytest.raises(InputMissing, match="written anew from offset 0"):
        source.check(piece, access, "s")
    loss = source.past_loss(piece.end, access, "s", waiting=None)
    assert loss is not None
    assert values(source, access, cut(source, access, loss.end, TICK)) == [numbered(9, 100)]


@pytest.mark.parametrize("anew", ["records", "aborted ones first"])
def test_an_end_that_a_disk_lost_is_lost_from_there_on(
    access: RegionAccess, broker: Broker, monkeypatch: pytest.MonkeyPatch, anew: str
) -> None:
    """FM-K1: records before the lost end are unchanged; a new leader without a loss costs one question.

    Records of an aborted transaction are never seen, but they still take the place of the lost records.
    """
    asked: list[dict[int, int]] = []
    ask = kafka.others_from

    def counted(library: Any, conf: Any, name: str, stood: Any) -> dict[int, int]:
        asked.append({each.partition: each.offset for each in stood})
        return ask(library, conf, name, stood)

    monkeypatch.setattr(kafka, "others_from", counted)
    topic = broker.new_topic(3, segment_bytes="1048576")
    broker.send(topic, numbered(2), 2)
    broker.send(topic, [b"x" * 300_000] * 6)
    source = source_of(topic, max_messages=3)
    pieces = cut(source, access)
    broker.stop()
    broker.start()
    broker.send(topic, numbered(1))
    (more,) = cut(source, access, pieces[-1].end)
    assert source.next_slice(more.end, access, ONE) is None
    assert (asked, more.end["offsets"]) == ([{0: 6, 2: 2}], {"0": 7, "1": 0, "2": 2})
    source.check(pieces[-1], access, "s")
    broker.stop()
    newest = max((broker.folder / "data" / f"{topic}-0").glob("*.log"))
    cut_at = int(newest.stem)
    assert 0 < cut_at < 6
    for file in newest.parent.glob(f"{newest.stem}.*"):
        file.unlink()
    (broker.folder / "data" / ".kafka_cleanshutdown").unlink(missing_ok=True)
    broker.start()
    if anew == "aborted ones first":
        broker.transact(topic, numbered(8), commit=False)
    broker.send(topic, numbered(9, 100))
    with pytest.raises(InputMissing) as caught:
        cut(source, access, more.end, TICK)
    assert caught.value.facts["lost"] == [(0, cut_at, 7)]
    loss = source.past_loss(more.end, access, "s", waiting=None)
    assert loss is not None
    assert loss.end["offsets"] == {"0": cut_at, "1": 0, "2": 2}
    assert values(source, access, cut(source, access, loss.end, TICK)) == [numbered(9, 100)]


# --- brokers and settings -----------------------------------------------------------------------------------------


def test_brokers_that_do_not_answer_are_waited_for(
    access: RegionAccess, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "REQUEST_SECONDS", 1.0)
    monkeypatch.setattr(consumer, "STALL_SECONDS", 1.0)
    topic = broker.new_topic(1)
    broker.send(topic, numbered(2))
    source = source_of(topic)
    (piece,) = cut(source, access)
    broker.stop()
    try:
        for ask in (lambda: source.next_slice(None, access, TICK), lambda: rows(source, access, piece)):
            with pytest.raises(StoreUnavailable):
                ask()
    finally:
        broker.start()
    assert values(source, access, [piece]) == [[b"0", b"1"]]


def test_a_compacted_topic_is_read_only_where_that_is_asked_for(access: RegionAccess, broker: Broker) -> None:
    topic = broker.new_topic(1, cleanup_policy="compact")
    broker.send(topic, numbered(1), key=b"k")
    with pytest.raises(UsageError, match="compacted"):
        source_of(topic).next_slice(None, access, ONE)
    assert len(cut(source_of(topic, on_compacted="read"), access)) == 1


def test_a_topic_that_there_is_not_is_said_to_be_none(access: RegionAccess) -> None:
    with pytest.raises(UsageError, match="no topic"):
        source_of("t-nowhere").next_slice(None, access, ONE)


@pytest.mark.parametrize("records", [10, 10_000])
def test_a_look_asks_as_much_of_the_brokers_however_many_records_there_are(
    access: RegionAccess, broker: Broker, monkeypatch: pytest.MonkeyPatch, records: int
) -> None:
    """An idle look fetches no records."""
    topic = broker.new_topic(4)
    broker.send(topic, numbered(records))
    source = source_of(topic, max_messages=100_000)
    (piece,) = cut(source, access)
    asked: list[str] = []
    admin = kafka.KafkaTopic._admin.fget  # type: ignore[attr-defined]

    class Counting:
        def __init__(self, told: Any) -> None:
            self._told = told

        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return getattr(self._told, name)

    monkeypatch.setattr(kafka.KafkaTopic, "_admin", property(lambda self: Counting(admin(self))))
    monkeypatch.setattr(consumer, "PartitionReads", None)
    for _ in range(3):
        asked.clear()
        assert source.next_slice(piece.end, access, ONE) is None
        assert sorted(asked) == ["describe_topics", "list_offsets", "list_offsets"]


def test_a_backlog_is_cut_from_one_look(access: RegionAccess, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_source, "_KEPT_SECONDS", 60.0)
    topic = broker.new_topic(1)
    broker.send(topic, numbered(1000))
    looks: list[int] = []
    look = kafka.KafkaTopic.look
    monkeypatch.setattr(kafka.KafkaTopic, "look", lambda self: looks.append(1) or look(self))
    assert len(cut(source_of(topic, max_messages=10), access)) == 100
    assert len(looks) <= 3
