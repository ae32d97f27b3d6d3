"""The layout of a region's table, by its role and its sink, and its properties."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.protocol.records.manifest import RegionTable
from drainmark.jobs.tasks.column_statistics import MOST_LEAVES
from drainmark.jobs.tasks.layout import Layout

STATISTICS_OF = "delta.dataSkippingStatsColumns"
_COUNT = "delta.dataSkippingNumIndexedCols"

OF_IDS = {STATISTICS_OF: SEQUENCE_ID}
"""Properties of a table that only Drainmark reads: it uses the statistics of ids only."""


def layout_of(table: RegionTable) -> Layout:
    """Return the layout of the files of a table."""
    is_shown = table.is_managed and table.name.startswith("lake/")
    return Layout.from_options(table.options if is_shown else {}, has_statistics=is_shown)


def statistics_properties(table: RegionTable) -> Mapping[str, str]:
    """Return the properties that tell engines which columns have statistics."""
    if layout_of(table).has_statistics:  # engines look at the leading columns only, and `_sequence_id` may be the last
        fields = json.loads(table.schema_json)["fields"]
        count = sum(1 for field in fields for _ in _leaves(field["type"]))
        return {_COUNT: str(count)} if count > MOST_LEAVES else {}
    return OF_IDS


def _leaves(kind: Any) -> Iterator[Any]:
    if isinstance(kind, dict) and kind["type"] == "struct":
        for field in kind["fields"]:
            yield from _leaves(field["type"])
    else:
        yield kind
