"""Arguments of a `DirectoryScan` that are refused at declaration, and full disks, which are no fault of operators."""

from __future__ import annotations

import errno

import pytest

from drainmark import DirectoryScan
from drainmark.jobs.errors import Retry
from drainmark.jobs.runtime.region_run import classified

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
        ({"options": {"encoding": "ISO-8859-1"}}, "READER_OPTION"),
        ({**CSV, "options": {"encoding": "UTF-16"}}, "READER_OPTION"),
        ({**CSV, "options": {"charset": "UTF-32LE"}}, "READER_OPTION"),
        ({**CSV, "options": {"encoding": "UTF-16", "lineSep": "\n"}}, "READER_OPTION"),
        ({**CSV, "format": "json", "options": {"encoding": "ISO-8859-1"}}, "READER_OPTION"),
    ],
)
def test_a_policy_that_is_none_or_would_lose_rows_is_refused(arguments: dict[str, object], rule: str) -> None:
    assert [found for found, _, _ in DirectoryScan(path="in", **arguments).problems()] == [rule]  # type: ignore[arg-type]


@pytest.mark.seed("D11")
def test_a_full_disk_costs_no_attempt_whoever_stumbles_over_it() -> None:
    wrapped = RuntimeError("job aborted")
    wrapped.__cause__ = RuntimeError("java.io.IOException: No space left on device")
    for error in (OSError(errno.ENOSPC, "full"), OSError(errno.EROFS, "read only"), wrapped):
        assert (classified(error).id, classified(error).retry) == ("STORE_UNAVAILABLE", Retry.WAIT)
    assert classified(OSError(errno.EIO, "broken")).retry is Retry.ATTEMPT
