"""Projects that `init` writes, on their own sample input: from `init` to the tables, by the steps that it prints."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.testing.running import Result
from drainmark.resources.spark.session import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

TABLES: dict[str, dict[str, list[dict[str, Any]]]] = {
    "words": {
        "word_counts": [
            {"word": "be", "count": 2},
            {"word": "not", "count": 1},
            {"word": "or", "count": 1},
            {"word": "to", "count": 2},
        ]
    },
    "logs": {
        "pages": [
            {"path": "/", "requests": 2, "errors": 0, "bytes": 10240},
            {"path": "/basket", "requests": 1, "errors": 0, "bytes": 830},
            {"path": "/order", "requests": 4, "errors": 3, "bytes": 64},
        ],
        "error_minutes": [{"path": "/order", "errors": 3}],
        "unread_lines": [{"value": "log rotated at 09:00:41"}],
    },
    "orders": {
        "item_totals": [
            {"item": "cup", "orders": 1, "pieces": 1, "amount": "7.00"},
            {"item": "tea", "orders": 2, "pieces": 3, "amount": "13.50"},
        ],
        "orders": [{"number": 1}, {"number": 2}, {"number": 4}],
        "app_quarantine": [
            {"reason": "column 'pieces': 'one' is no int"},
            {"reason": "valid: pieces > 0 and price >= 0 does not hold"},
        ],
    },
    "cdc": {
        "customers": [
            {"id": 1, "name": "Ann", "country": "FR", "credit": "120.00"},
            {"id": 3, "name": "Eve", "country": "FR", "credit": "7.50"},
        ],
        "customers_by_country": [{"country": "FR", "customers": 2, "credit": "127.50"}],
        "customer_history": [
            {"id": 1, "country": "DE", "is_current": False},
            {"id": 1, "country": "FR", "is_current": True},
            {"id": 2, "country": "DE", "is_current": False},
            {"id": 3, "country": "FR", "is_current": True},
        ],
        "app_quarantine": [{"reason": "field 'credit': '12,50' is no decimal(12,2): write the decimal point as '.'"}],
    },
}
"""Template -> table -> columns of its rows: the content of the sample files, added up by hand."""


@pytest.mark.parametrize(
    "template", [pytest.param(name, marks=() if name == "orders" else pytest.mark.slow) for name in TABLES]
)
def test_it_runs_on_the_input_that_comes_with_it(
    template: str,
    engine: SparkEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert engine.session is not None  # the command line's own engine finds this session
    monkeypatch.chdir(tmp_path)
    assert invoke(["init", "--template", template]) == 0
    assert invoke(["run"]) == 0, capfd.readouterr().err
    for table, expected in TABLES[template].items():
        capfd.readouterr()
        assert invoke(["show", table, "--json"]) == 0
        rows = json.loads(capfd.readouterr().out)
        found = [{name: row[name] for name in expected[0]} for row in rows]
        assert sorted(found, key=str) == sorted(expected, key=str), table


@pytest.fixture
def of_kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert invoke(["init", "project", "--template", "kafka"]) == 0
    return tmp_path / "project"


def test_of_a_topic_it_runs_on_the_sample_records_without_a_broker(
    of_kafka: Path, run_app: Callable[..., Result]
) -> None:
    result = run_app(of_kafka / "app.py", {"orders": (of_kafka / "orders.jsonl").read_text().splitlines()})
    assert result.sink("item_totals") == [{"item": "cup", "pieces": 1}, {"item": "tea", "pieces": 3}]
    assert [row["offset"] for row in result.sink("orders")] == [0, 1, 3]
    (bad,) = result.quarantine()
    assert '"two"' in bad["raw"]


OF_KAFKA = (
    "test_each_record_is_one_consistent_state",
    pytest.param("test_a_record_that_does_not_fit_is_quarantined", marks=pytest.mark.slow),
    pytest.param("test_it_can_be_taken_back_and_replayed", marks=pytest.mark.slow),
    pytest.param("test_failures_do_not_show", marks=pytest.mark.slow),
)


@pytest.mark.parametrize("name", OF_KAFKA)
def test_of_a_topic_its_own_tests_pass(of_kafka: Path, run_app: Callable[..., Result], name: str) -> None:
    """They run in this process, for its Spark session, and are called as pytest calls them."""
    tests = runpy.run_path(str(of_kafka / "tests" / "test_app.py"))
    names = {each for each in tests if each.startswith("test_")}
    assert names == {str(each) if isinstance(each, str) else str(each.values[0]) for each in OF_KAFKA}
    tests[name](*[run_app][: tests[name].__code__.co_argcount])


OF_CHANGES = (
    "test_a_customer_moves_and_another_one_leaves",
    "test_a_value_that_is_none_is_quarantined",
    pytest.param("test_changes_may_come_late", marks=pytest.mark.slow),
    pytest.param("test_failures_do_not_show", marks=pytest.mark.slow),
)


@pytest.mark.parametrize("name", OF_CHANGES)
def test_of_changes_its_own_tests_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_app: Callable[..., Result], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(["init", "project", "--template", "cdc"]) == 0
    tests = runpy.run_path(str(tmp_path / "project" / "tests" / "test_app.py"))
    names = {each for each in tests if each.startswith("test_")}
    assert names == {str(each) if isinstance(each, str) else str(each.values[0]) for each in OF_CHANGES}
    tests[name](*[run_app][: tests[name].__code__.co_argcount])


def test_of_a_topic_what_sends_the_sample_asks_for_the_cluster(of_kafka: Path) -> None:
    pytest.importorskip("confluent_kafka")
    with pytest.raises(SystemExit, match=r"fill in \[kafka.main\]"):
        runpy.run_path(str(of_kafka / "send.py"))
