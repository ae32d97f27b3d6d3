"""Regions fed by hand from which files are retracted, and the tables that they must have then.

The oracle is a run over the other files: of each table it has the rows by file, and of a keyed one the last row a key.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from by_hand import HandFed

from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import RowKind
from drainmark.jobs.protocol.records.manifest import Image, RegionTable, TableRole
from drainmark.jobs.protocol.records.triggers import RETRACTION, RETRACTS
from drainmark.jobs.runtime.commit.staged_group import StagedGroup, StagedTable
from drainmark.jobs.state.keyed_rows import RowsPerKey
from drainmark.resources.checkpoints.as_of import RegionReader

DATABASES = {"shop": "sqlite:///{home}/shop.db"}
_KEYED = json.dumps({"type": "struct", "fields": [
    {"name": name, "type": kind, "nullable": True, "metadata": {}}
    for name, kind in (("key", "string"), ("value", "string"), ("_sequence_id", "long"))
]})  # fmt: skip


class Keyed(HandFed):
    """A region with upsert sinks of rows, in Delta and in a database: the key of a value is its first letter."""

    has_images = False
    """Whether each group makes images of the histories, so that their changes can be dropped."""

    @property
    def tables(self) -> tuple[RegionTable, ...]:
        return (*super().tables, *self._sink("newest", "lake/newest"),
                *self._sink("stock", "database/shop/stock", external="database",
                            options={"database": "shop", "table": "stock"}))  # fmt: skip

    def _sink(self, operator: str, name: str, **more: Any) -> tuple[RegionTable, RegionTable]:
        history = RegionTable(name=f"state/by_hand/{operator}", role=TableRole.CHANGES, operator=operator,
                              schema_json=_KEYED, keys=("key",))  # fmt: skip
        return history, RegionTable(
            name=name, role=TableRole.UPSERT, operator=operator, schema_json=_KEYED, keys=("key",),
            history=history.name, columns=("key", "value", "_sequence_id"), **more,
        )  # fmt: skip

    def group(self, count: int) -> StagedGroup:
        staged = super().group(count)
        tables = {table.name: staged.tables[table.name] for table in super().tables}
        rows = next(iter(tables.values())).rows
        assert rows is not None
        last = {(row["_sequence_id"], row["value"][0]): row["value"] for row in rows.to_pylist()}
        changes = pa.Table.from_pylist(
            [{"key": key, "value": value, "_sequence_id": number} for (number, key), value in last.items()],
            schema=pa.schema([("key", pa.string()), ("value", pa.string()), ("_sequence_id", pa.int64())]),
        )
        for table in self.tables:
            if table.role is TableRole.CHANGES:
                area = self.workplace.store(self.region).staging(table, staged.group.epoch, staged.group.attempt)
                files = area.write(changes, "rows") if changes.num_rows else ()
                image = None
                if self.has_images:
                    kept = self.workplace.store(self.region).table(table.name).read()
                    rows = pa.concat_tables([kept, changes], promote_options="default")
                    whole = area.write(RowsPerKey(("key",)).last(rows), "image")
                    image = Image(table=table.name, at=staged.group.last_id, files=whole)
                tables[table.name] = StagedTable(files=files, rows=changes, image=image)
        return StagedGroup(group=staged.group, rows_in=staged.rows_in, tables=tables, lookups={},
                           process_seconds=0.0, drain_seconds=0.0, upserts=staged.upserts)  # fmt: skip

    def newest(self, name: str) -> dict[str, str]:
        table = next(each for each in self.tables if each.name == name)
        found = self.workplace.store(self.region).open(table).read().to_pylist()
        assert all("_gone" not in row for row in found)
        return {row["key"]: row["value"] for row in found}


def files_at(history: RegionHistory, at: int) -> list[tuple[int, str]]:
    """Return the ids and files that count at an id: those of the states in force, without the retracted ones."""
    found: dict[int, str] = {}
    for number, row in history.states.items():
        if number > at or row.kind is not RowKind.STATE:
            continue
        if row.trigger_kind == RETRACTION:
            del found[(row.trigger_identity or {})[RETRACTS]]
        else:
            found[number] = row.trigger_uri or ""
    return sorted(found.items())


def check(fed: HandFed, *, since: int = 0) -> None:
    """Compare all tables with the oracle, now and at every state in force, beginning with one."""
    history, reader = fed.history(), RegionReader(fed.workplace.settings, fed.region)
    for at in (each for each in (0, *history.states) if each >= since):
        rows = [(n, value) for n, uri in files_at(history, at) for value in Path(uri).read_text().splitlines()]
        last = {value[0]: value for _, value in rows}
        for table in fed.tables:
            if table.role is TableRole.APPEND:
                shown = reader.as_of(table.name, at).to_pylist()
                assert sorted((row["_sequence_id"], row["value"]) for row in shown) == sorted(rows), (table.name, at)
            elif table.role is TableRole.UPSERT:
                shown = reader.as_of(table.name, at).to_pylist()
                assert {row["key"]: row["value"] for row in shown} == last, (table.name, at)
    for table in fed.tables:
        if table.role is TableRole.APPEND:
            assert fed.values(table.name.removeprefix("lake/")) == sorted(rows)
        elif table.role is TableRole.UPSERT:
            assert isinstance(fed, Keyed)
            assert fed.newest(table.name) == last
