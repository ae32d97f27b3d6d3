"""A topic of Debezium's messages on a real broker: deletes by their keys, tombstones, small groups and large ones."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from broker import Broker
from debezium_samples import COLUMNS, FIELDS, POSTGRES, envelope, message, written

from drainmark.orchestration.cli.main import invoke
from drainmark.resources.spark.session import SparkEngine

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

APPLICATION = """
import drainmark as dm

@dm.consistent(trigger="operator-driven", max_consecutive_reset_attempts=0)
@dm.source(dm.KafkaSource("TOPIC", "SERVERS", format="debezium", schema="COLUMNS", max_messages=3))
def changes(scanned):
    return scanned

dm.sink(changes, dm.DeltaAppend("kept"))
now = dm.apply_changes(
    changes, keys=["id"], sequence_by="_sequence", apply_as_deletes="_op = 'd'",
    except_columns=["_op", "_sequence", "_changed_at"],
)
dm.sink(now, dm.DeltaUpsert("customers", keys=["id"]))
"""


def shown(table: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert invoke(["show", table, "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("small", [0, 1 << 30])
@pytest.mark.seed("CD2")
def test_a_topic_of_changes_becomes_its_table(  # noqa: PLR0917 - fixtures
    broker: Broker,
    engine: SparkEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    small: int,
) -> None:
    assert engine.session is not None
    monkeypatch.chdir(tmp_path)
    topic = broker.new_topic()
    text = APPLICATION.replace("TOPIC", topic).replace("SERVERS", broker.servers).replace("COLUMNS", COLUMNS)
    (tmp_path / "app.py").write_text(text)
    (tmp_path / "drainmark.toml").write_text(f'applications = ["app.py"]\nsmall_group_bytes = {small}\n')
    row = {"id": 1, "name": "Ann", "credit": Decimal("1.50"), "born": dt.date(2000, 1, 2), "seen": None}

    def sent(number: int, op: str, lsn: int) -> bytes:
        source = {**POSTGRES, "lsn": lsn}
        if op == "d":
            return message({**envelope("d", None, source), "before": None}, FIELDS)
        return message(envelope(op, written({**row, "id": number}), source), FIELDS)

    records = [
        (b'{"id":1}', sent(1, "c", 1)), (b'{"id":2}', sent(2, "c", 2)), (b'{"id":1}', sent(1, "d", 3)),
        (b'{"id":1}', None), (b'{"id":2}', sent(2, "u", 4)), (b'{"id":3}', b"{"), (b'{"id":3}', sent(3, "c", 5)),
    ]  # fmt: skip
    for key, value in records:
        broker.send(topic, [value], key=key)
    assert invoke(["run"]) == 0, capsys.readouterr().err
    assert [row["_op"] for row in sorted(shown("kept", capsys), key=lambda row: row["_sequence"])] == [*"ccduc"]
    assert [row["id"] for row in shown("customers", capsys)] == [2, 3]
    capsys.readouterr()
    assert invoke(["history", "app"]) == 0
    assert "1 tombstone" in capsys.readouterr().out
    assert len(shown("app_quarantine", capsys)) == 1
