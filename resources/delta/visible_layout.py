"""The layout of a region's table, by its role and its sink, and its properties."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.tasks.column_statistics import MOST_LEAVES
from drainmark.jobs.tasks.layout import Layout

STATISTICS_OF = "delta.dataSkippingStatsColumns"
_COUNT = "delta.dataSkippingNumIndexedCols"

OF_IDS = {STATISTICS_OF: SEQUENCE_ID}
"""Properties of a table that nobody reads but Drainmark, which asks for ids."""

_MERGED_RIGHT = ("byte", "short", "integer", "long", "date", "string")
"""Types of which `deltalake` tells the bounds rightly: of doubles it passes over NaN, decimals it rounds, and times
end a millisecond early."""

_PLAIN_NAME = re.compile(r"\w+", re.ASCII)


def layout_of(table: RegionTable) -> Layout:
    """Return how the files of a table are written by us; a plain table of one row a key is written by `deltalake`."""
    is_shown = table.is_managed and table.name.startswith("lake/")
    is_ours = table.role is not TableRole.UPSERT or is_laid_out(table)
    return Layout.from_options(table.options if is_shown else {}, has_statistics=is_shown and is_ours)


def is_laid_out(table: RegionTable) -> bool:
    """Say whether the sink of a table asks for partitions, or for an order."""
    return bool(table.options.get("partition_by") or table.options.get("cluster_by"))


def statistics_properties(table: RegionTable) -> Mapping[str, str]:
    """Return the properties by which engines know, and `deltalake` finds out, which columns have statistics."""
    fields = json.loads(table.schema_json)["fields"]
    if layout_of(table).has_statistics:  # engines look at the leading columns only, and `_sequence_id` may be the last
        count = sum(1 for field in fields for _ in _leaves(field["type"]))
        return {_COUNT: str(count)} if count > MOST_LEAVES else {}
    if table.role is not TableRole.UPSERT:
        return OF_IDS
    right = [field["name"] for field in fields[:MOST_LEAVES] if field["type"] in _MERGED_RIGHT]
    names = {name: None for name in right if _PLAIN_NAME.fullmatch(name)} | {SEQUENCE_ID: None}
    return {STATISTICS_OF: ",".join(names)}


def _leaves(kind: Any) -> Iterator[Any]:
    if isinstance(kind, dict) and kind["type"] == "struct":
        for field in kind["fields"]:
            yield from _leaves(field["type"])
    else:
        yield kind
