"""The tables of a region, for `trace`: rows of an id, and the version that shows a state; no Spark."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import UnknownName, UsageError
from drainmark.jobs.formats.values.far_times import python_rows
from drainmark.jobs.frames.arrow import delta_schema
from drainmark.jobs.graph.application import nearest
from drainmark.jobs.protocol.history import RegionHistory, manifest_of
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, PublishNote, RowKind
from drainmark.jobs.protocol.records.ids import txn_version
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.protocol.row_conditions import Condition
from drainmark.resources.checkpoints.as_of import called, committed_files
from drainmark.resources.erasure.conditions import is_one_of, value_of

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.resources.checkpoints.region_store import RegionTables

_SEQUENCE_ID = "_sequence_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedTables:
    """The tables of one region, as of one read of its checkpoint table.

    Attributes:
        limit: number of rows that are shown of each table.
    """

    store: RegionTables
    rows: Sequence[CheckpointRow]
    history: RegionHistory
    limit: int

    def called(self, name: str) -> RegionTable:
        """Return the table that a name means.

        Raises:
            UnknownName: there is none.
        """
        found = called(self.history.tables, name)
        if found is not None:
            return found
        known = [table.name.removeprefix("lake/") for table in self.history.tables]
        raise UnknownName(f"region {self.store.region!r} has no table {name!r}", remedy=nearest(name, known))

    def meant(self, table: RegionTable, where: Sequence[Condition]) -> pa.Table:
        """Return the rows of a table for which all of some conditions hold."""
        return self._read(table, where_of(table, where))

    def changes(self, table: RegionTable, rows: pa.Table) -> set[int]:
        """Return the ids of all changes, as far as they are kept, of the keys in some rows."""
        import numpy as np
        import pyarrow as pa

        from drainmark.jobs.state.keyed_rows import key_codes

        source = self.store.table(table.history or table.name)
        changes = source.read([*table.keys, _SEQUENCE_ID])
        of_changes, of_rows = key_codes([changes, rows], table.keys)
        mine = changes.filter(pa.array(np.isin(of_changes, of_rows)))
        return set(mine.column(_SEQUENCE_ID).to_pylist())

    def sinks(self, row: CheckpointRow) -> list[dict[str, Any]]:
        """Return, for each table, the version that shows a state and the rows of that state."""
        versions = self._versions(row)
        entries = []
        for table in self.history.tables:
            of_id = self._of_id(table, row.sequence_id)
            entries.append(
                {
                    "table": table.name,
                    "role": table.role.value,
                    "operator": table.operator,
                    "version": versions.get(table.name),
                    "rows": of_id.num_rows,
                    "changed": self._changed(table, row.sequence_id),
                    "sample": python_rows(of_id.slice(0, self.limit)),
                }
            )
        return entries

    def _changed(self, table: RegionTable, number: int) -> int | None:
        """Return how many keys a state changed in a table of one row per key; later states may have changed them."""
        if table.role is not TableRole.UPSERT or table.history is None:
            return None
        history = next(each for each in self.history.tables if each.name == table.history)
        return int(self._of_id(history, number).num_rows)

    def _versions(self, row: CheckpointRow) -> Mapping[str, int]:
        """Return the Delta versions noted after the group of a row; the present ones if none are noted yet.

        A table to which the group wrote nothing has nothing to publish: it is unchanged.
        """
        last = row.group_last if row.group_last is not None else row.sequence_id
        noted: dict[str, int] = {}
        for later in self.rows:
            if later.kind is not RowKind.PUBLISHED:
                continue
            note = PublishNote.from_row(later)
            noted |= note.versions
            is_later = (later.epoch, later.sequence_id) >= (row.epoch, row.sequence_id)
            if is_later and note.through >= last:
                return noted | self._untouched(last, noted)
        mine = txn_version(row.epoch, last)
        tables = {table.name: self.store.open(table) for table in self.history.tables}
        found = {name: table.delta_version() for name, table in tables.items() if (table.txn_version() or 0) >= mine}
        return self._untouched(last, noted) | found

    def _untouched(self, last: int, noted: Mapping[str, int]) -> dict[str, int]:
        """Return the versions of the tables to which a group wrote nothing; the present one if none was noted."""
        group = self.history.states.rows.get(last)
        manifest = manifest_of(group) if group is not None else None
        touched = {name for name, files in manifest.files.items() if files} if manifest is not None else set()
        return {
            table.name: noted[table.name] if table.name in noted else self.store.open(table).delta_version()
            for table in self.history.tables
            if not touched & {table.name, table.history}
        }

    def _of_id(self, table: RegionTable, number: int) -> pa.Table:
        import pyarrow.compute as pc

        return self._read(table, pc.field(_SEQUENCE_ID) == number)

    def _read(self, table: RegionTable, where: pa.compute.Expression | None) -> pa.Table:
        """Return rows of a table, also of a group that is committed and not published yet."""
        if not table.is_managed:
            return self.store.open(table).read(table.column_names, where)
        managed = self.store.table(table.name)
        if table.is_derived:
            return managed.read(None, where)
        committed = committed_files(self.store, self.history, table.name)
        return managed.files.read(committed, where)


def where_of(table: RegionTable, where: Sequence[Condition]) -> pa.compute.Expression | None:
    """Return the condition for the rows of a table, whose values are read as the columns' types."""
    import pyarrow as pa

    schema = pa.schema(delta_schema(table.schema_json))
    found: list[pa.compute.Expression] = []
    for each in where:
        if each.column not in schema.names:
            raise UnknownName(
                f"table {table.name} has no column {each.column!r}", remedy=nearest(each.column, table.column_names)
            )
        kind = schema.field(each.column).type
        found.append(functools.reduce(operator.or_, (_is(table, each.column, kind, text) for text in each.values)))
    return functools.reduce(operator.and_, found) if found else None


def _is(table: RegionTable, column: str, kind: pa.DataType, text: str) -> pa.compute.Expression:
    """Return the condition that a column has the value that a text means in its type."""
    import pyarrow.compute as pc

    value = value_of(text, kind)
    if text == "null":
        return pc.field(column).is_null() if value is None else pc.field(column).is_null() | (pc.field(column) == value)
    if value is None:
        msg = f"{text!r} is no value of {table.name}.{column}, which is {kind}"
        raise UsageError(msg, remedy="times as 2026-01-31T12:00:00, dates as 2026-01-31")
    return is_one_of(column, [value], kind)
