"""Records of a large group, which Spark's tasks read: rows, places, quarantine, losses are as in a small group."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broker import Broker
from test_kafka_regions import Stream, records, stream

from drainmark.jobs.operators.sources.slices import Slice
from drainmark.jobs.runtime.input import row_slices
from drainmark.jobs.tasks.executor import Executor, OnSpark

__all__ = ["stream"]

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

OPTIONS = 'format="json", schema="k string, n bigint", metadata=["partition", "offset"]'
Lose = Callable[[Stream], None]
BAD = (b"no json", b"\xff", b'{"k": "a", "n": "seven"}')


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of shares that tasks read in each group; a share is ten records."""
    counts: list[int] = []
    read = row_slices.read_shares

    def counted(executor: Executor, task: Any, wanted: Any) -> Any:
        if isinstance(executor, OnSpark):
            counts.append(len(wanted))
        return read(executor, task, wanted)

    monkeypatch.setattr(row_slices, "read_shares", counted)
    monkeypatch.setattr(row_slices, "SHARE_BYTES", 10 * 1024)
    return counts


@pytest.fixture(params=["small", "large"])
def sized(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DRAINMARK_SMALL_GROUP_BYTES", "0" if request.param == "large" else str(1 << 30))
    return str(request.param)


def filled(stream: Stream) -> None:
    """Fill three partitions: one with many records, some of them bad, one with few, one with transactions."""
    stream.declare(stream.broker.new_topic(3), OPTIONS)
    stream.send(range(25))
    stream.broker.send(stream.topic, BAD)
    stream.send(range(25, 32))
    stream.send(range(100, 103), 1)
    stream.broker.transact(stream.topic, records(range(200, 208)), 2)
    stream.broker.transact(stream.topic, records(range(300, 308)), 2, commit=False)
    stream.broker.transact(stream.topic, records(range(208, 212)), 2)


def test_rows_places_and_bad_records_are_the_same_either_way(stream: Stream, sized: str, shares: list[int]) -> None:
    filled(stream)
    stream.run()
    assert shares == ([7] if sized == "large" else [])
    places = {row["n"]: (row["partition"], row["offset"]) for row in stream.call("show", "kept")}
    first = {n: (0, n) for n in range(25)} | {n: (0, n + 3) for n in range(25, 32)}
    # A transaction ends with a mark, which has an offset; the aborted transaction takes nine offsets.
    third = {n: (2, n - 200) for n in range(200, 208)} | {n: (2, n - 200 + 10) for n in range(208, 212)}
    assert places == first | {n: (1, n - 100) for n in range(100, 103)} | third
    (state,) = stream.states()
    assert (state["rows_in"], state["rows_quarantined"]) == (len(places) + len(BAD), len(BAD))
    bad = sorted(stream.call("show", "stream_quarantine"), key=lambda row: row["position"])
    assert [(row["position"], row["reason"].partition(":")[0]) for row in bad] == [
        (25, "partition 0, offset 25"), (26, "partition 0, offset 26"), (27, "partition 0, offset 27")
    ]  # fmt: skip
    assert [row["raw"] for row in bad] == ["no json", "\\xff", '{"k": "a", "n": "seven"}']


def lose_a_beginning(stream: Stream) -> None:
    stream.broker.drop_before(stream.topic, 0, 3)


def make_anew(stream: Stream) -> None:
    stream.broker.delete_topic(stream.topic)
    stream.broker.topic(stream.topic, 3)
    filled_again = {0: records(range(60)), 1: records(range(60)), 2: records(range(60))}
    stream.broker.send_all(stream.topic, filled_again)


@pytest.mark.parametrize(
    "loss",
    [
        (lose_a_beginning, "partition 0, offsets 0 to {last} cannot be read as they were: "),
        (make_anew, "it was deleted, or made anew; missing is partition 0, from offset 35 on, of the topic before"),
    ],
    ids=["retention", "made anew"],
)
def test_what_is_lost_when_it_is_read_halts_in_the_same_words(
    stream: Stream, sized: str, shares: list[int], monkeypatch: pytest.MonkeyPatch, loss: tuple[Lose, str]
) -> None:
    """The records are lost between the scan and the read."""
    lose, said = loss
    filled(stream)
    cut, at_first = row_slices.slice_of, [lose]

    def lost(identity: Any, source: str) -> Slice | None:
        while at_first:
            at_first.pop()(stream)
        return cut(identity, source)

    monkeypatch.setattr(row_slices, "slice_of", lost)
    error = stream.run(code=3)
    assert error["id"] == "HALTED"
    assert f"topic {stream.topic}: {said.format(last={'small': 34, 'large': 9}[sized])}" in error["message"]
    assert "--accept-loss" in str(error)
    assert shares == ([7] if sized == "large" else [])
    monkeypatch.undo()
    stream.call("resume", "stream", "--accept-loss", "--reason", "a test")
    stream.run()
    assert stream.halted() is None


def test_a_cluster_of_the_settings_is_told_to_tasks_without_a_word_in_what_they_are_sent(
    stream: Stream, shares: list[int], monkeypatch: pytest.MonkeyPatch, broker: Broker, tmp_path: Path
) -> None:
    import pickle

    monkeypatch.setenv("KAFKA_PASSWORD", "canary-password-of-kafka")
    monkeypatch.setenv("DRAINMARK_SMALL_GROUP_BYTES", "0")
    text = f'[kafka.main]\n"bootstrap.servers" = "{broker.servers}"\n"sasl.password" = "${{KAFKA_PASSWORD}}"\n'
    (tmp_path / "drainmark.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    sent: list[bytes] = []
    read = row_slices.read_shares

    def kept(executor: Executor, task: Any, wanted: Any) -> Any:
        sent.append(pickle.dumps((task, wanted)))
        return read(executor, task, wanted)

    monkeypatch.setattr(row_slices, "read_shares", kept)
    stream.declare(broker.new_topic(), f'{OPTIONS}, cluster="main"')
    app = stream.folder / "stream.py"
    app.write_text(app.read_text().replace(f'"{broker.servers}", ', ""))
    stream.send(range(25))
    stream.run()
    assert stream.kept() == list(range(25))
    assert (shares, len(sent)) == ([3], 1)
    assert b"canary" not in sent[0]
    assert "canary" not in "".join(sys.argv)
