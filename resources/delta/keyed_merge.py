"""A merge by key with `deltalake`: for a table with several writers, since it detects commits of others.

All rows of the files that hold a changed key are in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from drainmark.jobs.frames.names import quoted_name
from drainmark.resources.delta import commits

if TYPE_CHECKING:
    import pyarrow as pa


def merge_by_key(opened: Any, region: str, rows: pa.Table, keys: Sequence[str]) -> None:
    """Merge rows, one for each key: they replace the rows of their keys, or are added; null keys are equal.

    Args:
        opened: the table, which is not refreshed before it commits.
        region: the owner of the commit.
    """
    # Without the parentheses the parser takes "a IS NOT DISTINCT FROM (b AND …)".
    same = " AND ".join(f"(target.{quoted_name(key)} IS NOT DISTINCT FROM source.{quoted_name(key)})" for key in keys)
    values = {quoted_name(column): f"source.{quoted_name(column)}" for column in rows.column_names}
    named = {"source_alias": "source", "target_alias": "target", **commits.properties(region, None)}
    opened.merge(rows, same, **named).when_matched_update(values).when_not_matched_insert(values).execute()
