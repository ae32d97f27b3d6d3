"""A region that a test feeds by hand: real tables and owner, no Spark; the test gives the results of functions.

It has one append table `lake/<table>` with the columns `value` and `_sequence_id`; a file has the values of its rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from harness import LONG_AGO

from drainmark.jobs import world
from drainmark.jobs.protocol.claimed_code import NO_CODE, Code
from drainmark.jobs.protocol.history import Outcome, RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import RowKind
from drainmark.jobs.protocol.records.manifest import Image, RegionTable, TableRole
from drainmark.jobs.protocol.records.triggers import NewTrigger, Trigger
from drainmark.jobs.protocol.rewind_steps import Rewind, TableStep, TriggersReturn
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.jobs.runtime.commit.replacement import one_of_each
from drainmark.jobs.runtime.commit.staged_group import StagedGroup, StagedTable
from drainmark.jobs.runtime.input.inbox import Assigned, Group
from drainmark.jobs.scan.folder import identity_key, identity_of, uri_of
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.workplace.workplace import Workplace

_COLUMNS = {"value": "string", "_sequence_id": "long"}
SCHEMA_JSON = json.dumps(
    {
        "type": "struct",
        "fields": [{"name": n, "type": kind, "nullable": True, "metadata": {}} for n, kind in _COLUMNS.items()],
    }
)
_ARROW = pa.schema([("value", pa.string()), ("_sequence_id", pa.int64())])


class _Crash(Exception):
    """An exception that stands for the end of a process."""


@dataclass
class HandFed:
    """A region of append tables in its own home.

    Attributes:
        code: the code that claims the region; none by default, as for a verb.
    """

    workplace: Workplace
    inbox: Path
    region: str = "by_hand/files"
    names: tuple[str, ...] = ("kept",)
    code: Code = NO_CODE
    owner: RegionOwner = field(init=False, repr=False)

    @property
    def tables(self) -> tuple[RegionTable, ...]:
        return tuple(
            RegionTable(name=f"lake/{name}", role=TableRole.APPEND, operator=name, schema_json=SCHEMA_JSON)
            for name in self.names
        )

    def history(self) -> RegionHistory:
        return self.workplace.history(self.region)

    def write(self, name: str, values: Sequence[str]) -> Path:
        """Write a file of values, one on each line, with an old modification time."""
        self.inbox.mkdir(parents=True, exist_ok=True)
        path = self.inbox / name
        path.write_text("".join(f"{value}\n" for value in values))
        os.utime(path, (LONG_AGO, LONG_AGO))
        return path

    def add(self, *names: str) -> None:
        """Note files as pending triggers, as a scan does."""
        new = []
        for name in names:
            identity = identity_of((self.inbox / name).stat())
            key = identity_key(identity)
            new.append(NewTrigger(uri=uri_of(str(self.inbox / name)), identity=identity, identity_key=key,
                                  size_bytes=int(identity["size"])))  # fmt: skip
        self.workplace.registry.triggers.add(self.region, new)

    @contextmanager
    def owning(self) -> Iterator[RegionOwner]:
        """Claim, and release at the end. An error in the block is a crash: nothing is noted, and the lease is free."""
        self.owner = region_owner(self.workplace, self.region)
        try:
            self.owner.claim(self.tables, self.code)
            self.owner.reset_done()
            yield self.owner
        except BaseException:
            self.owner.leave()
            raise
        self.owner.release(Outcome.CLEAN)

    def values_of(self, trigger: Trigger) -> Sequence[str]:
        """Return the values that a trigger's input has now."""
        return Path(trigger.uri).read_text().splitlines()

    def group(self, count: int) -> StagedGroup:
        """Assign ids to the next pending files, and stage their rows, the same in every table."""
        registry = self.workplace.registry
        pending = self.next(count)
        first = registry.progress.take_ids(self.region, self.owner.epoch, len(pending))
        members = tuple(Assigned(sequence_id=first + i, trigger=trigger) for i, trigger in enumerate(pending))
        group = Group(members=members, epoch=self.owner.epoch, attempt=world.token())
        found = [(v, m.sequence_id) for m in members for v in self.values_of(m.trigger)]
        rows = pa.Table.from_pylist([{"value": v, "_sequence_id": n} for v, n in found], schema=_ARROW)
        staged = {}
        for table in (table for table in self.tables if not table.is_derived):
            area = self.workplace.store(self.region).staging(table, group.epoch, group.attempt)
            files = area.write(rows, "rows") if rows.num_rows else ()
            staged[table.name] = StagedTable(files=files, rows=rows, frame=None)  # type: ignore[arg-type]
        counts = {m.sequence_id: sum(n == m.sequence_id for _, n in found) for m in members}
        return StagedGroup(
            group=group, rows_in=counts, tables=staged, lookups={}, process_seconds=0.25, drain_seconds=0.25,
            upserts=tuple(table.name for table in self.tables if table.is_derived),
        )  # fmt: skip

    def next(self, count: int) -> Sequence[Trigger]:
        """Return the triggers of the next group of at most `count`."""
        return one_of_each(self.workplace.registry.triggers.pending(self.region, count))

    def process(self, count: int) -> None:
        """Commit and publish one group."""
        row = self.owner.groups.commit(self.group(count))
        self.owner.groups.publish(row)

    def drain(self, size: int = 1) -> None:
        """Process all pending files in groups of a size, as one run."""
        with self.owning():
            while self.workplace.registry.pending_count(self.region):
                self.process(size)

    def crash_after(self, groups: int) -> None:
        """Process so many groups of one file, and end as a crashed process does."""
        with suppress(_Crash), self.owning():
            for _ in range(groups):
                self.process(1)
            raise _Crash

    def steps_done(self) -> tuple[TableStep | TriggersReturn, ...]:
        """Return the steps of the newest rewind, as the owner that rolls it forward reads them."""
        rows = self.workplace.store(self.region).checkpoint.rows()
        return Rewind.from_row([row for row in rows if row.kind is RowKind.REWIND][-1]).steps

    def values(self, table: str | None = None) -> list[tuple[int, str]]:
        """Return the visible rows as sorted (id, value)."""
        found = self.workplace.store(self.region).table(f"lake/{table or self.names[0]}").read().to_pylist()
        return sorted((row["_sequence_id"], row["value"]) for row in found)


class Counting(HandFed):
    """A hand-fed region that also keeps the last id of each value: a history, and the visible table merged from it."""

    @property
    def tables(self) -> tuple[RegionTable, ...]:
        rows = super().tables
        state = RegionTable(name="state/by_hand/last", role=TableRole.CHANGES, operator="last",
                            schema_json=rows[0].schema_json, keys=("value",))  # fmt: skip
        visible = RegionTable(
            name="lake/last", role=TableRole.UPSERT, operator="sink", schema_json=rows[0].schema_json,
            keys=("value",), history=state.name, columns=("value", "_sequence_id"),
        )  # fmt: skip
        return (*rows, state, visible)

    def group(self, count: int) -> StagedGroup:
        """Stage each value once for each id in the history; nothing for the visible table, which is merged."""
        staged = super().group(count)
        tables = dict(staged.tables)
        whole = tables.pop("state/by_hand/last").rows
        assert whole is not None
        once = whole.group_by(["value", "_sequence_id"]).aggregate([])
        area = self.workplace.store(self.region).staging("state/by_hand/last", staged.group.epoch, staged.group.attempt)
        files = area.write(once.select(["value", "_sequence_id"]), "once")
        tables["state/by_hand/last"] = StagedTable(files=files, rows=once, frame=None)  # type: ignore[arg-type]
        return StagedGroup(group=staged.group, rows_in=staged.rows_in, tables=tables, lookups={},
                           process_seconds=0.0, drain_seconds=0.0, upserts=("lake/last",))  # fmt: skip


class Imaged(Counting):
    """A counting region that has an image of its state with every group."""

    def group(self, count: int) -> StagedGroup:
        staged = super().group(count)
        name = "state/by_hand/last"
        state = staged.tables[name]
        assert state.rows is not None
        last = {row["value"]: row["_sequence_id"] for row in [*self.before, *state.rows.to_pylist()]}
        self.before = [{"value": value, "_sequence_id": number} for value, number in last.items()]
        area = self.workplace.store(self.region).staging(name, staged.group.epoch, staged.group.attempt)
        files = area.write(pa.Table.from_pylist(self.before), "image")
        image = Image(table=name, at=staged.group.last_id, files=files)
        return replace(staged, tables={**staged.tables, name: replace(state, image=image)})

    before: Sequence[dict[str, Any]] = ()


@dataclass
class Shown(HandFed):
    """A hand-fed region with more sinks, without keys and with a history: in a database, in files, overwritten.

    Attributes:
        sinks: the names of the declared sinks.
    """

    sinks: tuple[str, ...] = ("rows", "files", "newest")

    @property
    def tables(self) -> tuple[RegionTable, ...]:
        return (*super().tables, *(table for sink in self.sinks for table in self.of(sink)))

    def of(self, sink: str) -> tuple[RegionTable, RegionTable]:
        """Return the history of a sink, and its visible table."""
        name, role, external, options = _SHOWN[sink]
        history = RegionTable(
            name=f"state/by_hand/{sink}", role=TableRole.APPEND, operator=sink, schema_json=SCHEMA_JSON
        )
        shown = RegionTable(
            name=name, role=role, operator=sink, schema_json=SCHEMA_JSON, history=history.name,
            columns=("value", "_sequence_id"), external=external, options=options,
        )  # fmt: skip
        return history, shown

    def shown(self, sink: str) -> list[tuple[int, str]]:
        """Return the visible rows of a sink as sorted (id, value)."""
        found = self.workplace.store(self.region).open(self.of(sink)[1]).read().to_pylist()
        return sorted((row["_sequence_id"], row["value"]) for row in found)


_FILES = {"path": "{home}/out", "format": "json", "layout": "file", "name": "part-{sequence_id}"}
_SHOWN: dict[str, tuple[str, TableRole, str, dict[str, str]]] = {
    "rows": ("database/shop/rows", TableRole.COPY, "database", {"database": "shop", "table": "rows"}),
    "files": ("files/home/out", TableRole.COPY, "file", _FILES),
    "newest": ("lake/newest", TableRole.OVERWRITE, "", {}),
}
