"""Arguments of a `DirectoryScan` that are refused at declaration."""

from __future__ import annotations

import pytest

from drainmark import DirectoryScan

CSV = {"format": "csv", "schema": "k string, v string"}


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"on_bad": "ignore"}, "UNKNOWN_POLICY"),
        ({"on_schema": "ignore"}, "UNKNOWN_POLICY"),
        ({"on_schema": "evolve"}, "ON_SCHEMA"),
        ({"max_bad_ratio": 1.5}, "BAD_RATIO"),
        ({"format": "cvs"}, "UNKNOWN_FORMAT"),
        ({"format": {"orders": "csv"}}, "UNKNOWN_FORMAT"),
        ({"options": {"mode": "DROPMALFORMED"}}, "READER_OPTION"),
        ({"options": {"ignoreCorruptFiles": "true"}}, "READER_OPTION"),
        ({**CSV, "options": {"encoding": "UTF-61"}}, "READER_OPTION"),
        ({**CSV, "options": {"lineSep": "|", "multiLine": "true"}}, "READER_OPTION"),
        ({**CSV, "options": {"comment": "#", "multiLine": "true"}}, "READER_OPTION"),
        ({**CSV, "options": {"quote": "''"}}, "READER_OPTION"),
        ({**CSV, "options": {"dateFormat": "QQQ"}}, "READER_OPTION"),
        ({**CSV, "options": {"dateFormat": "HH:mm"}}, "READER_OPTION"),
        ({**CSV, "options": {"timestampNTZFormat": "yyyy-MM-dd HH:mm XXX"}}, "READER_OPTION"),
    ],
)
def test_a_policy_that_is_none_or_would_lose_rows_is_refused(arguments: dict[str, object], rule: str) -> None:
    assert [found for found, _, _ in DirectoryScan(path="in", **arguments).problems()] == [rule]  # type: ignore[arg-type]
