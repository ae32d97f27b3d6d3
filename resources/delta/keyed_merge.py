"""A merge by key, as `deltalake` makes it: null keys are equal, and the version rises whatever it changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drainmark.resources.delta import commits
from drainmark.resources.delta.merge import KEEP_COLUMN, quoted

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class KeyedMerge:
    """One merge on a table object that was checked, and that is not refreshed before it commits.

    Attributes:
        opened: the table.
        region: whose commit it is.
        version: that the commit brings the table to; None for a table outside of regions.
        keys: key columns.
    """

    opened: Any
    region: str
    version: int | None
    keys: Sequence[str]

    def upsert(self, rows: pa.Table) -> None:
        """Let rows replace the rows of their keys, or be added; a commit all the same where there are none."""
        before = self.opened.version()
        if rows.num_rows:
            self.replace(rows)
        self._commit_empty(before)

    def replace(self, rows: pa.Table) -> None:
        """Let rows replace the rows of their keys, or be added."""
        values = _values(rows.column_names)
        self._merger(rows).when_matched_update(values).when_not_matched_insert(values).execute()

    def restore(self, rows: pa.Table) -> None:
        """Let the rows that are marked keep replace those of their keys, and delete the keys of the others."""
        before = self.opened.version()
        if rows.num_rows:
            values = _values([name for name in rows.column_names if name != KEEP_COLUMN])
            keep = f"source.{KEEP_COLUMN}"
            merger = self._merger(rows).when_matched_update(values, predicate=keep)
            merger = merger.when_matched_delete(predicate=f"NOT {keep}")
            merger.when_not_matched_insert(values, predicate=keep).execute()
        self._commit_empty(before)

    def _commit_empty(self, before: int) -> None:
        """A merge that changes nothing commits nothing: the version must rise all the same."""
        if self.opened.version() == before:
            commits.transact(self.opened, self.region, self.version)

    def _merger(self, source: pa.Table) -> Any:
        # Without the parentheses the parser takes "a IS NOT DISTINCT FROM (b AND …)".
        same = " AND ".join(f"(target.{quoted(key)} IS NOT DISTINCT FROM source.{quoted(key)})" for key in self.keys)
        return self.opened.merge(
            source,
            same,
            source_alias="source",
            target_alias="target",
            **commits.properties(self.region, self.version),
        )


def _values(columns: Iterable[str]) -> dict[str, str]:
    return {quoted(column): f"source.{quoted(column)}" for column in columns}
