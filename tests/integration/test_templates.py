"""Projects that `init` writes with input to try them on: from `init` to the tables, in the steps that it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drainmark.orchestration.cli.main import invoke
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
}
"""Template -> table -> columns of its rows; what the sample files hold, added up by hand."""


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
