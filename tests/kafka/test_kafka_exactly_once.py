"""A region that reads Kafka under faults: the golden run after every failure, also after SIGKILL (V144, V168)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from broker import Broker

import drainmark as dm
from drainmark.orchestration.testing.crash.trial import Proof

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

APPLICATION = """
import drainmark as dm

@dm.consistent(trigger="{trigger}"{period})
@dm.source(
    dm.KafkaSource("{topic}", "{servers}", group_id="{topic}", format="json", schema="k string, n bigint",
                   metadata=["partition", "offset"], max_messages=4, message_bytes=1)
)
def orders(scanned):
    return scanned

dm.sink(orders, dm.DeltaAppend("kept"))
totals = dm.aggregate(orders, keys=["k"], values={{"times": dm.count(), "sold": dm.sum("n")}})
dm.sink(totals, dm.DeltaUpsert("totals", keys=["k"]))
"""
SAMPLE = (
    "slice.before", "slice.noted", "assign.after", "process.staged", "checkpoint.after_commit",
    "publish.before_commit", "resume.after", "rewind_table.after_commit",
)  # fmt: skip


def prepared(broker: Broker, folder: Path, *, is_periodic: bool = False) -> Path:
    """Write an application and its records, which include bad ones, transactions and tombstones."""
    topic = broker.new_topic(2)
    good = [b'{"k": "%s", "n": %d}' % (b"abc"[number % 3 : number % 3 + 1], number) for number in range(14)]
    broker.send_all(topic, {0: good[:5], 1: [*good[5:8], b"poison"]})
    broker.transact(topic, good[8:10], 1)
    broker.transact(topic, [b"aborted"] * 3, 1, commit=False)
    broker.send_all(topic, {0: [*good[10:12], None], 1: good[12:]})
    path = folder / "stream.py"
    trigger, period = ("periodic", ", period=0.001") if is_periodic else ("operator-driven", "")
    path.write_text(APPLICATION.format(topic=topic, servers=broker.servers, trigger=trigger, period=period))
    return path


def check(app: Path, **options: Any) -> Proof:
    (proof,) = dm.testing.assert_exactly_once(app, None, **options)
    return proof


@pytest.mark.parametrize("is_periodic", [False, True], ids=["driven", "periodic"])
def test_it_survives_failures_around_its_slices_and_commits(broker: Broker, tmp_path: Path, is_periodic: bool) -> None:
    app = prepared(broker, tmp_path, is_periodic=is_periodic)
    proof = check(app, fail_points=SAMPLE, groupings=(2, "all"), actions=["raise"], settings={"slice_bytes": 6})
    assert proof.unreached == ()
    assert proof.states >= 3


@pytest.mark.timeout(900)
def test_it_survives_sigkill(broker: Broker, tmp_path: Path) -> None:
    proof = check(prepared(broker, tmp_path), fail_points=SAMPLE, groupings=(2,), actions=["kill"])
    assert len(proof.failures) == len(SAMPLE)


@pytest.mark.timeout(1800)
def test_it_survives_every_failure_in_every_grouping(broker: Broker, tmp_path: Path) -> None:
    assert check(prepared(broker, tmp_path)).states >= 3
