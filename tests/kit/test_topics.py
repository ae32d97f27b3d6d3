"""Records in memory instead of brokers: the forms of records that a test may give; failures leave no trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import drainmark as dm
from drainmark.jobs.errors import UsageError
from drainmark.orchestration.testing.running import Result

RunApp = Callable[..., Result]
ORDERS = [{"item": "tea", "pieces": 2}, {"item": "cup", "pieces": 1}, {"item": "tea", "pieces": 3}]
APPLICATION = """
import drainmark as dm

@dm.consistent(trigger="operator-driven")
@dm.source(dm.KafkaSource("shop.orders", cluster="nowhere", format="json", schema="item string, pieces int"))
def orders(scanned):
    return scanned

totals = dm.aggregate(orders, keys=["item"], values={"pieces": dm.sum("pieces")})
dm.sink(totals, dm.DeltaUpsert("totals", keys=["item"]))
"""


@pytest.fixture
def application(tmp_path: Path) -> Path:
    path = tmp_path / "stream.py"
    path.write_text(APPLICATION)
    return path


def keyed() -> None:
    @dm.consistent(trigger="operator-driven")
    @dm.source(
        dm.KafkaSource(
            "shop.orders",
            "nowhere:9092",
            format="csv",
            schema="item string, pieces int",
            options={"sep": ";"},
            metadata=["key", "partition", "offset", "timestamp", "headers"],
            partitions=[3, 2],
            start_from="latest",
            tombstones="null",
        )
    )
    def orders(scanned: Any) -> Any:
        return scanned

    dm.sink(orders, dm.DeltaAppend("kept"))


@pytest.mark.spark
def test_records_are_what_a_source_makes_of_them_and_more_can_be_added(run_app: RunApp) -> None:
    """Rows, text, bytes, keys, tombstones, and a record that does not fit; with a declared partition and start."""
    result = run_app(keyed, {"orders": [{"item": "tea", "pieces": 2}, ("k", "cup;1"), (b"k", None), "cup;one"]})
    assert [state["trigger"] for state in result.history] == [f"kafka:shop.orders#2:{n}..{n + 1}" for n in range(4)]
    result.add({"orders": [b"tea;3"]}).run()
    rows = [
        {name: row[name] for name in ("item", "pieces", "key", "partition", "offset")} for row in result.sink("kept")
    ]
    assert rows == [
        {"item": "tea", "pieces": 2, "key": None, "partition": 2, "offset": 0},
        {"item": "cup", "pieces": 1, "key": b"k", "partition": 2, "offset": 1},
        {"item": None, "pieces": None, "key": b"k", "partition": 2, "offset": 2},
        {"item": "tea", "pieces": 3, "key": None, "partition": 2, "offset": 4},
    ]
    assert all(row["timestamp"] is not None and row["headers"] is None for row in result.sink("kept"))
    (bad,) = result.quarantine()
    assert (bad["_sequence_id"], bad["raw"]) == (4, "cup;one")
    result.rewind(to=1)
    assert [row["offset"] for row in result.run().sink("kept")] == [0, 1, 2, 4]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("actions", "points", "groupings"),
    [
        (("raise",), ["checkpoint.after_commit"], [1]),
        pytest.param(("kill",), ["slice.noted", "publish.before_commit"], [1, "all"], marks=pytest.mark.slow),
    ],
)
def test_failures_do_not_show(application: Path, actions: Any, points: list[str], groupings: Any) -> None:
    (proof,) = dm.testing.assert_exactly_once(
        application, {"orders": ORDERS}, fail_points=points, groupings=groupings, actions=actions
    )
    assert proof.states == 3


def test_what_is_no_list_of_records_is_refused_with_what_to_give(run_app: RunApp, application: Path) -> None:
    started = run_app(application)
    with pytest.raises(UsageError, match="no source of the application scans a folder"):
        started.add({"orders": ORDERS})
    with pytest.raises(UsageError, match="no column size"):
        run_app(application, {"orders": [{"item": "tea", "size": 1}]})
    with pytest.raises(UsageError, match="give a list"):
        run_app(application, {"orders": '{"item": "tea"}'})
    with pytest.raises(UsageError, match="two records"):
        dm.testing.assert_exactly_once(application, {"orders": ORDERS[:1]}, fail_points=())
