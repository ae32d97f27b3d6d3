"""The allowed arguments of a `ReplayableStart`."""

from __future__ import annotations

from typing import Any

import pytest

import drainmark as dm


@pytest.mark.seed("V146")
@pytest.mark.parametrize(
    ("rule", "arguments"),
    [
        ("SCHEMA_MISSING", {"schema": ""}),
        ("SEGMENT_ROWS", {"rows": 0}),
        ("SEGMENT_SECONDS", {"seconds": -1}),
        ("UNKNOWN_POLICY", {"purge": "never"}),
        ("BUFFER", {"buffer": "s3://"}),
        ("BUFFER", {"buffer": ""}),
        ("BUFFER", {"buffer": "hdfs://bucket/buffers"}),
    ],
)
def test_what_cannot_be_kept_is_refused(rule: str, arguments: dict[str, Any]) -> None:
    declared = {"schema": "n bigint", **arguments}
    assert [found for found, _, _ in dm.ReplayableStart(**declared).problems("operator-driven")] == [rule]


@pytest.mark.seed("E27")
def test_a_bucket_may_have_the_buffer_and_a_thread_keeps_its_own() -> None:
    class Ticks(dm.StartHandler):
        def run(self, context: Any) -> None:
            """End at once."""

    buffer = "s3://bucket/buffers/"
    assert list(dm.ReplayableStart(schema="n bigint", buffer=buffer).problems("operator-driven")) == []
    found = dm.ThreadedStart(handler=Ticks, schema="n bigint", buffer=buffer).problems("operator-driven")
    assert "BUFFER" in [rule for rule, _, _ in found]
