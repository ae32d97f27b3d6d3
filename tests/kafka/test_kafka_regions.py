"""A region that reads Kafka, run by the command line on a real broker and Spark: promises, losses, records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from broker import Broker
from event_receiver import receiving

from drainmark.jobs.failpoints import SourcePoint, arm
from drainmark.orchestration.cli.main import invoke
from drainmark.resources.spark.session import SparkEngine

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

REGION = "stream/orders"
APPLICATION = """
import drainmark as dm

@dm.consistent({trigger})
@dm.source(dm.KafkaSource("{topic}", "{servers}", {options}))
def orders(scanned):
    return scanned

dm.sink(orders, dm.DeltaAppend("kept"))
totals = dm.aggregate(orders, keys=["k"], values={{"times": dm.count(), "sold": dm.sum("n")}})
dm.sink(totals, dm.DeltaUpsert("totals", keys=["k"]))
"""
DRIVEN, PERIODIC = 'trigger="operator-driven", max_consecutive_reset_attempts=0', 'trigger="periodic", period=0'
PARSED = 'format="json", schema="k string, n bigint", metadata=["partition", "offset"], max_messages=3'


class Stream:
    """An application on its own topic, and the command line on its home."""

    def __init__(self, broker: Broker, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.broker = broker
        self.folder = folder
        self.capsys = capsys
        self.topic = ""

    def declare(self, topic: str, options: str = PARSED, trigger: str = DRIVEN) -> None:
        self.topic = topic
        text = APPLICATION.format(topic=topic, servers=self.broker.servers, options=options, trigger=trigger)
        (self.folder / "stream.py").write_text(text)

    def call(self, *arguments: Any, code: int = 0) -> Any:
        self.capsys.readouterr()
        found = invoke([*map(str, arguments), "--home", str(self.folder / "home"), "--json"])
        captured = self.capsys.readouterr()
        assert found == code, captured.err
        return json.loads(captured.out) if captured.out else json.loads(captured.err.splitlines()[-1])["error"]

    def run(self, code: int = 0, *more: Any) -> Any:
        return self.call("run", self.folder / "stream.py", "--attempts", 1, *more, code=code)

    def send(self, numbers: Sequence[int], partition: int = 0) -> None:
        self.broker.send(self.topic, records(numbers), partition)

    def kept(self, *more: Any) -> list[int]:
        return sorted(row["n"] for row in self.call("show", "kept", *more))

    def places(self) -> list[tuple[int, int]]:
        return sorted((row["partition"], row["offset"]) for row in self.call("show", "kept"))

    def states(self) -> list[dict[str, Any]]:
        entries = self.call("history", "stream")
        return sorted((each for each in entries if each["kind"] == "state"), key=lambda each: each["sequence_id"])

    def halted(self) -> str | None:
        found = self.call("status", "stream")[0]
        return found["halt_reason"] if found["state"] == "HALTED" else None


def records(numbers: Sequence[int]) -> list[bytes]:
    return [json.dumps({"k": "abc"[number % 3], "n": number}).encode() for number in numbers]


@pytest.fixture
def stream(engine: SparkEngine, broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Stream]:
    assert engine.session is not None  # the engine of the command line finds this session
    yield Stream(broker, tmp_path, capsys)
    arm("")


# --- exactly once -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trigger", [DRIVEN, PERIODIC], ids=["driven", "periodic"])
def test_every_record_is_there_once_before_and_after_a_rewind(stream: Stream, broker: Broker, trigger: str) -> None:
    stream.declare(broker.new_topic(2), trigger=trigger)
    stream.send(range(7))
    stream.send(range(7, 9), 1)
    stream.run()
    stream.send(range(9, 12), 1)
    stream.run()
    before, states = stream.call("show", "kept"), stream.states()
    assert stream.kept() == list(range(12))
    assert sum(state["rows_in"] for state in states) == 12
    stream.call("reset", "stream", "--to", states[0]["sequence_id"], "--yes")
    assert len(stream.kept()) == states[0]["rows_in"]
    stream.run()
    assert [strip(row) for row in stream.call("show", "kept")] == [strip(row) for row in before]
    assert sum(row["sold"] for row in stream.call("show", "totals")) == sum(range(12))


def strip(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "_sequence_id"}


def test_records_of_transactions_are_counted_as_they_are_seen(stream: Stream, broker: Broker) -> None:
    stream.declare(broker.new_topic())
    broker.transact(stream.topic, records(range(4)))
    broker.transact(stream.topic, records(range(50, 55)), commit=False)
    broker.transact(stream.topic, records(range(4, 6)))
    stream.run()
    assert stream.kept() == list(range(6))
    assert sum(state["rows_in"] for state in stream.states()) == 6


def test_partitions_that_are_added_are_read_from_their_beginning(stream: Stream, broker: Broker) -> None:
    stream.declare(broker.new_topic())
    stream.send([1])
    stream.run()
    broker.add_partitions(stream.topic, 3)
    stream.send([2, 3], 2)
    stream.run()
    assert stream.places() == [(0, 0), (2, 0), (2, 1)]


def test_lineage_tells_the_offsets_up_to_which_each_group_read(
    stream: Stream, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving() as receiver:
        monkeypatch.setenv("DRAINMARK_OPENLINEAGE_URL", receiver.url)
        stream.declare(broker.new_topic(2))
        stream.send(range(4))
        stream.send(range(4, 6), 1)
        stream.run(0, "--max-group", 1)
        stream.send([6], 1)
        stream.run()
        ends = receiver.of("COMPLETE")
    before: dict[str, int] = {}
    for end in ends:
        (read,) = end["inputs"]
        assert (read["namespace"], read["name"]) == (f"kafka://{broker.servers}", stream.topic)
        offsets = json.loads(read["facets"]["version"]["datasetVersion"])["offsets"]
        new = sum(offset - before.get(partition, 0) for partition, offset in offsets.items())
        assert new == end["run"]["facets"]["drainmark_group"]["rowsIn"]
        assert new == read["inputFacets"]["inputStatistics"]["rowCount"]
        before = offsets
    assert len(ends) == len(stream.states()) > 2
    assert before == {"0": 4, "1": 3}


# --- the group ----------------------------------------------------------------------------------------------------


def test_offsets_follow_into_the_group_and_nothing_of_ours_reads_them(stream: Stream, broker: Broker) -> None:
    """The region writes its offsets to the group and never reads them back (C25, K4)."""
    stream.declare(broker.new_topic(2), f'{PARSED}, group_id="watchers", start_from="group"')
    stream.send(range(5))
    stream.run()
    assert broker.committed("watchers", stream.topic) == {0: 5, 1: 0}
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    wrong = ConsumerGroupTopicPartitions("watchers", [TopicPartition(stream.topic, 0, 1)])
    broker.admin().alter_consumer_group_offsets([wrong])["watchers"].result()
    stream.send([5, 6])
    for point in (SourcePoint.GROUP_BEFORE, SourcePoint.GROUP_AFTER):
        arm(f"{point.value}:raise")
        stream.run()
        stream.send([7 + list(SourcePoint).index(point)])
    stream.run()
    assert stream.kept() == list(range(9))
    assert broker.committed("watchers", stream.topic) == {0: 9, 1: 0}


# --- losses -------------------------------------------------------------------------------------------------------


def test_a_lost_range_halts_and_is_passed_only_where_somebody_accepts_it(stream: Stream, broker: Broker) -> None:
    """The region halts until a person accepts the loss (FM-K1)."""
    stream.declare(broker.new_topic(2))
    stream.send(range(3))
    stream.run()
    stream.send(range(3, 9))
    broker.drop_before(stream.topic, 0, 5)
    error = stream.run(code=3)
    assert "partition 0, offsets 3 to 4" in error["message"]
    assert "--accept-loss" in error["remedy"]
    assert "offsets 3 to 4" in (stream.halted() or "")
    stream.run(code=3)
    assert stream.kept() == [0, 1, 2]

    stream.call("resume", "stream", "--reason", "as it is")
    stream.run(code=3)
    done = stream.call("resume", "stream", "--accept-loss", "--reason", "retention")
    assert done["lost"] == {"orders": [[0, 3, 5]]}
    stream.run()
    assert stream.kept() == [0, 1, 2, 5, 6, 7, 8]
    (loss,) = [state for state in stream.states() if "(lost)" in state["trigger"]]
    assert loss["rows_in"] == 0
    assert "offsets 3 to 4" in loss["reason"]
    stream.call("reset", "stream", "--to", loss["sequence_id"] - 1, "--yes")
    stream.run()
    assert stream.kept() == [0, 1, 2, 5, 6, 7, 8]


@pytest.mark.parametrize("point", ["", "loss.before", "loss.noted", "loss.passed"])
def test_what_was_cut_and_is_lost_before_it_is_read_costs_nothing_but_that(
    stream: Stream, broker: Broker, point: str
) -> None:
    """FM-K1: if the acceptance of the loss is cut off, it is given again."""
    stream.declare(broker.new_topic(2))
    stream.send(range(12))
    stream.send(range(20, 24), 1)
    stream.call("scan", stream.folder / "stream.py")
    broker.drop_before(stream.topic, 0, 5)
    error = stream.run(code=3)
    assert "partition 0" in error["message"]
    assert "--accept-loss" in error["remedy"]
    if point:
        arm(f"{point}:raise")
        stream.call("resume", "stream", "--accept-loss", code=1)
        arm("")
        broker.drop_before(stream.topic, 0, 6)
        stream.run(code=3)
    stream.call("resume", "stream", "--accept-loss")
    stream.run()
    lost = 6 if point else 5
    assert stream.kept() == [*range(lost, 12), *range(20, 24)]
    assert stream.places() == [*((0, each) for each in range(lost, 12)), *((1, each) for each in range(4))]
    stream.send([99])
    stream.run()
    assert stream.kept()[-1] == 99


@pytest.mark.parametrize("waits", [False, True], ids=["not-cut", "cut"])
def test_a_periodic_region_goes_on_behind_a_loss(stream: Stream, broker: Broker, waits: bool) -> None:
    """FM-K1: also if a slice of the tick, with the offsets of all starts, waits already."""
    stream.declare(broker.new_topic(), trigger=PERIODIC)
    stream.send(range(3))
    stream.run()
    stream.send(range(3, 6))
    if waits:
        stream.call("scan", stream.folder / "stream.py")
        assert stream.call("status", "stream")[0]["pending_triggers"] == 1
    broker.drop_before(stream.topic, 0, 4)
    stream.run(code=3)
    stream.call("resume", "stream", "--accept-loss")
    stream.run()
    assert stream.kept() == [0, 1, 2, 4, 5]


def test_a_topic_that_was_made_anew_halts(stream: Stream, broker: Broker) -> None:
    """FM-K1: in the new topic, the same offsets have other records."""
    stream.declare(broker.new_topic())
    stream.send(range(3))
    stream.run()
    broker.delete_topic(stream.topic)
    stream.run(code=3)
    broker.topic(stream.topic)
    stream.send(range(100, 105))
    stream.call("resume", "stream")
    stream.run(code=3)
    assert "made anew" in (stream.halted() or "")
    stream.call("resume", "stream", "--accept-loss")
    stream.run()
    assert stream.kept() == [0, 1, 2, *range(100, 105)]
    plan = stream.call("reset", "stream", "--to-initial", "--yes", code=2)
    assert plan["id"] == "REWIND_REFUSED"


def test_nothing_is_accepted_where_nothing_is_lost(stream: Stream, broker: Broker) -> None:
    stream.declare(broker.new_topic())
    stream.send(range(3))
    stream.run()
    assert stream.call("resume", "stream", "--accept-loss", code=2)["id"] == "USAGE"
    assert stream.call("backfill", "stream", "--input", stream.folder, code=2)["id"] == "USAGE"


# --- records ------------------------------------------------------------------------------------------------------

BAD_JSON = {
    b'{"k": "a", "n": "x"}': "no bigint",
    b'{"k": "a", "n": 1} more': "no JSON",
    b'{"k": "a", "k": "b", "n": 1}': "twice",
    b"[1, 2]": "no object",
    b'{"k": "\xff", "n": 1}': "UTF-8",
    b"": "empty",
    b'{"k": "a", "n": 1}\n{"k": "b", "n": 2}': "no JSON",
}


@pytest.mark.parametrize("bulk", [False, True], ids=["small", "large"])
def test_a_record_that_is_no_json_goes_to_the_quarantine_by_its_place(
    stream: Stream, broker: Broker, bulk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bulk:
        monkeypatch.setenv("DRAINMARK_SMALL_GROUP_BYTES", "0")
    stream.declare(broker.new_topic(2), PARSED.replace("max_messages=3", "max_messages=100"))
    good = [b'{"k": "a", "n": 1}', b'{\n "n": 2, "k": "b" }\n', b'{"n": 3, "further": [1]}']
    broker.send_all(stream.topic, {0: good[:1], 1: [*good[1:], *BAD_JSON]})
    broker.send(stream.topic, [None], key=b"gone")
    stream.run()
    assert stream.kept() == [1, 2, 3]
    assert stream.places() == [(0, 0), (1, 0), (1, 1)]
    bad = stream.call("quarantine", "show", "stream")
    told = {row["reason"].partition(": ")[0]: row["reason"] for row in bad}
    assert set(told) == {"partition 0, offset 1", *(f"partition 1, offset {2 + at}" for at in range(len(BAD_JSON)))}
    assert "tombstone" in told["partition 0, offset 1"]
    for at, reason in enumerate(BAD_JSON.values()):
        assert reason in told[f"partition 1, offset {2 + at}"]
    (state,) = stream.states()
    assert (state["rows_in"], state["rows_quarantined"]) == (4 + len(BAD_JSON), 1 + len(BAD_JSON))


def test_a_poison_record_halts_where_that_is_asked_for(stream: Stream, broker: Broker) -> None:
    stream.declare(broker.new_topic(), f'{PARSED}, on_bad="halt"')
    broker.send(stream.topic, [*records([1]), b"poison"])
    assert "offset 1" in stream.run(code=3)["message"]


def test_csv_is_a_line_a_record(stream: Stream, broker: Broker) -> None:
    options = PARSED.replace('"json"', '"csv"').replace("max_messages=3", 'options={"sep": ";"}, tombstones="null"')
    stream.declare(broker.new_topic(), options)
    bad = [b'"a;6', b"a;7\nb;8", b"a;9;10", b"a;x", b""]
    broker.send(stream.topic, [b"a;1", b"b;2\n", b"c;3\r\n", b'"d;d";4', b'"e\ne";5', *bad, None])
    stream.run()
    rows = stream.call("show", "kept")
    assert [(row["k"], row["n"]) for row in sorted(rows, key=lambda row: row["offset"])] == [
        ("a", 1), ("b", 2), ("c", 3), ("d;d", 4), ("e\ne", 5), (None, None)
    ]  # fmt: skip
    assert [row["position"] for row in stream.call("quarantine", "show", "stream")] == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("form", ["bytes", "text"])
def test_values_come_as_they_are_with_all_that_a_record_has(stream: Stream, broker: Broker, form: str) -> None:
    stream.declare(broker.new_topic(), f'format="{form}", metadata=["key", "offset", "timestamp", "headers"]')
    text = (stream.folder / "stream.py").read_text()
    text = text[: text.index("totals =")].replace(
        "return scanned", 'return scanned.selectExpr("_sequence_id", "_position", "cast(value as string) as v", '
        '"cast(key as string) as k", "offset as n", "timestamp", "cast(headers[0].value as string) as h")',
    )  # fmt: skip
    (stream.folder / "stream.py").write_text(text)
    broker.send(stream.topic, [b"v", None], key=b"k", headers=[("a", b"1")], timestamp=86_400_000)
    stream.run()
    rows = sorted(stream.call("show", "kept"), key=lambda row: row["n"])
    assert [(row["v"], row["k"], row["h"]) for row in rows] == [("v", "k", "1"), (None, "k", "1")]
    assert rows[0]["timestamp"].startswith("1970-01-02")
