"""Files and topics of Debezium's messages: the same rows in small and large groups, in ranges, and compressed."""

from __future__ import annotations

import datetime as dt
import gzip
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from debezium_samples import COLUMNS, FIELDS, MYSQL, POSTGRES, envelope, message, written

import drainmark as dm
from drainmark.orchestration.testing.running import Result

pytestmark = pytest.mark.spark

RunApp = Callable[..., Result]
WAYS: dict[str, dict[str, int]] = {
    "small": {"small_group_bytes": 1 << 30},
    "large": {"small_group_bytes": 0},
    "ranges": {"small_group_bytes": 0, "range_bytes": 3000},
}
BROKEN = (b"{", b'{"op":"x"}', b'{"id":1}', b"\xff", message(envelope("d", None)), message({"ts_ms": 5}))


def kept() -> None:
    @dm.consistent(trigger="operator-driven")
    @dm.source(dm.DirectoryScan(path="inbox", format="debezium", schema=COLUMNS, max_bad_ratio=1.0))
    def changes(scanned: Any) -> Any:
        return scanned

    dm.sink(changes, dm.DeltaAppend("kept"))


def drawn(chosen: random.Random) -> dict[str, Any]:
    """Return a row of the table of the samples; each value may be null, except its key."""
    found = {
        "name": chosen.choice(["Ann", "ö\n\u2028", "", "null"]),
        "credit": Decimal(chosen.randrange(-(10**10) + 1, 10**10)).scaleb(-2),
        "born": dt.date(1, 1, 1) + dt.timedelta(days=chosen.randrange(3_652_059)),
        "seen": dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=chosen.randrange(-(10**16), 10**16)),  # noqa: DTZ001
    }
    return {"id": chosen.randrange(100), **{name: chosen.choice([value, value, None]) for name, value in found.items()}}


def history(seed: int, count: int) -> tuple[list[bytes], list[dict[str, Any]], int]:
    """Return messages, the rows that they mean, and how many of them are bad."""
    chosen = random.Random(seed)
    messages, rows, bad = [], [], 0
    for number in range(count):
        op, source = chosen.choice("crud"), chosen.choice([POSTGRES, MYSQL])
        row = drawn(chosen)
        place = {**source, "lsn": number} if "lsn" in source else {**source, "pos": number}
        messages.append(message(envelope(op, written(row), place), FIELDS))
        rows.append({**row, "_op": op, "_sequence": number if source is POSTGRES else (3 << 32) + number})
        if op == "d":
            messages.append(b"null")
        if chosen.random() < 0.1:
            messages.append(chosen.choice(BROKEN))
            bad += 1
    return messages, rows, bad


def found(result: Result) -> list[dict[str, Any]]:
    names = ("id", "name", "credit", "born", "seen", "_op", "_sequence")
    return [{name: row[name] for name in names} for row in result.sink("kept")]


def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=str)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.seed("CD1")
def test_a_file_of_changes_gives_their_rows_in_every_way(run_app: RunApp, way: str) -> None:
    messages, rows, bad = history(3, 60)
    lines = b"\n".join(messages) + b"\n"
    files = {"a.jsonl": lines, "b.jsonl.gz": gzip.compress(lines), "c.jsonl": b"null\n", "d.jsonl": b""}
    result = run_app(kept, files, settings=WAYS[way])
    assert ordered(found(result)) == ordered(rows + rows)
    assert len(result.quarantine()) == 2 * bad
    result.rewind(0).run()
    assert ordered(found(result)) == ordered(rows + rows)


def of_topic() -> None:
    @dm.consistent(trigger="operator-driven")
    @dm.source(dm.KafkaSource("customers", "host:9092", format="debezium", schema=COLUMNS, metadata=["offset"]))
    def changes(scanned: Any) -> Any:
        return scanned

    dm.sink(changes, dm.DeltaAppend("kept"))


@pytest.mark.seed("CD2")
def test_a_topic_has_tombstones_and_keys(run_app: RunApp) -> None:
    row = {"id": 7, "name": "Ann", "credit": Decimal("1.50"), "born": dt.date(2000, 1, 2), "seen": None}
    records = [
        (b'{"id":7}', message(envelope("c", written(row)), FIELDS)),
        (b'{"id":7}', message({**envelope("d", None), "before": None}, FIELDS)),
        (b'{"id":7}', None),
        (b'{"id":8}', b"{"),
        {"id": 9, "_op": "u", "_sequence": 5},
    ]
    result = run_app(of_topic, {"changes": records})
    assert [(each["id"], each["name"], each["_op"], each["offset"]) for each in result.sink("kept")] == [
        (7, "Ann", "c", 0),
        (7, None, "d", 1),
        (9, None, "u", 4),
    ]
    (bad,) = result.quarantine()
    assert "offset 3" in bad["reason"]
    assert "1 tombstone" in str(result.history)
